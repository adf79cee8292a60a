// What the first rungs of the GEMM ladder share: the call, a CTA's place in it, the product of a step, and the way out.
// docs/gemm-ladder.md goes through them; the last rungs are the product's kernel, kernels/gemm. A CTA computes 128 x
// 128 values of C, a warpgroup 64 of the rows, in steps of 64 columns of A and B. The text before a rung defines kRung
// from its row of ladder.json.
#pragma once

#include "gemm_ladder/call.h"
#include "geometry/fragment.h"
#include "geometry/swizzle.h"
#include "geometry/wgmma_descriptor.h"
#include "pipeline/trace.h"
#include "ptx/fence.h"
#include "ptx/shared_memory.h"
#include "ptx/wgmma.h"

namespace warploom::gemm_ladder {

using ptx::uint32;
using Element = ptx::Bfloat16;
/// What `warploom trace gemm --rung` records; nothing in an ordinary rung.
using Pen = trace::Pen<kRung.trace>;
using trace::Mark;

inline constexpr int kWarpgroups = 2;
inline constexpr int kAccumulators = kTile / 2;  ///< of a thread: 64 x 128 values of a warpgroup

/// The first row and column of the CTA's tile.
struct Place {
  int row, column;
};

__device__ __forceinline__ Place place_of(const Call& call) {
  const GemmTile tile = call.schedule.tile(static_cast<int>(blockIdx.x));
  return {tile.row * kTile, tile.column * kTile};
}

/// D += A B^T for one step and the warpgroup's rows, `stage` being where A and B of the step stand. Queued, not waited
/// for.
__device__ __forceinline__ void multiply(float (&d)[kAccumulators], uint32 stage, int warpgroup, int accumulate) {
  const uint32 a = geometry::descriptor_low(stage + warpgroup * 64 * geometry::kPanelRowBytes);
  const uint32 b = geometry::descriptor_low(stage + kOperandBytes);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kStep; k += 16) {
    const uint32 along = geometry::k_major_step(kTile, k);
    ptx::wgmma_ss<Element, kTile>(d, a + along, b + along, k == 0 ? accumulate : 1);
  }
  ptx::wgmma_commit_group();
}

/// Waits for everything that was queued.
__device__ __forceinline__ void finish(float (&d)[kAccumulators]) {
  ptx::wgmma_wait_group<0>(d);
}

/// The warpgroup's part of the tile straight from the registers.
__device__ __forceinline__ void store(const Call& call, const Place& place, const float (&d)[kAccumulators],
                                      int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x % 128);
#pragma unroll
  for (int i = 0; i < kAccumulators; i += 2) {
    const geometry::Element at = geometry::accumulator_element(thread, i);
    const int row = place.row + 64 * warpgroup + at.row, column = place.column + at.column;
    if (row < call.rows && column < call.columns) {
      *reinterpret_cast<uint32*>(static_cast<char*>(call.out) + 2 * (static_cast<long long>(row) * call.columns +
                                                                     column)) = ptx::pack<Element>(d[i], d[i + 1]);
    }
  }
}

// --- Copies by all threads, 16 bytes each, for the rungs without TMA.

inline constexpr int kThreads = kWarpgroups * 128;
inline constexpr int kCopies = kTile * geometry::kPanelChunks / kThreads;  ///< of a thread, operand and step

/// The thread's copy number `copy` of an operand's step.
struct Copy {
  int row, chunk;

  /// Where it goes in the operand's part of a stage.
  __device__ __forceinline__ uint32 offset() const { return geometry::swizzled_offset(kTile, row, chunk); }
};

__device__ __forceinline__ Copy copy_of(int copy) {
  const int index = copy * kThreads + static_cast<int>(threadIdx.x);
  return {index / geometry::kPanelChunks, index % geometry::kPanelChunks};
}

/// Where it comes from in a matrix of `rows` rows, from row `first_row` and column `k` on; null beyond the matrix.
__device__ __forceinline__ const char* source_of(const void* matrix, int rows, int depth, int first_row, int k,
                                                 const Copy& copy) {
  const int row = first_row + copy.row, column = k + copy.chunk * geometry::kChunkValues;
  if (row >= rows || column >= depth) return nullptr;
  return static_cast<const char*>(matrix) + 2 * (static_cast<long long>(row) * depth + column);
}

}  // namespace warploom::gemm_ladder
