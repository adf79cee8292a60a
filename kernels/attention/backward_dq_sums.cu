// After the backward pass: dQ from the sums that the main kernel left in the order of its accumulators. Rows
// past the used ones become 0. Memory-bound.
//
// The text before this file defines warploom::kConfig, a BackwardDqSumsConfig.
#include "attention/backward_config.h"
#include "attention/hopper_store.h"
#include "attention/work.h"
#include "ptx/grid_dependency.h"
#include "ptx/types.h"

namespace warploom {

using Element = ptx::ElementOf<kConfig.bfloat16>;
constexpr int kChunks = kConfig.head_dim / geometry::kChunkValues;

/// One chunk of one row: eight neighbouring columns, which four lanes of an mma held (geometry/fragment.h).
__device__ __forceinline__ uint4 convert(const float* block, int row, float factor) {
  const int half = row / 8, lane = row % 8 * 4;
  ptx::uint32 pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = block[kConfig.vector_reduction ? (lane + i) * 4 + 2 * half : 2 * half * 32 + lane + i];
    const float high = block[kConfig.vector_reduction ? (lane + i) * 4 + 2 * half + 1 : (2 * half + 1) * 32 + lane + i];
    pairs[i] = ptx::pack<Element>(low * factor, high * factor);
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

/// Sums that were added four at a time: a warp takes 16 rows of four chunks, of which each lane holds two rows of two
/// columns of each, and reads them as they lie.
__device__ __forceinline__ void convert_blocks(const float* sums, const tile::GlobalRows& rows, int used, int slots,
                                               float factor) {
  constexpr int kGroups = (kChunks + 3) / 4, kBlockFloats = 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x) / 32; i < kConfig.query_rows / 16 * kGroups; i += kDqSumsThreads / 32) {
    const int first_row = i / kGroups * 16, first_chunk = i % kGroups * 4;
    ptx::uint32 pairs[2][4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float4 x{0, 0, 0, 0};
      if (kChunks % 4 == 0 || first_chunk + n < kChunks) {
        x = *reinterpret_cast<const float4*>(sums + (first_row / 16 * kChunks + first_chunk + n) * kBlockFloats +
                                             lane * 4);
      }
      pairs[0][n] = ptx::pack<Element>(x.x * factor, x.y * factor);
      pairs[1][n] = ptx::pack<Element>(x.z * factor, x.w * factor);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      transpose_in_quad(pairs[half]);
      const int row = first_row + lane / 4 + half * 8, chunk = first_chunk + lane % 4;
      if (row >= slots || (kChunks % 4 != 0 && chunk >= kChunks)) continue;
      const ptx::uint32(&p)[4] = pairs[half];
      *reinterpret_cast<uint4*>(rows.from(row).data + chunk * geometry::kChunkBytes) =
          row < used ? uint4{p[0], p[1], p[2], p[3]} : uint4{0, 0, 0, 0};
    }
  }
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kDqSumsThreads)
    backward_dq_sums(const __grid_constant__ warploom::BackwardParams params) {
  using namespace warploom;
  constexpr int kRows = kConfig.query_rows;
  Work work = work_of(params.call, blockIdx.x, kRows);
  ptx::grid_dependency_wait();
  const long long turn = static_cast<long long>(params.call.schedule.query_tiles) * kRows;
  for (; work.first_row < work.slot_q; work.first_row += turn) {
    const tile::GlobalRows rows = rows_of(params.dquery, work.sequence, work.tensor_q + work.first_row, work.head);
    const float* const sums =
        params.dq_sums + dq_sums_offset(work.first_q, work.sequence, static_cast<int>(work.first_row / kRows),
                                        params.call.schedule.heads, work.head, kRows, kConfig.head_dim);
    if constexpr (kConfig.vector_reduction) {
      convert_blocks(sums, rows, work.mask.seqlen_q - static_cast<int>(work.first_row),
                     static_cast<int>(geometry::min_of(work.slot_q - work.first_row, static_cast<long long>(kRows))),
                     params.score_factor);
      continue;
    }
    // Neighbouring lanes take the 16 rows of a block: its 512 bytes are read whole.
    for (int i = threadIdx.x; i < kRows * kChunks; i += kDqSumsThreads) {
      const int block = i / 16, row = block / kChunks * 16 + i % 16, chunk = block % kChunks;
      if (work.first_row + row >= work.slot_q) continue;
      uint4 values{0, 0, 0, 0};
      if (work.first_row + row < work.mask.seqlen_q) values = convert(sums + block * 128, i % 16, params.score_factor);
      *reinterpret_cast<uint4*>(rows.from(row).data + chunk * geometry::kChunkBytes) = values;
    }
  }
}
