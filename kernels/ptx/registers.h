// Special registers (PTX ISA, "Special registers").
#pragma once

namespace warploom::ptx {

/// The thread's place in its warp. The compiler cannot compute it elsewhere than it is asked for.
__device__ __forceinline__ int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

}  // namespace warploom::ptx
