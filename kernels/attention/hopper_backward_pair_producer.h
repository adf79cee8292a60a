// The producer of the Hopper backward kernel with two CTAs a work item: what its scheduler warp
// (attention/hopper_items.h) adds to an item and how it takes one, and two loader warps, one for each side's resident
// tile and ring. Both CTAs see the same query tiles: each loads every other panel of them, for both.
#pragma once

#include "attention/backward_score.h"
#include "attention/hopper_backward_pair_shared.h"
#include "attention/hopper_backward_scores.h"
#include "ptx/fence.h"
#include "ptx/grid_dependency.h"
#include "tile/tma_tile.h"

namespace warploom {

/// The rest of an item.
struct PrepareItem {
  const AttentionCall& call;
  __device__ __forceinline__ void operator()(Item& item, int lane) const {
    if (lane != 0) return;
    item.sequence =
        call.cu_seqlens_q == nullptr ? item.work.sequence : 0;  // a jagged batch is one sequence of the maps
    Masking::prepare(item);
  }
};

/// The scheduler's way to items that both CTAs of the cluster have: the first CTA takes them, and tells the other one
/// by a copy of the number into its shared memory.
struct TakesForCluster {
  const Shared& shared;
  uint32 letters = 0;

  __device__ __forceinline__ unsigned first() const { return blockIdx.x / kClusterCtas; }
  __device__ __forceinline__ unsigned next(unsigned* counters, int lane) {
    unsigned taken = 0;
    if (shared.rank == 0) {
      if (lane == 0) {
        taken = atomicAdd(&counters[0], 1u);
        ptx::mbarrier_wait(shared.mail_empty, letters & 1 ^ 1);
        shared.outgoing() = taken;
        ptx::fence_proxy_async_shared();
        ptx::bulk_copy_to_cta(shared.address + kMap.mail + kMap.letter_bytes, shared.address + kMap.mail,
                              kMap.letter_bytes, shared.mail_full, shared.peer());
      }
    } else {
      if (lane == 0) ptx::mbarrier_arrive_expect_tx(shared.mail_full, kMap.letter_bytes);
      ptx::mbarrier_wait(shared.mail_full, letters & 1);
      taken = shared.incoming();
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive_remote(shared.mail_empty, shared.peer());
    }
    ++letters;
    return gridDim.x / kClusterCtas + __shfl_sync(kAllLanes, taken, 0);
  }
};

/// A loader: one warp that loads K and the Q tiles (side 0), or V and the dO tiles (side 1), of the items.
template <int Side>
struct Loader : trace::Pen<kConfig.trace> {
  static constexpr int kDim = Side == 0 ? kConfig.head_dim : kConfig.value_dim;
  static constexpr int kTileBytes = Side == 0 ? kMap.query_bytes : kMap.dout_bytes;
  static constexpr int kRowsOfLane = kQueries / 32;
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  ResidentRing::Cursor resident_at;
  using Ring = typename RingOf<Side>::Type;
  typename Ring::Cursor at;

  __device__ __forceinline__ void publish() {
    if (Side == 0 || lane == 0) shared.tiles<Side>().publish(at);  // side 0: every lane has written
    at.advance();
  }

  __device__ __forceinline__ void load_nothing() {
    mark(Mark::wait_empty, BackwardPairMarks::queries + Side, at.passed);
    shared.tiles<Side>().wait_empty(at);
    if (Side == 0 && lane == 0) shared.note(at.slot()).flags = kQueryTileLast;
    __syncwarp();
    publish();
  }

  __device__ __forceinline__ void load_resident(const Item& item) {
    const ResidentRing& ring = shared.residents[Side];
    mark(Mark::wait_empty, BackwardPairMarks::keys + Side, resident_at.passed);
    ring.wait_empty(resident_at);
    mark(Mark::load, BackwardPairMarks::keys + Side, resident_at.passed);
    if (lane == 0) {
      const uint32 barrier = ring.full(0);
      const int row = static_cast<int>(item.work.tensor_k), head = item.work.head;
      ring.expect(resident_at, Side == 0 ? kMap.key_bytes + kMap.other_key_bytes : kMap.value_bytes);
      tile::tma_load_rows<kKeys, kDim>(Side == 0 ? &params.key : &params.value,
                                       Side == 0 ? shared.key() : shared.value(), barrier, row + shared.first_key(item),
                                       head, item.sequence);
      if constexpr (Side == 0) {
        for (int n = 0; n < 2; ++n) {
          ptx::tma_load<4>(&params.key, shared.other_key() + n * kKeys * kRowBytes, barrier,
                           {sum_panel(shared.rank, n) * geometry::kPanelColumns, row + shared.other_first_key(item),
                            head, item.sequence});
        }
      }
    }
    resident_at.advance();
  }

  __device__ __forceinline__ void load_tile(const Item& item, QueryTile tile, bool is_last) {
    const AttentionCall& call = params.backward.call;
    const Work& work = item.work;
    const Ring& ring = shared.tiles<Side>();
    const int first = tile.number * kQueries, head = work.head * call.heads_per_key_head + tile.head;
    const int rows = work.mask.seqlen_q - first, first_key = shared.first_key(item);
    [[maybe_unused]] SoftmaxRowTerms terms[kRowsOfLane];
    [[maybe_unused]] bool is_whole = false;
    if constexpr (Side == 0) {
      // Asked for before the wait, which hides the way.
#pragma unroll
      for (int i = 0; i < kRowsOfLane; ++i) {
        const int row = i * 32 + lane;
        terms[i] = {__int_as_float(0x7f800000), 0};
        if (row >= rows) continue;
        if constexpr (kConfig.softmax) {
          terms[i] = params.backward.row_terms[head * call.total_q + work.first_q + first + row];
        } else if (call.divisor_rows != nullptr) {
          terms[i].delta = call.divisor_rows[work.first_q + first + row];
        }
      }
      is_whole = rows >= kQueries && Masking::all_see(call, item, tile, {first_key, first_key + kKeys}, lane);
    }
    mark(Mark::wait_empty, BackwardPairMarks::queries + Side, at.passed);
    ring.wait_empty(at);
    mark(Mark::load, BackwardPairMarks::queries + Side, at.passed);
    const int stage = at.slot();
    if (lane == 0) {
      ring.expect_and_publish_later(at, kTileBytes);
      const uint32 to = Side == 0 ? shared.query(stage) : shared.dout(stage);
      const int row = static_cast<int>(work.tensor_q) + first;
#pragma unroll
      for (int panel = 0; panel < geometry::panels_of(kDim); ++panel) {
        if (panel % 2 != static_cast<int>(shared.rank)) continue;
        ptx::tma_load_multicast<4>(Side == 0 ? &params.query : &params.dout, to + panel * kQueries * kRowBytes,
                                   ring.full(stage), 3, {panel * geometry::kPanelColumns, row, head, item.sequence});
      }
      if constexpr (Side == 0) {
        volatile PairTileNote& note = shared.note(stage);
        note.flags = kQueryTileSeen | (is_whole ? 0 : kQueryTileMasked) | (is_last ? kQueryTileLast : 0);
        note.rows = rows;
        note.dq_tile =
            static_cast<int>(dq_sums_offset(work.first_q, work.sequence, tile.number,
                                            call.schedule.heads * call.heads_per_key_head, head, kQueries, 1) /
                             kQueries);
      }
    }
    if constexpr (Side == 0) {
#pragma unroll
      for (int i = 0; i < kRowsOfLane; ++i) {
        const int row = i * 32 + lane;
        if constexpr (kConfig.softmax) {
          store_row_terms<false>(shared.row_terms(stage), kQueries, row, terms[i]);
        } else if (call.divisor_rows != nullptr) {
          shared.row_terms(stage)[row] = over_divisor(terms[i].delta);
        }
        if (is_whole) continue;
        const auto seen = Masking::row(call, work, head, row < rows ? first + row : first);
#pragma unroll
        for (int word = 0; word < kKeys / 32; ++word) {
          shared.visible(stage)[word * kQueries + row] = row < rows ? seen.bits(first_key + word * 32) : 0;
        }
      }
    }
    __syncwarp();  // lane 0 has said how many bytes come
    publish();
  }

  __device__ __forceinline__ void load(const Item& item) {
    const AttentionCall& call = params.backward.call;
    QueryTile tile = Masking::next(call, item, {-1, 0}, lane);
    if (tile.number < 0) return load_nothing();
    load_resident(item);
    while (tile.number >= 0) {
      const QueryTile next = Masking::next(call, item, tile, lane);
      load_tile(item, tile, next.number < 0);
      tile = next;
    }
  }

  __device__ __forceinline__ void run() {
    if constexpr (kConfig.softmax && Side == 0) ptx::grid_dependency_wait();  // for the row terms
    for (ItemRing::Cursor item_at;; item_at.advance()) {
      mark(Mark::wait_full, BackwardPairMarks::items, item_at.passed);
      shared.items.wait_full(item_at);
      const Item& item = shared.item(item_at.slot());
      const bool is_end = item.is_end;
      if (!is_end) {
        if (Side == 0 && lane == 0) ptx::mbarrier_arrive(shared.request);
        load(item);
      }
      shared.items.release(item_at);
      if (is_end) return;
    }
  }
};

}  // namespace warploom
