// The warp of the one-pass Hopper backward kernel's producer that lays out the tables of a bucketed bias
// (hopper_backward_tables.h) for each tile of queries.
#pragma once

#include "attention/bias_time_span.h"
#include "attention/hopper_backward_tables.h"

namespace warploom {

struct TableProducer {
  static constexpr int kWindowLoads = (QueryBuckets::kDiagonals + 31) / 32, kColumnLoads = kQueries / 32;
  static constexpr int kMostCompared = 6;  // thresholds

  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  TileRing::Cursor at;
  int count = 0;     // thresholds
  bool tame = true;  // of the item: comparisons may add steps

  __device__ __forceinline__ void wait_free() const {
    if (at.passed >= kConfig.stages) free_barrier_sync(at.slot());
  }
  __device__ __forceinline__ void publish() {
    __syncwarp();
    if (lane == 0) shared.tiles.publish(at);
    at.advance();
  }

  __device__ __forceinline__ TimeBuckets staged() const { return {bucketed_tables(shared).thresholds, count, false}; }
  __device__ __forceinline__ float scaled(float value) const {
    const float factor = (kConfig.softmax ? 1.0f : 0.5f) * params.backward.call.bias.scale;
    return value == ptx::minus_infinity() ? value : value * factor;
  }
  /// Of the sequence's row n, in key coordinates.
  __device__ __forceinline__ long long time_of(const Work& work, int n) const {
    const BiasCall& bias = params.backward.call.bias;
    if (bias.time == nullptr) return 0;
    return bias.timestamps[work.first_k + geometry::max_of(0, geometry::min_of(n, work.mask.seqlen_k - 1))];
  }
  /// Once, before the first item.
  __device__ __forceinline__ void prepare() {
    TimeBuckets buckets{nullptr, 0, false};
    if (params.backward.call.bias.time != nullptr) buckets = TimeBuckets::of(params.backward.call.bias);
    count = buckets.count;
    stage_thresholds(bucketed_tables(shared), buckets, lane);
  }

  __device__ __forceinline__ void start_item(const Work& work, int slot) {
    const BiasCall& bias = params.backward.call.bias;
    KeyBuckets& keys = key_buckets(shared, slot);
    tame = true;
#pragma unroll 1
    for (int n = lane; n <= count; n += 32) {
      const float value = bias.time == nullptr ? 0 : scaled(bias.time[work.head * bias.time_head_stride + n]);
      tame &= fabsf(value) <= kTameTimeValue;
      keys.table[n] = value;
    }
    tame = __all_sync(kAllLanes, tame);
#pragma unroll 1
    for (int row = lane; row < kKeys; row += 32) {
      keys.times[row] = time_of(work, static_cast<int>(work.first_row) + row);
    }
    __syncwarp();
    if (lane < kPartWarps) {
      extremes_of(&keys.times[lane * kWarpKeys], kWarpKeys, keys.earliest[lane], keys.latest[lane]);
    }
    __syncwarp();
  }

  /// first_column: the tile's first query, in key coordinates.
  __device__ __forceinline__ void fill(const Work& work, int slot, int first_column) {
    const BiasCall& bias = params.backward.call.bias;
    float window[kWindowLoads];
    long long times[kColumnLoads];
    const int first = first_column - static_cast<int>(work.first_row) - (kKeys - 1) + lane;
#pragma unroll
    for (int n = 0; n < kWindowLoads; ++n) {
      const int index = geometry::min_of(geometry::max_of(first + 32 * n, 0), bias.num_positions - 1);
      window[n] = bias.position == nullptr ? 0.0f : bias.position[work.head * bias.position_head_stride + index];
    }
#pragma unroll
    for (int n = 0; n < kColumnLoads; ++n) times[n] = time_of(work, first_column + lane + 32 * n);

    wait_free();
    QueryBuckets& tile = query_buckets(shared, at.slot());
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
    const TimeSpan span = put_times<kQueries>(times, tile.times, tile.relative, lane);
    // Differences of the w-th warp's keys and the queries lie between two numbers, of which lane 2 w has the smaller
    // one and lane 2 w + 1 the larger one.
    static_assert(2 * kPartWarps <= 32);
    const KeyBuckets& keys = key_buckets(shared, slot);
    const int warp = geometry::min_of(lane / 2, kPartWarps - 1);
    const long long earliest = keys.earliest[warp], latest = keys.latest[warp];
    const unsigned long long difference = span.farthest(earliest, latest, lane);
    // Where times are far apart, between any two.
    const int bucket = span.near ? staged().bucket(difference) : lane % 2 == 0 ? 0 : count;
    const int other = __shfl_xor_sync(kAllLanes, bucket, 1);
    if (lane % 2 == 0 && lane / 2 < kPartWarps) {
      const bool later = span.from >= latest, one_side = later || earliest >= span.to;
      const bool compares = other - bucket <= kMostCompared && one_side && tame;
      const bool sure =
          span.near && (bucket == other || compares) && !masks && keys.table[bucket] != ptx::minus_infinity();
      if (lane == 0) tile.first_query = first_column;
      tile.seen[warp] =
          static_cast<unsigned>(bucket | other << 8) | (later ? kLaterColumns : 0) | (sure ? 0 : kLooksUpTimes);
    }
  }

  __device__ __forceinline__ void run() {
    const AttentionCall& call = params.backward.call;
    prepare();
#pragma unroll 1
    for (ItemRing::Cursor item_at;; item_at.advance()) {
      shared.items.wait_full(item_at);
      const Item& item = shared.item(item_at.slot());
      if (item.is_end) break;
      const auto walk = Masking::walk(call, item);
      QueryTile tile = walk.next({-1, 0});
      if (tile.number < 0) {
        wait_free();
        publish();
      } else {
        start_item(item.work, item_at.slot());
      }
#pragma unroll 1
      for (; tile.number >= 0; tile = walk.next(tile)) {
        fill(item.work, item_at.slot(), tile.number * kQueries + item.work.mask.offset());
        publish();
      }
      shared.items.release(item_at);
    }
    // The barriers end as they began.
    for (int stage = 0; stage < kConfig.stages; ++stage, at.advance()) wait_free();
  }
};

}  // namespace warploom
