// The producer of the Hopper backward kernels over tiles of keys: three warps, the scheduler, the loader and the
// annotator.
//
// The loader sees to it that consumers meet no row that is not the sequence's: rows past its end are zeroed in shared
// memory before the tile is handed over, since 0 * NaN is not 0.
#pragma once

#include "attention/backward_score.h"
#include "attention/backward_visibility.h"
#include "attention/hopper_backward_shared.h"
#include "ptx/fence.h"
#include "tile/tma_tile.h"

namespace warploom {

/// The kind of mask: how the loader finds query tiles, and what a query row sees. `head`: counted within the group of
/// query heads that share the item's key head.
struct SequenceMasking {
  using Walk = SequenceQueryWalk<kQueries>;

  static __device__ __forceinline__ void prepare(Item& item) {
    const int first_key = static_cast<int>(item.work.first_row);
    item.seeing = seeing_any(item.work.mask, {first_key, first_key + kKeys});
  }
  static __device__ __forceinline__ Walk walk(const AttentionCall& call, const Item& item) {
    return {&item.seeing, call.heads_per_key_head};
  }
  static __device__ __forceinline__ SequenceRow row(const AttentionCall&, const Work& work, int, int query) {
    return {visible_columns(work.mask, query + work.mask.offset())};
  }
  /// Whether all rows see all keys. All lanes of a warp, which agree.
  static __device__ __forceinline__ bool sees_all(const AttentionCall&, const Work& work, int, Interval rows,
                                                  Interval keys, int) {
    return columns_of_all(work.mask, rows).covers(keys);
  }
};

struct IntervalMasking {
  using Walk = IntervalQueryWalk<kQueries, 32>;

  static __device__ __forceinline__ void prepare(Item&) {}
  static __device__ __forceinline__ Walk walk(const AttentionCall& call, const Item& item) {
    const int first_key = static_cast<int>(item.work.first_row);
    return {
        pairs(call, item.work, 0, 0), call.interval_head_stride,      call.num_intervals,      item.work.mask.seqlen_q,
        item.work.mask.seqlen_k,      {first_key, first_key + kKeys}, call.heads_per_key_head, nullptr};
  }
  static __device__ __forceinline__ IntervalRow row(const AttentionCall& call, const Work& work, int head, int query) {
    return {{pairs(call, work, head, query), call.num_intervals, work.mask.seqlen_k}};
  }
  static __device__ __forceinline__ bool sees_all(const AttentionCall& call, const Work& work, int head, Interval rows,
                                                  Interval keys, int lane) {
    bool all = true;
    for (int query = rows.begin + lane; query < rows.end; query += 32)
      all &= row(call, work, head, query).sees_all(keys);
    return __all_sync(kAllLanes, all);
  }

 private:
  static __device__ __forceinline__ const int* pairs(const AttentionCall& call, const Work& work, int head, int query) {
    return call.intervals + (work.head * call.heads_per_key_head + head) * call.interval_head_stride +
           (work.first_q + query) * 2 * call.num_intervals;
  }
};

template <bool Intervals>
struct MaskingOf {
  using Type = SequenceMasking;
};
template <>
struct MaskingOf<true> {
  using Type = IntervalMasking;
};
using Masking = MaskingOf<kConfig.interval_mask>::Type;

/// The query tile of an item after `tile`; {-1, 0} stands before the first one. Kept, a walk would take registers.
__device__ __forceinline__ QueryTile next_tile(const HopperBackwardParams& params, const Item& item, QueryTile tile) {
  return Masking::walk(params.backward.call, item).next(tile);
}

/// Zeros the rows of a tile from `valid` on. One warp; a proxy fence must follow.
template <int Rows, int Dim>
__device__ __forceinline__ void zero_rows_from(uint32 tile, int valid, int lane) {
  constexpr int kChunks = geometry::panels_of(Dim) * geometry::kPanelChunks;
#pragma unroll 1
  for (int i = valid * kChunks + lane; i < Rows * kChunks; i += 32) {
    ptx::store_shared_16(tile + geometry::swizzled_offset(Rows, i / kChunks, i % kChunks), uint4{0, 0, 0, 0});
  }
}

// The scheduler: one warp that takes work items from the device counter and says what they are. It takes the next one
// when the loader comes to the last one and not before: an item taken early is one that an idle CTA cannot have.

struct Scheduler {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  ItemRing::Cursor at;

  /// Hands on the item in `at`, whose `work` is there, and waits until the loader has come to it.
  __device__ __forceinline__ void pass_on() {
    if (lane == 0) {
      Item& item = shared.item(at.slot());
      Masking::prepare(item);
      // A jagged batch is one sequence of the maps.
      item.sequence = params.backward.call.cu_seqlens_q == nullptr ? item.work.sequence : 0;
      item.is_end = false;
      shared.items.publish(at);
    }
    ptx::mbarrier_wait(shared.request, at.passed & 1);
    at.advance();
  }

  __device__ __forceinline__ void run() {
    const AttentionCall& call = params.backward.call;
    const long long items = call.schedule.items();
    // One tile an item when the schedule knew the longest sequence; a longer one's items come again, so much further
    // on.
    const long long stride = static_cast<long long>(call.schedule.query_tiles) * kKeys;
    for (long long index = blockIdx.x; index < items;) {
      shared.items.wait_empty(at);
      if (lane == 0) shared.item(at.slot()).work = work_of(call, index, kKeys);
      __syncwarp();
      long long first_row = shared.item(at.slot()).work.first_row;
      const long long end = shared.item(at.slot()).work.slot_k;
      while (first_row < end) {
        const Work& work = shared.item(at.slot()).work;
        pass_on();
        first_row += stride;
        if (first_row >= end) break;
        shared.items.wait_empty(at);
        if (lane == 0) {
          shared.item(at.slot()).work = work;
          shared.item(at.slot()).work.first_row = first_row;
        }
        __syncwarp();
      }
      unsigned taken = 0;
      if (lane == 0) taken = atomicAdd(&params.counters[0], 1u);
      index = static_cast<long long>(gridDim.x) + __shfl_sync(kAllLanes, taken, 0);
    }
    shared.items.wait_empty(at);
    if (lane == 0) {
      shared.item(at.slot()).is_end = true;
      shared.items.publish(at);
      // The last CTA leaves the counters as it found them.
      if (atomicAdd(&params.counters[1], 1u) == gridDim.x - 1) {
        params.counters[0] = 0;
        params.counters[1] = 0;
      }
    }
  }
};

// The loader: one warp that loads K and V of the items, and Q and dO of the query tiles that see them.

struct Loader {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  TileRing::Cursor at;
  KeyRing::Cursor key_at;
  uint32 landings = 0;

  /// Loads what `load(barrier)` asks for, `bytes` of it, and hands it over by `full`. Where some of the rows are not
  /// the sequence's, `zero()` runs in between.
  template <typename Load, typename Zero>
  __device__ __forceinline__ void transfer(uint32 full, int bytes, bool is_short, Load load, Zero zero) {
    const uint32 barrier = is_short ? shared.landing : full;
    if (lane == 0) {
      ptx::mbarrier_arrive_expect_tx(barrier, bytes);
      load(barrier);
    }
    __syncwarp();
    if (!is_short) return;
    ptx::mbarrier_wait(shared.landing, landings & 1);
    ++landings;
    zero();
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(full);
  }

  /// K and V of an item.
  __device__ __forceinline__ void load_keys(const Item& item) {
    const Work& work = item.work;
    const long long left = work.mask.seqlen_k - work.first_row;
    const int first = static_cast<int>(work.tensor_k + work.first_row);
    constexpr int kBytes =
        geometry::tile_bytes(kKeys, kConfig.head_dim) + geometry::tile_bytes(kKeys, kConfig.value_dim);
    shared.keys.wait_empty(key_at);
    transfer(
        shared.keys.full(0), kBytes, left < kKeys,
        [&](uint32 barrier) {
          tile::tma_load_rows<kKeys, kConfig.head_dim>(&params.key, shared.key(), barrier, first, work.head,
                                                       item.sequence);
          tile::tma_load_rows<kKeys, kConfig.value_dim>(&params.value, shared.value(), barrier, first, work.head,
                                                        item.sequence);
        },
        // V needs none of it: what its rows lead to is masked.
        [&] { zero_rows_from<kKeys, kConfig.head_dim>(shared.key(), static_cast<int>(left), lane); });
    key_at.advance();
  }

  __device__ __forceinline__ void load_queries(const Item& item, QueryTile tile) {
    const Work& work = item.work;
    const int head = work.head * params.backward.call.heads_per_key_head + tile.head;
    const int first = tile.number * kQueries, left = work.mask.seqlen_q - first;
    const int row = static_cast<int>(work.tensor_q) + first, sequence = item.sequence, stage = at.slot();
    shared.tiles.wait_empty(at);
    transfer(
        shared.tiles.full(stage), kMap.query_bytes + kMap.dout_bytes, left < kQueries,
        [&](uint32 barrier) {
          tile::tma_load_rows<kQueries, kConfig.head_dim>(&params.query, shared.query(stage), barrier, row, head,
                                                          sequence);
          tile::tma_load_rows<kQueries, kConfig.value_dim>(&params.dout, shared.dout(stage), barrier, row, head,
                                                           sequence);
        },
        [&] {
          zero_rows_from<kQueries, kConfig.head_dim>(shared.query(stage), left, lane);
          zero_rows_from<kQueries, kConfig.value_dim>(shared.dout(stage), left, lane);
        });
    at.advance();
  }

  __device__ __forceinline__ void load(const Item& item) {
    QueryTile tile = next_tile(params, item, {-1, 0});
    if (tile.number < 0) {  // no query sees the item; the note says so
      shared.tiles.wait_empty(at);
      if (lane == 0) shared.tiles.publish(at);
      at.advance();
      return;
    }
    // The first tile may come while the item before still needs its K and V.
#pragma unroll 1
    for (bool is_first = true; tile.number >= 0; is_first = false) {
      load_queries(item, tile);
      if (is_first) load_keys(item);
      tile = next_tile(params, item, tile);
    }
  }

  __device__ __forceinline__ void run() {
    for (ItemRing::Cursor item_at;; item_at.advance()) {
      shared.items.wait_full(item_at);
      const Item& item = shared.item(item_at.slot());
      if (item.is_end) return;
      if (lane == 0) ptx::mbarrier_arrive(shared.request);
      load(item);
      shared.items.release(item_at);
    }
  }
};

// The annotator: one warp that writes what is known of the rows of each query tile.

struct Annotator {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  TileRing::Cursor at;

  static constexpr int kRowsOfLane = kQueries / 32;
  /// Rows' terms are asked for a tile ahead, since they come from far; not under lists of intervals, which take the
  /// registers.
  static constexpr bool kAhead = !kConfig.interval_mask;
  static constexpr int kUnroll = kAhead ? 4 : 1;
  /// Softmax's, or the divisor in `delta`, of rows lane, 32 + lane, ...
  struct Terms {
    SoftmaxRowTerms of_row[kRowsOfLane];
  };

  /// Until the consumers have read what was in the stage. A named barrier, since every lane of theirs reads it.
  __device__ __forceinline__ void wait_free() const {
    if (at.passed >= kConfig.stages) free_barrier_sync(at.slot());
  }

  __device__ __forceinline__ SoftmaxRowTerms load_terms(const Work& work, QueryTile tile, int row_of_tile) const {
    const AttentionCall& call = params.backward.call;
    const long long row = tile.number * kQueries + row_of_tile;
    SoftmaxRowTerms terms{__int_as_float(0x7f800000), 0};
    if (tile.number < 0 || row >= work.mask.seqlen_q) return terms;
    if constexpr (kConfig.softmax) {
      const int head = work.head * call.heads_per_key_head + tile.head;
      terms = params.backward.row_terms[head * call.total_q + work.first_q + row];
    } else if (call.divisor_rows != nullptr) {
      terms.delta = call.divisor_rows[work.first_q + row];
    }
    return terms;
  }
  __device__ __forceinline__ Terms load_terms(const Work& work, QueryTile tile) const {
    Terms terms;
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) terms.of_row[i] = load_terms(work, tile, i * 32 + lane);
    return terms;
  }

  __device__ __forceinline__ void annotate(const Item& item, QueryTile tile, const Terms& terms, bool is_last) {
    const Work& work = item.work;
    const AttentionCall& call = params.backward.call;
    const int head = work.head * call.heads_per_key_head + tile.head;
    const int first = tile.number * kQueries, rows = geometry::min_of(work.mask.seqlen_q - first, kQueries);
    const int first_key = static_cast<int>(work.first_row);
    const bool is_whole =
        Masking::sees_all(call, work, tile.head, {first, first + rows}, {first_key, first_key + kKeys}, lane);
    const int dq_tile =
        static_cast<int>(dq_sums_offset(work.first_q, work.sequence, tile.number,
                                        call.schedule.heads * call.heads_per_key_head, head, kQueries, 1) /
                         kQueries);
    const int stage = at.slot();
    wait_free();
    if (lane == 0) {
      shared.note(stage).flags = kQueryTileSeen | (is_whole ? 0 : kQueryTileMasked) | (is_last ? kQueryTileLast : 0);
      shared.note(stage).dq_tile = dq_tile;
    }
#pragma unroll kUnroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int row = i * 32 + lane;
      const SoftmaxRowTerms own = kAhead ? terms.of_row[kAhead ? i : 0] : load_terms(work, tile, row);
      if constexpr (kConfig.softmax) {
        reinterpret_cast<SoftmaxRowTerms*>(shared.row_terms(stage))[row] = own;
      } else if (call.divisor_rows != nullptr) {
        shared.row_terms(stage)[row] = over_divisor(own.delta);
      }
      if (is_whole) continue;
      const auto seen = Masking::row(call, work, tile.head, row < rows ? first + row : first);
#pragma unroll kUnroll
      for (int word = 0; word < kKeys / 32; ++word) {
        shared.visible(stage)[word * kQueries + row] = row < rows ? seen.bits(first_key + word * 32) : 0;
      }
    }
    shared.tiles.publish(at);
    at.advance();
  }

  __device__ __forceinline__ void walk(const Item& item) {
    QueryTile tile = next_tile(params, item, {-1, 0});
    if (tile.number < 0) {
      wait_free();
      if (lane == 0) shared.note(at.slot()).flags = kQueryTileLast;
      shared.tiles.publish(at);
      at.advance();
      return;
    }
    Terms terms;
    if constexpr (kAhead) terms = load_terms(item.work, tile);
    while (tile.number >= 0) {
      const QueryTile after = next_tile(params, item, tile);
      Terms of_next;
      if constexpr (kAhead) of_next = load_terms(item.work, after);
      annotate(item, tile, terms, after.number < 0);
      tile = after;
      terms = of_next;
    }
  }

  __device__ __forceinline__ void run() {
    for (ItemRing::Cursor item_at;; item_at.advance()) {
      shared.items.wait_full(item_at);
      const Item& item = shared.item(item_at.slot());
      if (item.is_end) break;
      walk(item);
      shared.items.release(item_at);
    }
    // The barriers end as they began.
    for (int stage = 0; stage < kConfig.stages; ++stage, at.advance()) wait_free();
  }
};

}  // namespace warploom
