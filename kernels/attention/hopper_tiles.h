// A warpgroup and tiles of 16-bit values in shared memory.
#pragma once

#include "geometry/swizzle.h"
#include "ptx/fence.h"
#include "ptx/named_barrier.h"
#include "ptx/shared_memory.h"
#include "ptx/types.h"

namespace warploom {

using ptx::uint32;
inline constexpr int kWarpgroup = 128;

/// Zeros the rows of a tile from `valid` on: they belong to another sequence, and 0 * NaN is not 0. All threads of a
/// warpgroup, which meet at the named barrier; warpgroups may do so at the same time.
template <int Rows, int Dim>
__device__ __forceinline__ void zero_rows(uint32 tile, int valid, int barrier) {
  constexpr int kChunks = geometry::panels_of(Dim) * geometry::kPanelChunks;
  for (int i = valid * kChunks + static_cast<int>(threadIdx.x) % kWarpgroup; i < Rows * kChunks; i += kWarpgroup) {
    ptx::store_shared_16(tile + geometry::swizzled_offset(Rows, i / kChunks, i % kChunks), uint4{0, 0, 0, 0});
  }
  ptx::fence_proxy_async_shared();
  ptx::named_barrier_sync(barrier, kWarpgroup);
}

/// Multiplies a tile of bfloat16 by a power of two, where it lies. All threads of a warpgroup, which meet at the named
/// barrier.
template <int Bytes>
__device__ __forceinline__ void scale_tile(uint32 tile, float factor, int barrier) {
  const uint32 factors = ptx::pack<ptx::Bfloat16>(factor, factor);
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) % kWarpgroup * geometry::kChunkBytes; at < Bytes;
       at += kWarpgroup * geometry::kChunkBytes) {
    uint4 x = ptx::load_shared_16(tile + at);
    x.x = ptx::multiply_bfloat16(x.x, factors);
    x.y = ptx::multiply_bfloat16(x.y, factors);
    x.z = ptx::multiply_bfloat16(x.z, factors);
    x.w = ptx::multiply_bfloat16(x.w, factors);
    ptx::store_shared_16(tile + at, x);
  }
  ptx::fence_proxy_async_shared();
  ptx::named_barrier_sync(barrier, kWarpgroup);
}

/// The row of a warpgroup's 64 that a thread's accumulators belong to; the others are those 8 further on.
__device__ __forceinline__ int accumulator_row() {
  return static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
}

}  // namespace warploom
