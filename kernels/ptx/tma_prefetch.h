// Prefetches into L2, which no barrier waits for: boxes of a tensor (PTX ISA, "cp.async.bulk.prefetch.tensor") and
// plain ranges of bytes (PTX ISA, "cp.async.bulk.prefetch"). One thread issues one. Coordinates as in ptx/tma.h.
#pragma once

#include "ptx/tensor_map.h"
#include "ptx/types.h"

namespace warploom::ptx {

/// The box of the map at coordinates `c`; what lies outside the tensor is not read.
template <int Rank>
__device__ __forceinline__ void tma_prefetch(const TensorMap* map, const int (&c)[Rank]) {
  static_assert(Rank >= 1 && Rank <= 5);
  if constexpr (Rank == 1) {
    asm volatile("cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%0, {%1}];" ::"l"(map), "r"(c[0]) : "memory");
  } else if constexpr (Rank == 2) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(c[0]), "r"(c[1])
                 : "memory");
  } else if constexpr (Rank == 3) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map), "r"(c[0]), "r"(c[1]),
                 "r"(c[2])
                 : "memory");
  } else if constexpr (Rank == 4) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(c[0]),
                 "r"(c[1]), "r"(c[2]), "r"(c[3])
                 : "memory");
  } else {
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(map), "r"(c[0]),
                 "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4])
                 : "memory");
  }
}

/// `bytes` (a multiple of 16) from an address that is one, too.
__device__ __forceinline__ void bulk_prefetch(const void* global, uint32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

}  // namespace warploom::ptx
