// Rung 7: O is rescaled only when it must be.
//
// P = 2^(s c - base) is right for any base, as the row's sum has the same one. The base follows the maximum only when
// that has outgrown it by 2^8: after the first tiles hardly ever, and then the warp leaves out 64 products a lane
// (Flash attention 4). Rounding is relative, so no digit is lost.
#include "ladder/ladder.h"

namespace warploom::ladder {

constexpr int kThreads = kRung.warps * 32;
constexpr int kKeys = kRung.key_columns;
constexpr int kKeyBlocks = kKeys / 8;  // n8 blocks of S
static_assert(kRung.query_rows == 16 * kRung.warps);

using Query = uint32[kDepth][4];
using Scores = float[kKeyBlocks][4];
using Output = float[kValueBlocks][4];

constexpr float kLog2E = 1.4426950408889634f;

/// What the online softmax knows of a lane's two rows.
struct Rows {
  float base[2] = {ptx::minus_infinity(), ptx::minus_infinity()};
  float sum[2] = {0, 0};  ///< of the lane's elements
};

/// Where a 16-byte chunk of a tile of Size rows stands in shared memory: two panels of 64 columns, each with 128-byte
/// rows in which chunk c stands at place c ^ row % 8.
template <int Size>
__device__ __forceinline__ int offset(int row, int chunk) {
  return geometry::swizzled_offset(Size, row, chunk);
}

/// Starts the copy of a tile, 16 bytes a thread. Rows from `valid` on become zeros.
template <int Size>
__device__ __forceinline__ void copy_tile(uint32 tile, const tile::GlobalRows& from, int valid) {
#pragma unroll
  for (int i = threadIdx.x; i < Size * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    ptx::cp_async_16(tile + offset<Size>(row, chunk), from.from(row).data + chunk * geometry::kChunkBytes, row < valid);
  }
}

/// The lane's address for ldmatrix on a 16x16 block of a tile.
template <int Size>
__device__ __forceinline__ uint32 block_of(uint32 tile, int row_block, int column_block) {
  return tile + offset<Size>(16 * row_block + geometry::ldmatrix_row(lane()),
                             2 * column_block + geometry::ldmatrix_chunk(lane()));
}

/// S = Q K^T: a block of 16 keys is the B operand of two mma.
__device__ __forceinline__ void scores(Scores& s, const Query& q, uint32 keys) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks / 2; ++n) {
      uint32 b[4];
      ptx::ldmatrix_x4(b, block_of<kKeys>(keys, n, k));
      ptx::mma_m16n8k16<Element>(s[2 * n], q[k], b[0], b[2]);
      ptx::mma_m16n8k16<Element>(s[2 * n + 1], q[k], b[1], b[3]);
    }
  }
}

/// Hides the keys from `valid` on.
__device__ __forceinline__ void apply_mask(Scores& s, int valid) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = n * 8 + geometry::c_element(lane(), e).column;
      if (key >= valid) s[n][e] = ptx::minus_infinity();
    }
  }
}

/// How far, in powers of two, a row's maximum may outgrow its base.
constexpr float kSlack = 8;

/// S to P, and O and the sums to the row's new base, if it moves. scale: alpha log2(e).
__device__ __forceinline__ void softmax(Scores& s, Rows& rows, Output& o, float scale) {
  float largest[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    largest[half] = s[0][2 * half];
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      largest[half] = fmaxf(largest[half], fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    largest[half] = largest_of_row(largest[half]) * scale;
  }
  const bool outgrown = largest[0] > rows.base[0] + kSlack || largest[1] > rows.base[1] + kSlack;
  if (__any_sync(0xffffffffu, outgrown)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = fmaxf(rows.base[half], largest[half]);
      const float shrink = ptx::ex2_approx(rows.base[half] - base);
      rows.base[half] = base;
      rows.sum[half] *= shrink;
#pragma unroll
      for (int n = 0; n < kValueBlocks; ++n) {
        o[n][2 * half] *= shrink;
        o[n][2 * half + 1] *= shrink;
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[n][e] = ptx::ex2_approx(fmaf(s[n][e], scale, -rows.base[e / 2]));
      rows.sum[e / 2] += s[n][e];
    }
  }
}

/// O += P V. Two neighbouring n8 blocks of S are, packed, the A operand of a k16 step: no shuffle.
__device__ __forceinline__ void accumulate_output(Output& o, const Scores& s, uint32 values) {
#pragma unroll
  for (int k = 0; k < kKeyBlocks / 2; ++k) {
    uint32 p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &s[2 * k + i / 2][i % 2 * 2];
      p[i] = ptx::pack<Element>(pair[0], pair[1]);
    }
#pragma unroll
    for (int n = 0; n < kValueBlocks / 2; ++n) {
      uint32 b[4];  // transposed: keys run along the fragment's columns
      ptx::ldmatrix_x4_trans(b, block_of<kKeys>(values, k, n));
      ptx::mma_m16n8k16<Element>(o[2 * n], p, b[0], b[1]);
      ptx::mma_m16n8k16<Element>(o[2 * n + 1], p, b[2], b[3]);
    }
  }
}

}  // namespace warploom::ladder

extern "C" __global__ void __launch_bounds__(warploom::ladder::kThreads, warploom::ladder::kRung.min_blocks)
    attention(const __grid_constant__ warploom::ladder::Call call) {
  using namespace warploom;
  using namespace warploom::ladder;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 query = ptx::shared_address(shared);
  const uint32 keys = query + kRung.query_rows * kRowBytes;
  const uint32 values = keys + kKeys * kRowBytes;
  __shared__ Place place;
  if (threadIdx.x == 0) place = place_of(call, kRung.query_rows);
  __syncthreads();

  copy_tile<kRung.query_rows>(query, place.query, place.queries);
  copy_tile<kKeys>(keys, place.key, call.seqlen_k);
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  __syncthreads();
  Query q;
#pragma unroll
  for (int k = 0; k < kDepth; ++k) ptx::ldmatrix_x4(q[k], block_of<kRung.query_rows>(query, warp(), k));

  Rows rows;
  Output o = {};
  for (int key = 0; key < call.seqlen_k; key += kKeys) {
    const int valid = call.seqlen_k - key;
    copy_tile<kKeys>(values, place.value.from(key), valid);
    ptx::cp_async_commit_group();
    Scores s;
    scores(s, q, keys);
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // everybody's part of V has landed, and nobody reads K any more

    if (valid > kKeys) copy_tile<kKeys>(keys, place.key.from(key + kKeys), valid - kKeys);
    ptx::cp_async_commit_group();
    if (valid < kKeys) apply_mask(s, valid);
    softmax(s, rows, o, call.alpha * kLog2E);
    accumulate_output(o, s, values);
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // the next K has landed, and nobody reads V any more
  }
  for (float& sum : rows.sum) sum = sum_of_row(sum);
  store_rows(place, o, rows.sum, warp() * 16);
}
