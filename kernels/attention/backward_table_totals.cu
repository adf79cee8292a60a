// After the backward pass: the gradients of a bucketed bias's tables, from the sums that attention_backward_mma.cu has
// added up in scratch memory (bias_table_totals.h). A thread an entry.
//
// The text before this file defines warploom::kConfig, a BackwardTableTotalsConfig.
#include "attention/backward_bias_config.h"

extern "C" __global__ void __launch_bounds__(warploom::kConfig.threads)
    backward_table_totals(const __grid_constant__ warploom::BackwardParams params) {
  const warploom::BiasSums& sums = params.bias_sums;
  const long long n = static_cast<long long>(blockIdx.x) * warploom::kConfig.threads + threadIdx.x;
  if (n >= sums.position_totals + sums.time_totals) return;
  const float gradient = sums.totals[n] * params.bias_factor;
  if (n < sums.position_totals) {
    sums.position_gradient[n] = gradient;
  } else {
    sums.time_gradient[n - sums.position_totals] = gradient;
  }
}
