// The functions of users' expressions (src/expression) on a GPU. NaN stays NaN in all of them.
#pragma once

#include "attention/softmax.h"
#include "ptx/math.h"

namespace warploom::score_math {

/// 2 ulp, and |x| / 2^24 more by the rounding of x log2(e).
__device__ __forceinline__ float exp(float x) {
  return ptx::ex2_approx(x * kLog2E);
}
__device__ __forceinline__ float exp2(float x) {
  return ptx::ex2_approx(x);
}
__device__ __forceinline__ float expm1(float x) {
  return ::expm1f(x);
}
__device__ __forceinline__ float log(float x) {
  return ::logf(x);
}
__device__ __forceinline__ float log2(float x) {
  return ::log2f(x);
}
__device__ __forceinline__ float log1p(float x) {
  return ::log1pf(x);
}
__device__ __forceinline__ float tanh(float x) {
  return tanh_accurate(x);
}
/// Exact in both tails.
__device__ __forceinline__ float sigmoid(float x) {
  return ptx::rcp_approx(1.0f + ptx::ex2_approx(-x * kLog2E));
}
__device__ __forceinline__ float softplus(float x) {
  return ptx::max_nan(x, 0.0f) + ::log1pf(exp(-fabsf(x)));
}
__device__ __forceinline__ float sqrt(float x) {
  return ::sqrtf(x);
}
__device__ __forceinline__ float erf(float x) {
  return ::erff(x);
}
__device__ __forceinline__ float erfc(float x) {
  return ::erfcf(x);
}
__device__ __forceinline__ float abs(float x) {
  return fabsf(x);
}
__device__ __forceinline__ float sign(float x) {
  return x > 0 ? 1.0f : x < 0 ? -1.0f : x;
}
/// 2 ulp; 0 for a divisor beyond 2^126.
__device__ __forceinline__ float divide(float x, float y) {
  return x * ptx::rcp_approx(y);
}
__device__ __forceinline__ float pow(float x, float y) {
  return ::powf(x, y);
}
__device__ __forceinline__ float min(float x, float y) {
  return -ptx::max_nan(-x, -y);
}
__device__ __forceinline__ float max(float x, float y) {
  return ptx::max_nan(x, y);
}

}  // namespace warploom::score_math
