// A dense bias in the Hopper forward kernel: the loader brings each consumer's tile of R beside the key tile, and the
// consumer's warps add it to their scores.
#pragma once

#include "attention/hopper_shared.h"
#include "ptx/ldmatrix.h"

namespace warploom {

/// Adds R to a warp's 16 rows of scores. tile: the consumer's, as TMA leaves it. What R says to be -inf is invisible.
__device__ __forceinline__ void add_bias(WarpgroupScores<kKeys>& s, const AttentionCall& call, uint32 tile) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  // Lane l gives ldmatrix a row of block l / 8: two halves of the rows, two blocks of columns, as accumulators have
  // them.
  const uint32 first = tile + (warp * kWarpRows + lane % 16) * geometry::kPanelRowBytes +
                       geometry::swizzled_chunk(lane % 8, lane / 16) * geometry::kChunkBytes;
  const auto load = [&](uint32(&block)[4], int n) {
    const uint32 panel = n / geometry::kPanelChunks * geometry::tile_bytes(kWarpgroupRows, 1);
    ptx::ldmatrix_x4(block, (first ^ n % geometry::kPanelChunks * geometry::kChunkBytes) + panel);
  };
  uint32 least = 0;
#pragma unroll
  for (int n = 0; n < kKeys / 8; n += 2) {
    uint32 block[4];
    load(block, n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 r = ptx::unpack<Element>(block[i]);
      least = ptx::min_pair<Element>(least, block[i]);
      float* const pair = &s[0][n + i / 2][i % 2 * 2];
      pair[0] = Rows::biased(pair[0], r.x, call);
      pair[1] = Rows::biased(pair[1], r.y, call);
    }
  }
  const float2 smallest = ptx::unpack<Element>(least);
  const bool hides = smallest.x == ptx::minus_infinity() || smallest.y == ptx::minus_infinity();
  if (!__any_sync(kAllLanes, hides)) return;
#pragma unroll
  for (int n = 0; n < kKeys / 8; n += 2) {
    uint32 block[4];
    load(block, n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 r = ptx::unpack<Element>(block[i]);
      float* const pair = &s[0][n + i / 2][i % 2 * 2];
      if (r.x == ptx::minus_infinity()) pair[0] = Rows::invisible();
      if (r.y == ptx::minus_infinity()) pair[1] = Rows::invisible();
    }
  }
}

}  // namespace warploom
