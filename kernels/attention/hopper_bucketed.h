// A bucketed bias in the Hopper forward kernel: what a warp of the producer lays out in shared memory
// (hopper_bucketed_producer.h), and how a consumer's warp adds it to its scores.
//
// Positions run along diagonals: a lane's elements of a key tile lie on few of them, in pairs, and every pair serves
// two elements. The differences of a warp's rows' times and a tile's lie between two that are known; mostly both of
// these have one bucket, whose value goes with the positions. Where they are a few buckets apart, an element compares
// its column's time with its row's, for each threshold. Else it looks its difference up: the cell of a difference, from
// its exponent as a float and two more bits, has at most one threshold inside, since thresholds are a third apart.
#pragma once

#include "attention/bias_time_cells.h"
#include "attention/hopper_shared.h"

namespace warploom {

/// The differences that share an exponent and two bits of mantissa: R below a threshold and from it on.
struct alignas(16) TimeCell {
  unsigned long long threshold;
  float before, from;
};

/// What the head and the rows of an item need. Values as they are added to scores (Rows::bias_factor).
struct alignas(16) BucketedItem {
  TimeCell cells[kTimeCells];
  float table[kMostTimes + 3];
  long long row_times[kQueryRows];
  long long earliest[kQueryRows / kWarpRows], latest[kQueryRows / kWarpRows];  ///< of a warp's rows
};

inline constexpr int kMostCompared = 4;  ///< thresholds between the lowest and the highest bucket

/// What a key tile needs. window[0][x] is that of the elements whose column lies x - (kQueryRows - 1) behind their row,
/// both counted from the first one's; window[1][x] is that of x + 1.
struct alignas(16) BucketedTile {
  static constexpr int kDiagonals = kQueryRows + kKeys - 1;

  float window[2][window_pitch(kQueryRows, kKeys)];
  long long times[kKeys];
  int relative[kKeys];  ///< to the first column's, where that fits an int
  TimesSeen seen[kQueryRows / kWarpRows];

  /// Whether a warp of a consumer looks up times.
  __device__ __forceinline__ bool looks_up(int consumer) const {
    const uint4 of = *reinterpret_cast<const uint4*>(&seen[4 * consumer]);
    return ((of.x | of.y | of.z | of.w) & kLooksUpTimes) != 0;
  }
};
static_assert(!kBucketed || (sizeof(BucketedItem) == bucketed_item_bytes(kQueryRows) &&
                             sizeof(BucketedTile) == bucketed_tile_bytes(kQueryRows, kKeys)));

__device__ __forceinline__ BucketedTile& bucketed_tile(const Shared& shared, int stage) {
  return *reinterpret_cast<BucketedTile*>(shared.bytes + kMap.bias + stage * kMap.bias_stage_bytes);
}
__device__ __forceinline__ BucketedItem& bucketed_item(const Shared& shared, int slot) {
  return *reinterpret_cast<BucketedItem*>(shared.bytes + kMap.bias_items +
                                          slot * static_cast<int>(sizeof(BucketedItem)));
}
__device__ __forceinline__ BucketedTables& bucketed_tables(const Shared& shared) {
  return *reinterpret_cast<BucketedTables*>(shared.bytes + kMap.bias_tables);
}

/// Positions, and one value for all times, where a warp need not look times up: values of two neighbouring diagonals,
/// for pairs of a lane's columns from eight columns before its first ones on.
struct Diagonals {
  float2 pairs[kKeys / 8 + 1];
};

/// A lane's part of a bucketed R. row: its warp's first one in the item's tile.
struct BucketedReader {
  const AttentionCall& call;
  const BucketedTables& tables;
  const BucketedItem& item;
  const BucketedTile& tile;
  const int row, lane;

  __device__ __forceinline__ void read(Diagonals& values) const {
    const TimesSeen seen = tile.seen[row / kWarpRows];
    const float time = item.table[(seen & kLaterColumns) != 0 ? highest(seen) : lowest(seen)];
    const float2* const pairs = window();
#pragma unroll
    for (int n = -1; n < kKeys / 8; ++n) values.pairs[n + 1] = {pairs[4 * n].x + time, pairs[4 * n].y + time};
  }

  /// Adds R to the warp's scores.
  __device__ __forceinline__ void add(WarpgroupScores<kKeys>& s, const Diagonals& values) const {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      // Eight rows further down is eight columns to the left.
      const float2 upper = values.pairs[n + 1], lower = values.pairs[n];
      float(&c)[4] = s[0][n];
      c[0] = Rows::biased(c[0], upper.x, call);
      c[1] = Rows::biased(c[1], upper.y, call);
      c[2] = Rows::biased(c[2], lower.x, call);
      c[3] = Rows::biased(c[3], lower.y, call);
    }
    const TimesSeen seen = tile.seen[row / kWarpRows];
#pragma unroll 1
    for (int bucket = lowest(seen); bucket < highest(seen); ++bucket) compare(s, bucket, (seen & kLaterColumns) != 0);
  }

  /// The same where times may have to be looked up.
  __device__ __forceinline__ void look_up_or_add(WarpgroupScores<kKeys>& s) const {
    const TimesSeen seen = tile.seen[row / kWarpRows];
    if ((seen & kLooksUpTimes) != 0) {
      look_up(s, (seen & kWideTimes) != 0);
      return;
    }
    Diagonals values;
    read(values);
    add(s, values);
  }

 private:
  static __device__ __forceinline__ int lowest(TimesSeen seen) { return static_cast<int>(seen & 0xff); }
  static __device__ __forceinline__ int highest(TimesSeen seen) { return static_cast<int>(seen >> 8 & 0xff); }

  __device__ __forceinline__ const float2* window() const {
    const int diagonal = kQueryRows - 1 - row - lane / 4 + lane % 4 * 2;
    return reinterpret_cast<const float2*>(&tile.window[diagonal % 2][diagonal / 2 * 2]);
  }

  /// Adds the step from the one side of a threshold to the other for the columns with the earlier times.
  __device__ __forceinline__ void compare(WarpgroupScores<kKeys>& s, int bucket, bool later) const {
    const long long threshold = static_cast<long long>(tables.thresholds[bucket]), origin = tile.times[0];
    const float step = item.table[bucket + 1] - item.table[bucket], of_earlier = later ? -step : step;
    int limit[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long time = item.row_times[row + lane / 4 + 8 * half] - origin;
      const long long wide = later ? time + threshold - 1 : time - threshold;
      limit[half] = static_cast<int>(min(max(wide, -0x80000000ll), 0x7fffffffll));
    }
    const int2* const columns = reinterpret_cast<const int2*>(&tile.relative[lane % 4 * 2]);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      const int2 column = columns[4 * n];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (column.x <= limit[half]) s[0][n][2 * half] += of_earlier;
        if (column.y <= limit[half]) s[0][n][2 * half + 1] += of_earlier;
      }
    }
  }

  /// R of two neighbouring columns of each block of eight, in the rows' two halves.
  using Values = float2[kKeys / 8][2];

  /// Element by element.
  __device__ __forceinline__ void look_up(WarpgroupScores<kKeys>& s, bool wide) const {
    const int of_lane = row + lane / 4;
    const long long origin = tile.times[0], times[2] = {item.row_times[of_lane], item.row_times[of_lane + 8]};
    const int relative[2] = {static_cast<int>(times[0] - origin), static_cast<int>(times[1] - origin)};
    Values values;  // in local memory: with the look-ups unrolled the kernel would be twice as long
    if (wide) {
      look_up_values(values, times, tile.times);
    } else {
      look_up_values(values, relative, tile.relative);
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float r = i % 2 == 0 ? values[n][i / 2].x : values[n][i / 2].y;
        float& score = s[0][n][i];
        score = r == ptx::minus_infinity() ? Rows::invisible() : Rows::biased(score, r, call);
      }
    }
  }

  template <typename Time>
  __device__ __forceinline__ void look_up_values(Values& values, const Time (&row_times)[2],
                                                 const Time (&column_times)[kKeys]) const {
    const float2* const pairs = window();
    const Time* const columns = &column_times[lane % 4 * 2];
#pragma unroll 1
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 position = pairs[4 * (n - half)];
        values[n][half] = {position.x + time_value(difference(row_times[half], columns[8 * n])),
                           position.y + time_value(difference(row_times[half], columns[8 * n + 1]))};
      }
    }
  }
  static __device__ __forceinline__ unsigned difference(int a, int b) { return static_cast<unsigned>(abs(a - b)); }
  static __device__ __forceinline__ unsigned long long difference(long long a, long long b) {
    return TimeBuckets::distance(a, b);
  }
  template <typename Difference>
  __device__ __forceinline__ float time_value(Difference d) const {
    const TimeCell cell = item.cells[time_cell(d)];
    return d >= cell.threshold ? cell.from : cell.before;
  }
};

}  // namespace warploom
