// How much memory this process uses at most while something runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace warploom::cli {

/// Starts a measurement: the system's record of the highest use is set back.
class PeakMemory {
 public:
  PeakMemory();
  /// Bytes in use at the highest point since, beyond those in use at the start; nothing where the system does not say.
  std::optional<std::int64_t> bytes() const;

 private:
  std::int64_t start_ = -1;
};

/// What `work` returns, run in a child process that is forked for it: one that has used no memory yet which the work
/// could use again. Nothing when the child fails. To be called before this process starts threads that last.
std::optional<std::int64_t> in_child(const std::function<std::optional<std::int64_t>()>& work);

}  // namespace warploom::cli
