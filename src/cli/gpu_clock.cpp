#include "cli/gpu_clock.h"

#include <algorithm>

namespace warploom::cli {

GpuClock::~GpuClock() {
  for (gpu::EventHandle event : events_)
    if (event != nullptr) driver_.cuEventDestroy(event);
}

Result<double> GpuClock::time(const std::function<Status()>& call, int calls) {
  const auto check = [this](gpu::DriverResult result) {
    return gpu::driver_status(driver_, result, "timing a kernel");
  };
  for (gpu::EventHandle& event : events_) {
    if (event != nullptr) continue;
    if (Status status = check(driver_.cuEventCreate(&event, 0)); !status.ok()) return status;
  }
  if (Status status = check(driver_.cuEventRecord(events_[0], nullptr)); !status.ok()) return status;
  for (int i = 0; i < calls; ++i) {
    if (Status status = call(); !status.ok()) return status;
  }
  if (Status status = check(driver_.cuEventRecord(events_[1], nullptr)); !status.ok()) return status;
  if (Status status = check(driver_.cuEventSynchronize(events_[1])); !status.ok()) return status;
  float milliseconds = 0;
  if (Status status = check(driver_.cuEventElapsedTime(&milliseconds, events_[0], events_[1])); !status.ok())
    return status;
  return static_cast<double>(milliseconds) / calls;
}

Result<int> GpuClock::calls_in(const std::function<Status()>& call, double milliseconds) {
  const Result<double> first = time(call, 1);
  if (!first.ok()) return first.status();
  constexpr int kWarm = 3;
  const Result<double> warm = time(call, kWarm);
  if (!warm.ok()) return warm.status();
  return static_cast<int>(std::clamp(milliseconds / std::max(1e-3, *warm), 1.0, 10000.0));
}

}  // namespace warploom::cli
