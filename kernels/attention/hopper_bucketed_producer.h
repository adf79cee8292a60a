// The warps of the Hopper forward kernel's producer that lay out the tables of a bucketed bias for each key tile
// (hopper_bucketed.h says what lies there). They take turns with the tiles; what an item needs each of them writes, the
// same values to the same places, so that it is there before a tile of either.
#pragma once

#include "attention/bias_time_span.h"
#include "attention/hopper_bucketed.h"

namespace warploom {

struct BucketedProducer {
  static constexpr int kWindowLoads = (BucketedTile::kDiagonals + 31) / 32, kColumnLoads = (kKeys + 31) / 32;
  static constexpr int kWarps = kQueryRows / kWarpRows;

  const AttentionCall& call;
  const Shared& shared;
  const int lane;

  int count = 0;  // thresholds
  // Of the item.
  const float* positions = nullptr;
  const long long* item_times = nullptr;  // of the sequence
  int first_row = 0;                      // in key coordinates
  int last_key = 0;
  int slot = 0;
  bool tame = true;  // comparisons may add steps
  // Of the tile.
  float window[kWindowLoads];
  long long times[kColumnLoads];

  /// Once, before the first item.
  __device__ __forceinline__ void prepare() {
    TimeBuckets buckets{nullptr, 0, false};
    if (call.bias.time != nullptr) buckets = TimeBuckets::of(call.bias);
    count = buckets.count;
    stage_thresholds(bucketed_tables(shared), buckets, lane);
  }

  __device__ __forceinline__ void start_item(const Item& of, int item_slot) {
    const BiasCall& bias = call.bias;
    const Work& work = of.work;
    const BucketedTables& tables = bucketed_tables(shared);
    BucketedItem& item = bucketed_item(shared, item_slot);
    slot = item_slot;
    first_row = static_cast<int>(work.first_row) + work.mask.offset();
    last_key = work.mask.seqlen_k - 1;
    positions = bias.position == nullptr ? nullptr : bias.position + work.head * bias.position_head_stride;
    item_times = bias.time == nullptr ? nullptr : bias.timestamps + work.first_k;
    tame = true;
    for (int n = lane; n <= count; n += 32) {
      const float value = bias.time == nullptr ? 0 : scaled(bias.time[work.head * bias.time_head_stride + n]);
      tame &= fabsf(value) <= kTameTimeValue;
      item.table[n] = value;
    }
    for (int row = lane; row < kQueryRows; row += 32) item.row_times[row] = time_of(first_row + row);
    tame = __all_sync(kAllLanes, tame);
    __syncwarp();
    for (int cell = lane; cell < kTimeCells; cell += 32) {
      const int reached = tables.reached[cell];
      item.cells[cell] = {tables.thresholds[reached], item.table[reached],
                          item.table[geometry::min_of(reached + 1, count)]};
    }
    if (lane < kWarps) {
      extremes_of(&item.row_times[lane * kWarpRows], kWarpRows, item.earliest[lane], item.latest[lane]);
    }
    __syncwarp();
  }

  /// Starts the loads of what a tile needs.
  __device__ __forceinline__ void start_tile(int first_column) {
    const int last = call.bias.num_positions - 1, first = first_row + kQueryRows - 1 - first_column - lane;
#pragma unroll
    for (int n = 0; n < kWindowLoads; ++n) {
      const int index = geometry::min_of(geometry::max_of(first - 32 * n, 0), last);
      window[n] = positions == nullptr ? 0.0f : positions[index];
    }
#pragma unroll
    for (int n = 0; n < kColumnLoads; ++n) times[n] = time_of(first_column + lane + 32 * n);
  }

  __device__ __forceinline__ void fill(int stage, unsigned) {
    BucketedTile& tile = bucketed_tile(shared, stage);
    bool masks = false;
#pragma unroll
    for (int n = 0; n < kWindowLoads; ++n) {
      const int x = lane + 32 * n;
      const float value = scaled(window[n]);
      masks |= value == ptx::minus_infinity();
      tile.window[0][x] = value;
      if (x > 0) tile.window[1][x - 1] = value;
    }
    masks = __any_sync(kAllLanes, masks);
    const TimeSpan span = put_times<kKeys>(times, tile.times, tile.relative, lane);
    // Differences of the w-th warp's rows and the columns lie between two numbers, of which lane 2 w has the smaller
    // one and lane 2 w + 1 the larger one.
    static_assert(2 * kWarps <= 32);
    const BucketedItem& item = bucketed_item(shared, slot);
    const int warp = geometry::min_of(lane / 2, kWarps - 1);
    const long long earliest = item.earliest[warp], latest = item.latest[warp];
    const unsigned long long difference = span.farthest(earliest, latest, lane);
    const int bucket = bucket_of(difference);
    const int other = __shfl_xor_sync(kAllLanes, bucket, 1);
    if (lane % 2 == 0 && lane / 2 < kWarps) {
      const bool later = span.from >= latest, one_side = later || earliest >= span.to;
      const bool compares = other - bucket <= kMostCompared && one_side && tame;
      const bool sure =
          span.near && (bucket == other || compares) && !masks && item.table[bucket] != ptx::minus_infinity();
      const bool wide = !span.near || !is_near(earliest, span.origin) || !is_near(latest, span.origin);
      tile.seen[warp] = static_cast<unsigned>(bucket | other << 8) | (later ? kLaterColumns : 0) |
                        (sure ? 0 : kLooksUpTimes) | (wide ? kWideTimes : 0);
    }
  }

  __device__ __forceinline__ void publish(int stage) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared.keys.full(stage));
  }

 private:
  /// From the cell, as look-ups do.
  __device__ __forceinline__ int bucket_of(unsigned long long difference) const {
    const BucketedTables& tables = bucketed_tables(shared);
    const int reached = tables.reached[time_cell(difference)];
    return geometry::min_of(reached + (difference >= tables.thresholds[reached] ? 1 : 0), count);
  }
  __device__ __forceinline__ float scaled(float value) const {
    return value == ptx::minus_infinity() ? value : value * Rows::bias_factor(call);
  }
  __device__ __forceinline__ long long time_of(int n) const {
    return item_times == nullptr ? 0 : item_times[geometry::max_of(0, geometry::min_of(n, last_key))];
  }
};

}  // namespace warploom
