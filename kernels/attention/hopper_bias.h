// A bias in the Hopper forward kernel: the producer brings each consumer's part of R beside the key tile. While S is on
// its way the consumer's warps make R, times Rows::bias_factor, stand in registers as S will; then it is one
// instruction a score. What R says to be -inf is invisible.
#pragma once

#include "attention/hopper_bias_producer.h"
#include "attention/hopper_bucketed.h"
#include "attention/hopper_shared.h"
#include "ptx/ldmatrix.h"

namespace warploom {

/// R times a factor, -inf being left alone.
template <bool Hides>
__device__ __forceinline__ float scaled_bias(float r, float factor) {
  return Hides && r == ptx::minus_infinity() ? r : r * factor;
}

/// Of what TMA has brought. tile: the consumer's. first: its row that the lane gives ldmatrix; 16 of them a warp.
/// Returns the smallest pair of R.
template <bool Hides>
__device__ __forceinline__ uint32 read_mapped_bias(WarpgroupScores<kKeys>& r, float factor, uint32 tile, int warp,
                                                   int lane) {
  // Lane l gives ldmatrix a row of block l / 8: two halves of the rows, two blocks of columns, as accumulators have
  // them.
  const uint32 first = tile + (warp * kWarpRows + lane % 16) * geometry::kPanelRowBytes +
                       geometry::swizzled_chunk(lane % 8, lane / 16) * geometry::kChunkBytes;
  uint32 least = 0;
#pragma unroll
  for (int n = 0; n < kKeys / 8; n += 2) {
    uint32 block[4];
    const uint32 panel = n / geometry::kPanelChunks * geometry::tile_bytes(kWarpgroupRows, 1);
    ptx::ldmatrix_x4(block, (first ^ n % geometry::kPanelChunks * geometry::kChunkBytes) + panel);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      least = ptx::min_pair<Element>(least, block[i]);
      const float2 pair = ptx::unpack<Element>(block[i]);
      r[0][n + i / 2][i % 2 * 2] = scaled_bias<Hides>(pair.x, factor);
      r[0][n + i / 2][i % 2 * 2 + 1] = scaled_bias<Hides>(pair.y, factor);
    }
  }
  return least;
}

/// Of what was copied row by row: each row lies from the multiple of 16 bytes at or before its first byte on. first:
/// the lane's first element. Returns the smallest R.
template <bool Hides>
__device__ __forceinline__ float read_copied_bias(WarpgroupScores<kKeys>& r, float factor, uint32 first) {
  using Tile = RowsProducer::Tile;
  float least = 0;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
    if (n % 4 == 0) asm volatile("" ::: "memory");  // no more loads at once than registers bear
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = Tile::element(first + i / 2 * 8 * Tile::kPitch, 8 * n + i % 2);
      least = fminf(least, value);
      r[0][n][i] = scaled_bias<Hides>(value, factor);
    }
  }
  return least;
}

/// Whether the tile is one for the plain loop.
__device__ __forceinline__ bool has_plain_bias(const Shared& shared, int stage, int consumer) {
  if constexpr (kBucketed) return !shared.bucketed_tile(stage).looks_up(consumer);
  return true;
}

/// R for the 16 rows of scores that a warp of a consumer has of the key tile in a slot. Plain: has_plain_bias. Returns
/// whether some of it may be -inf; the same in all lanes.
template <bool Plain>
__device__ __forceinline__ bool read_bias(WarpgroupScores<kKeys>& r, const AttentionCall& call, const Shared& shared,
                                          int item, int stage, int consumer) {
  // Computed here: kept from step to step it would take registers.
  const int thread = ptx::in_register(threadIdx.x % kWarpgroup), lane = thread % 32, warp = thread / 32;
  const int row = consumer * kWarpgroupRows + warp * kWarpRows;
  const float factor = Rows::bias_factor(call);
  if constexpr (kMappedBias) {
    const uint32 tile = shared.bias(stage, consumer);
    const float2 least = ptx::unpack<Element>(read_mapped_bias<false>(r, factor, tile, warp, lane));
    if (!__any_sync(kAllLanes, fminf(least.x, least.y) == ptx::minus_infinity())) return false;
    read_mapped_bias<true>(r, factor, tile, warp, lane);
    return true;
  } else if constexpr (kBucketed) {
    return BucketedReader{shared.bucketed_tables(), shared.bucketed_item(item), shared.bucketed_tile(stage), row, lane}
        .template read<!Plain>(r);
  } else {
    using Tile = RowsProducer::Tile;
    const Item& of = shared.item(item);
    // Eight rows further down a row begins at the same place.
    const int shift = (of.bias_shift + (row + lane / 4) * of.bias_row_shift) % geometry::kChunkBytes;
    const uint32 first = shared.bias(stage, consumer) + (warp * kWarpRows + lane / 4) * Tile::kPitch + shift +
                         lane % 4 * 2 * Tile::kElementBytes;
    if (!__any_sync(kAllLanes, read_copied_bias<false>(r, factor, first) == ptx::minus_infinity())) return false;
    read_copied_bias<true>(r, factor, first);
    return true;
  }
}

/// Adds what read_bias gave.
__device__ __forceinline__ void add_bias(WarpgroupScores<kKeys>& s, const WarpgroupScores<kKeys>& r, bool hides,
                                         const AttentionCall& call) {
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][n][i] = Rows::biased(s[0][n][i], r[0][n][i], call);
  }
  if (!hides) return;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (r[0][n][i] == ptx::minus_infinity()) s[0][n][i] = Rows::invisible();
    }
  }
}

}  // namespace warploom
