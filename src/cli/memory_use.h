// How much memory this process uses at most while something runs.
#pragma once

#include <cstdint>
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

}  // namespace warploom::cli
