// Order between CTAs through global memory (PTX ISA, "Memory Consistency Model"): what one wrote before it raised a
// flag is there for who has seen the flag, and for the threads that one tells so by a barrier.
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

/// What this thread has written, or has been told of by a barrier, comes before what it writes next, for every CTA.
__device__ __forceinline__ void fence_gpu() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/// After a fence: raises a flag, or a count.
__device__ __forceinline__ void store_relaxed(uint32* address, uint32 value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void red_add_relaxed(uint32* address, uint32 value) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ uint32 load_relaxed(const uint32* address) {
  uint32 value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

/// Waits until a count has come to `least`; then what its writers wrote before is there. One thread.
__device__ __forceinline__ void wait_for_count(const uint32* address, uint32 least) {
  uint32 value;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  } while (value < least);
}

/// The same where nobody is in a hurry: looks every half microsecond.
__device__ __forceinline__ void wait_for_count_sleeping(const uint32* address, uint32 least) {
  uint32 value;
  while (true) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    if (value >= least) return;
    asm volatile("nanosleep.u32 500;" ::: "memory");
  }
}

}  // namespace warploom::ptx
