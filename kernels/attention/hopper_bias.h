// A bias in the Hopper forward kernel: the producer brings each consumer's part of R beside the key tile (by TMA, or
// hopper_bias_producer.h), and the consumer's warps add it to their scores.
#pragma once

#include "attention/hopper_bucketed.h"
#include "attention/hopper_shared.h"
#include "ptx/ldmatrix.h"

namespace warploom {

/// Adds pairs of R in q's type to a warp's 16 rows of scores. load(block, n) gives ldmatrix's four blocks of the
/// columns from 8 n on: two halves of the rows, two blocks of columns, as accumulators have them.
template <typename Load>
__device__ __forceinline__ void add_bias_pairs(WarpgroupScores<kKeys>& s, const AttentionCall& call, const Load& load) {
  uint32 least = 0;
#pragma unroll
  for (int n = 0; n < kKeys / 8; n += 2) {
    uint32 block[4];
    load.blocks(block, n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 r = ptx::unpack<Element>(block[i]);
      least = ptx::min_pair<Element>(least, block[i]);
      float* const pair = &s[0][n + i / 2][i % 2 * 2];
      pair[0] = Rows::biased(pair[0], Rows::bias_factor(call) * r.x, call);
      pair[1] = Rows::biased(pair[1], Rows::bias_factor(call) * r.y, call);
    }
  }
  const float2 smallest = ptx::unpack<Element>(least);
  const bool hides = smallest.x == ptx::minus_infinity() || smallest.y == ptx::minus_infinity();
  if (!__any_sync(kAllLanes, hides)) return;
#pragma unroll
  for (int n = 0; n < kKeys / 8; n += 2) {
    uint32 block[4];
    load.blocks(block, n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 r = ptx::unpack<Element>(block[i]);
      float* const pair = &s[0][n + i / 2][i % 2 * 2];
      if (r.x == ptx::minus_infinity()) pair[0] = Rows::invisible();
      if (r.y == ptx::minus_infinity()) pair[1] = Rows::invisible();
    }
  }
}

/// Where a lane's row of a warp's tile begins for ldmatrix: as TMA leaves a consumer's tile, or as rows are copied.
struct MappedBlocks {
  uint32 first;
  __device__ __forceinline__ void blocks(uint32 (&block)[4], int n) const {
    const uint32 panel = n / geometry::kPanelChunks * geometry::tile_bytes(kWarpgroupRows, 1);
    ptx::ldmatrix_x4(block, (first ^ n % geometry::kPanelChunks * geometry::kChunkBytes) + panel);
  }
};
struct CopiedBlocks {
  uint32 first;
  __device__ __forceinline__ void blocks(uint32 (&block)[4], int n) const {
    ptx::ldmatrix_x4(block, first + n * geometry::kChunkBytes);
  }
};

/// The same element by element, for rows that begin between two multiples of 16 bytes and for float32. first: the
/// lane's first element.
__device__ __forceinline__ void add_bias_elements(WarpgroupScores<kKeys>& s, const AttentionCall& call, uint32 first) {
  const auto load = [first](int n, int i) {
    return BiasTile::element(first + i / 2 * 8 * BiasTile::kPitch, 8 * n + i % 2);
  };
  float least = 0;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float r = load(n, i);
      least = fminf(least, r);
      s[0][n][i] = Rows::biased(s[0][n][i], Rows::bias_factor(call) * r, call);
    }
  }
  if (!__any_sync(kAllLanes, least == ptx::minus_infinity())) return;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (load(n, i) == ptx::minus_infinity()) s[0][n][i] = Rows::invisible();
    }
  }
}

/// Whether a key tile has a bias for the plain loop.
__device__ __forceinline__ bool has_plain_bias(const Shared& shared, int stage, int consumer) {
  if constexpr (kBucketed) return !bucketed_tile(shared, stage).looks_up(consumer);
  return true;
}

__device__ __forceinline__ BucketedReader bucketed_reader(const AttentionCall& call, const Shared& shared, int item,
                                                          int stage, int consumer) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  return {call,
          bucketed_tables(shared),
          bucketed_item(shared, item),
          bucketed_tile(shared, stage),
          consumer * kWarpgroupRows + warp * kWarpRows,
          lane};
}

/// Before the wait for a plain tile's scores: what is computed of R. (Stored rows gain nothing by being read early.)
__device__ __forceinline__ void read_bias(Diagonals& computed, const AttentionCall& call, const Shared& shared,
                                          int item, int stage, int consumer) {
  if constexpr (kBucketed) bucketed_reader(call, shared, item, stage, consumer).read(computed);
}

/// Adds R to a warp's 16 rows of scores. What R says to be -inf is invisible. item, stage: the slots of the item and of
/// the key tile. Plain: has_plain_bias, and `computed` has been read.
template <bool Plain>
__device__ __forceinline__ void add_bias(WarpgroupScores<kKeys>& s, const Diagonals& computed,
                                         const AttentionCall& call, const Shared& shared, int item, int stage,
                                         int consumer) {
  const uint32 tile = shared.bias(stage, consumer);
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  if constexpr (kMappedBias) {
    // Lane l gives ldmatrix a row of block l / 8.
    add_bias_pairs(s, call,
                   MappedBlocks{tile + (warp * kWarpRows + lane % 16) * geometry::kPanelRowBytes +
                                geometry::swizzled_chunk(lane % 8, lane / 16) * geometry::kChunkBytes});
  } else if constexpr (kBucketed) {
    const BucketedReader reader = bucketed_reader(call, shared, item, stage, consumer);
    if constexpr (Plain) {
      reader.add(s, computed);
    } else {
      reader.look_up_or_add(s);
    }
  } else if constexpr (!kShiftedBias) {
    add_bias_pairs(s, call,
                   CopiedBlocks{tile + warp * BiasTile::kBytes + lane % 16 * BiasTile::kPitch +
                                lane / 16 * geometry::kChunkBytes});
  } else {
    // Eight rows further down a row begins at the same place.
    const Item& of = shared.item(item);
    const int row = consumer * kWarpgroupRows + warp * kWarpRows + lane / 4;
    const int shift = (of.bias_shift + row * of.bias_row_shift) & (geometry::kChunkBytes - 1);
    add_bias_elements(
        s, call,
        tile + warp * BiasTile::kBytes + lane / 4 * BiasTile::kPitch + shift + lane % 4 * 2 * BiasTile::kElementBytes);
  }
}

}  // namespace warploom
