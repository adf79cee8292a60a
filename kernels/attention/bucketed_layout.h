// What the Hopper kernels keep of a bucketed bias in shared memory: sizes that host and kernels agree on.
#pragma once

#include "geometry/host_device.h"

namespace warploom {

/// Differences of times fall into cells by the exponent and two more bits of their value as a float: one for 0, four
/// for each power of two.
inline constexpr int kTimeCells = 257;
/// Entries of a time table that are staged. A larger one is for mma.sync.
inline constexpr int kMostTimes = 129;
/// Thresholds, and those that each cell reaches (bias_time_cells.h).
inline constexpr int kBucketedTablesBytes = 8 * (kMostTimes + 1) + (kTimeCells + 15) / 16 * 16;

/// Floats of one copy of the position table's window: a lane reads pairs from one of two copies, and the odd multiple
/// of 16 keeps the copies in different banks.
WARPLOOM_HD constexpr int window_pitch(int rows, int columns) {
  return (rows + columns + 31) / 32 * 32 + 16;
}

}  // namespace warploom
