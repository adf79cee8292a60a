// Rung 9: 32 query rows a warp.
//
// A fragment of K or V that ldmatrix has brought feeds the mma of two m16 blocks, so that shared memory is read half as
// often. The registers that this takes (O alone 128 a thread) leave no room for Q, whose fragments are read again for
// each tile: once for all keys of the tile.
#include "ladder/ladder.h"

namespace warploom::ladder {

constexpr int kThreads = kRung.warps * 32;
constexpr int kKeys = kRung.key_columns;
constexpr int kKeyBlocks = kKeys / 8;  // n8 blocks of S
constexpr int kRowBlocks = 2;          // m16 blocks of a warp
constexpr int kWarpRows = 16 * kRowBlocks;
static_assert(kRung.query_rows == kWarpRows * kRung.warps);

using QueryReader = tile::BlockReader<kRung.query_rows>;
using KeyReader = tile::BlockReader<kKeys>;
using Scores = float[kRowBlocks][kKeyBlocks][4];
using Output = float[kRowBlocks][kValueBlocks][4];

constexpr float kLog2E = 1.4426950408889634f;

/// What the online softmax knows of a lane's two rows of an m16 block.
struct Rows {
  float base[2] = {ptx::minus_infinity(), ptx::minus_infinity()};
  float sum[2] = {0, 0};  ///< of the lane's elements
};

/// Starts the copy of a tile, 16 bytes a thread. Rows from `valid` on become zeros.
template <int Size>
__device__ __forceinline__ void copy_tile(uint32 tile, const tile::GlobalRows& from, int valid) {
  tile::copy_rows_async<Size, kDim, kThreads>(tile, from, valid);
}

/// S = Q K^T: a block of 16 keys is the B operand of two mma for each m16 block.
__device__ __forceinline__ void scores(Scores& s, const QueryReader& query, const KeyReader& keys) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
  }
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    uint32 q[kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) ptx::ldmatrix_x4(q[m], query.at(m, k));
#pragma unroll
    for (int n = 0; n < kKeyBlocks / 2; ++n) {
      uint32 b[4];
      ptx::ldmatrix_x4(b, keys.at(n, k));
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        ptx::mma_m16n8k16<Element>(s[m][2 * n], q[m], b[0], b[2]);
        ptx::mma_m16n8k16<Element>(s[m][2 * n + 1], q[m], b[1], b[3]);
      }
    }
  }
}

/// Hides the keys from `valid` on.
__device__ __forceinline__ void apply_mask(Scores& s, int valid) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = n * 8 + geometry::c_element(lane(), e).column;
        if (key >= valid) s[m][n][e] = ptx::minus_infinity();
      }
    }
  }
}

/// How far, in powers of two, a row's maximum may outgrow its base.
constexpr float kSlack = 8;

/// S to P, and O and the sums to the row's new base, if it moves, for one m16 block. scale: alpha log2(e).
__device__ __forceinline__ void softmax(float (&s)[kKeyBlocks][4], Rows& rows, float (&o)[kValueBlocks][4],
                                        float scale) {
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
__device__ __forceinline__ void accumulate_output(Output& o, const Scores& s, const KeyReader& values) {
#pragma unroll
  for (int k = 0; k < kKeyBlocks / 2; ++k) {
    uint32 p[kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &s[m][2 * k + i / 2][i % 2 * 2];
        p[m][i] = ptx::pack<Element>(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kValueBlocks / 2; ++n) {
      uint32 b[4];  // transposed: keys run along the fragment's columns
      ptx::ldmatrix_x4_trans(b, values.at(k, n));
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        ptx::mma_m16n8k16<Element>(o[m][2 * n], p[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(o[m][2 * n + 1], p[m], b[2], b[3]);
      }
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
  const QueryReader read_query(query, warp() * kWarpRows);
  const KeyReader read_keys(keys, 0), read_values(values, 0);
  Rows rows[kRowBlocks];
  Output o = {};
  for (int key = 0; key < call.seqlen_k; key += kKeys) {
    const int valid = call.seqlen_k - key;
    copy_tile<kKeys>(values, place.value.from(key), valid);
    ptx::cp_async_commit_group();
    Scores s;
    scores(s, read_query, read_keys);
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // everybody's part of V has landed, and nobody reads K any more

    if (valid > kKeys) copy_tile<kKeys>(keys, place.key.from(key + kKeys), valid - kKeys);
    ptx::cp_async_commit_group();
    if (valid < kKeys) apply_mask(s, valid);
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) softmax(s[m], rows[m], o[m], call.alpha * kLog2E);
    accumulate_output(o, s, read_values);
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // the next K has landed, and nobody reads V any more
  }
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
    for (float& sum : rows[m].sum) sum = sum_of_row(sum);
    store_rows(place, o[m], rows[m].sum, warp() * kWarpRows + 16 * m);
  }
}
