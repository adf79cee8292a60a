// After the backward pass: dQ from the sums that attention_backward_mma.cu left in the order of its accumulators. Rows
// past the used ones become 0. Memory-bound.
//
// The text before this file defines warploom::kConfig, a BackwardDqSumsConfig.
#include "attention/backward_config.h"
#include "attention/work.h"
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

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kDqSumsThreads)
    backward_dq_sums(const __grid_constant__ warploom::BackwardParams params) {
  using namespace warploom;
  constexpr int kRows = kConfig.query_rows;
  Work work = work_of(params.call, blockIdx.x, kRows);
  const long long turn = static_cast<long long>(params.call.schedule.query_tiles) * kRows;
  for (; work.first_row < work.slot_q; work.first_row += turn) {
    const tile::GlobalRows rows = rows_of(params.dquery, work.sequence, work.tensor_q + work.first_row, work.head);
    const float* const sums =
        params.dq_sums + dq_sums_offset(work.first_q, work.sequence, static_cast<int>(work.first_row / kRows),
                                        params.call.schedule.heads, work.head, kRows, kConfig.head_dim);
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
