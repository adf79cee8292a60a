// The warps of the Hopper forward kernel's producer that bring R where TMA does not: each walks the key tiles as the
// loader does and fills its part of a K slot.
#pragma once

#include "attention/bias_rows.h"
#include "attention/hopper_bucketed.h"
#include "attention/hopper_masking.h"

namespace warploom {

/// Calls bring.start_item(item, slot) and, for each key tile, bring.start_tile(first_column) before the slot is free,
/// bring.fill(stage, seeing) after it, which tells that the slot is full; seeing: bit c says that consumer c needs the
/// tile. bring.fill_nothing(stage) for a tile without bytes. All lanes of a warp.
template <typename Bring>
__device__ __forceinline__ void walk_items(const AttentionCall& call, const Shared& shared, int lane, Bring& bring) {
  KeyRing::Cursor key_at;
  const auto nothing = [&] {
    shared.keys.wait_empty(key_at);
    bring.fill_nothing(key_at);
    key_at.advance();
  };
  for (ItemRing::Cursor at;; at.advance()) {
    shared.items.wait_full(at);
    const Item& item = shared.item(at.slot());
    const bool is_end = item.is_end;
    if (is_end) {
      nothing();
    } else {
      typename Masking::Tiles tiles(call, item, lane);
      if (tiles.tile < 0) {
        nothing();
      } else {
        bring.start_item(item, at.slot());
      }
      while (tiles.tile >= 0) {
        bring.start_tile(tiles.tile * kKeys);
        const unsigned seeing = __ballot_sync(kAllLanes, lane < kConfig.consumers && tiles.kind() != kUnseenTile);
        tiles.advance();
        shared.keys.wait_empty(key_at);
        bring.fill(key_at, seeing);
        key_at.advance();
      }
    }
    shared.items.release(at);
    if (is_end) return;
  }
}

/// Lays out the tables of a bucketed bias.
struct BucketedProducer {
  static constexpr int kWindowLoads = (BucketedTile::kDiagonals + 31) / 32, kColumnLoads = (kKeys + 31) / 32;
  /// Values that differ by more than that lose digits when one is reached from the other by addition.
  static constexpr float kTame = 64;

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

  __device__ __forceinline__ BucketedTables& tables() const { return shared.bucketed_tables(); }
  __device__ __forceinline__ float scaled(float value) const {
    return value == ptx::minus_infinity() ? value : value * Rows::bias_factor(call);
  }
  __device__ __forceinline__ long long time_of(int n) const {
    return item_times == nullptr ? 0 : item_times[geometry::max_of(0, geometry::min_of(n, last_key))];
  }

  /// Whether the difference of two such numbers and a third one fits an int.
  static __device__ __forceinline__ bool is_near(long long time, long long origin) {
    return TimeBuckets::distance(time, origin) < 1ull << 30;
  }

  /// Once, before the first item.
  __device__ __forceinline__ void prepare() {
    BucketedTables& t = tables();
    TimeBuckets buckets{nullptr, 0, false};
    if (call.bias.time != nullptr) buckets = TimeBuckets::of(call.bias);
    count = buckets.count;
    for (int n = lane; n <= kMostTimes; n += 32) t.thresholds[n] = n < count ? buckets.at(n) : ~0ull;
    __syncwarp();
    const TimeBuckets staged{t.thresholds, count, false};
    for (int cell = lane; cell < kTimeCells; cell += 32) {
      t.reached[cell] = static_cast<unsigned char>(cell == 0 ? staged.bucket(0) : staged.bucket(first_of_cell(cell)));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void start_item(const Item& of, int item_slot) {
    const BiasCall& bias = call.bias;
    const Work& work = of.work;
    BucketedItem& item = shared.bucketed_item(item_slot);
    slot = item_slot;
    first_row = static_cast<int>(work.first_row) + work.mask.offset();
    last_key = work.mask.seqlen_k - 1;
    positions = bias.position == nullptr ? nullptr : bias.position + work.head * bias.position_head_stride;
    item_times = bias.time == nullptr ? nullptr : bias.timestamps + work.first_k;
    tame = true;
    for (int n = lane; n <= count; n += 32) {
      const float value = bias.time == nullptr ? 0 : scaled(bias.time[work.head * bias.time_head_stride + n]);
      tame &= fabsf(value) <= kTame;
      item.table[n] = value;
    }
    for (int row = lane; row < kQueryRows; row += 32) item.row_times[row] = time_of(first_row + row);
    tame = __all_sync(kAllLanes, tame);
    __syncwarp();
    for (int cell = lane; cell < kTimeCells; cell += 32) {
      const int reached = tables().reached[cell];
      item.cells[cell] = {tables().thresholds[reached], item.table[reached],
                          item.table[geometry::min_of(reached + 1, count)]};
    }
    if (lane < kQueryRows / kWarpRows) {
      long long earliest = item.row_times[lane * kWarpRows], latest = earliest;
      for (int row = 1; row < kWarpRows; ++row) {
        earliest = min(earliest, item.row_times[lane * kWarpRows + row]);
        latest = max(latest, item.row_times[lane * kWarpRows + row]);
      }
      item.earliest[lane] = earliest;
      item.latest[lane] = latest;
    }
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

  __device__ __forceinline__ void fill(const KeyRing::Cursor& at, unsigned) {
    BucketedTile& tile = shared.bucketed_tile(at.slot());
    bool masks = false;
#pragma unroll
    for (int n = 0; n < kWindowLoads; ++n) {
      const int x = lane + 32 * n;
      const float value = scaled(window[n]);
      masks |= value == ptx::minus_infinity();
      tile.window[0][x] = value;
      if (x > 0) tile.window[1][x - 1] = value;
    }
#pragma unroll
    for (int n = 0; n < kColumnLoads; ++n) {
      if (kKeys % 32 == 0 || lane + 32 * n < kKeys) tile.times[lane + 32 * n] = times[n];
    }
    masks = __any_sync(kAllLanes, masks);
    __syncwarp();
    const long long origin = tile.times[0];
    bool near = true;
    int lowest = 0, highest = 0;
#pragma unroll
    for (int n = 0; n < kColumnLoads; ++n) {
      const int column = lane + 32 * n;
      if (kKeys % 32 != 0 && column >= kKeys) break;
      near &= is_near(times[n], origin);
      const int relative = static_cast<int>(times[n] - origin);
      lowest = min(lowest, relative);
      highest = max(highest, relative);
      tile.relative[column] = relative;
    }
    near = __all_sync(kAllLanes, near);
    const long long from = origin + __reduce_min_sync(kAllLanes, lowest);
    const long long to = origin + __reduce_max_sync(kAllLanes, highest);
    // Differences of the w-th warp's rows and the columns lie between two numbers, of which lane 2 w has the smaller
    // one and lane 2 w + 1 the larger one.
    const BucketedItem& item = shared.bucketed_item(slot);
    const int warp = geometry::min_of(lane / 2, kQueryRows / kWarpRows - 1);
    const long long earliest = item.earliest[warp], latest = item.latest[warp];
    const auto between = [](long long a, long long b) -> unsigned long long {
      return a > b ? static_cast<unsigned long long>(a) - static_cast<unsigned long long>(b) : 0;
    };
    const unsigned long long difference = lane % 2 == 0 ? between(earliest, to) | between(from, latest)
                                                        : max(between(latest, from), between(to, earliest));
    const TimeBuckets staged{tables().thresholds, count, false};
    const int bucket = staged.bucket(difference);
    const int other = __shfl_xor_sync(kAllLanes, bucket, 1);
    if (lane % 2 == 0 && lane / 2 < kQueryRows / kWarpRows) {
      const bool later = from >= latest, one_side = later || earliest >= to;
      const bool compares = other - bucket <= kMostCompared && one_side && tame;
      const bool sure = near && (bucket == other || compares) && !masks && item.table[bucket] != ptx::minus_infinity();
      const bool wide = !near || !is_near(earliest, origin) || !is_near(latest, origin);
      tile.seen[warp] = static_cast<unsigned>(bucket | other << 8) | (later ? kLaterColumns : 0) |
                        (sure ? 0 : kLooksUpTimes) | (wide ? kWideTimes : 0);
    }
    publish(at);
  }

  __device__ __forceinline__ void fill_nothing(const KeyRing::Cursor& at) const { publish(at); }

 private:
  __device__ __forceinline__ void publish(const KeyRing::Cursor& at) const {
    __syncwarp();
    if (lane == 0) shared.keys.publish(at);
  }
};

/// Copies the rows of a stored bias. Its two warps have every other 16 rows each.
struct RowsProducer {
  static constexpr bool kFloat32 = kConfig.bias == HopperBias::rows32;
  using Tile = RowsTile<Element, kFloat32, kWarpRows, kCopiedBias ? kKeys : kPanelValues>;
  static constexpr int kGroups = kQueryRows / kWarpRows, kRowsAtOnce = 32 / Tile::kChunks;
  static_assert(!kCopiedBias || Tile::kBytes * kWarpgroupRows / kWarpRows == kMap.bias_bytes);

  const AttentionCall& call;
  const Shared& shared;
  const int lane;
  const int who;
  BiasRows& rows;  // of the item, in shared memory, as registers are few
  int first_row = 0, column = 0;

  __device__ __forceinline__ void start_item(const Item& item, int) {
    const Work& work = item.work;
    long long before = 0;
    if (call.bias.packed) {
      before = packed_elements_before(call, work.sequence, Tile::kElementBytes, lane, 32);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) before += __shfl_xor_sync(kAllLanes, before, step);
    }
    __syncwarp();  // all lanes are done with the item before
    if (lane == 0) rows = bias_rows(call.bias, work, work.head, before, Tile::kElementBytes);
    __syncwarp();
    first_row = static_cast<int>(work.first_row);
  }
  __device__ __forceinline__ void start_tile(int first_column) { column = first_column; }

  __device__ __forceinline__ void fill(const KeyRing::Cursor& at, unsigned seeing) const {
    // Whole chunks of memory around all of the tile's rows are the rows' own.
    const bool inside =
        (rows.aligned || column > 0) && column + kKeys + geometry::kChunkBytes / Tile::kElementBytes <= rows.columns;
    bool stores = false;
#pragma unroll 1
    for (int group = who; group < kGroups; group += kBiasWarps) {
      if ((seeing >> group / 4 & 1) == 0) continue;
      const uint32 tile = shared.bias(at.slot(), 0) + group * Tile::kBytes;
      const RowsPart part = RowsPart::of(rows, 0, first_row + group * kWarpRows, column, Tile::kElementBytes);
      if (inside && part.rows.begin <= 0 && part.rows.end >= kWarpRows) {
        copy_whole_rows(tile, part);
      } else {
        Tile::start(tile, part, lane);
        stores |= !part.aligned && part.starts_rows;  // not by asynchronous copies alone
      }
    }
    if (stores) {
      ptx::cp_async_wait_all();
      shared.keys.publish(at);
    } else {
      ptx::cp_async_mbarrier_arrive(shared.keys.full(at.slot()));
    }
  }
  __device__ __forceinline__ void fill_nothing(const KeyRing::Cursor& at) const { shared.keys.publish(at); }

 private:
  /// Without a look at where rows begin and end: each from the multiple of 16 bytes at or before its first byte on.
  __device__ __forceinline__ void copy_whole_rows(uint32 tile, const RowsPart& part) const {
    const auto chunk_at = [](const char* p) { return p - (reinterpret_cast<unsigned long long>(p) & 15); };
    const int chunk = lane % Tile::kChunks, row = lane / Tile::kChunks;
    const char* from = part.row(row);
    const uint32 to = tile + row * Tile::kPitch + chunk * geometry::kChunkBytes;
#pragma unroll 2
    for (int r = 0; r < kWarpRows; r += kRowsAtOnce) {
      ptx::cp_async_16(to + r * Tile::kPitch, chunk_at(from) + chunk * geometry::kChunkBytes);
      from += kRowsAtOnce * part.stride_bytes;
    }
    if (!part.aligned && lane < kWarpRows) {
      ptx::cp_async_16(tile + lane * Tile::kPitch + Tile::kChunks * geometry::kChunkBytes,
                       chunk_at(part.row(lane)) + Tile::kChunks * geometry::kChunkBytes);
    }
  }
};

/// Warp `warp` of the producer, counted from the first one that brings R.
__device__ __forceinline__ void bring_bias(const AttentionCall& call, const Shared& shared, int lane, int warp) {
  if constexpr (kBucketed) {
    if (warp != 0) return;
    BucketedProducer bring{call, shared, lane};
    bring.prepare();
    walk_items(call, shared, lane, bring);
  } else if constexpr (kCopiedBias) {
    RowsProducer bring{call, shared, lane, warp, shared.bias_rows(warp)};
    walk_items(call, shared, lane, bring);
  }
}

}  // namespace warploom
