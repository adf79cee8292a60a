// Where a CTA's R lies: found by all of its threads, for all of them.
#pragma once

#include "attention/bias_rows.h"

namespace warploom {

/// The elements of a packed bias before the CTA's sequence, 0 of another one. sum: shared memory. By all threads, with
/// barriers before and after.
__device__ __forceinline__ long long packed_first_of(const AttentionCall& call, const Work& work, int element_bytes,
                                                     unsigned long long* sum) {
  if (threadIdx.x == 0) *sum = 0;
  __syncthreads();
  if (call.bias.packed && work.sequence < call.sequences) {
    const long long mine =
        packed_elements_before(call, work.sequence, element_bytes, static_cast<int>(threadIdx.x), blockDim.x);
    if (mine != 0) atomicAdd(sum, static_cast<unsigned long long>(mine));
  }
  __syncthreads();
  return static_cast<long long>(*sum);
}

/// Writes where the sequence's R and a head of it lie, and returns where the sequence begins in a packed one. rows,
/// sum: shared memory. By all threads; a barrier follows.
__device__ __forceinline__ long long place_bias(const AttentionCall& call, const BiasCall& bias, const Work& work,
                                                int head, int element_bytes, BiasRows* rows, unsigned long long* sum) {
  const long long first = packed_first_of(call, work, element_bytes, sum);
  if (threadIdx.x == 0) *rows = bias_rows(bias, work, head, first, element_bytes);
  __syncthreads();
  return first;
}

}  // namespace warploom
