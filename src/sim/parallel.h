// Independent pieces of work on all cores, with progress and a way to stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace warploom::sim {

struct Control {
  unsigned threads = 0;                                  ///< 0: one a core
  const std::atomic<bool>* stop = nullptr;               ///< when it becomes true, pieces not yet begun are left out
  std::function<void(std::int64_t done)> progress = {};  ///< called by the calling thread only, now and then
};

/// Calls work(i) for every i in [0, count), each once, from several threads in increasing order of begin. `work` must
/// not throw. Returns how many were done: all, or fewer when stopped.
std::int64_t for_each_index(std::int64_t count, const Control& control, const std::function<void(std::int64_t)>& work);

}  // namespace warploom::sim
