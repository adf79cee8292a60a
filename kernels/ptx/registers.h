// Special registers (PTX ISA, "Special registers").
#pragma once

namespace warploom::ptx {

/// The thread's place in its warp. The compiler cannot compute it elsewhere than it is asked for.
__device__ __forceinline__ int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// The same value, which the compiler takes for a new one: what follows from it is not computed before and kept.
__device__ __forceinline__ unsigned opaque(unsigned value) {
  unsigned same;
  asm volatile("mov.b32 %0, %1;" : "=r"(same) : "r"(value));
  return same;
}

}  // namespace warploom::ptx
