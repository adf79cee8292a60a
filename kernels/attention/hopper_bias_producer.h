// The warps of the Hopper forward kernel's producer that bring R where TMA does not: each walks the key tiles as the
// loader does and fills its part of a K slot. Stored rows are copied here; tables are laid out by
// hopper_bucketed_producer.h.
#pragma once

#include "attention/hopper_bucketed_producer.h"
#include "attention/hopper_masking.h"

namespace warploom {

/// All lanes of a warp. Calls, for each item that sees keys, bring.start_item(item, its slot), and for each key tile
/// bring.start_tile(first_column) before a slot is free, bring.fill(stage, seeing) when it is, and
/// bring.publish(stage); seeing: bit c says that consumer c needs the tile. A tile without bytes is published only.
/// Turns: warps that take turns with the tiles, of which this one is number `who`.
template <int Turns, typename Bring>
__device__ __forceinline__ void bring_along_items(const AttentionCall& call, const Shared& shared, int lane, int who,
                                                  Bring& bring) {
  static_assert(kConfig.stages % Turns == 0, "a warp that misses a phase of a slot cannot tell the next one by parity");
  KeyRing::Cursor key_at;
  const auto is_mine = [&] { return Turns == 1 || key_at.passed % Turns == who; };
  for (ItemRing::Cursor at;; at.advance()) {
    shared.items.wait_full(at);
    const Item& item = shared.item(at.slot());
    const bool is_end = item.is_end;
    bool has_tiles = false;
    if (!is_end) {
      typename Masking::Tiles tiles(call, item, lane);
      has_tiles = tiles.tile >= 0;
      if (has_tiles) bring.start_item(item, at.slot());
      for (; tiles.tile >= 0; tiles.advance(), key_at.advance()) {
        if (!is_mine()) continue;
        bring.start_tile(tiles.tile * kKeys);
        const int kind = tiles.kind();
        const unsigned seeing = __ballot_sync(kAllLanes, lane < kConfig.consumers && kind != kUnseenTile);
        shared.keys.wait_empty(key_at);
        bring.fill(key_at.slot(), seeing);
        bring.publish(key_at.slot());
      }
    }
    if (!has_tiles) {
      if (is_mine()) {
        shared.keys.wait_empty(key_at);
        bring.publish(key_at.slot());
      }
      key_at.advance();
    }
    shared.items.release(at);
    if (is_end) return;
  }
}

/// Copies stored rows: one of kCopyingWarps warps, which has every other 16 rows of an item's tile.
///
/// A row lies in shared memory from the multiple of 16 bytes at or before its first byte on, and a consumer shifts it
/// when it reads. What is copied in front of a row is never used.
struct BiasCopier {
  using Tile = BiasTile;
  static constexpr int kGroups = kQueryRows / kWarpRows, kGroupsOfConsumer = kWarpgroupRows / kWarpRows;
  static_assert(!kCopiedBias || Tile::kBytes * kGroupsOfConsumer == kMap.bias_bytes);

  const AttentionCall& call;
  const Shared& shared;
  const int lane;
  const int who;
  BiasRows& rows;  // of the item; in shared memory, as the producer has few registers
  int first_row = 0, first_column = 0;

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
  __device__ __forceinline__ void start_tile(int column) { first_column = column; }

  __device__ __forceinline__ void fill(int stage, unsigned seeing) const {
#pragma unroll 1
    for (int group = who; group < kGroups; group += kCopyingWarps) {
      if ((seeing >> group / kGroupsOfConsumer & 1) == 0) continue;
      const RowsPart part = RowsPart::of(rows, 0, first_row + group * kWarpRows, first_column, Tile::kElementBytes);
      Tile::template start_chunks<kShiftedBias>(shared.bias(stage, 0) + group * Tile::kBytes, part, lane);
    }
  }
  /// An arrival of every lane, when its copies are there; at once when it has none.
  __device__ __forceinline__ void publish(int stage) const { ptx::cp_async_mbarrier_arrive(shared.keys.full(stage)); }
};

/// Warp `warp` of the producer, counted from the first one that brings R.
__device__ __forceinline__ void bring_bias(const AttentionCall& call, const Shared& shared, int lane, int warp) {
  if (warp >= kBiasWarps) return;
  if constexpr (kBucketed) {
    BucketedProducer bring{call, shared, lane};
    bring.prepare();
    bring_along_items<kBiasWarps>(call, shared, lane, warp, bring);
  } else if constexpr (kCopiedBias) {
    BiasCopier bring{call, shared, lane, warp, shared.bias_rows(warp)};
    bring_along_items<1>(call, shared, lane, warp, bring);
  }
}

}  // namespace warploom
