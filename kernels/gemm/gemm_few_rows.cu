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
constexpr int kAheadOfA = kRowTiles > 1 ? kAhead / 4 : kAhead / 2;  ///< it comes from L1
constexpr int kPitch = kConfig.tile_columns + 4;  ///< floats: rows of sums whose lanes meet in no bank
static_assert(kConfig.few_rows && sizeof(In) == 2 && kThreads / 32 == kGroups * kParts);
static_assert(kAhead % kAheadOfA == 0 && kConfig.tile_rows % 8 == 0);

/// A warp's 16 rows of B and the rows of A, for the part of K from `begin` on.
struct Loader {
  const In* b[2];    ///< rows g and g + 8 at the lane's first value
  const In* a;       ///< row g
  long long a_tile;  ///< values from a row to the one 8 below
  int left;          ///< values of K from the lane's first one on
  int rows;          ///< of A from row g on

  __device__ __forceinline__ void load_b(uint4 (&to)[2], int step) const {
    const bool in = step * kStep < left;
    to[0] = ptx::load_streaming_16(b[0] + step * kStep, in);
    to[1] = ptx::load_streaming_16(b[1] + step * kStep, in);
  }
  __device__ __forceinline__ void load_a(uint4 (&to)[kRowTiles], int step) const {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      to[tile] = ptx::load_shared_line_16(a + tile * a_tile + step * kStep, step * kStep < left && 8 * tile < rows);
    }
  }
};

__device__ __forceinline__ void multiply(float (&d)[kRowTiles][4], const uint4 (&b)[2], const uint4 (&a)[kRowTiles]) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    ptx::mma_m16n8k16<In>(d[tile], {b[0].x, b[1].x, b[0].y, b[1].y}, a[tile].x, a[tile].y);
    ptx::mma_m16n8k16<In>(d[tile], {b[0].z, b[1].z, b[0].w, b[1].w}, a[tile].z, a[tile].w);
  }
}

/// The products of `steps` steps, the loads of those that follow under way.
__device__ __forceinline__ void multiply_part(float (&d)[kRowTiles][4], Loader from, int steps) {
  uint4 b[kAhead][2], a[kAheadOfA][kRowTiles];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) from.load_b(b[i], i);
#pragma unroll
  for (int i = 0; i < kAheadOfA; ++i) from.load_a(a[i], i);
  for (int step = 0; step < steps; step += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      multiply(d, b[i], a[i % kAheadOfA]);
      from.load_b(b[i], i + kAhead);
      from.load_a(a[i % kAheadOfA], i + kAheadOfA);
    }
    from.b[0] += kAhead * kStep;
    from.b[1] += kAhead * kStep;
    from.a += kAhead * kStep;
    from.left -= kAhead * kStep;
  }
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, 1)
    gemm(const __grid_constant__ warploom::FewRowsParams params) {
  using namespace warploom;
  __shared__ __align__(16) float sums[kParts][kConfig.tile_rows][kPitch];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int group = warp % kGroups, part = warp / kGroups, g = lane / 4, q = lane % 4;
  const GemmTile tile = params.schedule.tile(static_cast<int>(blockIdx.x));
  const int row = tile.row * kConfig.tile_rows, column = tile.column * kConfig.tile_columns;

  // Parts are as long as one another, of whole steps; the last ones may be empty.
  const int steps = (params.depth + kStep - 1) / kStep, of_part = (steps + kParts - 1) / kParts;
  const int begin = part * of_part * kStep, end = min(begin + of_part * kStep, params.depth);
  const int first = begin + 8 * q;
  Loader from;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int of_b = min(column + group * kGroupColumns + g + 8 * i, params.columns - 1);  // beyond: not stored
    from.b[i] =
        static_cast<const In*>(params.b) + tile.batch * params.b_batch_stride + of_b * params.b_row_stride + first;
  }
  from.a =
      static_cast<const In*>(params.a) + tile.batch * params.a_batch_stride + (row + g) * params.a_row_stride + first;
  from.a_tile = 8 * params.a_row_stride;
  from.left = end - first;
  from.rows = params.rows - row - g;

  float d[kRowTiles][4] = {};
  multiply_part(d, from, of_part);
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
