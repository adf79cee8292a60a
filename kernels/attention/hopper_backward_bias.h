// A dense bias and its gradient in the one-pass Hopper backward kernel.
//
// The loader brings a (query, key) tile of R with each tile of Q and dO, and every warp reads the part beside its keys,
// transposed. dS is multiplied by what dR lacks before it is rounded, so that the score tile that dQ is computed from
// is the gradient's tile too: TMA stores it as it lies. What no query tile holds is cleared by a warp of the producer.
#pragma once

#include "attention/bias_rows.h"
#include "attention/hopper_backward_producer.h"
#include "attention/hopper_backward_scores.h"
#include "ptx/fence.h"
#include "ptx/ldmatrix.h"
#include "ptx/math.h"

namespace warploom {

/// body(k, i, r) for each pair r of the elements of R that belong to the pair of scores p[k][i]. tile: of all keys;
/// first_key: the first of the warp's 16.
template <typename Body>
__device__ __forceinline__ void for_each_bias(uint32 tile, int first_key, Body body) {
  const int lane = threadIdx.x % 32;
  const uint32 address =
      tile + geometry::swizzled_offset(kQueries, lane / 16 * 8 + lane % 8, first_key / 8 + lane / 8 % 2);
#pragma unroll
  for (int k = 0; k < kQueries / 16; ++k) {
    uint32 block[4];
    ptx::ldmatrix_x4_trans(block, address + k * 16 * kRowBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) body(k, i, block[i]);
  }
}

/// s becomes what the biased score function takes (backward_score.h). Whether some R of the warp is -inf.
__device__ __forceinline__ bool add_bias(const AttentionCall& call, uint32 tile, int first_key,
                                         TransposedScores<kQueries>& s) {
  BiasedScale scale = biased_scale<kConfig.softmax>(call);
  if constexpr (kConfig.scaled_key) scale.of_score = 1;
  uint32 least = 0;
  for_each_bias(tile, first_key, [&](int k, int i, uint32 pair) {
    const float2 r = ptx::unpack<Element>(pair);
    least = ptx::min_pair<Element>(least, pair);
    float(&s_pair)[2] = pair_of(s, k, i);
    s_pair[0] = scale.of(s_pair[0], r.x);
    s_pair[1] = scale.of(s_pair[1], r.y);
  });
  const float2 smallest = ptx::unpack<Element>(least);
  return __any_sync(kAllLanes, smallest.x == ptx::minus_infinity() || smallest.y == ptx::minus_infinity());
}

/// P or dS of what R = -inf hides becomes 0.
__device__ __forceinline__ void hide_masked(uint32 tile, int first_key, PackedScores<kQueries>& packed) {
  for_each_bias(tile, first_key, [&](int k, int i, uint32 pair) {
    const float2 r = ptx::unpack<Element>(pair);
    if (r.x == ptx::minus_infinity()) packed[k][i] &= 0xffff0000u;
    if (r.y == ptx::minus_infinity()) packed[k][i] &= 0x0000ffffu;
  });
}

/// Where a panel of a tile lies in the gradient.
struct GradientPlace {
  int column, row, head, sequence;
};

/// The same by ordinary stores, where a box will not do: rows [begin, end) of a tile at `place`, as far as they exist.
/// panel: the tile's in shared memory, of 64 columns; 0: zeros. One warp.
__device__ __forceinline__ void store_rows(const BiasCall& gradient, const GradientPlace& place, int begin, int end,
                                           uint32 panel, int lane) {
  constexpr int kElementBytes = 2;
  const long long first = place.sequence * gradient.batch_stride + place.head * gradient.head_stride + place.column;
  const int chunk = lane % geometry::kPanelChunks;
  if (place.column + chunk * geometry::kChunkValues >= gradient.num_columns) return;
#pragma unroll 1
  for (int r = begin + lane / geometry::kPanelChunks; r < end; r += 32 / geometry::kPanelChunks) {
    const long long row = place.row + r;
    if (row < 0 || row >= gradient.num_rows) continue;
    uint4 values = {0, 0, 0, 0};
    if (panel != 0) values = ptx::load_shared_16(panel + geometry::swizzled_offset(kQueries, r, chunk));
    *reinterpret_cast<uint4*>(static_cast<char*>(gradient.values) +
                              (first + row * gradient.row_stride) * kElementBytes + chunk * geometry::kChunkBytes) =
        values;
  }
}

/// Stores a panel of a tile of dR; the first lane's bulk group. One warp, whose first lane waits until it has been
/// read.
__device__ __forceinline__ void store_panel(const HopperBackwardParams& params, const GradientPlace& place,
                                            uint32 panel, int lane) {
  if (place.row < 0) {  // where a box may not begin
    store_rows(params.backward.bias_gradient, place, 0, kQueries, panel, lane);
    __syncwarp();
  } else if (lane == 0 && place.column < params.backward.bias_gradient.num_columns) {
    ptx::tma_store<4>(&params.bias_gradient, panel, {place.column, place.row, place.head, place.sequence},
                      ptx::kEvictFirst);
    ptx::bulk_commit_group();
  }
}

/// The warp that clears what of the gradient's columns of an item no query tile holds.
struct Clearer {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;

  /// Rows [begin, end) of a head. Boxes may pass the last row, not begin before the first one.
  __device__ __forceinline__ void clear(const Work& work, int head, int begin, int end, bool is_last) const {
    const BiasCall& gradient = params.backward.bias_gradient;
    const int odd = is_last ? 0 : (end - begin) % kQueries;
#pragma unroll 1
    for (int column = 0; column < kKeys; column += geometry::kPanelColumns) {
      GradientPlace place{static_cast<int>(work.first_row) + column, begin, head, work.sequence};
      store_rows(gradient, place, 0, odd, 0, lane);
#pragma unroll 1
      for (place.row += odd; place.row < end; place.row += kQueries) {
        store_panel(params, place, shared.address + kMap.zeros, lane);
      }
    }
  }

  __device__ __forceinline__ void clear(const Item& item) const {
    const AttentionCall& call = params.backward.call;
    const Work& work = item.work;
    if (work.sequence >= call.sequences) return;  // rows that belong to nobody have no R
    const int first = bias_row_of_query(params.backward.bias_gradient, work);
    const int rows = static_cast<int>(params.backward.bias_gradient.num_rows);
    const auto walk = Masking::walk(call, item);
    QueryTile tile = walk.next({-1, 0});
#pragma unroll 1
    for (int head = 0; head < call.heads_per_key_head; ++head) {
      const int query_head = work.head * call.heads_per_key_head + head;
      int done = 0;
#pragma unroll 1
      for (; tile.number >= 0 && tile.head == head; tile = walk.next(tile)) {
        const int row = first + tile.number * kQueries;
        if (done < row) clear(work, query_head, done, geometry::min_of(row, rows), row >= rows);
        done = geometry::max_of(row + kQueries, done);
      }
      if (done < rows) clear(work, query_head, done, rows, true);
    }
  }

  __device__ __forceinline__ void run() const {
    constexpr int kBytes = geometry::tile_bytes(kQueries, geometry::kPanelColumns);
    for (int i = lane * geometry::kChunkBytes; i < kBytes; i += 32 * geometry::kChunkBytes) {
      ptx::store_shared_16(shared.address + kMap.zeros + i, uint4{0, 0, 0, 0});
    }
    ptx::fence_proxy_async_shared();
    __syncwarp();
    for (ItemRing::Cursor at;; at.advance()) {
      shared.items.wait_full(at);
      const Item& item = shared.item(at.slot());
      if (item.is_end) break;
      clear(item);
      shared.items.release(at);
    }
    if (lane == 0) ptx::bulk_wait_group<0>();
  }
};

}  // namespace warploom
