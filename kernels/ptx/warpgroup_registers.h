// setmaxnreg: how many registers a thread of this warpgroup may use from here on (PTX ISA, "setmaxnreg"). All four
// warps execute it. The sum over the CTA must fit what it got at launch: registers of the launch x threads, not 65,536.
// It takes effect only in a kernel with __launch_bounds__(threads, 1) whose roles are the branches of one if/else.
#pragma once

namespace warploom::ptx {

/// Registers: a multiple of 8 from 24 to 256, not above the number now.
template <int Registers>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(Registers >= 24 && Registers <= 256 && Registers % 8 == 0);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

/// Waits until other warpgroups have given up enough.
template <int Registers>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(Registers >= 24 && Registers <= 256 && Registers % 8 == 0);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace warploom::ptx
