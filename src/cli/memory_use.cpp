#include "cli/memory_use.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace warploom::cli {
namespace {

/// A line of /proc/self/status in bytes, -1 when it is missing.
std::int64_t status_line(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != name + ":") continue;
    std::int64_t kibibytes = 0;
    return status >> kibibytes ? kibibytes * 1024 : -1;
  }
  return -1;
}

}  // namespace

PeakMemory::PeakMemory() {
#if defined(__GLIBC__)
  malloc_trim(0);  // memory that was freed but kept would hide what is taken from it
#endif
  std::ofstream clear("/proc/self/clear_refs");  // proc(5): 5 sets VmHWM back
  clear << "5" << std::flush;
  if (clear) start_ = status_line("VmRSS");
}

std::optional<std::int64_t> PeakMemory::bytes() const {
  const std::int64_t peak = status_line("VmHWM");
  if (start_ < 0 || peak < 0) return std::nullopt;
  return std::max<std::int64_t>(peak - start_, 0);
}

}  // namespace warploom::cli
