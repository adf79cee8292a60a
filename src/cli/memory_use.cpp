#include "cli/memory_use.h"

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
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

std::optional<std::int64_t> in_child(const std::function<std::optional<std::int64_t>()>& work) {
  int ends[2];
  if (pipe(ends) != 0) return std::nullopt;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    std::int64_t answer = -1;
    try {
      answer = work().value_or(-1);
    } catch (const std::exception&) {  // no memory: the parent meets the same and reports it
    }
    const bool written = write(ends[1], &answer, sizeof answer) == sizeof answer;
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::int64_t answer = -1;
  const bool received = child > 0 && read(ends[0], &answer, sizeof answer) == sizeof answer;
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  if (!received || answer < 0) return std::nullopt;
  return answer;
}

}  // namespace warploom::cli
