// From scores and dP to P and dS, in place, for the backward kernels. Factors that are the same for a whole tensor are
// left to the end: HSTU's dS lacks alpha / (2 N) and its P 1 / N, softmax's dS lacks alpha.
#pragma once

#include "attention/silu.h"
#include "attention/softmax.h"
#include "attention/user_score.h"
#include "ptx/math.h"

namespace warploom {

/// h = z / 2. s: becomes silu(z); dp: becomes dp * 2 * silu'(z). With t = tanh(h): silu = h + h t,
/// 2 silu' = 1 + (silu - silu t + t).
__device__ __forceinline__ void hstu_slope(float h, float& s, float& dp) {
  const float t = ptx::tanh_approx(h);
  s = fmaf(h, t, h);
  dp = fmaf(dp, fmaf(-s, t, s) + t, dp);
}

/// The same by the sigmoid, exact in the negative tail: silu = z sigma, silu' = (silu - sigma silu) + sigma.
__device__ __forceinline__ void hstu_slope_exact(float h, float& s, float& dp) {
  constexpr float kMinusTwoLog2E = -2.885390081777927f;
  const float bounded = ptx::max_nan(h, -1e30f);  // keeps -inf * 0 away
  const float sigma = ptx::rcp_approx(1.0f + ptx::ex2_approx(bounded * kMinusTwoLog2E));
  s = (bounded + bounded) * sigma;
  const float slope = fmaf(-sigma, s, s) + sigma;
  dp *= slope + slope;
}

/// The same in two parts: returns silu(z) and puts 2 silu'(z), less 1 in the first form, where h was.
__device__ __forceinline__ float hstu_parts(float& h) {
  const float t = ptx::tanh_approx(h), p = fmaf(h, t, h);
  h = fmaf(-p, t, p) + t;
  return p;
}
__device__ __forceinline__ float hstu_parts_exact(float& h) {
  float p = h, factor = 1;
  hstu_slope_exact(h, p, factor);
  h = factor;
  return p;
}

/// s: becomes P; dp: becomes P (dp - delta). The difference comes before the factor log2(e): where scores are large it
/// is exact, and what is rounded is small.
__device__ __forceinline__ void softmax_slope(float alpha, float lse, float delta, float& s, float& dp) {
  s = ptx::ex2_approx(fmaf(s, alpha, -lse) * kLog2E);
  dp = s * (dp - delta);
}
__device__ __forceinline__ float softmax_probability(float alpha, float lse, float s) {
  return ptx::ex2_approx(fmaf(s, alpha, -lse) * kLog2E);
}

/// The same under c tanh(x / c), scale_over_cap = alpha / c.
__device__ __forceinline__ void softmax_capped_slope(float scale_over_cap, float cap, float lse, float delta, float& s,
                                                     float& dp) {
  const float t = tanh_accurate(s * scale_over_cap);
  s = ptx::ex2_approx(fmaf(t, cap, -lse) * kLog2E);
  dp = s * (dp - delta) * fmaf(-t, t, 1.0f);
}

/// What the score function needs besides the scores: the same for all pairs.
struct ScoreScale {
  float alpha, softcap;
};

/// Biased: the scores have their alpha.
template <bool Biased>
__device__ __forceinline__ ScoreScale score_scale(const AttentionCall& call) {
  return {Biased ? 1.0f : call.alpha, call.softcap};
}

/// From S and dP of some blocks of an accumulator to P and dS. terms(m, n, i): of the query of that element, softmax's
/// lse and delta as a float2.
template <bool Capped, int M, int N, typename Terms>
__device__ __forceinline__ void apply_softmax(ScoreScale scale, float (&s)[M][N][4], float (&dp)[M][N][4],
                                              Terms terms) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 term = terms(m, n, i);
        if constexpr (Capped) {
          // Not a rounded division, whose code takes registers: the last bit is lost in tanh anyway.
          softmax_capped_slope(__fdividef(scale.alpha, scale.softcap), scale.softcap, term.x, term.y, s[m][n][i],
                               dp[m][n][i]);
        } else {
          softmax_slope(scale.alpha, term.x, term.y, s[m][n][i], dp[m][n][i]);
        }
      }
    }
  }
}

/// Adds R to Q K^T: HSTU's sum is z / 2, softmax's is S.
struct BiasedScale {
  float of_score, of_bias;

  __device__ __forceinline__ float of(float score, float r) const { return fmaf(score, of_score, r * of_bias); }
};

template <bool Softmax>
__device__ __forceinline__ BiasedScale biased_scale(const AttentionCall& call) {
  const float factor = Softmax ? 1.0f : 0.5f;
  return {factor * call.alpha, factor * call.bias.scale};
}

/// The same for HSTU. AlwaysExact: whatever the scores are; else only where the warp has one far down. Halved: s is z /
/// 2 already.
template <bool AlwaysExact, bool Halved, int M, int N>
__device__ __forceinline__ void apply_hstu(float alpha, float (&s)[M][N][4], float (&dp)[M][N][4]) {
  if constexpr (!Halved) {
    const float half_alpha = 0.5f * alpha;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        for (float& x : s[m][n]) x *= half_alpha;
      }
    }
  }
  if (AlwaysExact || __any_sync(0xffffffffu, any_below_tanh_limit(s))) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        for (int i = 0; i < 4; ++i) hstu_slope_exact(s[m][n][i], s[m][n][i], dp[m][n][i]);
      }
    }
  } else {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        for (int i = 0; i < 4; ++i) hstu_slope(s[m][n][i], s[m][n][i], dp[m][n][i]);
      }
    }
  }
}

/// The same by a user's function (user_score.h).
template <typename Function, bool Halved, int M, int N>
__device__ __forceinline__ void apply_user_score(const UserBackwardParams& p, float (&s)[M][N][4],
                                                 float (&dp)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float z = Halved ? s[m][n][i] + s[m][n][i] : s[m][n][i] * p.call.alpha;
        float slope;
        Function::value_and_slope(z, p.score_parameters, s[m][n][i], slope);
        dp[m][n][i] *= slope + slope;
      }
    }
  }
}

/// 1 / divisor of a row; 0 for one that does not exist, whose results are 0 anyway.
__device__ __forceinline__ float over_divisor(float divisor) {
  return divisor != 0 ? 1.0f / divisor : 0;
}

/// float16: numbers up to this one are not divided before they are rounded.
inline constexpr float kFitsFloat16 = 60000.0f;

/// The exponent e >= old with `largest` below 2^(15 + e).
__device__ __forceinline__ int float16_exponent(float largest, int old) {
  const int needed = (__float_as_int(largest) >> 23) - 127 + 1 - 15;
  return needed > old ? (needed < 100 ? needed : 100) : old;
}

}  // namespace warploom
