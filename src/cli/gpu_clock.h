// Times of work on a GPU, by events.
#pragma once

#include <functional>

#include "gpu/driver.h"
#include "warploom/status.h"

namespace warploom::cli {

/// Two events. The device's context is current for all of its life.
class GpuClock {
 public:
  explicit GpuClock(const gpu::Driver& driver) : driver_(driver) {}
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;
  ~GpuClock();

  /// Milliseconds a call of `calls` in a row on the default stream. `call` queues the work.
  Result<double> time(const std::function<Status()>& call, int calls);
  /// How many calls fill `milliseconds`; the first call, which may compile, is not looked at.
  Result<int> calls_in(const std::function<Status()>& call, double milliseconds);

 private:
  const gpu::Driver& driver_;
  gpu::EventHandle events_[2] = {};
};

}  // namespace warploom::cli
