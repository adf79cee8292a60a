// Buckets of differences of timestamps in the Hopper kernels: cells that have at most one threshold inside, and what a
// tile says of a warp's differences.
#pragma once

#include "attention/bias_times.h"
#include "attention/bucketed_layout.h"

namespace warploom {

/// How a warp's part of a key tile gets its times: its lowest and its highest bucket, 8 bits each, and flags.
using TimesSeen = unsigned;
inline constexpr TimesSeen kLaterColumns = 1u << 16;  ///< columns have later times than rows
inline constexpr TimesSeen kLooksUpTimes = 1u << 17;  ///< element by element; also where R may be -inf
inline constexpr TimesSeen kWideTimes = 1u << 18;     ///< times relative to the first column's do not fit an int

/// What differs from launch to launch only.
struct BucketedTables {
  unsigned long long thresholds[kMostTimes + 1];  ///< the largest number there is after the last one
  unsigned char reached[kTimeCells];              ///< thresholds that a cell's smallest difference reaches
};
static_assert(sizeof(BucketedTables) <= kBucketedTablesBytes);

/// Cells are counted from that of 0.
inline constexpr unsigned kCellOfZero = (127u << 2) - 1;
__device__ __forceinline__ int cell_of_float(float difference) {
  return static_cast<int>(max(__float_as_uint(difference) >> 21, kCellOfZero) - kCellOfZero);
}
__device__ __forceinline__ int time_cell(unsigned difference) {
  return cell_of_float(__uint2float_rz(difference));
}
__device__ __forceinline__ int time_cell(unsigned long long difference) {
  return cell_of_float(__ull2float_rz(difference));
}
/// The smallest difference of a cell but the first.
__device__ __forceinline__ unsigned long long first_of_cell(int cell) {
  return __float2ull_ru(__uint_as_float((cell + kCellOfZero) << 21));
}

}  // namespace warploom
