// stmatrix: 8x8 blocks of 16-bit values from fragments to shared memory (PTX ISA, "stmatrix"). Lane l addresses 16
// bytes: a row of block l / 8 (x1 uses the addresses of lanes 0-7, x2 of lanes 0-15). _trans: each block transposed.
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

__device__ __forceinline__ void stmatrix_x1(uint32 address, uint32 r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(address), "r"(r) : "memory");
}

__device__ __forceinline__ void stmatrix_x1_trans(uint32 address, uint32 r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(address), "r"(r) : "memory");
}

__device__ __forceinline__ void stmatrix_x2(uint32 address, uint32 r0, uint32 r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0), "r"(r1) : "memory");
}

__device__ __forceinline__ void stmatrix_x2_trans(uint32 address, uint32 r0, uint32 r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0), "r"(r1)
               : "memory");
}

__device__ __forceinline__ void stmatrix_x4(uint32 address, uint32 r0, uint32 r1, uint32 r2, uint32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

__device__ __forceinline__ void stmatrix_x4_trans(uint32 address, uint32 r0, uint32 r1, uint32 r2, uint32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace warploom::ptx
