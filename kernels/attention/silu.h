// The HSTU score function on h = z / 2: silu(z) = z * sigmoid(z) = h + h * tanh(h).
//
// tanh.approx is one special-function instruction, but 1 + tanh(h) loses its digits as h falls: at z = -8 it is wrong
// by half a percent, at z = -16 completely. Below kTanhLimit the exact form z / (1 + 2^(-z log2 e)) is used instead,
// chosen once for a warp's whole tile, since such scores are rare and a branch a score would cost more than it saves.
#pragma once

#include "attention/split.h"
#include "attention/work.h"
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

/// The same for h below kTanhLimit, with one special function: e = e^z is less than 0.0025 there, and
/// z e / (1 + e) = z (e - e^2 + e^3 - ...).
__device__ __forceinline__ float silu_of_half_below_limit(float h) {
  constexpr float kTwoLog2E = 2.885390081777927f;
  const float bounded = ptx::max_nan(h, -1e30f);
  const float e = ptx::ex2_approx(bounded * kTwoLog2E);
  return (bounded + bounded) * fmaf(fmaf(e, e, -e), e, e);
}

inline constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}

/// float16: the power of two of a lane's row in half `half` of its m16 block m. exponents: of the warp's rows.
__device__ __forceinline__ int row_exponent(const int* exponents, int m, int half) {
  return exponents[m * 16 + half * 8 + threadIdx.x % 32 / 4];
}

/// Makes it large enough for numbers below 2^headroom times the power of two in `largest`, of the row's scores in this
/// lane, and scales the row of O to it. By whole warps; a __syncwarp must follow.
template <int ValueColumns>
__device__ __forceinline__ void scale_row(int* exponents, int m, int half, float largest, int headroom,
                                          float (&o)[ValueColumns][4]) {
  const int lane = threadIdx.x % 32;
  largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, 2));
  int& kept = exponents[m * 16 + half * 8 + lane / 4];
  const int old = kept;
  const int needed = (__float_as_int(largest) >> 23) - 127 + headroom - 15;
  const int exponent = needed > old ? needed : old;
  __syncwarp();  // the four lanes of a row have read before one writes
  if (lane % 4 == 0) kept = exponent;
  const float rescale = power_of_two(old - exponent);
#pragma unroll
  for (int n = 0; n < ValueColumns; ++n) {
    o[n][2 * half] *= rescale;
    o[n][2 * half + 1] *= rescale;
  }
}

/// 1 / N of a row of the CTA's tile. used: there is such a row.
__device__ __forceinline__ float over_divisor_of_row(const AttentionCall& call, const Work& work, int row, bool used) {
  float scale = call.inverse_divisor;
  if (call.divisor_rows != nullptr && used) scale = 1.0f / call.divisor_rows[work.first_q + work.first_row + row];
  return scale;
}

/// The score function silu in a forward kernel: what a warp keeps for its rows and does to a tile of scores.
///
/// Scores become h = z / 2. In float16 P = silu(2 h) may pass 65504 where O, after V and the divisor, does not: rows
/// get powers of two by which P and O are divided, as soon as one score of the warp needs it.
template <bool Bfloat16, bool Biased>
class SiluScore {
 public:
  static __device__ __forceinline__ float masked() { return 0; }  // silu(0) = 0

  /// exponents: of the warp's rows, in shared memory.
  __device__ __forceinline__ SiluScore(const AttentionCall& call, int* exponents)
      : half_alpha_(0.5f * call.alpha), half_bias_scale_(0.5f * call.bias.scale), exponents_(exponents) {}

  /// Q K^T to what the mask applies to; a biased one takes R with biased() first.
  template <int Blocks, int Columns>
  __device__ __forceinline__ void scale(float (&s)[Blocks][Columns][4]) const {
    if constexpr (Biased) return;
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
#pragma unroll
      for (int n = 0; n < Columns; ++n) {
        for (float& x : s[m][n]) x *= half_alpha_;
      }
    }
  }
  __device__ __forceinline__ float biased(float score, float bias) const {
    return fmaf(score, half_alpha_, bias * half_bias_scale_);
  }

  /// body(probability): runs it once with the function (m, half of the m16 block, h) -> P that this tile needs; o may
  /// be rescaled before.
  template <int Blocks, int Columns, int AllBlocks, int ValueColumns, typename Body>
  __device__ __forceinline__ void activate(float (&h)[Blocks][Columns][4], float (&o)[AllBlocks][ValueColumns][4],
                                           Body body) {
    bool exact = any_below_tanh_limit(h);
    if constexpr (!Bfloat16) {
      rows_scaled_ |= __any_sync(kWholeWarp, any_beyond_float16(h));
      exact |= rows_scaled_;
    }
    if (!__any_sync(kWholeWarp, exact)) {
      body([](int, int, float x) { return silu_of_half(x); });
    } else if constexpr (Bfloat16) {
      body([](int, int, float x) { return silu_of_half_exact(x); });
    } else {
      scale_rows(h, o);
      body([this](int m, int half, float x) {
        return silu_of_half_exact(x) * power_of_two(-row_exponent(exponents_, m, half));
      });
    }
  }

  /// After the last tile.
  __device__ __forceinline__ void finish() {}

  /// O is in units of 2^base; silu has no sum.
  __device__ __forceinline__ PartTerms part_terms(int m, int half) const {
    return {Bfloat16 ? 0.0f : static_cast<float>(row_exponent(exponents_, m, half)), 1.0f};
  }

  /// What a row of O is multiplied with. row: of the CTA's tile; used: there is such a row.
  __device__ __forceinline__ float finish_row(const AttentionCall& call, const Work& work, int m, int half, int row,
                                              bool used) const {
    const float scale = over_divisor_of_row(call, work, row, used);
    return Bfloat16 ? scale : scale * power_of_two(row_exponent(exponents_, m, half));
  }

 private:
  /// Makes the rows' powers of two large enough for these scores and scales O to them.
  template <int Blocks, int Columns, int AllBlocks, int ValueColumns>
  __device__ __forceinline__ void scale_rows(const float (&h)[Blocks][Columns][4],
                                             float (&o)[AllBlocks][ValueColumns][4]) {
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = 0;
#pragma unroll
        for (int n = 0; n < Columns; ++n) largest = fmaxf(largest, fmaxf(h[m][n][2 * half], h[m][n][2 * half + 1]));
        scale_row(exponents_, m, half, largest, 2, o[m]);  // 2 h < 2^(15 + exponent)
      }
    }
    __syncwarp();  // every lane may read the exponents
  }

  float half_alpha_, half_bias_scale_;
  int* exponents_;
  bool rows_scaled_ = false;
};

}  // namespace warploom
