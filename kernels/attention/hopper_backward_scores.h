// A warpgroup's scores in the backward kernels for Hopper, S^T and dP^T of 64 keys x some queries: what becomes of
// them.
//
// A thread holds keys lane / 4 and lane / 4 + 8 of its warp's 16, of the queries 8 n + 2 (lane mod 4) + j:
// s[0][n][2 * half + j]. Packed, they are the A operand of P^T dO and dS^T Q as they stand: p[k][half + 2 (n mod 2)]
// with n = 2 k + ..., the fragments of mma.m16n8k16 (geometry/fragment.h).
#pragma once

#include "attention/backward_score.h"
#include "attention/backward_visibility.h"
#include "attention/call.h"
#include "geometry/swizzle.h"
#include "ptx/shared_memory.h"
#include "ptx/stmatrix.h"
#include "ptx/types.h"

namespace warploom {

using ptx::uint32;

template <int Queries>
using TransposedScores = float[1][Queries / 8][4];
template <int Queries>
using PackedScores = uint32[Queries / 16][4];

template <int Blocks>
__device__ __forceinline__ float (&flat(float (&scores)[1][Blocks][4]))[4 * Blocks] {
  return reinterpret_cast<float(&)[4 * Blocks]>(scores);
}

/// What is told of a row of a tile of `rows`: its lse log2(e) in front, and behind those of all rows -delta. Twice: of
/// each pair of rows twice, as an accumulator has it.
template <bool Twice>
__device__ __forceinline__ void store_row_terms(float* to, int rows, int row, SoftmaxRowTerms terms) {
  to[row] = terms.lse * kLog2E;
  if constexpr (Twice) {
    float* const delta = to + rows + row / 2 * 4 + row % 2;
    delta[0] = delta[2] = -terms.delta;
  } else {
    to[rows + row] = -terms.delta;
  }
}

/// Softmax's lse log2(e) of the queries that a thread has scores of, less its sign. terms: in shared memory, of the
/// first query.
template <int Blocks>
struct NegatedLse {
  float2 of_block[Blocks];

  __device__ __forceinline__ void load(const float* terms) {
#pragma unroll
    for (int n = 0; n < Blocks; ++n) of_block[n] = reinterpret_cast<const float2*>(terms)[n * 4 + threadIdx.x % 4];
  }
  __device__ __forceinline__ float of(int n, int i) const { return i % 2 == 0 ? -of_block[n].x : -of_block[n].y; }
};

/// The same read where it is used: registers.
struct NegatedLseInPlace {
  const float* terms;

  __device__ __forceinline__ float of(int n, int i) const {
    const float2 lse = reinterpret_cast<const float2*>(terms)[n * 4 + threadIdx.x % 4];
    return i % 2 == 0 ? -lse.x : -lse.y;
  }
};

/// What softmax's dP^T begins at, so that the product ends as dP - delta. terms: of the first query's delta.
template <bool Twice, int Blocks>
__device__ __forceinline__ void start_slopes(float (&dp)[1][Blocks][4], const float* terms) {
#pragma unroll
  for (int n = 0; n < Blocks; ++n) {
    const int pair = n * 4 + threadIdx.x % 4;
    if constexpr (Twice) {
      reinterpret_cast<float4&>(dp[0][n]) = reinterpret_cast<const float4*>(terms)[pair];
    } else {
      const float2 delta = reinterpret_cast<const float2*>(terms)[pair];
      reinterpret_cast<float4&>(dp[0][n]) = {delta.x, delta.y, delta.x, delta.y};
    }
  }
}

/// From S and dP, softmax's less delta, to P and dS. terms: in shared memory, of the first query, 1 / divisor where
/// divisors go by row. lse: softmax only. Exact: HSTU by the sigmoid, whatever the scores are. Halved: HSTU's S is z /
/// 2 already. Biased: so it is, and softmax's has its alpha.
template <bool Softmax, bool Capped, bool Exact, bool Halved, bool Biased, int Blocks, typename Lse>
__device__ __forceinline__ void apply_score(const AttentionCall& call, float (&s)[1][Blocks][4],
                                            float (&dp)[1][Blocks][4], const float* terms, const Lse& lse) {
  if constexpr (Softmax) {
    const ScoreScale scale = score_scale<Biased>(call);
#pragma unroll
    for (int n = 0; n < Blocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float &x = s[0][n][i], &y = dp[0][n][i];
        if constexpr (Capped) {
          // Not a rounded division, whose code takes registers: the last bit is lost in tanh anyway.
          const float t = tanh_accurate(x * __fdividef(scale.alpha, scale.softcap));
          x = ptx::ex2_approx(fmaf(t, scale.softcap * kLog2E, lse.of(n, i)));
          y = x * y * fmaf(-t, t, 1.0f);
        } else {
          x = ptx::ex2_approx(fmaf(x, scale.alpha * kLog2E, lse.of(n, i)));
          y *= x;
        }
      }
    }
  } else {
    apply_hstu<Exact, Halved || Biased>(call.alpha, s, dp);
    if (call.divisor_rows == nullptr) return;
#pragma unroll
    for (int n = 0; n < Blocks; ++n) {
      const float2 factor = reinterpret_cast<const float2*>(terms)[n * 4 + threadIdx.x % 4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[0][n][i] *= i % 2 == 0 ? factor.x : factor.y;
        dp[0][n][i] *= i % 2 == 0 ? factor.x : factor.y;
      }
    }
  }
}

__device__ __forceinline__ uint32 select_signs(uint32 a, uint32 b, uint32 selector) {
  uint32 result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
  return result;
}

/// For each pair of scores all bits, or none, of those that are visible: body(k, i, mask) for p[k][i]. visible: of the
/// first query, the word of the 32 keys that the warp's 16 are among; first_bit: of its keys, 0 or 16.
template <int Queries, typename Body>
__device__ __forceinline__ void for_each_visible(const uint32* visible, int first_bit, Body body) {
  const int lane = threadIdx.x % 32;
  // The bits of the two keys come to the tops of the bytes 2 and 3, whose signs prmt spreads.
  const int shift = 23 - first_bit - lane / 4;
#pragma unroll
  for (int n = 0; n < Queries / 8; ++n) {
    const uint2 words = reinterpret_cast<const uint2*>(visible)[n * 4 + lane % 4];
    const uint32 a = words.x << shift, b = words.y << shift;
    body(n / 2, n % 2 * 2, select_signs(a, b, 0xEEAAu));
    body(n / 2, n % 2 * 2 + 1, select_signs(a, b, 0xFFBBu));
  }
}

/// The scores of p[k][i].
template <int Blocks>
__device__ __forceinline__ float (&pair_of(float (&s)[1][Blocks][4], int k, int i))[2] {
  return reinterpret_cast<float(&)[2]>(s[0][2 * k + i / 2][i % 2 * 2]);
}

/// What is invisible becomes 0.
template <int Blocks>
__device__ __forceinline__ void hide_invisible(const uint32* visible, int first_bit, float (&s)[1][Blocks][4]) {
  for_each_visible<8 * Blocks>(visible, first_bit, [&](int k, int i, uint32 mask) {
    if ((mask & 1) == 0) pair_of(s, k, i)[0] = 0;
    if ((mask >> 16) == 0) pair_of(s, k, i)[1] = 0;
  });
}
template <int Blocks>
__device__ __forceinline__ void hide_invisible(const uint32* visible, int first_bit, float (&s)[1][Blocks][4],
                                               float (&dp)[1][Blocks][4]) {
  for_each_visible<8 * Blocks>(visible, first_bit, [&](int k, int i, uint32 mask) {
    if ((mask & 1) == 0) pair_of(s, k, i)[0] = pair_of(dp, k, i)[0] = 0;
    if ((mask >> 16) == 0) pair_of(s, k, i)[1] = pair_of(dp, k, i)[1] = 0;
  });
}

/// The same of packed ones.
template <int Queries, typename... Packed>
__device__ __forceinline__ void hide_packed(const uint32* visible, int first_bit, Packed&... packed) {
  for_each_visible<Queries>(visible, first_bit, [&](int k, int i, uint32 mask) { ((packed[k][i] &= mask), ...); });
}

template <typename Element, int Blocks>
__device__ __forceinline__ void pack_scores(uint32 (&packed)[Blocks / 2][4], float (&scores)[1][Blocks][4]) {
  const float(&x)[4 * Blocks] = flat(scores);
#pragma unroll
  for (int i = 0; i < 2 * Blocks; ++i) packed[i / 4][i % 4] = ptx::pack<Element>(x[2 * i], x[2 * i + 1]);
}

/// Writes a warp's 16 keys into a (query, key) tile of `rows` queries: panel and chunk of the keys, row of the first
/// query.
template <int Steps>
__device__ __forceinline__ void store_transposed(uint32 tile, int rows, int first_query, int first_key,
                                                 const uint32 (&packed)[Steps][4]) {
  // Lane l addresses row l mod 8 of block l / 8: of 8 keys, then of the other 8, then of the next 8 queries.
  const int lane = threadIdx.x % 32;
  const int query = first_query + lane / 16 * 8 + lane % 8;
  const uint32 address = tile + geometry::swizzled_offset(rows, query, first_key / 8 + lane / 8 % 2);
#pragma unroll
  for (int k = 0; k < Steps; ++k) {
    ptx::stmatrix_x4_trans(address + k * 16 * geometry::kPanelRowBytes, packed[k][0], packed[k][1], packed[k][2],
                           packed[k][3]);
  }
}

/// float16 only: the powers of two by which a warp's P and dS are divided before they are rounded, since both may pass
/// 65504 where the gradients do not. They only grow.
struct WarpExponents {
  int probability = 0, gradient = 0;
};

template <int Count>
__device__ __forceinline__ void scale_all(float (&values)[Count], float factor) {
#pragma unroll
  for (float& x : values) x *= factor;
}

/// apply_score for bfloat16, without a softcap or divisors by row, in two parts. Here P is made, and packed, from S,
/// and S becomes dP's factor, or lacks 1 of it. Returns whether it is whole (HSTU, exact). lse: softmax only.
template <bool Softmax, bool Halved, bool Biased, int Blocks>
__device__ __forceinline__ bool apply_probability(const AttentionCall& call, float (&s)[1][Blocks][4],
                                                  uint32 (&packed)[Blocks / 2][4], const NegatedLse<Blocks>& lse) {
  const auto pack_pair = [&](int n, int i, float low, float high) {
    packed[n / 2][n % 2 * 2 + i / 2] = ptx::pack<ptx::Bfloat16>(low, high);
  };
  if constexpr (Softmax) {
    const float scale = score_scale<Biased>(call).alpha * kLog2E;
#pragma unroll
    for (int n = 0; n < Blocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][n][i] = ptx::ex2_approx(fmaf(s[0][n][i], scale, lse.of(n, i)));
      pack_pair(n, 0, s[0][n][0], s[0][n][1]);
      pack_pair(n, 2, s[0][n][2], s[0][n][3]);
    }
    return true;
  } else {
    if constexpr (!Halved && !Biased) scale_all(flat(s), 0.5f * call.alpha);
    const bool exact = __any_sync(kAllLanes, any_below_tanh_limit(s));
    if (exact) {
#pragma unroll
      for (int n = 0; n < Blocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const float low = hstu_parts_exact(s[0][n][i]), high = hstu_parts_exact(s[0][n][i + 1]);
          pack_pair(n, i, low, high);
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < Blocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const float low = hstu_parts(s[0][n][i]), high = hstu_parts(s[0][n][i + 1]);
          pack_pair(n, i, low, high);
        }
      }
    }
    return exact;
  }
}

/// HSTU: factor becomes all of `scale` times the slope.
template <int Blocks>
__device__ __forceinline__ void scale_slopes(bool is_whole, float scale, float (&factor)[1][Blocks][4]) {
  const float addend = is_whole ? 0.0f : scale;
  for (float& x : flat(factor)) x = fmaf(x, scale, addend);
}

/// The second part: dP, softmax's less delta, becomes dS.
template <bool Softmax, int Blocks>
__device__ __forceinline__ void apply_slope(bool is_whole, const float (&factor)[1][Blocks][4],
                                            float (&dp)[1][Blocks][4]) {
  if (Softmax || is_whole) {
#pragma unroll
    for (int n = 0; n < Blocks; ++n) {
      for (int i = 0; i < 4; ++i) dp[0][n][i] *= factor[0][n][i];
    }
  } else {
#pragma unroll
    for (int n = 0; n < Blocks; ++n) {
      for (int i = 0; i < 4; ++i) dp[0][n][i] = fmaf(dp[0][n][i], factor[0][n][i], dp[0][n][i]);
    }
  }
}

template <int Count>
__device__ __forceinline__ float largest_magnitude(const float (&values)[Count]) {
  float largest = 0;
#pragma unroll
  for (const float x : values) largest = fmaxf(largest, fabsf(x));
  return largest;
}

/// Makes one exponent large enough for the warp's values, divides them by it, and the sums to come by what it grew.
template <int Count, int SumCount>
__device__ __forceinline__ void fit_float16(float (&values)[Count], float (&sums)[SumCount], int& exponent) {
  const float largest = largest_magnitude(values);
  if (exponent == 0 && !__any_sync(kAllLanes, largest > kFitsFloat16)) return;
  float of_warp = largest;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    of_warp = fmaxf(of_warp, __shfl_xor_sync(kAllLanes, of_warp, offset));
  }
  const int old = exponent;
  if (of_warp > kFitsFloat16 * power_of_two(old)) exponent = float16_exponent(of_warp, old);
  scale_all(sums, power_of_two(old - exponent));
  scale_all(values, power_of_two(-exponent));
}

}  // namespace warploom
