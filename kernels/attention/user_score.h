// A user's function as the score function of a forward kernel: P = f(Z), whatever f is.
#pragma once

#include "attention/silu.h"
#include "attention/split.h"
#include "attention/user_functions.h"
#include "attention/work.h"
#include "ptx/math.h"

namespace warploom {

/// In kernels with a user's function the text before them defines it (src/expression/device_text.cpp):
///
///     static float value(float z, const float* parameters);
///     static void value_and_slope(float z, const float* parameters, float& value, float& slope);
struct ScoreExpression;

/// P of float16 is kept as it is up to here.
inline constexpr float kUserFloat16Limit = 60000.0f;

/// As SiluScore. Nothing is known of f(0): scores become P before the mask, which then hides P itself.
template <typename Function, bool Bfloat16, bool Biased>
class UserScore {
 public:
  static __device__ __forceinline__ float masked() { return 0; }

  __device__ __forceinline__ UserScore(const AttentionCall& call, int* exponents)
      : call_(static_cast<const UserScoreCall&>(call)), exponents_(exponents) {}

  /// Q K^T to P; a biased one takes R with biased() first.
  template <int Blocks, int Columns>
  __device__ __forceinline__ void scale(float (&s)[Blocks][Columns][4]) const {
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
#pragma unroll
      for (int n = 0; n < Columns; ++n) {
        // Said for each of these loops: left to the compiler, one around much code stays, and its array leaves the
        // registers.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float z = Biased ? s[m][n][i] : s[m][n][i] * call_.alpha;
          s[m][n][i] = Function::value(z, call_.score_parameters);
        }
      }
    }
  }
  __device__ __forceinline__ float biased(float score, float bias) const {
    return fmaf(score, call_.alpha, bias * call_.bias.scale);
  }

  template <int Blocks, int Columns, int AllBlocks, int ValueColumns, typename Body>
  __device__ __forceinline__ void activate(float (&p)[Blocks][Columns][4], float (&o)[AllBlocks][ValueColumns][4],
                                           Body body) {
    if constexpr (!Bfloat16) {
      float largest[Blocks][2];
      bool beyond = false;
#pragma unroll
      for (int m = 0; m < Blocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float most = 0;
#pragma unroll
          for (int n = 0; n < Columns; ++n) {
            most = fmaxf(most, fmaxf(fabsf(p[m][n][2 * half]), fabsf(p[m][n][2 * half + 1])));
          }
          largest[m][half] = most;
          beyond |= most > kUserFloat16Limit;
        }
      }
      rows_scaled_ |= __any_sync(kWholeWarp, beyond);
      if (rows_scaled_) {
        // P < 2^(15 + exponent).
#pragma unroll
        for (int m = 0; m < Blocks; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) scale_row(exponents_, m, half, largest[m][half], 1, o[m]);
        }
        __syncwarp();  // every lane may read the exponents
        body([this](int m, int half, float x) { return x * power_of_two(-row_exponent(exponents_, m, half)); });
        return;
      }
    }
    body([](int, int, float x) { return x; });
  }

  __device__ __forceinline__ void finish() {}

  __device__ __forceinline__ PartTerms part_terms(int m, int half) const {
    return {Bfloat16 ? 0.0f : static_cast<float>(row_exponent(exponents_, m, half)), 1.0f};
  }

  __device__ __forceinline__ float finish_row(const AttentionCall& call, const Work& work, int m, int half, int row,
                                              bool used) const {
    const float scale = over_divisor_of_row(call, work, row, used);
    return Bfloat16 ? scale : scale * power_of_two(row_exponent(exponents_, m, half));
  }

 private:
  const UserScoreCall& call_;
  int* exponents_;
  bool rows_scaled_ = false;
};

}  // namespace warploom
