#include "sim/parallel.h"

#include <algorithm>
#include <thread>
#include <vector>

namespace warploom::sim {

std::int64_t for_each_index(std::int64_t count, const Control& control, const std::function<void(std::int64_t)>& work) {
  std::atomic<std::int64_t> next{0}, done{0};
  const auto stopped = [&] { return control.stop != nullptr && control.stop->load(std::memory_order_relaxed); };
  const auto loop = [&](bool reports) {
    while (!stopped()) {
      const std::int64_t i = next.fetch_add(1);
      if (i >= count) return;
      work(i);
      const std::int64_t finished = done.fetch_add(1) + 1;
      if (reports && control.progress) control.progress(finished);
    }
  };
  const unsigned cores = control.threads > 0 ? control.threads : std::max(1u, std::thread::hardware_concurrency());
  const auto helpers = std::min<std::int64_t>(cores, std::max<std::int64_t>(count, 1)) - 1;
  std::vector<std::jthread> threads;
  for (std::int64_t t = 0; t < helpers; ++t) threads.emplace_back(loop, false);
  loop(true);
  threads.clear();  // joins
  if (control.progress) control.progress(done.load());
  return done.load();
}

}  // namespace warploom::sim
