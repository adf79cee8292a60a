// Loads of 16 bytes that no kernel writes while this one runs (PTX ISA, "ld.global.nc"), in the order of the program.
// The forms with `valid` give zeros when it is false; then nothing is read.
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

// Operands: the value's four registers, the address.
#define WARPLOOM_LOAD_16(name, instruction)                                                                          \
  __device__ __forceinline__ uint4 name(const void* global) {                                                        \
    uint4 v;                                                                                                         \
    asm volatile(instruction " {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(global)); \
    return v;                                                                                                        \
  }                                                                                                                  \
  __device__ __forceinline__ uint4 name(const void* global, bool valid) {                                            \
    uint4 v;                                                                                                         \
    asm volatile(                                                                                                    \
        "{\n.reg .pred p;\n"                                                                                         \
        "setp.ne.b32 p, %5, 0;\n"                                                                                    \
        "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"                                           \
        "@p " instruction " {%0, %1, %2, %3}, [%4];\n}"                                                              \
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)                                                             \
        : "l"(global), "r"(static_cast<uint32>(valid)));                                                             \
    return v;                                                                                                        \
  }

/// Of what is read once: past L1, and the whole line to L2.
WARPLOOM_LOAD_16(load_streaming_16, "ld.global.nc.L1::no_allocate.L2::128B.v4.u32")
/// Through L1.
WARPLOOM_LOAD_16(load_constant_16, "ld.global.nc.v4.u32")

#undef WARPLOOM_LOAD_16

/// Starts bringing the line of an address to L2.
__device__ __forceinline__ void prefetch_to_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/// Through L1: two or four bytes of a line of which other lanes, or later loads, take the rest.
__device__ __forceinline__ uint32 load_constant_2(const void* global, bool valid) {
  unsigned short v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "mov.b16 %0, 0;\n"
      "@p ld.global.nc.u16 %0, [%1];\n}"
      : "=&h"(v)
      : "l"(global), "r"(static_cast<uint32>(valid)));
  return v;
}
__device__ __forceinline__ uint32 load_constant_4(const void* global, bool valid) {
  uint32 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "mov.b32 %0, 0;\n"
      "@p ld.global.nc.u32 %0, [%1];\n}"
      : "=&r"(v)
      : "l"(global), "r"(static_cast<uint32>(valid)));
  return v;
}

}  // namespace warploom::ptx
