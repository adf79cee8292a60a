// What varies between attention kernels besides sizes: the score function and the form of the bias.
#pragma once

#include "geometry/host_device.h"

namespace warploom {

/// A when Condition, else B.
template <bool Condition, typename A, typename B>
struct Either {
  using Type = A;
};
template <typename A, typename B>
struct Either<false, A, B> {
  using Type = B;
};

enum class ScoreKind : int { silu, softmax };

enum class BiasKind : int {
  none,
  rows16,    ///< dense or packed, in q's 16-bit type
  rows32,    ///< dense or packed, float32
  bucketed,  ///< from tables, by position and time
};

/// Shared memory of a bucketed bias (bias_bucketed.h): the time table's 128 thresholds, twice, and 129 values; and for
/// each warp 8 bytes a row and a column, 4 a diagonal.
inline constexpr int kStagedTimes = 129;
inline constexpr int kStagedTimesBytes = 2064;
WARPLOOM_HD constexpr int bucketed_warp_bytes(int tile_columns, int warp_rows) {
  return 12 * (tile_columns + warp_rows);
}
/// And where the kernel adds up the gradients of the tables (bias_table_totals.h): a warp's diagonals in eight rows,
/// the sums of a position table's ends a lane, of a time table's 132 entries, and what they belong to.
WARPLOOM_HD constexpr int table_totals_warp_bytes(int queries, int keys) {
  return 4 * (8 * (queries + keys + 8) + 2 * 32 + 132 + 4);
}

}  // namespace warploom
