// The producer of the Hopper backward kernels over tiles of keys: two warps, the scheduler and the loader.
//
// All lanes that write or read what a barrier guards arrive on it, though one could for its warp: a race checker
// credits an arrival to its own thread only.
//
// The loader sees to it that consumers meet no row that is not the sequence's: rows past its end are zeroed in shared
// memory before the tile is handed over, since 0 * NaN is not 0.
#pragma once

#include "attention/backward_score.h"
#include "attention/backward_visibility.h"
#include "attention/hopper_backward_bias_rows.h"
#include "attention/hopper_backward_scores.h"
#include "attention/hopper_backward_shared.h"
#include "ptx/fence.h"
#include "ptx/grid_dependency.h"
#include "ptx/registers.h"
#include "tile/tma_tile.h"

namespace warploom {

/// The kind of mask: how the loader finds query tiles, and what a query row sees. `head`: counted within the group of
/// query heads that share the item's key head.
template <bool Back>
struct SequenceWalkOf {
  using Type = SequenceQueryWalk<kQueries>;
};
template <>
struct SequenceWalkOf<true> {
  using Type = SequenceQueryWalkBack<kQueries>;
};
struct SequenceMasking {
  using Walk = SequenceWalkOf<kConfig.orders_sums>::Type;

  static __device__ __forceinline__ void prepare(Item& item) {
    const int first_key = static_cast<int>(item.work.first_row);
    item.seeing = seeing_any(item.work.mask, {first_key, first_key + kKeys});
    if constexpr (kConfig.orders_sums) {
      const Interval contexts = item.seeing.parts[geometry::kContextRows];
      item.context_tiles = contexts.empty() ? 0 : (contexts.end - 1) / kQueries + 1;
    }
  }
  static __device__ __forceinline__ Walk walk(const AttentionCall& call, const Item& item) {
    if constexpr (kConfig.orders_sums)
      return {&item.seeing, call.heads_per_key_head, &item.context_tiles};
    else
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

/// Zeros the rows of a tile from `valid` on. One warp; arrivals of all its lanes must follow.
template <int Rows, int Dim>
__device__ __forceinline__ void zero_rows_from(uint32 tile, int valid, int lane) {
  constexpr int kChunks = geometry::panels_of(Dim) * geometry::kPanelChunks;
#pragma unroll 1
  for (int i = valid * kChunks + lane; i < Rows * kChunks; i += 32) {
    ptx::store_shared_16(tile + geometry::swizzled_offset(Rows, i / kChunks, i % kChunks), uint4{0, 0, 0, 0});
  }
  ptx::fence_proxy_async_shared();
}

// The scheduler: one warp that takes work items from the device counter and says what they are. It takes the next one
// when the loader comes to the last one and not before: an item taken early is one that an idle CTA cannot have.

struct Scheduler : trace::Pen<kConfig.trace> {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  ItemRing::Cursor at;

  __device__ __forceinline__ void wait_empty() const {
    mark(Mark::wait_empty, BackwardMarks::items, at.passed);
    shared.items.wait_empty(at);
    mark(Mark::load, BackwardMarks::items, at.passed);
  }

  /// Hands on the item in `at`, whose `work` is there, and waits until the loader has come to it.
  __device__ __forceinline__ void pass_on() {
    place_bias(params.backward.call, shared.item(at.slot()), lane);
    if (ptx::lane_id() == 0) {  // asked for again: registers
      Item& item = shared.item(at.slot());
      Masking::prepare(item);
      // A jagged batch is one sequence of the maps.
      item.sequence = params.backward.call.cu_seqlens_q == nullptr ? item.work.sequence : 0;
      item.is_end = false;
      shared.items.publish(at);
    }
    mark(Mark::idle);
    ptx::mbarrier_wait(shared.request, at.passed & 1);
    at.advance();
  }

  /// The rows to take items for: a dense bias's gradient may have columns past the keys.
  __device__ __forceinline__ long long end_of(const Work& work) const {
    if (!kConfig.bias_gradient || work.sequence >= params.backward.call.sequences) return work.slot_k;
    if (kConfig.gradient_rows && params.backward.bias_gradient.packed) return work.slot_k;
    return max(work.slot_k, params.backward.bias_gradient.num_columns);
  }

  __device__ __forceinline__ unsigned take() const {
    unsigned taken = 0;
    if (lane == 0) taken = atomicAdd(&params.counters[0], 1u);
    return __shfl_sync(kAllLanes, taken, 0);
  }

  __device__ __forceinline__ void run() {
    const AttentionCall& call = params.backward.call;
    // Where other CTAs wait for items (hopper_backward_sums.h), none may belong to a CTA that does not run yet.
    constexpr bool kTakesFirst = kConfig.converts_sums || kConfig.orders_sums;
    // What is needed from item to item is read again: the producer may have few registers.
    for (unsigned index = kTakesFirst ? take() : blockIdx.x; index < static_cast<unsigned>(call.schedule.items());) {
      wait_empty();
      if (lane == 0) shared.item(at.slot()).work = work_of(call, index, kKeys);
      __syncwarp();
      for (;;) {
        const Work& work = shared.item(at.slot()).work;
        if (work.first_row >= end_of(work)) break;
        pass_on();
        wait_empty();
        // One tile an item when the schedule knew the longest sequence; a longer one's items come again, so much
        // further on.
        Work& next = shared.item(at.slot()).work;
        static_assert(kWorkBytes % 4 == 0 && kWorkBytes / 4 <= 32);
        if (lane < kWorkBytes / 4) reinterpret_cast<int*>(&next)[lane] = reinterpret_cast<const int*>(&work)[lane];
        __syncwarp();
        if (lane == 0) next.first_row += static_cast<long long>(call.schedule.query_tiles) * kKeys;
        __syncwarp();
      }
      index = (kTakesFirst ? 0 : gridDim.x) + take();
    }
    wait_empty();
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

// The loader: one warp that loads K and V of the items, and the query tiles that see them.

/// Whether K and V are asked for before the visible bits of an item's first tile are written.
constexpr bool kShortCode = (kConfig.experiment & 8) != 0;
constexpr bool kLooksLater = (kConfig.experiment & 16) != 0;
constexpr bool kKeysEarly = (kConfig.experiment & 2) != 0;

struct Loader : trace::Pen<kConfig.trace> {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  TileRing::Cursor at;
  KeyRing::Cursor key_at;
  uint32 landings = 0;

  /// Until the consumers have read what was in the stage. A named barrier, since every lane of theirs reads notes: as
  /// many arrivals on an mbarrier would take longer than the tile's scores.
  __device__ __forceinline__ void wait_free() const {
    mark(Mark::wait_empty, BackwardMarks::tiles, at.passed);
    if (at.passed >= kConfig.stages) free_barrier_sync(at.slot());
  }

  __device__ __forceinline__ void wait_landing() {
    ptx::mbarrier_wait(shared.landing, landings & 1);
    ++landings;
  }

  /// K and V of an item.
  __device__ __forceinline__ void load_keys(const Item& item) {
    const Work& work = item.work;
    const long long left = work.mask.seqlen_k - work.first_row;
    const int first = static_cast<int>(work.tensor_k + work.first_row);
    constexpr int kBytes =
        geometry::tile_bytes(kKeys, kConfig.head_dim) + geometry::tile_bytes(kKeys, kConfig.value_dim);
    mark(Mark::wait_empty, BackwardMarks::residents, key_at.passed);
    shared.keys.wait_empty(key_at);
    mark(Mark::load, BackwardMarks::residents, key_at.passed);
    if ((kConfig.experiment & 256) != 0 && key_at.passed > 0) {
      shared.keys.publish(key_at);
      key_at.advance();
      return;
    }
    const uint32 barrier = left < kKeys ? shared.landing : shared.keys.full(key_at.slot());
    if (lane == 0) {
      if (left < kKeys) {
        ptx::mbarrier_arrive_expect_tx(barrier, kBytes);
      } else {
        ptx::mbarrier_expect_tx(barrier, kBytes);
      }
      tile::tma_load_rows<kKeys, kConfig.head_dim>(&params.key, shared.key(key_at.slot()), barrier, first, work.head, item.sequence);
      tile::tma_load_rows<kKeys, kConfig.value_dim>(&params.value, shared.value(key_at.slot()), barrier, first, work.head,
                                                    item.sequence);
    }
    if (left < kKeys) {
      // V needs none of it: what its rows lead to is masked.
      wait_landing();
      zero_rows_from<kKeys, kConfig.head_dim>(shared.key(key_at.slot()), static_cast<int>(left), lane);
    }
    __syncwarp();
    shared.keys.publish(key_at);
    key_at.advance();
    mark(Mark::idle);
  }

  /// R by its map, and where its gradient goes. One lane.
  __device__ __forceinline__ void load_bias(const Work& work, int head, int first_query, int stage,
                                            uint32 barrier) const {
    const BiasCall& bias = params.backward.call.bias;
    const int row = bias_row_of_query(bias, work) + first_query;
    if constexpr (!kConfig.bias_rows) {
#pragma unroll
      for (int panel = 0; panel < geometry::panels_of(kKeys); ++panel) {
        ptx::tma_load<4>(&params.bias, shared.bias(stage) + panel * kQueries * kRowBytes, barrier,
                         {static_cast<int>(work.first_row) + panel * geometry::kPanelColumns, row,
                          bias.head_stride == 0 ? 0 : head, bias.batch_stride == 0 ? 0 : work.sequence},
                         ptx::kEvictFirst);
      }
    }
    if constexpr (kConfig.gradient_rows) {
      shared.bias_note(stage).row = row;
      shared.bias_note(stage).head = head;
    }
  }

  /// Q, dO, and what is known of the rows.
  __device__ __forceinline__ void load_queries(const Item& item, QueryTile tile, bool is_last, bool with_keys) {
    const Work& work = item.work;
    const AttentionCall& call = params.backward.call;
    const int head = work.head * call.heads_per_key_head + tile.head;
    const int first = tile.number * kQueries, rows = geometry::min_of(work.mask.seqlen_q - first, kQueries);
    const int first_key = static_cast<int>(work.first_row);
    const long long batch_row = work.first_q + first;
    constexpr int kRowsOfLane = kQueries / 32;

    // Asked for before the wait, which hides the way.
    SoftmaxRowTerms terms[kRowsOfLane];
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int row = i * 32 + lane;
      terms[i] = {__int_as_float(0x7f800000), 0};
      if (row >= rows) continue;
      if constexpr (kConfig.softmax) {
        terms[i] = params.backward.row_terms[head * call.total_q + batch_row + row];
      } else if (call.divisor_rows != nullptr) {
        terms[i].delta = call.divisor_rows[batch_row + row];
      }
    }
    const bool is_short = rows < kQueries;
    // R has something beside rows that do not exist, too, which must not count.
    const auto look = [&] {
      return !((kConfig.stored_bias || kConfig.table_bias) && is_short) &&
             Masking::sees_all(call, work, tile.head, {first, first + rows}, {first_key, first_key + kKeys}, lane);
    };
    bool is_whole = (kConfig.experiment & 64) != 0;
    if constexpr (!kLooksLater && (kConfig.experiment & 64) == 0) is_whole = look();

    wait_free();
    settle_marks(shared.items.full(0));
    mark(Mark::load, BackwardMarks::tiles, at.passed);
    const int stage = at.slot();
    if (lane == 0) {
      const uint32 barrier = is_short ? shared.landing : shared.tiles.full(stage);
      // The bytes without an arrival: that follows the notes.
      constexpr int kBytes = kMap.query_bytes + kMap.dout_bytes + (kConfig.bias_rows ? 0 : kMap.bias_bytes);
      if (is_short) {
        ptx::mbarrier_arrive_expect_tx(barrier, kBytes);
      } else {
        ptx::mbarrier_expect_tx(barrier, kBytes);
      }
      const int row = static_cast<int>(work.tensor_q) + first;
      tile::tma_load_rows<kQueries, kConfig.head_dim>(&params.query, shared.query(stage), barrier, row, head,
                                                      item.sequence);
      tile::tma_load_rows<kQueries, kConfig.value_dim>(&params.dout, shared.dout(stage), barrier, row, head,
                                                       item.sequence);
      if constexpr (kConfig.stored_bias) load_bias(work, head, first, stage, barrier);
      if constexpr (!kLooksLater)
        shared.note(stage).flags = kQueryTileSeen | (is_whole ? 0 : kQueryTileMasked) | (is_last ? kQueryTileLast : 0);
      shared.note(stage).dq_tile =
          static_cast<int>(dq_sums_offset(work.first_q, work.sequence, tile.number,
                                          call.schedule.heads * call.heads_per_key_head, head, kQueries, 1) /
                           kQueries);
    }
    if (kKeysEarly && is_short) {
      wait_landing();
      zero_rows_from<kQueries, kConfig.head_dim>(shared.query(stage), rows, lane);
      zero_rows_from<kQueries, kConfig.value_dim>(shared.dout(stage), rows, lane);
    }
    if (kKeysEarly && with_keys) {
      __syncwarp();  // all have seen what landed
      load_keys(item);
    }
    if constexpr (kLooksLater) {
      is_whole = look();
      if (lane == 0)
        shared.note(stage).flags = kQueryTileSeen | (is_whole ? 0 : kQueryTileMasked) | (is_last ? kQueryTileLast : 0);
    }
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int row = i * 32 + lane;
      if constexpr (kConfig.softmax) {
        store_row_terms<true>(shared.row_terms(stage), kQueries, row, terms[i]);
      } else if (call.divisor_rows != nullptr) {
        shared.row_terms(stage)[row] = over_divisor(terms[i].delta);
      }
      if (is_whole || kShortCode) continue;
      const auto seen = Masking::row(call, work, tile.head, row < rows ? first + row : first);
#pragma unroll
      for (int word = 0; word < kKeys / 32; ++word) {
        shared.visible(stage)[word * kQueries + row] = row < rows ? seen.bits(first_key + word * 32) : 0;
      }
    }
    if (kShortCode && !is_whole) {
#pragma unroll 1
      for (int row = lane; row < kQueries; row += 32) {
        const auto seen = Masking::row(call, work, tile.head, row < rows ? first + row : first);
#pragma unroll 1
        for (int word = 0; word < kKeys / 32; ++word) {
          shared.visible(stage)[word * kQueries + row] = row < rows ? seen.bits(first_key + word * 32) : 0;
        }
      }
    }
    if constexpr (kConfig.bias_rows) {
      const BiasRows place = bias_rows(call.bias, work, head, item.packed_first, item.rows_of_bias, kBiasElementBytes);
      copy_bias_rows(shared, stage, RowsPart::of(place, 0, first, first_key, kBiasElementBytes), lane);
      ptx::cp_async_mbarrier_arrive(shared.tiles.full(stage));
    }
    if (!kKeysEarly && is_short) {
      wait_landing();
      zero_rows_from<kQueries, kConfig.head_dim>(shared.query(stage), rows, lane);
      zero_rows_from<kQueries, kConfig.value_dim>(shared.dout(stage), rows, lane);
    }
    __syncwarp();  // lane 0 has said how many bytes come
    shared.tiles.publish(at);
    at.advance();
    mark(Mark::idle);
  }

  /// An item that no query sees.
  __device__ __forceinline__ void load_nothing() {
    wait_free();
    if (lane == 0) shared.note(at.slot()).flags = kQueryTileLast;
    if constexpr (kConfig.bias_rows) ptx::cp_async_mbarrier_arrive(shared.tiles.full(at.slot()));
    shared.tiles.publish(at);
    at.advance();
  }

  __device__ __forceinline__ void load(const Item& item) {
    const auto walk = Masking::walk(params.backward.call, item);
    QueryTile tile = walk.next({-1, 0});
    if (tile.number < 0) return load_nothing();
    // The first tile may come while the item before still needs its K and V.
    for (bool is_first = true; tile.number >= 0; is_first = false) {
      const QueryTile next = walk.next(tile);
      if (kKeySlots > 1 && is_first) load_keys(item);
      load_queries(item, tile, next.number < 0, is_first);
      if (kKeySlots == 1 && !kKeysEarly && is_first) load_keys(item);
      tile = next;
    }
  }

  __device__ __forceinline__ void run() {
    if constexpr (kConfig.softmax && kConfig.accumulate_dq) ptx::grid_dependency_wait();  // for the row terms
    for (ItemRing::Cursor item_at;; item_at.advance()) {
      mark(Mark::wait_full, BackwardMarks::items, item_at.passed);
      shared.items.wait_full(item_at);
      mark(Mark::idle);
      const Item& item = shared.item(item_at.slot());
      if (item.is_end) break;
      // In order, whoever waits for this CTA's next item would wait for all of this one.
      if (!kConfig.orders_sums && lane == 0) ptx::mbarrier_arrive(shared.request);
      load(item);
      if (kConfig.orders_sums && lane == 0) ptx::mbarrier_arrive(shared.request);
      shared.items.release(item_at);
    }
    // The barriers end as they began.
    for (int stage = 0; stage < kConfig.stages; ++stage, at.advance()) wait_free();
  }
};

}  // namespace warploom
