// What Highway compiles the vector kernels for. Included before any Highway header. Three x86 targets keep compile
// times low: SSE4 is the least a processor must have, AVX2 (with FMA) and AVX3 (AVX-512 F, VL, DQ, BW) follow. Highway
// is used from its headers alone; dispatch.cpp picks the target (docs/decisions/cpu-simd-library.md).
#pragma once

#if defined(__x86_64__) || defined(__i386__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#define HWY_DISABLED_TARGETS (~(HWY_SSE4 | HWY_AVX2 | HWY_AVX3))  // whatever else this version of Highway knows
#else
#define HWY_DISABLED_TARGETS (~HWY_NEON)  // not SVE: the kernels want a constant lane count
#endif
// Highway's debug assertions would need its library.
#define HWY_IS_DEBUG_BUILD 0
