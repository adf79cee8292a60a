// kernels/ptx/types.h on the host (warp.h).
#pragma once

#include "warp.h"

namespace warploom::ptx {

using uint32 = unsigned int;

struct Bfloat16 {};

template <typename T>
float2 unpack(uint32 pair);
template <>
inline float2 unpack<Bfloat16>(uint32 pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

template <typename T>
uint32 pack(float low, float high);
template <>
inline uint32 pack<Bfloat16>(float low, float high) {
  const auto rounded = [](float x) {
    const uint32 bits = std::bit_cast<uint32>(x);
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  };
  return rounded(low) | rounded(high) << 16;
}

template <typename T>
uint32 min_pair(uint32 a, uint32 b) {
  const float2 x = unpack<T>(a), y = unpack<T>(b);
  const uint32 low = x.x < y.x ? a & 0xffffu : b & 0xffffu;
  return low | (x.y < y.y ? a & 0xffff0000u : b & 0xffff0000u);
}

}  // namespace warploom::ptx
