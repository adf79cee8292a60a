// The intervals of a user's mask, a row a thread: what kernels with an interval mask read.
//
// The text before this file defines warploom::MaskExpression (src/expression/device_text.cpp).
#include "attention/user_functions.h"
#include "attention/work.h"

extern "C" __global__ void __launch_bounds__(warploom::kMaskIntervalsThreads)
    mask_intervals(const __grid_constant__ warploom::MaskIntervalsCall params) {
  using warploom::MaskExpression;
  __shared__ warploom::Work work;
  if (threadIdx.x == 0) work = warploom::work_of(params, blockIdx.x, warploom::kMaskIntervalsThreads);
  __syncthreads();
  const warploom::geometry::SequenceMask& mask = work.mask;
  const long long stride = static_cast<long long>(params.schedule.query_tiles) * warploom::kMaskIntervalsThreads;
  for (long long row = work.first_row + threadIdx.x; row < work.slot_q; row += stride) {
    int bounds[2 * MaskExpression::kIntervals] = {};
    if (row < mask.seqlen_q) {
      // In the order of MaskSymbol (src/expression/parse.h).
      const long long symbols[] = {row,
                                   row + mask.offset(),
                                   mask.seqlen_q,
                                   mask.seqlen_k,
                                   mask.num_contexts,
                                   mask.num_targets,
                                   mask.history_end(),
                                   work.sequence,
                                   work.head};
      MaskExpression::intervals(symbols, params.mask_parameters, mask.seqlen_k, bounds);
    }
    int* const to =
        params.bounds + (work.head * params.total_q + work.first_q + row) * (2 * MaskExpression::kIntervals);
#pragma unroll
    for (int n = 0; n < 2 * MaskExpression::kIntervals; ++n) to[n] = bounds[n];
  }
}
