// A process of its own for processes_test.cpp.
//   compile_process compile CACHE FACTOR [GATE]   compiles one kernel, once the file GATE exists
//   compile_process limited CACHE BYTES           compiles two kernels when no file may grow past BYTES
//   compile_process lock CACHE FACTOR             holds the lock of that kernel until it is ended
// The first line it writes ends the wait of the test; `compile` and `limited` write what was counted.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "gpu/cache.h"
#include "support.h"

using namespace warploom::gpu;

namespace {

int report(Compiler& compiler, bool ok) {
  const CompilerCounters counters = compiler.counters();
  const bool nvrtc_mapped = read_file("/proc/self/maps").find("libnvrtc.so") != std::string::npos;
  std::printf("ok=%d compiles=%d disk=%d damaged=%d nvrtc_mapped=%d\n", ok ? 1 : 0, static_cast<int>(counters.compiles),
              static_cast<int>(counters.disk_hits), static_cast<int>(counters.damaged_files), nvrtc_mapped ? 1 : 0);
  return ok ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  const std::string mode = arguments[1];
  const std::string cache = arguments[2];
  const int number = std::atoi(arguments[3]);
  if (mode == "lock") {
    const KeyLock lock = KeyLock::take(slot_of(cache, scale_request(number)), std::chrono::seconds(0));
    std::printf("held=%d\n", lock.held() ? 1 : 0);
    std::fflush(stdout);
    for (;;) ::pause();
  }
  Compiler compiler(test_options(cache));
  if (mode == "limited") {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{static_cast<rlim_t>(number), static_cast<rlim_t>(number)};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const bool ok = compiler.get(scale_request(1)).ok() && compiler.get(scale_request(2)).ok() &&
                    compiler.get(scale_request(1)).ok();
    return report(compiler, ok);
  }
  if (count > 4) {
    while (!std::filesystem::exists(arguments[4])) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto cubin = compiler.get(scale_request(number));
  if (!cubin.ok()) std::fprintf(stderr, "%s\n", cubin.status().message().c_str());
  return report(compiler, cubin.ok());
}
