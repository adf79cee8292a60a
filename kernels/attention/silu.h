// The HSTU score function on h = z / 2: silu(z) = z * sigmoid(z) = h + h * tanh(h).
//
// tanh.approx is one special-function instruction, but 1 + tanh(h) loses its digits as h falls: at z = -8 it is wrong
// by half a percent, at z = -16 completely. Below kTanhLimit the exact form z / (1 + 2^(-z log2 e)) is used instead,
// chosen once for a warp's whole tile, since such scores are rare and a branch a score would cost more than it saves.
#pragma once

#include "ptx/math.h"
#include "ptx/types.h"

namespace warploom {

/// z = -6 as h.
inline constexpr float kTanhLimit = -3.0f;

/// silu(2 h) still fits float16 up to here.
inline constexpr float kFloat16Limit = 32000.0f;

/// Whether one of the h is below kTanhLimit. As unsigned integers negative floats are larger than positive ones and
/// grow with their magnitude, so an integer maximum finds the smallest. A positive NaN is not below.
template <int RowBlocks, int ColumnBlocks>
__device__ __forceinline__ bool any_below_tanh_limit(const float (&h)[RowBlocks][ColumnBlocks][4]) {
  unsigned largest = 0;
#pragma unroll
  for (int m = 0; m < RowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < ColumnBlocks; ++n) {
      for (float x : h[m][n]) largest = __float_as_uint(x) > largest ? __float_as_uint(x) : largest;
    }
  }
  return largest > __float_as_uint(kTanhLimit);
}

/// Whether silu(2 h) of one of them is beyond float16. Positive floats order as signed integers do.
template <int RowBlocks, int ColumnBlocks>
__device__ __forceinline__ bool any_beyond_float16(const float (&h)[RowBlocks][ColumnBlocks][4]) {
  int largest = 0;
#pragma unroll
  for (int m = 0; m < RowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < ColumnBlocks; ++n) {
      for (float x : h[m][n]) largest = __float_as_int(x) > largest ? __float_as_int(x) : largest;
    }
  }
  return largest > __float_as_int(kFloat16Limit);
}

__device__ __forceinline__ float silu_of_half(float h) {
  return fmaf(h, ptx::tanh_approx(h), h);
}

__device__ __forceinline__ float silu_of_half_exact(float h) {
  constexpr float kMinusTwoLog2E = -2.885390081777927f;
  // The bound keeps -inf * 0 away; silu is 0 long before it.
  const float bounded = ptx::max_nan(h, -1e30f);
  return (bounded + bounded) * ptx::rcp_approx(1.0f + ptx::ex2_approx(bounded * kMinusTwoLog2E));
}

}  // namespace warploom
