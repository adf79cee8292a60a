// What a thread knows of its two rows of a warpgroup's tile while it walks along the keys, and how scores become
// probabilities: the score functions of the Hopper kernel.
//
// A thread holds rows lane / 4 and lane / 4 + 8 of its warp's 16, a quarter of the columns each: h[0][n][2 * half + j]
// is column 8 n + 2 (lane mod 4) + j of the row `half` (PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16").
#pragma once

#include "attention/silu.h"
#include "attention/softmax.h"
#include "attention/visibility.h"
#include "ptx/math.h"

namespace warploom {

template <int Columns>
using WarpgroupScores = float[1][Columns / 8][4];

/// The four lanes that share a row agree on its maximum.
__device__ __forceinline__ float max_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

/// HSTU. float16 only: P = silu(z) may pass 65504 where O, after V and the divisor, does not. Then the row's P and O
/// are kept divided by a power of two, which only grows.
///
/// TanhFirst (bfloat16; it takes a register a score): the tanh of all scores is on its way while they are searched for
/// those that need the exact form, which then is computed in 16 columns at a time. A bias makes them less rare.
template <bool IsBfloat16, bool ScaledQuery, bool TanhFirst>
struct HstuRows {
  /// The score of an invisible place: silu(0) = 0.
  static __device__ __forceinline__ float invisible() { return 0; }
  static constexpr bool kHasLse = false;

  int exponent[2] = {0, 0};
  bool scaled = false;  ///< one of the warp's rows has an exponent

  /// Before the mask: Q K^T becomes h = z / 2.
  template <int Columns>
  static __device__ __forceinline__ void prepare(WarpgroupScores<Columns>& s, const AttentionCall& call) {
    if constexpr (ScaledQuery) return;
    const float half_alpha = 0.5f * call.alpha;
#pragma unroll
    for (int n = 0; n < Columns / 8; ++n) {
      for (float& x : s[0][n]) x *= half_alpha;
    }
  }

  /// Instead of prepare(): with R times bias_factor.
  static __device__ __forceinline__ float biased(float score, float scaled_bias, const AttentionCall& call) {
    return ScaledQuery ? score + scaled_bias : fmaf(score, 0.5f * call.alpha, scaled_bias);
  }
  static __device__ __forceinline__ float bias_factor(const AttentionCall& call) { return 0.5f * call.bias.scale; }

  /// Scores to probabilities in place. True: O must be multiplied by `rescale`, row by row.
  template <int Columns>
  __device__ __forceinline__ bool activate(WarpgroupScores<Columns>& h, const AttentionCall&, float (&rescale)[2]) {
    if constexpr (TanhFirst) {
      activate_tanh_first(h[0]);
      return false;
    }
    bool exact = any_below_tanh_limit(h);
    if constexpr (!IsBfloat16) {
      scaled |= __any_sync(kAllLanes, any_beyond_float16(h));
      exact |= scaled;
    }
    if (!__any_sync(kAllLanes, exact)) {
#pragma unroll
      for (int n = 0; n < Columns / 8; ++n) {
        for (float& x : h[0][n]) x = silu_of_half(x);
      }
      return false;
    }
    if constexpr (!IsBfloat16) grow_exponents<Columns>(h, rescale);
#pragma unroll
    for (int n = 0; n < Columns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = h[0][n][i];
        x = silu_of_half_exact(x);
        if constexpr (!IsBfloat16) x *= power_of_two(-exponent[i / 2]);
      }
    }
    return !IsBfloat16 && scaled;
  }

  __device__ __forceinline__ void finish() {}
  __device__ __forceinline__ float lse(int) const { return 0; }
  /// What O is multiplied by in the end; row: counted over the whole batch.
  __device__ __forceinline__ float output_scale(const AttentionCall& call, int half, long long row) const {
    const float scale = call.divisor_rows != nullptr ? ptx::rcp_approx(call.divisor_rows[row]) : call.inverse_divisor;
    return IsBfloat16 ? scale : scale * power_of_two(exponent[half]);
  }

 private:
  template <int Blocks>
  static __device__ __forceinline__ void activate_tanh_first(float (&h)[Blocks][4]) {
    float p[Blocks][4];
#pragma unroll
    for (int n = 0; n < Blocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[n][i] = silu_of_half(h[n][i]);
    }
    if (__any_sync(kAllLanes, any_below_tanh_limit(reinterpret_cast<const float(&)[1][Blocks][4]>(h)))) {
#pragma unroll
      for (int n = 0; n < Blocks; n += 2) {
        if (!__any_sync(kAllLanes, any_below_tanh_limit(reinterpret_cast<const float(&)[1][2][4]>(h[n])))) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float x = h[n + i / 4][i % 4];
          if (x < kTanhLimit) p[n + i / 4][i % 4] = silu_of_half_below_limit(x);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < Blocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) h[n][i] = p[n][i];
    }
  }

  template <int Columns>
  __device__ __forceinline__ void grow_exponents(const WarpgroupScores<Columns>& h, float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = 0;
#pragma unroll
      for (int n = 0; n < Columns / 8; ++n) largest = fmaxf(largest, fmaxf(h[0][n][2 * half], h[0][n][2 * half + 1]));
      largest = max_of_row(largest);
      const int needed = (__float_as_int(largest) >> 23) - 127 + 2 - 15;  // 2 h < 2^(15 + needed)
      const int grown = needed > exponent[half] ? needed : exponent[half];
      rescale[half] = power_of_two(exponent[half] - grown);
      exponent[half] = grown;
    }
  }
};

/// Softmax along the keys as they come, in powers of two, with a base that moves seldom (softmax.h says how).
///
/// Most steps only have to know that no score passes its row's limit, which integer maxima of three tell: positive
/// floats order as signed integers do, and negative ones are negative. A negative limit has no such order, so then
/// every step looks closely.
template <bool Softcap, bool Biased>
struct SoftmaxRows {
  static constexpr bool kHasLse = true;
  static constexpr float kNoBase = -1e38f;  ///< of a row that has seen nothing
  static constexpr int kNoLimit = -1 - 0x7fffffff;
  /// The score of an invisible place.
  static __device__ __forceinline__ float invisible() { return ptx::minus_infinity(); }

  float base[2] = {kNoBase, kNoBase};   ///< the same in the row's four lanes
  int limit[2] = {kNoLimit, kNoLimit};  ///< the x past which the base moves, as an integer
  float sum[2] = {0, 0};                ///< of this thread's columns

  /// Before the mask: Q K^T becomes x, of which P = 2^(factor * x - base).
  template <int Columns>
  static __device__ __forceinline__ void prepare(WarpgroupScores<Columns>& s, const AttentionCall& call) {
    if constexpr (Softcap) {
      const float inner = call.alpha / call.softcap;
#pragma unroll
      for (int n = 0; n < Columns / 8; ++n) {
        for (float& x : s[0][n]) x = tanh_accurate(x * inner);
      }
    } else if (call.alpha <= 0) {
      const float sign = call.alpha < 0 ? -1.0f : 0.0f;
#pragma unroll
      for (int n = 0; n < Columns / 8; ++n) {
        for (float& x : s[0][n]) x *= sign;
      }
    }
  }

  /// Instead of prepare(): with R times bias_factor.
  static __device__ __forceinline__ float biased(float score, float scaled_bias, const AttentionCall& call) {
    return fmaf(score, call.alpha, scaled_bias);
  }
  static __device__ __forceinline__ float bias_factor(const AttentionCall&) { return 1; }

  /// Scores to probabilities in place. True: O must be multiplied by `rescale`, row by row.
  template <int Columns>
  __device__ __forceinline__ bool activate(WarpgroupScores<Columns>& s, const AttentionCall& call,
                                           float (&rescale)[2]) {
    const float factor = kLog2E * (Softcap ? call.softcap : Biased || call.alpha == 0 ? 1.0f : fabsf(call.alpha));
    int most[2] = {kNoLimit, kNoLimit};
#pragma unroll
    for (int n = 0; n < Columns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) most[i / 2] = max(most[i / 2], __float_as_int(s[0][n][i]));
    }
    const bool moves = __any_sync(kAllLanes, most[0] > limit[0] || most[1] > limit[1]);
    if (moves) move_bases<Columns>(s, factor, rescale);
#pragma unroll
    for (int n = 0; n < Columns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[0][n][i];
        x = ptx::ex2_approx(fmaf(x, factor, -base[i / 2]));
        sum[i / 2] += x;
      }
    }
    return moves;
  }

  /// Makes `sum` that of the whole row; before output_scale and lse.
  __device__ __forceinline__ void finish() {
    sum[0] = sum_of_row(sum[0]);
    sum[1] = sum_of_row(sum[1]);
  }
  /// 0 for a row that sees nothing.
  __device__ __forceinline__ float output_scale(const AttentionCall&, int half, long long) const {
    return sum[half] == 0 ? 0.0f : ptx::rcp_approx(sum[half]);
  }
  /// -inf for a row that sees nothing.
  __device__ __forceinline__ float lse(int half) const {
    return sum[half] == 0 ? ptx::minus_infinity() : (base[half] + ptx::lg2_approx(sum[half])) * kLn2;
  }

 private:
  /// Each row by itself: a result must not depend on the rows that share its warp.
  template <int Columns>
  __device__ __forceinline__ void move_bases(const WarpgroupScores<Columns>& s, float factor, float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = s[0][0][2 * half];
#pragma unroll
      for (int n = 0; n < Columns / 8; ++n) most = fmaxf(most, fmaxf(s[0][n][2 * half], s[0][n][2 * half + 1]));
      most = max_of_row(most);
      const bool moves =
          limit[half] == kNoLimit ? most * factor > base[half] + kBaseSlack : most > __int_as_float(limit[half]);
      const float moved = moves ? most * factor : base[half];
      rescale[half] = moves ? ptx::ex2_approx(base[half] - moved) : 1.0f;
      base[half] = moved;
      sum[half] *= rescale[half];
      const float new_limit = (moved + kBaseSlack) * ptx::rcp_approx(factor);
      limit[half] = new_limit > 0 ? __float_as_int(new_limit) : kNoLimit;
    }
  }
};

}  // namespace warploom
