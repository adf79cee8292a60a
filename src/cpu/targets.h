// From a Highway target to the namespace that holds its kernels. Included once, after all targets were compiled.
#pragma once

#include <hwy/highway.h>

#include "cpu/kernels.h"

namespace warploom::cpu {

/// Each sets the kernels of its file; false when they were not compiled for that target.
bool add_forward_kernels(int64_t target, Kernels& kernels);
bool add_backward_kernels(int64_t target, Kernels& kernels);
bool add_gemm_kernels(int64_t target, Kernels& kernels);

}  // namespace warploom::cpu

#if HWY_TARGETS & HWY_AVX3
#define WARPLOOM_IF_AVX3(target, add) \
  if (target == HWY_AVX3) return add(N_AVX3), true
#else
#define WARPLOOM_IF_AVX3(target, add)
#endif
#if HWY_TARGETS & HWY_AVX2
#define WARPLOOM_IF_AVX2(target, add) \
  if (target == HWY_AVX2) return add(N_AVX2), true
#else
#define WARPLOOM_IF_AVX2(target, add)
#endif
#if HWY_ARCH_X86
#define WARPLOOM_STATIC_NAMESPACE N_SSE4
#else
#define WARPLOOM_STATIC_NAMESPACE N_NEON
#endif
#define WARPLOOM_FOR_TARGET(target, add)                                        \
  WARPLOOM_IF_AVX3(target, add);                                                \
  WARPLOOM_IF_AVX2(target, add);                                                \
  if (target == HWY_STATIC_TARGET) return add(WARPLOOM_STATIC_NAMESPACE), true; \
  return false
