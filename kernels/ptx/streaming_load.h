// Loads of what is read once (PTX ISA, "ld.global.nc", .L1::no_allocate and .L2::128B).
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

/// 16 bytes that no kernel writes while this one runs, past L1, the whole line to L2; zeros when `valid` is false (then
/// nothing is read). The order of such loads is that of the program.
__device__ __forceinline__ uint4 load_streaming_16(const void* global, bool valid) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(global), "r"(static_cast<uint32>(valid)));
  return v;
}

/// The same through L1, for what other warps of the CTA read too.
__device__ __forceinline__ uint4 load_shared_line_16(const void* global, bool valid) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(global), "r"(static_cast<uint32>(valid)));
  return v;
}

}  // namespace warploom::ptx
