// The warps of the Hopper forward kernel's producer that copy R row by row: rows that begin anywhere, rows of sequences
// that lie packed, and float32. Each warp walks the key tiles as the loader does and fills its part of a K slot.
#pragma once

#include "attention/hopper_masking.h"

namespace warploom {

/// One of kCopyingWarps warps: it has every other 16 rows of an item's tile.
///
/// A row lies in shared memory from the multiple of 16 bytes at or before its first byte on, and a consumer shifts it
/// when it reads. What is copied in front of a row, or of the next row behind it, is never used.
struct BiasCopier {
  using Tile = BiasTile;
  static constexpr int kGroups = kQueryRows / kWarpRows, kGroupsOfConsumer = kWarpgroupRows / kWarpRows;
  static_assert(!kCopiedBias || Tile::kBytes * kGroupsOfConsumer == kMap.bias_bytes);

  const AttentionCall& call;
  const Shared& shared;
  const int lane;
  const int who;
  BiasRows& rows;  // of the item; in shared memory, as the producer has few registers
  KeyRing::Cursor key_at;

  /// Where the item's rows lie. All lanes.
  __device__ __forceinline__ void find_rows(const Work& work) const {
    long long before = 0;
    if (call.bias.packed) {
      before = packed_elements_before(call, work.sequence, Tile::kElementBytes, lane, 32);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) before += __shfl_xor_sync(kAllLanes, before, step);
    }
    __syncwarp();  // all lanes are done with the item before
    if (lane == 0) rows = bias_rows(call.bias, work, work.head, before, Tile::kElementBytes);
    __syncwarp();
  }

  /// One slot of K: what the consumers of `seeing`, a bit each, need of the tile's R.
  __device__ __forceinline__ void fill(int first_row, int first_column, unsigned seeing) {
    shared.keys.wait_empty(key_at);
#pragma unroll 1
    for (int group = who; group < kGroups; group += kCopyingWarps) {
      if ((seeing >> group / kGroupsOfConsumer & 1) == 0) continue;
      const RowsPart part = RowsPart::of(rows, 0, first_row + group * kWarpRows, first_column, Tile::kElementBytes);
      Tile::template start_chunks<kShiftedBias>(shared.bias(key_at.slot(), 0) + group * Tile::kBytes, part, lane);
    }
    // An arrival of every lane, when its copies are there; at once when it has none.
    ptx::cp_async_mbarrier_arrive(shared.keys.full(key_at.slot()));
    key_at.advance();
  }

  __device__ __forceinline__ void run() {
    for (ItemRing::Cursor at;; at.advance()) {
      shared.items.wait_full(at);
      const Item& item = shared.item(at.slot());
      const bool is_end = item.is_end;
      if (is_end) {
        fill(0, 0, 0);
      } else {
        const int first_row = static_cast<int>(item.work.first_row);
        typename Masking::Tiles tiles(call, item, lane);
        if (tiles.tile < 0) {
          fill(0, 0, 0);
        } else {
          find_rows(item.work);
        }
        for (; tiles.tile >= 0; tiles.advance()) {
          const int kind = tiles.kind();
          fill(first_row, tiles.tile * kKeys,
               __ballot_sync(kAllLanes, lane < kConfig.consumers && kind != kUnseenTile));
        }
      }
      shared.items.release(at);
      if (is_end) return;
    }
  }
};

}  // namespace warploom
