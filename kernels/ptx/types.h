// The 16-bit number formats of the tensor core, and the conversions between them and float.
#pragma once

namespace warploom::ptx {

using uint32 = unsigned int;

/// Tags: the values themselves travel as pairs in a uint32, the first one in the low half.
struct Float16 {};
struct Bfloat16 {};

/// Two floats to a pair, rounded to nearest even in one instruction (PTX ISA, cvt.rn.{f16x2,bf16x2}.f32).
template <typename T>
__device__ __forceinline__ uint32 pack(float low, float high);

template <>
__device__ __forceinline__ uint32 pack<Float16>(float low, float high) {
  uint32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <>
__device__ __forceinline__ uint32 pack<Bfloat16>(float low, float high) {
  uint32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace warploom::ptx
