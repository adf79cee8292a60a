// ldmatrix: four 8x8 blocks of 16-bit values from shared memory into fragments (PTX ISA, "ldmatrix").
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

/// Lane l addresses 16 bytes: a row of block l / 8. Blocks arrive in registers 0..3.
__device__ __forceinline__ void ldmatrix_x4(uint32 (&r)[4], uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// The same with each 8x8 block transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32 (&r)[4], uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

}  // namespace warploom::ptx
