// The score function softmax in a forward kernel: running maximum and sum of each row (online softmax; Milakov and
// Gimelshein 2018, FlashAttention-2 section 3.1), in powers of two.
//
// Scores are kept as x with exponent e = factor * x, factor >= 0, in units of log 2: P = 2^(e - base). The factor and
// the base go into one FMA an element. The base is the maximum of some tile before: it moves only when a row's maximum
// has outgrown it by more than 2^8, so that O is seldom rescaled. Rounding is relative, so no digit is lost by it.
#pragma once

#include "attention/split.h"
#include "attention/work.h"
#include "ptx/math.h"

namespace warploom {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
/// How far, in powers of two, a row's maximum may outgrow its base. 2^8 times a row of ones fits float16.
inline constexpr float kBaseSlack = 8.0f;

/// tanh, absolute error below 2^-22, relative below 2^-20 near 0. For the softcap, whose scores are tanh times a cap.
__device__ __forceinline__ float tanh_accurate(float y) {
  const float square = y * y;
  const float series = fmaf(
      y * square, fmaf(square, fmaf(square, fmaf(square, 0.021869488f, -0.053968254f), 0.13333333f), -0.33333333f), y);
  const float e = ptx::ex2_approx(y * (2.0f * kLog2E));
  const float quotient = 1.0f - 2.0f * ptx::rcp_approx(1.0f + e);
  return square < 0.04f ? series : quotient;
}

/// Blocks: the m16 blocks of the warp's rows.
template <bool Biased, bool Softcapped, int AllBlocks>
class SoftmaxScore {
 public:
  __device__ __forceinline__ SoftmaxScore(const AttentionCall& call, int*) : alpha_(call.alpha) {
    // Without a bias or a cap, x = Q K^T and alpha's size is in the factor; its sign, or 0, is in x.
    factor_ = Softcapped ? call.softcap * kLog2E : Biased || alpha_ == 0 ? kLog2E : fabsf(alpha_) * kLog2E;
    if constexpr (Softcapped) inverse_cap_ = 1.0f / call.softcap;
#pragma unroll
    for (int m = 0; m < AllBlocks; ++m) {
      base_[m][0] = base_[m][1] = ptx::minus_infinity();
      sum_[m][0] = sum_[m][1] = 0;
    }
  }

  static __device__ __forceinline__ float masked() { return ptx::minus_infinity(); }

  /// Q K^T to x, what the mask applies to; a biased one takes R with biased() first.
  template <int Blocks, int Columns>
  __device__ __forceinline__ void scale(float (&s)[Blocks][Columns][4]) const {
    if constexpr (Softcapped) {
      for_each(s, [this](float x) { return tanh_accurate((Biased ? x : x * alpha_) * inverse_cap_); });
    } else if constexpr (!Biased) {
      if (alpha_ <= 0) {
        const float sign = alpha_ < 0 ? -1.0f : 0.0f;
        for_each(s, [sign](float x) { return x * sign; });
      }
    }
  }
  __device__ __forceinline__ float biased(float score, float bias) const { return fmaf(score, alpha_, bias); }

  /// body(probability): runs it once with the function (m, half of the m16 block, x) -> P; o may be rescaled before.
  template <int Blocks, int Columns, int ValueColumns, typename Body>
  __device__ __forceinline__ void activate(const float (&x)[Blocks][Columns][4], float (&o)[AllBlocks][ValueColumns][4],
                                           Body body) {
    // Each lane looks at its own scores: only a base that moves needs the row's maximum.
    bool moves = false;
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) moves |= outgrows(m, half, largest_of(x[m], half) * factor_);
    }
    if (__any_sync(0xffffffffu, moves)) move_bases(x, o);
    float origin[Blocks][2];
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
#pragma unroll
      // A row that has seen nothing yet has no base; its scores are -inf or NaN, and -inf minus 0 gives 0.
      for (int half = 0; half < 2; ++half) {
        origin[m][half] = base_[m][half] == ptx::minus_infinity() ? 0.0f : base_[m][half];
      }
    }
    body([&](int m, int half, float score) {
      const float p = ptx::ex2_approx(fmaf(score, factor_, -origin[m][half]));
      sum_[m][half] += p;
      return p;
    });
  }

  /// Sums each row over its four lanes. Once, after the last tile.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int m = 0; m < AllBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum_[m][half] += __shfl_xor_sync(0xffffffffu, sum_[m][half], 1);
        sum_[m][half] += __shfl_xor_sync(0xffffffffu, sum_[m][half], 2);
      }
    }
  }

  /// After finish(): the row's part of the softmax.
  __device__ __forceinline__ PartTerms part_terms(int m, int half) const { return {base_[m][half], sum_[m][half]}; }

  /// After finish(): writes the row's LSE and returns what O is multiplied with, 0 for a row that saw nothing. row: of
  /// the CTA's tile; used: there is such a row.
  __device__ __forceinline__ float finish_row(const AttentionCall& call, const Work& work, int m, int half, int row,
                                              bool used) const {
    const float sum = sum_[m][half];
    if (call.lse != nullptr && threadIdx.x % 4 == 0 && work.first_row + row < work.slot_q) {
      float* lse = call.lse + work.sequence * call.lse_batch_stride + work.head * call.lse_head_stride;
      lse[work.tensor_q + work.first_row + row] =
          used && sum != 0 ? (base_[m][half] + __log2f(sum)) * kLn2 : ptx::minus_infinity();
    }
    return sum == 0 ? 0.0f : 1.0f / sum;
  }

 private:
  template <int Blocks, int Columns, typename Function>
  static __device__ __forceinline__ void for_each(float (&s)[Blocks][Columns][4], Function function) {
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
#pragma unroll
      for (int n = 0; n < Columns; ++n) {
        for (float& x : s[m][n]) x = function(x);
      }
    }
  }

  __device__ __forceinline__ bool outgrows(int m, int half, float largest) const {
    return largest > base_[m][half] + kBaseSlack;
  }
  template <int Columns>
  static __device__ __forceinline__ float largest_of(const float (&x)[Columns][4], int half) {
    float most = x[0][2 * half];
#pragma unroll
    for (int n = 0; n < Columns; ++n) most = fmaxf(most, fmaxf(x[n][2 * half], x[n][2 * half + 1]));
    return most;
  }

  template <int Blocks, int Columns, int ValueColumns>
  __device__ __forceinline__ void move_bases(const float (&x)[Blocks][Columns][4],
                                             float (&o)[AllBlocks][ValueColumns][4]) {
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = largest_of(x[m], half);
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2)) * factor_;
        // Each row by itself: a result must not depend on the rows that share its warp.
        const float moved = outgrows(m, half, largest) ? largest : base_[m][half];
        const float rescale = moved == base_[m][half] ? 1.0f : ptx::ex2_approx(base_[m][half] - moved);
        base_[m][half] = moved;
        sum_[m][half] *= rescale;
#pragma unroll
        for (int n = 0; n < ValueColumns; ++n) {
          o[m][n][2 * half] *= rescale;
          o[m][n][2 * half + 1] *= rescale;
        }
      }
    }
  }

  float alpha_, factor_, inverse_cap_ = 0;
  float base_[AllBlocks][2];
  float sum_[AllBlocks][2];
};

}  // namespace warploom
