// D = act(alpha A B^T + bias) + beta C on Hopper, for an A of few rows: B is read once, as fast as memory gives it
// away.
//
// What counts then is how soon the first bytes of B are asked for and how many are under way. So there is no tensor
// map, no shared memory and no barrier before the sums: each warp loads 16 rows of B (columns of D) straight into the
// registers of mma.sync, kAhead steps of 32 values ahead. Its lanes read 16 neighbouring bytes each, four lanes a row,
// and take them for the fragments of two products: sums do not care in which order K is walked, as long as A and B
// agree. Warps with the same 16 columns share out K and add up through shared memory, in the order of their numbers.
//
// In the products B has the 16 rows of mma's A, and A the 8 columns of its B.
//
// The text before this file defines warploom::kConfig, a GemmConfig with few_rows.
#include "gemm/epilogue.h"
#include "gemm/gemm_config.h"
#include "ptx/mma.h"
#include "ptx/streaming_load.h"

namespace warploom {

using In = ValueOf<kConfig.input>::Type;
using Out = ValueOf<kConfig.output>::Type;
using Bias = ValueOf<gemm_bias_type(kConfig)>::Type;

constexpr int kThreads = gemm_threads(kConfig);
constexpr int kGroupColumns = 16, kGroups = kConfig.tile_columns / kGroupColumns;
constexpr int kParts = kThreads / 32 / kGroups;  ///< warps that share out K
constexpr int kRowTiles = kConfig.tile_rows / 8;
constexpr int kStep = 32;  ///< values of K: 8 of each of four lanes, two products
constexpr int kAhead = kConfig.stages;
constexpr int kAheadOfA = kAhead < 4 ? kAhead : 4;  ///< it comes from L2, the lines of other warps from L1
constexpr int kPitch = kConfig.tile_columns + 4;    ///< floats: rows of sums whose lanes meet in no bank
static_assert(kConfig.few_rows && sizeof(In) == 2 && kThreads / 32 == kGroups * kParts);
static_assert(kAhead % kAheadOfA == 0 && kConfig.tile_rows % 8 == 0);

/// A warp's 16 rows of B and the rows of A, for a part of K. Rows outside of the matrices are others inside: what comes
/// of them is not stored.
struct Loader {
  const In* b[2];          ///< rows g and g + 8 at the lane's first value
  const In* a[kRowTiles];  ///< row g of each tile
  int left;                ///< values of K from the lane's first one on

  /// `Checked`: K may end before the step.
  template <bool Checked>
  __device__ __forceinline__ void load_b(uint4 (&to)[2], int step) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const In* from = b[i] + step * kStep;
      to[i] = Checked ? ptx::load_streaming_16(from, step * kStep < left) : ptx::load_streaming_16(from);
    }
  }
  template <bool Checked>
  __device__ __forceinline__ void load_a(uint4 (&to)[kRowTiles], int step) const {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      const In* from = a[tile] + step * kStep;
      to[tile] = Checked ? ptx::load_constant_16(from, step * kStep < left) : ptx::load_constant_16(from);
    }
  }
  __device__ __forceinline__ void advance() {
    b[0] += kAhead * kStep;
    b[1] += kAhead * kStep;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) a[tile] += kAhead * kStep;
    left -= kAhead * kStep;
  }
};

__device__ __forceinline__ void multiply(float (&d)[kRowTiles][4], const uint4 (&b)[2], const uint4 (&a)[kRowTiles]) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    ptx::mma_m16n8k16<In>(d[tile], {b[0].x, b[1].x, b[0].y, b[1].y}, a[tile].x, a[tile].y);
    ptx::mma_m16n8k16<In>(d[tile], {b[0].z, b[1].z, b[0].w, b[1].w}, a[tile].z, a[tile].w);
  }
}

/// kAhead steps, whose B and first part of A are there or under way; `More`: the loads of the next ones go on.
template <bool Checked, bool More>
__device__ __forceinline__ void multiply_block(float (&d)[kRowTiles][4], const Loader& from, uint4 (&b)[kAhead][2],
                                               uint4 (&a)[kAheadOfA][kRowTiles]) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    multiply(d, b[i], a[i % kAheadOfA]);
    if constexpr (More) from.load_b<Checked>(b[i], i + kAhead);
    if (More || i + kAheadOfA < kAhead) from.load_a<Checked>(a[i % kAheadOfA], i + kAheadOfA);
  }
}

/// The products of `blocks` times kAhead steps.
template <bool Checked>
__device__ __forceinline__ void multiply_part(float (&d)[kRowTiles][4], Loader from, int blocks) {
  uint4 b[kAhead][2], a[kAheadOfA][kRowTiles];
#pragma unroll
  for (int i = 0; i < kAheadOfA; ++i) from.load_a<Checked>(a[i], i);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) from.load_b<Checked>(b[i], i);
#pragma unroll 1
  for (int block = 1; block < blocks; ++block) {
    multiply_block<Checked, true>(d, from, b, a);
    from.advance();
  }
  multiply_block<Checked, false>(d, from, b, a);
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, warploom::few_rows_at_once(warploom::kConfig))
    gemm(const __grid_constant__ warploom::FewRowsParams params) {
  using namespace warploom;
  __shared__ __align__(16) float sums[kParts][kConfig.tile_rows][kPitch];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int group = warp % kGroups, part = warp / kGroups, g = lane / 4, q = lane % 4;
  // The usual case needs no division before the first load.
  const bool one_row = params.schedule.row_tiles == 1 && params.schedule.batches == 1;
  const int index = static_cast<int>(blockIdx.x);
  const GemmTile tile = one_row ? GemmTile{0, index, 0} : params.schedule.tile(index);
  const int row = tile.row * kConfig.tile_rows, column = tile.column * kConfig.tile_columns;

  // Parts are as long as one another, of whole blocks; the last ones may be empty.
  constexpr int kBlock = kAhead * kStep;
  const int blocks = (params.depth + kParts * kBlock - 1) / (kParts * kBlock);
  const int first = part * blocks * kBlock + 8 * q;
  Loader from;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int of_b = min(column + group * kGroupColumns + g + 8 * i, params.columns - 1);
    from.b[i] =
        static_cast<const In*>(params.b) + tile.batch * params.b_batch_stride + of_b * params.b_row_stride + first;
  }
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const int of_a = min(row + g + 8 * i, params.rows - 1);
    from.a[i] =
        static_cast<const In*>(params.a) + tile.batch * params.a_batch_stride + of_a * params.a_row_stride + first;
  }
  from.left = params.depth - first;

  float d[kRowTiles][4] = {};
  if (params.depth % (kParts * kBlock) == 0 && params.depth > 0) {
    multiply_part<false>(d, from, blocks);
  } else {
    multiply_part<true>(d, from, max(1, blocks));
  }
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[part][8 * t + 2 * q + i % 2][group * kGroupColumns + g + i / 2 * 8] = d[t][i];
  }
  __syncthreads();
  constexpr int kPairs = kConfig.tile_columns / 2;
  for (int i = static_cast<int>(threadIdx.x); i < kConfig.tile_rows * kPairs; i += kThreads) {
    const int r = i / kPairs, c = i % kPairs * 2;
    float2 sum{0, 0};
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const float2 x = *reinterpret_cast<const float2*>(&sums[p][r][c]);
      sum = {sum.x + x.x, sum.y + x.y};
    }
    finish_sum<kConfig, Bias, Out>(params, tile.batch, row + r, column + c, sum);
  }
}
