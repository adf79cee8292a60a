// From a difference of timestamps to a row of the time table: bucket(d) = number of thresholds <= |d|, exact.
#pragma once

#include <cstdint>
#include <vector>

namespace warploom::cpu {

/// A search index over the thresholds. Small differences (< 2^31) go through `cells`: an eighth of an octave each,
/// named by exponent and leading mantissa bits of the difference as a float; cells[c] thresholds are <= the cell's
/// lower end.
class TimeBuckets {
 public:
  static constexpr int kCellShift = 20;  // bits of a float below the three leading mantissa bits
  static constexpr int kCellBase = (127 << 3) - 1;
  static constexpr int kCells = 31 * 8 + 2;

  /// thresholds: entries - 1 of them, or null for the default, ceil(e^(0.301 n)).
  void build(const int64_t* thresholds, int64_t entries);

  /// |a - b| without overflow.
  static uint64_t distance(int64_t a, int64_t b) {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return a > b ? x - y : y - x;
  }

  int bucket(uint64_t distance) const;

  const int* cells() const { return cells_; }
  /// Thresholds below 2^31, then INT32_MAX once: what a small difference is compared with.
  const int* small_thresholds() const { return small_.data(); }
  /// Most thresholds strictly inside one cell.
  int steps() const { return steps_; }

 private:
  std::vector<uint64_t> thresholds_;
  std::vector<int> small_;
  int cells_[kCells] = {};
  int steps_ = 0;
};

}  // namespace warploom::cpu
