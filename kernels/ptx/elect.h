// elect.sync: one lane of a converged warp (PTX ISA, "elect.sync").
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

/// True in exactly one lane; the same one every time. All 32 lanes execute it.
__device__ __forceinline__ bool elect_one() {
  uint32 elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace warploom::ptx
