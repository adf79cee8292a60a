// Rung 8: an address a tile, not an address a fragment.
//
// A thread copies rows that are a multiple of eight apart, whose chunks stand at the same place; a lane's fragments
// along a row differ in bits that an exclusive or with a constant changes. So each thread keeps one address for what it
// copies and one for what it reads (tile/shared_tile.h), and the rest are constants in the instructions.
#include "ladder/ladder.h"

namespace warploom::ladder {

constexpr int kThreads = kRung.warps * 32;
constexpr int kKeys = kRung.key_columns;
constexpr int kKeyBlocks = kKeys / 8;  // n8 blocks of S
static_assert(kRung.query_rows == 16 * kRung.warps);

using QueryReader = tile::BlockReader<kRung.query_rows>;
using KeyReader = tile::BlockReader<kKeys>;
using Query = uint32[kDepth][4];
using Scores = float[kKeyBlocks][4];
using Output = float[kValueBlocks][4];

constexpr float kLog2E = 1.4426950408889634f;

/// What the online softmax knows of a lane's two rows.
struct Rows {
  float base[2] = {ptx::minus_infinity(), ptx::minus_infinity()};
  float sum[2] = {0, 0};  ///< of the lane's elements
};

/// Starts the copy of a tile, 16 bytes a thread. Rows from `valid` on become zeros.
template <int Size>
__device__ __forceinline__ void copy_tile(uint32 tile, const tile::GlobalRows& from, int valid) {
  tile::copy_rows_async<Size, kDim, kThreads>(tile, from, valid);
}

/// S = Q K^T: a block of 16 keys is the B operand of two mma.
__device__ __forceinline__ void scores(Scores& s, const Query& q, const KeyReader& keys) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks / 2; ++n) {
      uint32 b[4];
      ptx::ldmatrix_x4(b, keys.at(n, k));
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
__device__ __forceinline__ void accumulate_output(Output& o, const Scores& s, const KeyReader& values) {
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
      ptx::ldmatrix_x4_trans(b, values.at(k, n));
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
  const QueryReader read_query(query, 16 * warp());
  const KeyReader read_keys(keys, 0), read_values(values, 0);
  Query q;
#pragma unroll
  for (int k = 0; k < kDepth; ++k) ptx::ldmatrix_x4(q[k], read_query.at(0, k));

  Rows rows;
  Output o = {};
  for (int key = 0; key < call.seqlen_k; key += kKeys) {
    const int valid = call.seqlen_k - key;
    copy_tile<kKeys>(values, place.value.from(key), valid);
    ptx::cp_async_commit_group();
    Scores s;
    scores(s, q, read_keys);
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // everybody's part of V has landed, and nobody reads K any more

    if (valid > kKeys) copy_tile<kKeys>(keys, place.key.from(key + kKeys), valid - kKeys);
    ptx::cp_async_commit_group();
    if (valid < kKeys) apply_mask(s, valid);
    softmax(s, rows, o, call.alpha * kLog2E);
    accumulate_output(o, s, read_values);
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // the next K has landed, and nobody reads V any more
  }
  for (float& sum : rows.sum) sum = sum_of_row(sum);
  store_rows(place, o, rows.sum, warp() * 16);
}
