// The forms that activations.cu measures: each is what one score costs. The kernels' own are in attention/silu.h and
// attention/softmax.h.
#pragma once

#include "attention/silu.h"
#include "ptx/math.h"

namespace warploom {

enum class Form {
  copy,              ///< nothing: packing alone
  tanh,              ///< silu = h + h tanh(h), one special function
  tanh_guarded,      ///< the same, and the logistic form for a tile that has a score below the limit: what kernels do
  logistic,          ///< silu = z / (1 + 2^(-z log2 e)), two special functions
  logistic_quarter,  ///< the same with every fourth power of two on the FMA pipe
  logistic_half,
  exp2,  ///< 2^x, one special function
  exp2_quarter,
  exp2_half,
  exp2_all,
};

/// 2^x on the FMA pipe: the integer part goes into the exponent, the rest, in [-1/2, 1/2], through a cubic with a
/// relative error of 2^-13.7 (fitted with equal ripples).
__device__ __forceinline__ float exp2_cubic(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer
  const float bounded = fmaxf(x, -126.0f);
  const float shifted = bounded + kShift;
  const float rest = bounded - (shifted - kShift);
  const float power = fmaf(fmaf(fmaf(0.055171668f, rest, 0.242611122f), rest, 0.693260986f), rest, 0.999928074f);
  return __int_as_float(__float_as_int(power) + (__float_as_int(shifted) << 23));
}

/// OneIn: one element in so many takes the FMA pipe; 0: none.
template <int OneIn>
__device__ __forceinline__ float exp2_of(float x, int element) {
  if (OneIn != 0 && element % (OneIn == 0 ? 1 : OneIn) == 0) return exp2_cubic(x);
  return ptx::ex2_approx(x);
}

template <int OneIn>
__device__ __forceinline__ float silu_logistic(float h, int element) {
  constexpr float kMinusTwoLog2E = -2.885390081777927f;
  return (h + h) * ptx::rcp_approx(1.0f + exp2_of<OneIn>(h * kMinusTwoLog2E, element));
}

/// element: its number in the lane, a constant once loops are unrolled.
template <Form kind>
__device__ __forceinline__ float value_of(float x, int element) {
  switch (kind) {
    case Form::tanh:
    case Form::tanh_guarded:
      return silu_of_half(x);
    case Form::logistic:
      return silu_logistic<0>(x, element);
    case Form::logistic_quarter:
      return silu_logistic<4>(x, element);
    case Form::logistic_half:
      return silu_logistic<2>(x, element);
    case Form::exp2:
      return ptx::ex2_approx(x);
    case Form::exp2_quarter:
      return exp2_of<4>(x, element);
    case Form::exp2_half:
      return exp2_of<2>(x, element);
    case Form::exp2_all:
      return exp2_cubic(x);
    default:
      return x;
  }
}

}  // namespace warploom
