// wgmma.mma_async: D (64 x N, float, in the registers of a warpgroup) += A B^T on the tensor core, with A (64 rows) in
// shared memory or registers and B (N rows) in shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix
// Instructions"). Operands in shared memory stand in panels of 128-byte rows under the 128-byte swizzle
// (geometry/wgmma_descriptor.h computes their descriptors, of which the low words are passed here).
//
// Which element an accumulator is says geometry/fragment.h, accumulator_element. The order of use: wgmma_fence,
// wgmma_ss / wgmma_rs ..., wgmma_commit_group, and wgmma_wait_group with every accumulator array before it is read.
// Between issue and wait the compiler must find no other use of the registers, or ptxas serialises the instructions
// ("Potential Performance Loss").
#pragma once

#include "ptx/accumulator_lists.h"
#include "ptx/types.h"

namespace warploom::ptx {

/// Orders the registers' and shared memory's earlier accesses before the next wgmma (PTX ISA, "wgmma.fence").
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Closes the group of the wgmmas issued since the last one (PTX ISA, "wgmma.commit_group").
__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// No instruction: the values become unknown to the compiler here, so that it reads them neither earlier nor later.
template <int Count>
__device__ __forceinline__ void keep(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Waits until at most `Newest` groups are in flight (PTX ISA, "wgmma.wait_group"). Pass the accumulators that are
/// complete then: the compiler cannot read them before.
template <int Newest, int... Counts>
__device__ __forceinline__ void wgmma_wait_group(float (&... d)[Counts]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Newest) : "memory");
  (keep(d), ...);
}

namespace detail {

// The high word of every descriptor: 1024 bytes from eight rows to the next eight, 128-byte swizzle.
#define WARPLOOM_DESCRIPTOR(name, low) "mov.b64 " name ", {%" #low ", 0x40000040};\n"
#define WARPLOOM_WGMMA_BEGIN(accumulate) "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %" #accumulate ", 0;\n"

// Operands after the accumulators: accumulate, b, a (one register of a descriptor, or four of values), transpositions.
#define WARPLOOM_WGMMA_SS(n, count, type, r0, r1, r2, r3, r4, r5, r6)                                    \
  if constexpr (N == n) {                                                                                \
    asm volatile(WARPLOOM_WGMMA_BEGIN(r0) WARPLOOM_DESCRIPTOR("b", r1) WARPLOOM_DESCRIPTOR(              \
                     "a", r2) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type            \
                              " {" WARPLOOM_REGISTERS_##count "}, a, b, p, 1, 1, %" #r3 ", %" #r4 ";\n}" \
                 : WARPLOOM_ACCUMULATORS_##count(d)                                                      \
                 : "r"(accumulate), "r"(b), "r"(a), "n"(TransposeA), "n"(TransposeB));                   \
  }
#define WARPLOOM_WGMMA_RS(n, count, type, r0, r1, r2, r3, r4, r5, r6)                                         \
  if constexpr (N == n) {                                                                                     \
    asm volatile(WARPLOOM_WGMMA_BEGIN(r0) WARPLOOM_DESCRIPTOR("b", r1) "wgmma.mma_async.sync.aligned.m64n" #n \
                                                                       "k16.f32." type "." type               \
                                                                       " {" WARPLOOM_REGISTERS_##count        \
                 "}, {%" #r2 ", %" #r3 ", %" #r4 ", %" #r5 "}, b, p, 1, 1, %" #r6 ";\n}"                      \
                 : WARPLOOM_ACCUMULATORS_##count(d)                                                           \
                 : "r"(accumulate), "r"(b), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "n"(TransposeB));     \
  }
// 8-bit operands have no transposition: both are K-major.
#define WARPLOOM_WGMMA_SS_8(n, count, type, r0, r1, r2, r3, r4, r5, r6)                                           \
  if constexpr (N == n) {                                                                                         \
    asm volatile(WARPLOOM_WGMMA_BEGIN(r0) WARPLOOM_DESCRIPTOR("b", r1)                                            \
                     WARPLOOM_DESCRIPTOR("a", r2) "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." type "." type \
                                                  " {" WARPLOOM_REGISTERS_##count "}, a, b, p, 1, 1;\n}"          \
                 : WARPLOOM_ACCUMULATORS_##count(d)                                                               \
                 : "r"(accumulate), "r"(b), "r"(a));                                                              \
  }
#define WARPLOOM_WGMMA_RS_8(n, count, type, r0, r1, r2, r3, r4, r5, r6)                                           \
  if constexpr (N == n) {                                                                                         \
    asm volatile(WARPLOOM_WGMMA_BEGIN(r0)                                                                         \
                     WARPLOOM_DESCRIPTOR("b", r1) "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." type "." type \
                                                  " {" WARPLOOM_REGISTERS_##count "}, {%" #r2 ", %" #r3 ", %" #r4 \
                                                                                  ", %" #r5 "}, b, p, 1, 1;\n}"   \
                 : WARPLOOM_ACCUMULATORS_##count(d)                                                               \
                 : "r"(accumulate), "r"(b), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));                          \
  }

#define WARPLOOM_WGMMA_OF_TYPE(Tag, type, ss_row, rs_row)                                                          \
  template <int N, bool TransposeB, bool TransposeA>                                                               \
  __device__ __forceinline__ void wgmma_ss(Tag, float(&d)[N / 2], uint32 a, uint32 b, int accumulate) {            \
    WARPLOOM_WGMMA_WIDTHS(ss_row, type)                                                                            \
  }                                                                                                                \
  template <int N, bool TransposeB>                                                                                \
  __device__ __forceinline__ void wgmma_rs(Tag, float(&d)[N / 2], const uint32(&a)[4], uint32 b, int accumulate) { \
    WARPLOOM_WGMMA_WIDTHS(rs_row, type)                                                                            \
  }

WARPLOOM_WGMMA_OF_TYPE(Float16, "f16", WARPLOOM_WGMMA_SS, WARPLOOM_WGMMA_RS)
WARPLOOM_WGMMA_OF_TYPE(Bfloat16, "bf16", WARPLOOM_WGMMA_SS, WARPLOOM_WGMMA_RS)
WARPLOOM_WGMMA_OF_TYPE(Float8E4M3, "e4m3", WARPLOOM_WGMMA_SS_8, WARPLOOM_WGMMA_RS_8)
WARPLOOM_WGMMA_OF_TYPE(Float8E5M2, "e5m2", WARPLOOM_WGMMA_SS_8, WARPLOOM_WGMMA_RS_8)

template <typename T, int N, bool TransposeB, bool TransposeA>
struct ValidWgmma {
  static_assert(N >= 8 && N <= 256 && N % 8 == 0, "N is a multiple of 8 up to 256");
  static_assert(sizeof(T) == 2 || !(TransposeA || TransposeB), "8-bit operands are K-major");
  static constexpr bool value = true;
};

}  // namespace detail

/// D = A B^T, plus D when `accumulate`, over K = 16 (8-bit types: 32), A and B by the low words of their descriptors.
/// Transpose: the operand is stored with rows of consecutive M (A) or N (B) instead of K.
template <typename T, int N, bool TransposeB = false, bool TransposeA = false>
__device__ __forceinline__ void wgmma_ss(float (&d)[N / 2], uint32 a_low, uint32 b_low, int accumulate) {
  static_assert(detail::ValidWgmma<T, N, TransposeB, TransposeA>::value);
  detail::wgmma_ss<N, TransposeB, TransposeA>(T{}, d, a_low, b_low, accumulate);
}

/// The same with A in registers: the fragments of mma.m16n8k16 (geometry/fragment.h), 16 rows a warp; 8-bit types: the
/// same bytes.
template <typename T, int N, bool TransposeB = false>
__device__ __forceinline__ void wgmma_rs(float (&d)[N / 2], const uint32 (&a)[4], uint32 b_low, int accumulate) {
  static_assert(detail::ValidWgmma<T, N, TransposeB, false>::value);
  detail::wgmma_rs<N, TransposeB>(T{}, d, a, b_low, accumulate);
}

}  // namespace warploom::ptx
