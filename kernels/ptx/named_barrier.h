// Named barriers: 16 a CTA, for whole warps. Their ids are kept in one table, pipeline/turns.h; 0 is __syncthreads.
#pragma once

namespace warploom::ptx {

/// Waits until `threads` threads have come, this one included (PTX ISA, "bar.sync").
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts as one of the `threads` threads and goes on (PTX ISA, "bar.arrive").
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace warploom::ptx
