// The mask from the side of the keys in Hopper backward kernels whose loaders walk query tiles: which of them see the
// keys of a work item, and what a query row sees.
#pragma once

#include "attention/backward_visibility.h"
#include "attention/call.h"
#include "attention/visibility.h"
#include "attention/work.h"

namespace warploom {

/// The query tiles of an item one after the other, as KeyMasking finds them. All lanes of a warp.
template <typename Masking, typename Item>
struct KeyMaskingWalk {
  const AttentionCall& call;
  const Item& item;
  __device__ __forceinline__ QueryTile next(QueryTile tile) const {
    return Masking::next(call, item, tile, static_cast<int>(threadIdx.x) % 32);
  }
};

/// Items of ItemKeys keys, tiles of Queries rows. Item has `work` and, for sequence masks, `queries`. All lanes of a
/// warp.
template <bool Intervals, int ItemKeys, int Queries>
struct KeyMasking {
  template <typename Item>
  static __device__ __forceinline__ void prepare(Item& item) {
    const int first = static_cast<int>(item.work.first_row);
    item.queries = seeing_any(item.work.mask, {first, first + ItemKeys});
  }
  template <typename Item>
  static __device__ __forceinline__ KeyMaskingWalk<KeyMasking, Item> walk(const AttentionCall& call, const Item& item) {
    return {call, item};
  }
  /// The tile after `tile`; {-1, 0} stands before the first one.
  template <typename Item>
  static __device__ __forceinline__ QueryTile next(const AttentionCall& call, const Item& item, QueryTile tile, int) {
    return SequenceQueryWalk<Queries>{&item.queries, call.heads_per_key_head}.next(tile);
  }
  template <typename Item>
  static __device__ __forceinline__ bool all_see(const AttentionCall&, const Item& item, QueryTile tile,
                                                 geometry::Interval keys, int) {
    return columns_of_all(item.work.mask, {tile.number * Queries, tile.number * Queries + Queries}).covers(keys);
  }
  /// head: of the queries.
  static __device__ __forceinline__ SequenceRow row(const AttentionCall&, const Work& work, int, int query) {
    return {visible_columns(work.mask, query + work.mask.offset())};
  }
};

template <int ItemKeys, int Queries>
struct KeyMasking<true, ItemKeys, Queries> {
  template <typename Item>
  static __device__ __forceinline__ void prepare(Item&) {}
  template <typename Item>
  static __device__ __forceinline__ KeyMaskingWalk<KeyMasking, Item> walk(const AttentionCall& call, const Item& item) {
    return {call, item};
  }
  static __device__ __forceinline__ IntervalRow row(const AttentionCall& call, const Work& work, int head, int query) {
    return {{call.intervals + head * call.interval_head_stride + (work.first_q + query) * 2 * call.num_intervals,
             call.num_intervals, work.mask.seqlen_k}};
  }
  template <typename Item>
  static __device__ __forceinline__ QueryTile next(const AttentionCall& call, const Item& item, QueryTile tile,
                                                   int lane) {
    const Work& work = item.work;
    const int first = static_cast<int>(work.first_row), rows = work.mask.seqlen_q;
    for (int row_of_tile = (tile.number + 1) * Queries; tile.head < call.heads_per_key_head;
         ++tile.head, row_of_tile = 0) {
      const int head = work.head * call.heads_per_key_head + tile.head;
      for (; row_of_tile < rows; row_of_tile += 32) {
        const int mine = row_of_tile + lane;
        const bool sees = mine < rows && row(call, work, head, mine).sees_any({first, first + ItemKeys});
        const unsigned seeing = __ballot_sync(kAllLanes, sees);
        if (seeing != 0) return {(row_of_tile + __ffs(static_cast<int>(seeing)) - 1) / Queries, tile.head};
      }
    }
    return {-1, 0};
  }
  template <typename Item>
  static __device__ __forceinline__ bool all_see(const AttentionCall& call, const Item& item, QueryTile tile,
                                                 geometry::Interval keys, int lane) {
    const int head = item.work.head * call.heads_per_key_head + tile.head;
    bool all = true;
    for (int in_tile = lane; in_tile < Queries && tile.number * Queries + in_tile < item.work.mask.seqlen_q;
         in_tile += 32) {
      all &= row(call, item.work, head, tile.number * Queries + in_tile).sees_all(keys);
    }
    return __all_sync(kAllLanes, all);
  }
};

}  // namespace warploom
