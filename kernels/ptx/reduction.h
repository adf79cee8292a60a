// Reductions in global memory: additions without an answer (PTX ISA, "red").
#pragma once

namespace warploom::ptx {

__device__ __forceinline__ void red_add(float* address, float value) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}

/// Four neighbours, 16-byte aligned; each is added on its own. sm_90 and newer.
__device__ __forceinline__ void red_add_4(float* address, const float (&value)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(value[0]), "f"(value[1]),
               "f"(value[2]), "f"(value[3])
               : "memory");
}

}  // namespace warploom::ptx
