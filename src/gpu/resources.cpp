#include "gpu/resources.h"

#include <charconv>

namespace warploom::gpu {
namespace {

// The number in front of `unit` in a line of ptxas, e.g. "Used 40 registers"; `otherwise` when the line has none.
int number_before(std::string_view line, std::string_view unit, int otherwise) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return otherwise;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = otherwise;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

std::string_view next_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace

// ptxas writes, for each kernel:
//   ptxas info    : Compiling entry function 'NAME' for 'sm_80'
//   ptxas info    : Function properties for NAME
//   ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//   ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem, 368 bytes cmem[0]
KernelResources parse_resources(std::string_view log, std::string_view kernel_name) {
  KernelResources resources;
  std::string quoted(1, '\'');
  quoted.append(kernel_name).push_back('\'');
  bool of_this_kernel = false;
  while (!log.empty()) {
    const std::string_view line = next_line(log);
    if (line.find("Potential Performance Loss") != std::string_view::npos) {
      resources.performance_warnings.emplace_back(line);
    } else if (line.find("Compiling entry function") != std::string_view::npos) {
      of_this_kernel = line.find(quoted) != std::string_view::npos;
    } else if (of_this_kernel) {
      resources.stack_bytes = number_before(line, " bytes stack frame", resources.stack_bytes);
      resources.spill_store_bytes = number_before(line, " bytes spill stores", resources.spill_store_bytes);
      resources.spill_load_bytes = number_before(line, " bytes spill loads", resources.spill_load_bytes);
      resources.barriers = number_before(line, " barriers", resources.barriers);
      resources.static_shared_bytes = number_before(line, " bytes smem", resources.static_shared_bytes);
      if (line.find(" registers") != std::string_view::npos && line.find("Used ") != std::string_view::npos) {
        resources.known = true;
        resources.registers = number_before(line, " registers", resources.registers);
      }
    }
  }
  return resources;
}

}  // namespace warploom::gpu
