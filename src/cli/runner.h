// Runs a problem's call on a device, whatever memory that needs.
#pragma once

#include <memory>

#include "cli/devices.h"
#include "cli/problem.h"

namespace warploom::cli {

/// A problem on a device. On the CPU the problem's own memory is used; on a GPU its buffers are copied there when the
/// runner is made, and results come back with fetch(). The problem outlives the runner.
class Runner {
 public:
  static Result<Runner> make(Problem& problem, const Device& device, bool backward);
  Runner(Runner&&) noexcept;
  Runner& operator=(Runner&&) noexcept;
  ~Runner();

  /// Runs one pass and waits for it; milliseconds of the device's own work (GPU: between two events).
  Result<double> run(bool backward);
  /// Results into the problem's memory.
  Status fetch();
  /// The call on the host's memory, for the reference, and the one that run() makes on the device's.
  const warploom_attention& host_call(bool backward) const;
  const warploom_attention& device_call(bool backward) const;

 private:
  struct State;
  explicit Runner(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace warploom::cli
