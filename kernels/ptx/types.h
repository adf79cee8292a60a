// The number formats of the tensor core, and the conversions between them and float.
#pragma once

namespace warploom::ptx {

using uint32 = unsigned int;

/// No instruction but a move: a value that the compiler keeps in a register instead of computing it again.
__device__ __forceinline__ int in_register(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Tags of a value's size: the values themselves travel as pairs (8 bits: fours) in a uint32, the first one in the low
/// part.
struct Float16 {
  unsigned short bits;
};
struct Bfloat16 {
  unsigned short bits;
};
struct Float8E4M3 {
  unsigned char bits;
};
struct Float8E5M2 {
  unsigned char bits;
};

template <bool IsBfloat16>
struct ElementChoice {
  using Type = Float16;
};
template <>
struct ElementChoice<true> {
  using Type = Bfloat16;
};
template <bool IsBfloat16>
using ElementOf = typename ElementChoice<IsBfloat16>::Type;

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

/// A pair to two floats, exact.
template <typename T>
__device__ __forceinline__ float2 unpack(uint32 pair);

template <>
__device__ __forceinline__ float2 unpack<Float16>(uint32 pair) {
  float2 values;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(pair));
  return values;
}

template <>
__device__ __forceinline__ float2 unpack<Bfloat16>(uint32 pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

/// Both values of a pair of bfloat16 times a pair's (PTX ISA, "mul.bf16x2", sm_90).
__device__ __forceinline__ uint32 multiply_bfloat16(uint32 a, uint32 b) {
  uint32 product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

/// The smaller ones of two pairs; a NaN gives way to a number.
template <typename T>
__device__ __forceinline__ uint32 min_pair(uint32 a, uint32 b);

template <>
__device__ __forceinline__ uint32 min_pair<Float16>(uint32 a, uint32 b) {
  uint32 pair;
  asm("min.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

template <>
__device__ __forceinline__ uint32 min_pair<Bfloat16>(uint32 a, uint32 b) {
  uint32 pair;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

}  // namespace warploom::ptx
