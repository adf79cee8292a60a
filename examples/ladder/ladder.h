// What all rungs of the ladder share: the call, a CTA's place in it, and the way out. docs/flash-attention-ladder.md
// goes through them. The text before a rung defines kRung from its row of ladder.json.
#pragma once

#include "geometry/fragment.h"
#include "geometry/swizzle.h"
#include "ladder/call.h"
#include "ptx/ldmatrix.h"
#include "ptx/math.h"
#include "ptx/mma.h"
#include "ptx/shared_memory.h"
#include "tile/shared_tile.h"

namespace warploom::ladder {

using ptx::uint32;
using Element = ptx::Bfloat16;

inline constexpr int kChunks = kDim / geometry::kChunkValues;  ///< 16-byte chunks of a row
inline constexpr int kDepth = kDim / 16;                       ///< k16 steps of Q K^T
inline constexpr int kValueBlocks = kDim / 8;                  ///< n8 blocks of O

/// A CTA's part of the call: the rows of one head from its first query row on, and all keys of the head. It lies in
/// shared memory, as registers are what the main loops are short of.
struct Place {
  tile::GlobalRows query, key, value, out;
  int queries;  ///< rows that there are from the first one on, at least 1
};

__device__ __forceinline__ tile::GlobalRows rows_of(const Call& call, const void* tensor, int seqlen, int pair) {
  const long long row = static_cast<long long>(pair / call.heads) * seqlen * call.heads + pair % call.heads;
  return {static_cast<char*>(const_cast<void*>(tensor)) + row * kRowBytes,
          static_cast<long long>(call.heads) * kRowBytes};
}

/// Neighbouring CTAs have the query tiles of one head, whose K and V they find in L2.
__device__ __forceinline__ Place place_of(const Call& call, int query_rows) {
  const int tiles = (call.seqlen_q + query_rows - 1) / query_rows;
  const int pair = static_cast<int>(blockIdx.x) / tiles;
  const int first = static_cast<int>(blockIdx.x) % tiles * query_rows;
  return {rows_of(call, call.query, call.seqlen_q, pair).from(first), rows_of(call, call.key, call.seqlen_k, pair),
          rows_of(call, call.value, call.seqlen_k, pair), rows_of(call, call.out, call.seqlen_q, pair).from(first),
          call.seqlen_q - first};
}

__device__ __forceinline__ int lane() {
  return static_cast<int>(threadIdx.x % 32);
}
__device__ __forceinline__ int warp() {
  return static_cast<int>(threadIdx.x / 32);
}

/// The largest, or the sum, of what the four lanes of a row hold.
__device__ __forceinline__ float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// What O is multiplied with; 0 for a row that has seen no key.
__device__ __forceinline__ float inverse_or_zero(float sum) {
  return sum == 0 ? 0.0f : ptx::rcp_approx(sum);
}

/// Stores an m16 block of O, whose first row is `first_row` of the CTA's: each row divided by its sum. sum: of the
/// lane's row in the upper and in the lower half.
__device__ __forceinline__ void store_rows(const Place& place, const float (&o)[kValueBlocks][4], const float (&sum)[2],
                                           int first_row) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + geometry::c_element(lane(), 2 * half).row;
    if (row >= place.queries) continue;
    const float scale = inverse_or_zero(sum[half]);
    char* const out = place.out.from(row).data + geometry::c_element(lane(), 0).column * 2;
#pragma unroll
    for (int n = 0; n < kValueBlocks; ++n) {
      *reinterpret_cast<uint32*>(out + n * geometry::kChunkBytes) =
          ptx::pack<Element>(o[n][2 * half] * scale, o[n][2 * half + 1] * scale);
    }
  }
}

}  // namespace warploom::ladder
