// The times of a tile of columns beside those of a few rows, as a warp of a Hopper kernel's producer lays a bucketed
// bias out: how far apart they are, and so which buckets their differences can have.
#pragma once

#include "attention/bias_time_cells.h"

namespace warploom {

/// Values that differ by more than that lose digits when one is reached from the other by addition.
inline constexpr float kTameTimeValue = 64;

/// Thresholds, and the cells that reach them. One warp, once.
__device__ __forceinline__ void stage_thresholds(BucketedTables& tables, const TimeBuckets& buckets, int lane) {
#pragma unroll 1
  for (int n = lane; n <= kMostTimes; n += 32) tables.thresholds[n] = n < buckets.count ? buckets.at(n) : ~0ull;
  __syncwarp();
  const TimeBuckets staged{tables.thresholds, buckets.count, false};
#pragma unroll 1
  for (int cell = lane; cell < kTimeCells; cell += 32) {
    tables.reached[cell] = static_cast<unsigned char>(staged.bucket(cell == 0 ? 0 : first_of_cell(cell)));
  }
  __syncwarp();
}

/// The earliest and the latest one of `count` times.
__device__ __forceinline__ void extremes_of(const long long* times, int count, long long& earliest, long long& latest) {
  long long low = times[0], high = low;
#pragma unroll 1
  for (int n = 1; n < count; ++n) {
    low = min(low, times[n]);
    high = max(high, times[n]);
  }
  earliest = low;
  latest = high;
}

/// Whether the difference of two such numbers and a third one fits an int.
__device__ __forceinline__ bool is_near(long long time, long long origin) {
  return TimeBuckets::distance(time, origin) < 1ull << 30;
}

/// The times of a tile's columns.
struct TimeSpan {
  long long origin;  ///< the first column's
  long long from, to;
  bool near;  ///< all lie near it; else the two before mean nothing

  /// Of the differences to times between two others: in even lanes none is smaller, in odd ones none is larger.
  __device__ __forceinline__ unsigned long long farthest(long long earliest, long long latest, int lane) const {
    const auto between = [](long long a, long long b) -> unsigned long long {
      return a > b ? static_cast<unsigned long long>(a) - static_cast<unsigned long long>(b) : 0;
    };
    return lane % 2 == 0 ? between(earliest, to) | between(from, latest)
                         : max(between(latest, from), between(to, earliest));
  }
};

/// A lane's times, of every 32nd of `Columns` columns; they and relative ones are put into shared memory.
template <int Columns>
__device__ __forceinline__ TimeSpan put_times(const long long (&times)[(Columns + 31) / 32], long long* to,
                                              int* relative_to, int lane) {
  constexpr int kLoads = (Columns + 31) / 32;
  const auto has = [&](int n) { return Columns % 32 == 0 || lane + 32 * n < Columns; };
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    if (has(n)) to[lane + 32 * n] = times[n];
  }
  __syncwarp();
  TimeSpan span{to[0], 0, 0, true};
  int lowest = 0, highest = 0;
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    if (!has(n)) break;
    span.near &= is_near(times[n], span.origin);
    const int relative = static_cast<int>(times[n] - span.origin);
    lowest = min(lowest, relative);
    highest = max(highest, relative);
    relative_to[lane + 32 * n] = relative;
  }
  span.near = __all_sync(kAllLanes, span.near);
  span.from = span.origin + __reduce_min_sync(kAllLanes, lowest);
  span.to = span.origin + __reduce_max_sync(kAllLanes, highest);
  return span;
}

}  // namespace warploom
