// Sums for dQ that are repeatable bit for bit: CTAs add to a tile of them in the order of their keys, first ones first.
//
// The consumers leave a tile's dQ in shared memory; a warp of the producer adds it to the sums by one bulk reduction,
// when its turn has come, and passes the turn on when that has been done. The flag that says that a tile is clear
// (SumsProgress::cleared) counts the turns: 1 + the key tiles that have added. Whom a CTA waits for has an item that
// was handed out earlier, so CTAs that do not run at the same time cannot block each other. Query tiles are walked
// from the last to the first: the items of a head, which begin one after the other, then follow one another through
// the tiles, each a step behind. Tiles of context rows, which see all keys, come first: the last to visit one would
// wait for all the items before it.
#pragma once

#include "attention/hopper_backward_producer.h"
#include "attention/hopper_backward_shared.h"
#include "ptx/fence.h"
#include "ptx/global_order.h"
#include "ptx/tma.h"

namespace warploom {

struct SumsAdder {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  SumsRing::Cursor at;

  /// How many key tiles that some of the queries see come before the item's. Where a sequence is longer than the
  /// schedule knew, an item is several tiles, which come together.
  __device__ __forceinline__ unsigned before(const Work& work, int first_query) const {
    const int known = params.backward.call.schedule.query_tiles;
    const int own = static_cast<int>(work.first_row / kKeys), own_turn = own % known;
    const geometry::SequenceMask& mask = work.mask;
    const int all = (mask.seqlen_k + kKeys - 1) / kKeys;
    if (mask.left >= mask.seqlen_k && mask.num_targets == 0 && all <= known) return own;
    const geometry::Ranges seen =
        geometry::visible_to_any(mask, {first_query, geometry::min_of(first_query + kQueries, mask.seqlen_q)});
    unsigned count = 0;
#pragma unroll 1
    for (int tile = lane; tile < all; tile += 32) {
      const int turn = tile % known;
      const bool is_before = turn < own_turn || (turn == own_turn && tile < own);
      count += is_before && seen.intersects({tile * kKeys, (tile + 1) * kKeys});
    }
    return __reduce_add_sync(kAllLanes, count);
  }

  __device__ __forceinline__ void add(const Item& item, QueryTile tile) {
    constexpr int kBytes = kQueries * kConfig.head_dim * static_cast<int>(sizeof(float));
    const AttentionCall& call = params.backward.call;
    const int head = item.work.head * call.heads_per_key_head + tile.head;
    const unsigned place =
        static_cast<unsigned>(dq_sums_offset(item.work.first_q, item.work.sequence, tile.number,
                                             call.schedule.heads * call.heads_per_key_head, head, kQueries, 1) /
                              kQueries);
    const unsigned turn = 1 + before(item.work, tile.number * kQueries);
    // Its turn first, which often has come before dQ has.
    if (lane == 0) {
      ptx::wait_for_count(&params.sums.cleared[place], turn);
      ptx::fence_proxy_async();
    }
    __syncwarp();
    shared.staged.wait_full(at);
    if (ptx::lane_id() == 0) {  // asked for again: registers
      ptx::bulk_reduce_add_f32(params.backward.dq_sums + static_cast<long long>(place) * (kQueries * kConfig.head_dim),
                               shared.sums(), kBytes);
      ptx::bulk_commit_group();
      ptx::bulk_wait_group_read<0>();
      shared.staged.release(at);
      ptx::bulk_wait_group<0>();
      ptx::fence_gpu();
      ptx::store_relaxed(&params.sums.cleared[place], turn + 1);
    }
    __syncwarp();
    at.advance();
  }

  __device__ __forceinline__ void run() {
    for (ItemRing::Cursor item_at;; item_at.advance()) {
      shared.items.wait_full(item_at);
      const Item& item = shared.item(item_at.slot());
      if (item.is_end) return;
      const auto walk = Masking::walk(params.backward.call, item);
      for (QueryTile tile = walk.next({-1, 0}); tile.number >= 0; tile = walk.next(tile)) add(item, tile);
      shared.items.release(item_at);
    }
  }
};

}  // namespace warploom
