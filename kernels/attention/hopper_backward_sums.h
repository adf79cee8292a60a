// The sums for dQ beside the products of the one-pass Hopper backward kernel. Two warps of the producer that have
// nothing else to do see to them: the keeper clears the tiles of sums ahead of the items that add to them, the
// converter turns them into dQ behind these. So neither takes time of its own, and the sums of the (sequence, head)
// pairs that run side by side stay in L2 from their clearing to their end. What is left when a CTA has no item any more
// is converted by warps of a consumer too: a last group of pairs would keep one warp a CTA for 20 us.
//
// CTAs hand the tiles out among themselves, one at a time, in the order in which items come to need them. What anybody
// waits for is in somebody's hands or will be without him, so CTAs that do not run at the same time cannot block each
// other: consumers wait for the tiles of their item's sequence, which their own keeper takes unless others have; a
// keeper waits for its CTA's items and for tiles that others have taken; and items, which CTAs take when they run, go
// on without converters, which wait for those of a sequence.
#pragma once

#include "attention/hopper_backward_shared.h"
#include "ptx/global_order.h"
#include "ptx/shared_memory.h"
#include "ptx/types.h"

namespace warploom {

constexpr int kSumsOfTile = kQueries * kConfig.head_dim;
constexpr int kRowsOfPart = kQueries / kKeySlots, kSumsOfPart = kSumsOfTile / kKeySlots;
constexpr int kBlockSums = 128;  // of 16 rows and 8 columns: four a lane (geometry/fragment.h)
static_assert(kSumsOfTile % kBlockSums == 0);

struct SumsKeeper {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;

  __device__ __forceinline__ void clear(unsigned tile) const {
    float* const sums = params.backward.dq_sums + static_cast<long long>(tile) * kSumsOfTile + lane * 4;
#pragma unroll 8
    for (int i = (kConfig.experiment & 512) != 0 ? kSumsOfTile : 0; i < kSumsOfTile; i += kBlockSums) *reinterpret_cast<float4*>(sums + i) = float4{0, 0, 0, 0};
    ptx::fence_gpu();
    __syncwarp();
    if (lane == 0) ptx::store_relaxed(&params.sums.cleared[tile], 1);
  }

  /// Until all tiles before `limit` have been taken, by this CTA or another one.
  __device__ __forceinline__ void clear_before(unsigned limit) const {
#pragma unroll 1
    while (true) {
      unsigned tile = params.sums.tiles;
      if (lane == 0 && ptx::load_relaxed(&params.counters[2]) < limit) tile = atomicAdd(&params.counters[2], 1u);
      tile = __shfl_sync(kAllLanes, tile, 0);
      if (tile >= params.sums.tiles) return;
      clear(tile);
    }
  }

  /// Waits until the tiles of the item's heads, which have all been taken, are clear.
  __device__ __forceinline__ void wait_clear(const Work& work, unsigned first, unsigned end, int heads) const {
    const int here = params.backward.call.heads_per_key_head;
#pragma unroll 1
    for (unsigned tile = first + work.head * here + lane * heads; tile < end; tile += 32 * heads) {
#pragma unroll 1
      for (int head = 0; head < here; ++head) ptx::wait_for_count(&params.sums.cleared[tile + head], 1);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void run() const {
    const AttentionCall& call = params.backward.call;
    int pair_before = -1;  // of the item before: whose count it adds to
#pragma unroll 1
    for (ItemRing::Cursor at;; at.advance()) {
      shared.items.wait_full(at);
      const Item& item = shared.item(at.slot());
      const Work& work = item.work;
      const bool is_end = item.is_end, has_queries = !is_end && work.sequence < call.sequences;
      const int heads = call.schedule.heads * call.heads_per_key_head;
      unsigned first = 0, end = is_end ? params.sums.tiles : 0;  // the tiles of the sequence
      if (has_queries) {
        first = static_cast<unsigned>(work.first_q / kQueries + work.sequence) * heads;
        end = first + (static_cast<unsigned>(work.slot_q) + kQueries - 1) / kQueries * heads;
      }
      const int pair = has_queries ? work.sequence * call.schedule.heads + work.head : -1;
      // What the item needs first.
#pragma unroll 1
      for (int turn = 0;; ++turn) {
        clear_before(min(params.sums.tiles, end + turn * params.sums.ahead));
        if (is_end || turn > 0) break;
        if (has_queries) wait_clear(work, first, end, heads);
        if (lane == 0) ptx::mbarrier_arrive(shared.clear_of(at.slot()));
        shared.items.release(at);
      }
      if constexpr (kConfig.converts_sums) {
        // No item comes before the last but one is done, so this keeps nobody waiting.
        if (at.passed > 0) shared.items.wait_empty({at.passed + 1});
        if (lane == 0 && pair_before >= 0 && params.sums.queries.query_tiles > 0) {
          ptx::fence_gpu();
          ptx::red_add_relaxed(&params.sums.done[pair_before], 1);
        }
        pair_before = pair;
      }
      if (is_end) return;
    }
  }
};

struct SumsConverter {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  const uint32 place;  // of a tile of sums on its way, in shared memory
  Work& work;          // there: what it belongs to

  /// Until all keys of the sequence have been seen to, and the tile's sums, which no key may have been added to, are
  /// clear.
  __device__ __forceinline__ void wait_done(const Work& work, int tile) const {
    const AttentionCall& call = params.backward.call;
    if (lane == 0) {
      const unsigned items = static_cast<unsigned>((work.slot_k + kKeys - 1) / kKeys);
      const int pair = work.sequence * call.schedule.heads + work.head / call.heads_per_key_head;
      ptx::wait_for_count_sleeping(&params.sums.done[pair], items);
      ptx::wait_for_count_sleeping(&params.sums.cleared[tile], 1);
    }
    __syncwarp();
  }

  /// Four lanes of an mma have a row's eight columns of a block: their 16 bytes are exchanged with those of three other
  /// rows, so that the reads below meet no bank twice.
  __device__ __forceinline__ void fetch(int tile, int part) const {
    const int lane = static_cast<int>(ptx::lane_id());  // asked for again, as below: registers
    const float* const sums =
        params.backward.dq_sums + static_cast<long long>(tile) * kSumsOfTile + part * kSumsOfPart + lane * 4;
    const uint32 to = place + (lane ^ lane / 8) * 16;
#pragma unroll 8
    for (int block = 0; block < kSumsOfPart / kBlockSums; ++block) {
      ptx::cp_async_16(to + block * kBlockSums * 4, sums + block * kBlockSums, true);
    }
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<0>();
    __syncwarp();
  }

  /// Rows first.. of the sequence, the tile's: `used` of them have sums, the rest of `slots` become 0.
  __device__ __forceinline__ void store(const Work& work, int first, int used, int slots) const {
    constexpr int kBlocks = kConfig.head_dim / 8;  // of 16 rows
    const Tensor& to = params.backward.dquery;
    const int lane = static_cast<int>(ptx::lane_id());
    const int row_of_block = lane % 16, eighth = row_of_block % 8;
    const tile::GlobalRows rows = rows_of(to, work.sequence, work.tensor_q + first + row_of_block, work.head);
    const uint32 from = place + eighth * 64 + eighth / 2 * 16 + row_of_block / 8 * 8;
#pragma unroll 1
    for (int block = lane / 16; block < kRowsOfPart / 16 * kBlocks; block += 2) {
      uint4 values{0, 0, 0, 0};
      const int first_of_block = block / kBlocks * 16;
      if (first_of_block + row_of_block >= slots) continue;
      if (first_of_block + row_of_block < used) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 x = ptx::load_shared_float2((from ^ i * 16) + block * kBlockSums * 4);
          (&values.x)[i] = ptx::pack<Element>(x.x * params.sums.factor, x.y * params.sums.factor);
        }
      }
      *reinterpret_cast<uint4*>(rows.from(first_of_block).data + block % kBlocks * geometry::kChunkBytes) = values;
    }
    __syncwarp();  // the next tile comes to the same place
  }

  __device__ __forceinline__ void run() const {
    const AttentionCall& call = params.backward.call;
    const geometry::Schedule& schedule = params.sums.queries;
    while (true) {
      unsigned index = 0;
      if (lane == 0) index = atomicAdd(&params.counters[3], 1u);
      index = __shfl_sync(kAllLanes, index, 0);
      if (index >= static_cast<unsigned>(schedule.items())) return;
      if (lane == 0) {
        const geometry::WorkItem item = schedule.item(index);
        work = work_of_sequence(call, item.sequence, item.head);
        work.first_row = static_cast<long long>(item.query_tile) * kQueries;
      }
      __syncwarp();
      // One tile an item when the host knew the longest sequence.
      for (int first = static_cast<int>(work.first_row); first < work.slot_q;
           first += schedule.query_tiles * kQueries) {
        const int used = work.mask.seqlen_q - first;
        if (used > 0) {
          const int tile =
              static_cast<int>(dq_sums_offset(work.first_q, work.sequence, first / kQueries,
                                              call.schedule.heads * call.heads_per_key_head, work.head, kQueries, 1) /
                               kQueries);
          wait_done(work, tile);
          fetch(tile, 0);
        }
        store(work, first, used, geometry::min_of(static_cast<int>(work.slot_q) - first, kRowsOfPart));
        if constexpr (kKeySlots > 1) {
          const int left = static_cast<int>(work.slot_q) - first - kRowsOfPart;
          if (left > 0) {
            if (used > kRowsOfPart) fetch(static_cast<int>(dq_sums_offset(work.first_q, work.sequence, first / kQueries,
                                              call.schedule.heads * call.heads_per_key_head, work.head, kQueries, 1) /
                               kQueries), 1);
            store(work, first + kRowsOfPart, used - kRowsOfPart, geometry::min_of(left, kRowsOfPart));
          }
        }
      }
      __syncwarp();  // all have read the work
    }
  }
};

/// How many warps of the first consumer have room for a tile where K, V and the tiles of Q and dO were.
constexpr int kTailConverters = kMap.scores / (kSumsOfPart * 4) < 4 ? kMap.scores / (kSumsOfPart * 4) : 4;

/// At the end the first consumer's warps convert, too: what no products run beside any more. Both consumers.
__device__ __forceinline__ void convert_tail(const HopperBackwardParams& params, const Shared& shared, int who) {
  ptx::named_barrier_sync(pipeline::kBackwardEndId, 2 * kWarpgroup);
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) % kWarpgroup / 32, 0);
  if (who > 0 || warp >= kTailConverters) return;
  Work& work = *reinterpret_cast<Work*>(shared.bytes + kMap.visible + warp * kMap.work_bytes);
  const SumsConverter converter{params, shared, static_cast<int>(threadIdx.x) % 32,
                                shared.address + warp * (kSumsOfPart * 4), work};
  converter.run();
}

}  // namespace warploom
