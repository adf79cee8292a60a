// A dense bias and its gradient in the one-pass Hopper backward kernel.
//
// The loader brings a (query, key) tile of R with each tile of Q and dO, by TMA or as hopper_backward_bias_rows.h does,
// and every warp reads the part beside its keys, transposed. dS is multiplied by what dR lacks before it is rounded, so
// that the score tile that dQ is computed from is the gradient's tile too: a warp of the producer has TMA store it as
// it lies. What no query tile holds is cleared by another one.
#pragma once

#include "attention/bias_key_rows.h"
#include "attention/hopper_backward_bias_rows.h"
#include "attention/hopper_backward_producer.h"
#include "attention/hopper_backward_scores.h"
#include "attention/hopper_bias_gradient.h"
#include "ptx/fence.h"
#include "ptx/ldmatrix.h"
#include "ptx/math.h"
#include "ptx/registers.h"

namespace warploom {

/// A tile of R, of all keys.
struct BiasTile {
  uint32 address;
  int shift,
      shift_of_row;  // bias_rows: the bytes from a multiple of 16 to its first row, and from one row's to the next

  static __device__ __forceinline__ BiasTile of(const AttentionCall& call, const Shared& shared, int stage) {
    BiasTile tile{shared.bias(stage), 0, 0};
    if constexpr (kConfig.bias_rows) {
      tile.shift = shared.bias_shift(stage);
      if (!call.bias.packed) tile.shift_of_row = static_cast<int>(call.bias.row_stride) * kBiasElementBytes;
    }
    return tile;
  }
};

/// Two elements of R as they are read.
using BiasPair = Either<kConfig.bias_float32, float2, uint32>::Type;
__device__ __forceinline__ float2 values_of(uint32 pair) {
  return ptx::unpack<Element>(pair);
}
__device__ __forceinline__ float2 values_of(float2 pair) {
  return pair;
}
__device__ __forceinline__ uint32 smaller_of(uint32 a, uint32 b) {
  return ptx::min_pair<Element>(a, b);
}
__device__ __forceinline__ float2 smaller_of(float2 a, float2 b) {
  return {fminf(a.x, b.x), fminf(a.y, b.y)};
}

/// body(k, i, r) for each pair r of the elements of R that belong to the pair of scores p[k][i], in a tile that TMA has
/// brought. first_key: the first of the warp's 16.
template <typename Body>
__device__ __forceinline__ void for_each_mapped_bias(uint32 tile, int first_key, Body body) {
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

/// The same, however it has come.
template <typename Body>
__device__ __forceinline__ void for_each_bias(const BiasTile& tile, int first_key, Body body) {
  if constexpr (kConfig.bias_rows) {
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x)) % 32;  // nothing of it is kept through the loop
    // Eight rows on, a row begins as far after a multiple of 16.
    const auto address_of = [&](int query) __attribute__((always_inline)) {
      return tile.address + query * kMap.bias_row_bytes +
             ((tile.shift + query * tile.shift_of_row) & (geometry::kChunkBytes - 1)) +
             (first_key + lane / 4) * kBiasElementBytes;
    };
    const uint32 even = address_of(lane % 4 * 2), odd = address_of(lane % 4 * 2 + 1);
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int offset = (2 * k + i / 2) * 8 * kMap.bias_row_bytes + i % 2 * 8 * kBiasElementBytes;
        if constexpr (kConfig.bias_float32) {
          body(k, i,
               float2{__uint_as_float(ptx::load_shared_4(even + offset)),
                      __uint_as_float(ptx::load_shared_4(odd + offset))});
        } else {
          body(k, i, ptx::load_shared_2(even + offset) | ptx::load_shared_2(odd + offset) << 16);
        }
      }
    }
  } else {
    for_each_mapped_bias(tile.address, first_key, body);
  }
}

/// Whether some R of the warp is -inf.
__device__ __forceinline__ bool hides_some(BiasPair least) {
  const float2 smallest = values_of(least);
  return __any_sync(kAllLanes, smallest.x == ptx::minus_infinity() || smallest.y == ptx::minus_infinity());
}
__device__ __forceinline__ bool hides_some(const BiasTile& tile, int first_key) {
  BiasPair least{};
  for_each_bias(tile, first_key, [&](int, int, BiasPair pair) { least = smaller_of(least, pair); });
  return hides_some(least);
}

/// s becomes what the biased score function takes (backward_score.h). Looks: whether some R of the warp is -inf.
template <bool Looks>
__device__ __forceinline__ bool add_bias(const AttentionCall& call, const BiasTile& tile, int first_key,
                                         TransposedScores<kQueries>& s) {
  BiasedScale scale = biased_scale<kConfig.softmax>(call);
  if constexpr (kConfig.scaled_key) scale.of_score = 1;
  BiasPair least{};
  for_each_bias(tile, first_key, [&](int k, int i, BiasPair pair) {
    const float2 r = values_of(pair);
    if constexpr (Looks) least = smaller_of(least, pair);
    float(&s_pair)[2] = pair_of(s, k, i);
    s_pair[0] = kConfig.scaled_key ? fmaf(r.x, scale.of_bias, s_pair[0]) : scale.of(s_pair[0], r.x);
    s_pair[1] = kConfig.scaled_key ? fmaf(r.y, scale.of_bias, s_pair[1]) : scale.of(s_pair[1], r.y);
  });
  return Looks && hides_some(least);
}

/// P or dS of what R = -inf hides becomes 0.
__device__ __forceinline__ void hide_masked(const BiasTile& tile, int first_key, PackedScores<kQueries>& packed) {
  for_each_bias(tile, first_key, [&](int k, int i, BiasPair pair) {
    const float2 r = values_of(pair);
    if (r.x == ptx::minus_infinity()) packed[k][i] &= 0xffff0000u;
    if (r.y == ptx::minus_infinity()) packed[k][i] &= 0x0000ffffu;
  });
}
__device__ __forceinline__ void hide_masked(const BiasTile& tile, int first_key, TransposedScores<kQueries>& s,
                                            TransposedScores<kQueries>& dp) {
  for_each_bias(tile, first_key, [&](int k, int i, BiasPair pair) {
    const float2 r = values_of(pair);
    if (r.x == ptx::minus_infinity()) pair_of(s, k, i)[0] = pair_of(dp, k, i)[0] = 0;
    if (r.y == ptx::minus_infinity()) pair_of(s, k, i)[1] = pair_of(dp, k, i)[1] = 0;
  });
}

/// Where a panel of a tile lies in the gradient.
struct GradientPlace {
  int column, row, head, sequence;
};

/// A panel of a tile by ordinary stores, where a box will not do: its rows as far as they exist. One warp.
__device__ __forceinline__ void store_rows(const BiasCall& gradient, const GradientPlace& place, uint32 panel,
                                           int lane) {
  constexpr int kElementBytes = 2;
  const long long first = place.sequence * gradient.batch_stride + place.head * gradient.head_stride + place.column;
  const int chunk = lane % geometry::kPanelChunks;
  if (place.column + chunk * geometry::kChunkValues >= gradient.num_columns) return;
#pragma unroll 1
  for (int r = lane / geometry::kPanelChunks; r < kQueries; r += 32 / geometry::kPanelChunks) {
    const long long row = place.row + r;
    if (row < 0 || row >= gradient.num_rows) continue;
    const uint4 values = ptx::load_shared_16(panel + geometry::swizzled_offset(kQueries, r, chunk));
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
    store_rows(params.backward.bias_gradient, place, panel, lane);
    __syncwarp();
  } else if (lane == 0 && place.column < params.backward.bias_gradient.num_columns) {
    ptx::tma_store<4>(&params.bias_gradient, panel, {place.column, place.row, place.head, place.sequence},
                      ptx::kEvictFirst);
    ptx::bulk_commit_group();
  }
}

/// The warp that stores the score tiles, which are the gradient's: beside the products, a consumer's warp would keep
/// the others waiting.
struct GradientStorer {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;

  __device__ __forceinline__ void store(const Work& work, QueryTile tile, int buffer) const {
    const int row = bias_row_of_query(params.backward.bias_gradient, work) + tile.number * kQueries;
    const int head = work.head * params.backward.call.heads_per_key_head + tile.head;
#pragma unroll 1
    for (int column = 0; column < kKeys; column += geometry::kPanelColumns) {
      store_panel(params, {static_cast<int>(work.first_row) + column, row, head, work.sequence},
                  shared.score_tile(buffer) + column * kQueries * 2, lane);
    }
  }

  __device__ __forceinline__ void run() const {
    ScoreRing::Cursor at;
#pragma unroll 1
    for (ItemRing::Cursor item_at;; item_at.advance()) {
      shared.items.wait_full(item_at);
      const Item& item = shared.item(item_at.slot());
      if (item.is_end) break;
      const auto walk = Masking::walk(params.backward.call, item);
#pragma unroll 1
      for (QueryTile tile = walk.next({-1, 0}); tile.number >= 0; tile = walk.next(tile), at.advance()) {
        shared.scores.wait_full(at);
        store(item.work, tile, at.slot());
        if (lane == 0) {
          ptx::bulk_wait_group_read<0>();
          shared.scores.release(at);
        }
        __syncwarp();
      }
      shared.items.release(item_at);
    }
    if (lane == 0) ptx::bulk_wait_group<0>();
  }
};

}  // namespace warploom
