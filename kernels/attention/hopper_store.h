// Rows of a warpgroup's accumulators to global memory, 16 bytes a lane.
#pragma once

#include "attention/visibility.h"
#include "geometry/swizzle.h"
#include "ptx/types.h"

namespace warploom {

/// Four words a lane, of column blocks 0..3 of one row: after it lane q of the row has block q's four words in order.
__device__ __forceinline__ void transpose_in_quad(ptx::uint32 (&w)[4]) {
  const bool odd = threadIdx.x % 2 != 0, upper = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const ptx::uint32 received = __shfl_xor_sync(kAllLanes, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = received;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const ptx::uint32 received = __shfl_xor_sync(kAllLanes, upper ? w[i] : w[i + 2], 2);
    (upper ? w[i] : w[i + 2]) = received;
  }
}

/// One of a thread's two rows (half 0 or 1) of an accumulator of Dim columns times `scale`, rounded; zeros where it is
/// not `used`. to: the row. All lanes of the warp; those of a row agree on `used` and `writes`.
template <typename Element, int Dim>
__device__ __forceinline__ void store_row(char* to, const float (&sums)[Dim / 2], int half, float scale, bool used,
                                          bool writes) {
  constexpr int kBlocks = Dim / 8;
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int group = 0; group < kBlocks; group += 4) {
    ptx::uint32 w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = group + i;
      w[i] = n < kBlocks && used
                 ? ptx::pack<Element>(sums[4 * n + 2 * half] * scale, sums[4 * n + 2 * half + 1] * scale)
                 : 0;
    }
    transpose_in_quad(w);
    if (writes && group + lane < kBlocks) {
      *reinterpret_cast<uint4*>(to + (group + lane) * geometry::kChunkBytes) = uint4{w[0], w[1], w[2], w[3]};
    }
  }
}

}  // namespace warploom
