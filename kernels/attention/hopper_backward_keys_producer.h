// The producer of the Hopper kernel for dK and dV: what the scheduler warp (attention/hopper_items.h) adds to an item,
// and two loader warps, one for each consumer's resident tile and ring.
#pragma once

#include "attention/hopper_backward_keys_shared.h"
#include "attention/hopper_bias_elements.h"
#include "attention/hopper_bias_gradient.h"
#include "attention/hopper_bias_place.h"
#include "tile/tma_tile.h"

namespace warploom {

/// The rest of an item.
struct PrepareItem {
  const BackwardParams& backward;
  /// A dense bias's gradient may have columns past the keys.
  __device__ __forceinline__ long long end(const Work& work) const {
    if (!kConfig.bias_gradient || backward.bias_gradient.packed || work.sequence >= backward.call.sequences) {
      return work.slot_k;
    }
    return max(work.slot_k, backward.bias_gradient.num_columns);
  }
  __device__ __forceinline__ void operator()(Item& item, int lane) const {
    const AttentionCall& call = backward.call;
    if constexpr (kConfig.stored_bias) place_bias<kBiasElementBytes>(call, item, lane);
    if (lane != 0) return;
    const Work& work = item.work;
    item.sequence = call.cu_seqlens_q == nullptr ? work.sequence : 0;  // a jagged batch is one sequence of the maps
    item.first_query = static_cast<int>(work.tensor_q);
    item.first_key = static_cast<int>(work.tensor_k + work.first_row);
    Masking::prepare(item);
  }
};

/// A loader: one warp that loads K and the Q tiles (side 0), or V and the dO tiles (side 1), of the items.
template <int Side>
struct Loader : trace::Pen<kConfig.trace> {
  static constexpr int kDim = Side == 0 ? kConfig.head_dim : kConfig.value_dim;
  static constexpr int kResidentBytes = Side == 0 ? kMap.key_bytes : kMap.value_bytes;
  static constexpr int kTileBytes = Side == 0 ? kMap.query_bytes : kMap.dout_bytes;
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  ResidentRing::Cursor resident_at;
  TileRing::Cursor tile_at;

  /// What the score function reads of the rows of a tile comes by each lane's own copies; rows past `rows` as 0.
  __device__ __forceinline__ void load_terms(const Work& work, int head, int first, int rows) {
    const BackwardParams& p = params.backward;
#pragma unroll
    for (int row = lane; row < kQueries; row += 32) {
      const uint32 to = shared.terms(Side, tile_at.slot()) + row * 4;
      if constexpr (kConfig.softmax) {
        const SoftmaxRowTerms* const from = p.row_terms + head * p.call.total_q + work.first_q + first + row;
        ptx::cp_async_small<4>(to, Side == 0 ? &from->lse : &from->delta, row < rows);
      } else if (p.call.divisor_rows != nullptr) {
        ptx::cp_async_small<4>(to, p.call.divisor_rows + work.first_q + first + row, row < rows);
      }
    }
  }

  /// Where the consumers find a tile's part of a bias. One lane.
  __device__ __forceinline__ void place_tile_bias(const Item& item, int head, int first_query, int first_key) const {
    const BackwardParams& p = params.backward;
    BiasPlace& place = shared.bias_place(tile_at.slot());
    const BiasRows rows =
        bias_rows(p.call.bias, item.work, head, item.packed_first, item.rows_of_bias, kBiasElementBytes);
    place.values = RowsPart::of(rows, 0, first_query, first_key, kBiasElementBytes);
    if constexpr (kConfig.bias_gradient) {
      place.gradient = gradient_part(p.bias_gradient, item, head, first_query, first_key);
    }
  }

  __device__ __forceinline__ void load_nothing() {
    const TileRing& ring = shared.tiles[Side];
    mark(Mark::wait_empty, BackwardKeysMarks::queries + Side, tile_at.passed);
    ring.wait_empty(tile_at);
    if (lane == 0) {
      shared.note(Side, tile_at.slot()).flags = kQueryTileLast;
      ring.publish(tile_at);
    }
    ptx::cp_async_mbarrier_arrive(ring.full(tile_at.slot()));
    tile_at.advance();
  }

  __device__ __forceinline__ void load(const Item& item) {
    const AttentionCall& call = params.backward.call;
    const Work& work = item.work;
    const TileRing& ring = shared.tiles[Side];
    QueryTile tile = Masking::next(call, item, {-1, 0}, lane);
    if (tile.number < 0) return load_nothing();
    const ResidentRing& resident = shared.residents[Side];
    mark(Mark::wait_empty, BackwardKeysMarks::keys + Side, resident_at.passed);
    resident.wait_empty(resident_at);
    mark(Mark::load, BackwardKeysMarks::keys + Side, resident_at.passed);
    if (lane == 0) {
      resident.expect(resident_at, kResidentBytes);
      tile::tma_load_rows<kKeys, kDim>(Side == 0 ? &params.key : &params.value, shared.resident(Side),
                                       resident.full(resident_at.slot()), item.first_key, work.head, item.sequence);
    }
    resident_at.advance();
    const int first_key = static_cast<int>(work.first_row);
    const Interval keys = {first_key, first_key + kKeys};  // those that do not exist nobody sees
    while (tile.number >= 0) {
      const int first = tile.number * kQueries, head = work.head * call.heads_per_key_head + tile.head;
      const int rows = work.mask.seqlen_q - first;
      const bool whole = rows >= kQueries && Masking::all_see(call, item, tile, keys, lane);
      const QueryTile next = Masking::next(call, item, tile, lane);
      mark(Mark::wait_empty, BackwardKeysMarks::queries + Side, tile_at.passed);
      ring.wait_empty(tile_at);
      mark(Mark::load, BackwardKeysMarks::queries + Side, tile_at.passed);
      if (lane == 0) {
        volatile QueryTilePlace& note = shared.note(Side, tile_at.slot());
        note.first_query = first;
        note.head = head;
        note.rows = rows;
        if constexpr (kConfig.stored_bias && Side == 0) place_tile_bias(item, head, first, first_key);
        note.flags = kQueryTileSeen | (whole ? 0 : kQueryTileMasked) | (next.number < 0 ? kQueryTileLast : 0);
        ring.expect(tile_at, kTileBytes);
        tile::tma_load_rows<kQueries, kDim>(Side == 0 ? &params.query : &params.dout, shared.tile(Side, tile_at.slot()),
                                            ring.full(tile_at.slot()), item.first_query + first, head, item.sequence);
      }
      load_terms(work, head, first, rows);
      if constexpr (kConfig.stored_bias && Side == 0) {
        __syncwarp();
        prefetch_bias<kQueries, kKeys>(shared.bias_place(tile_at.slot()).values, lane);
      }
      ptx::cp_async_mbarrier_arrive(ring.full(tile_at.slot()));
      tile_at.advance();
      tile = next;
    }
  }

  __device__ __forceinline__ void run() {
    for (ItemRing::Cursor at;; at.advance()) {
      mark(Mark::wait_full, BackwardKeysMarks::items, at.passed);
      shared.items.wait_full(at);
      const Item& item = shared.item(at.slot());
      const bool is_end = item.is_end;
      if (is_end) {
        load_nothing();  // for the consumers' last products
      } else {
        if (Side == 0 && lane == 0) ptx::mbarrier_arrive(shared.request);
        load(item);
      }
      shared.items.release(at);
      if (is_end) return;
    }
  }
};

}  // namespace warploom
