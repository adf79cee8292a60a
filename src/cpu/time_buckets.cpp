#include "cpu/time_buckets.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "geometry/time_buckets.h"

namespace warploom::cpu {
namespace {

constexpr uint64_t kSmall = uint64_t{1} << 31;

/// The smallest integer of a cell.
uint64_t cell_begin(int cell) {
  if (cell == 0) return 0;
  const auto bits = static_cast<uint32_t>(cell + TimeBuckets::kCellBase) << TimeBuckets::kCellShift;
  return static_cast<uint64_t>(std::ceil(static_cast<double>(std::bit_cast<float>(bits))));
}

}  // namespace

void TimeBuckets::build(const int64_t* thresholds, int64_t entries) {
  thresholds_.clear();
  if (thresholds != nullptr) {
    for (int64_t n = 1; n < entries; ++n) {
      thresholds_.push_back(static_cast<uint64_t>(std::max<int64_t>(0, thresholds[n - 1])));
    }
  } else {
    const auto& table = geometry::kTimeThresholds.values;
    thresholds_.assign(table, table + std::min<int64_t>(entries - 1, geometry::kDefaultTimeThresholds));
  }
  small_.clear();
  for (const uint64_t threshold : thresholds_) {
    if (threshold < kSmall) small_.push_back(static_cast<int>(threshold));
  }
  steps_ = 0;
  for (int cell = 0; cell < kCells; ++cell) {
    const auto reached = [&](uint64_t d) {
      return static_cast<int>(std::upper_bound(small_.begin(), small_.end(), d) - small_.begin());
    };
    cells_[cell] = reached(cell_begin(cell));
    if (cell + 1 < kCells && cell_begin(cell + 1) > cell_begin(cell)) {
      steps_ = std::max(steps_, reached(cell_begin(cell + 1) - 1) - cells_[cell]);
    }
  }
  small_.push_back(std::numeric_limits<int>::max());
}

int TimeBuckets::bucket(uint64_t distance) const {
  if (distance >= kSmall) {
    return static_cast<int>(std::upper_bound(thresholds_.begin(), thresholds_.end(), distance) - thresholds_.begin());
  }
  // The float must not round up into the next cell, so bits far below the cell's are cleared first.
  auto d = static_cast<uint32_t>(distance);
  if (d >= 1u << 24) d &= ~0x7fu;
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(d));
  int result = cells_[std::max(0, static_cast<int>(bits >> kCellShift) - kCellBase)];
  while (small_[result] <= static_cast<int>(distance) && result + 1 < static_cast<int>(small_.size())) ++result;
  return result;
}

}  // namespace warploom::cpu
