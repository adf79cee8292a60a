// Steps of the backward kernels whose scores stand with query rows along their rows, as in the forward pass; they
// include this file where kConfig is known. A warp owns 16 rows of a tile and all of its keys.
#pragma once

#include "attention/backward_config.h"
#include "attention/backward_score.h"
#include "attention/bias.h"
#include "attention/bias_place.h"
#include "attention/visibility.h"
#include "attention/work.h"
#include "geometry/mask.h"
#include "ptx/mma.h"
#include "tile/shared_tile.h"

namespace warploom {

using geometry::Interval;
using ptx::uint32;
using Element = ptx::ElementOf<kConfig.bfloat16>;

constexpr int kThreads = kConfig.warps * 32;
constexpr int kQueryRows = kConfig.warps * 16;
constexpr int kKeyBlocks = kConfig.key_columns / 8;  // n8 of S
constexpr bool kBiased = kConfig.bias != BiasKind::none;
constexpr bool kBucketed = kConfig.bias == BiasKind::bucketed;
constexpr int kBiasElementBytes = kConfig.bias == BiasKind::rows32 ? 4 : 2;
static_assert(kConfig.key_columns % 32 == 0);

using QueryReader = tile::BlockReader<kQueryRows>;
using KeyReader = tile::BlockReader<kConfig.key_columns>;
using Scores = float[1][kKeyBlocks][4];
using Bias = Either<kBucketed, BucketedBias<kConfig.key_columns, 16>,
                    RowsBias<Element, kConfig.bias == BiasKind::rows32, kQueryRows, kConfig.key_columns, 16>>::Type;
static_assert(!kBiased || (kBucketed ? static_cast<int>(sizeof(StagedTimes) +
                                                        kConfig.warps * sizeof(BucketedWarp<kConfig.key_columns, 16>))
                                     : RowsBias < Element,
                           kConfig.bias == BiasKind::rows32, kQueryRows, kConfig.key_columns,
                           16 > ::kBytes) == bias_bytes(kConfig.bias, kConfig.warps, kConfig.key_columns));

/// What the provider finds in shared memory for a sequence and head. places: a BiasRows and 8 bytes. By all threads; a
/// barrier follows.
__device__ __forceinline__ void prepare_bias(const AttentionCall& call, const Work& work, unsigned char* bias,
                                             unsigned char* places) {
  if constexpr (kBucketed) {
    reinterpret_cast<StagedTimes*>(bias)->fill(call, work.head);
    __syncthreads();
  } else if constexpr (kBiased) {
    place_bias(call, call.bias, work, work.head, kBiasElementBytes, reinterpret_cast<BiasRows*>(places),
               reinterpret_cast<unsigned long long*>(places + sizeof(BiasRows)));
  }
}

/// s = A B^T over Depth blocks of 16, for the warp's rows and a key tile.
template <int Depth>
__device__ __forceinline__ void products(Scores& s, const QueryReader& rows, const KeyReader& keys) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
    for (float& x : s[0][n]) x = 0;
  }
#pragma unroll
  for (int k = 0; k < Depth; ++k) {
    uint32 a[4];
    ptx::ldmatrix_x4(a, rows.at(0, k));
#pragma unroll
    for (int n = 0; n < kKeyBlocks / 2; ++n) {
      uint32 b[4];
      ptx::ldmatrix_x4(b, keys.at(n, k));
      ptx::mma_m16n8k16<Element>(s[0][2 * n], a, b[0], b[2]);
      ptx::mma_m16n8k16<Element>(s[0][2 * n + 1], a, b[1], b[3]);
    }
  }
}

/// What the score function reads of the two rows whose scores a lane holds: softmax's lse and delta, or 1 / divisor.
struct RowTerms {
  float2 of[2];
};

__device__ __forceinline__ RowTerms row_terms(const BackwardParams& p, const Work& work) {
  RowTerms terms{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const long long row = work.first_row + threadIdx.x / 32 * 16 + half * 8 + threadIdx.x % 32 / 4;
    if (row < 0 || row >= work.mask.seqlen_q) continue;
    if constexpr (kConfig.softmax) {
      const SoftmaxRowTerms held = p.row_terms[work.head * p.call.total_q + work.first_q + row];
      terms.of[half] = {held.lse, held.delta};
    } else if (p.call.divisor_rows != nullptr) {
      terms.of[half].x = over_divisor(p.call.divisor_rows[work.first_q + row]);
    }
  }
  return terms;
}

/// From S, with its bias already, and dP to P and dS.
__device__ __forceinline__ void apply_score(const BackwardParams& p, Scores& s, Scores& dp, const RowTerms& terms) {
  const AttentionCall& call = p.call;
  if constexpr (kConfig.softmax) {
    apply_softmax<kConfig.softcap>(score_scale<kBiased>(call), s, dp, [&](int, int, int i) { return terms.of[i / 2]; });
  } else {
    if constexpr (kConfig.user_score != 0) {
      apply_user_score<ScoreExpression, kBiased>(static_cast<const UserBackwardParams&>(p), s, dp);
    } else {
      apply_hstu<!kConfig.bfloat16, kBiased>(call.alpha, s, dp);
    }
    if (call.divisor_rows == nullptr) return;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      for (int i = 0; i < 4; ++i) dp[0][n][i] *= terms.of[i / 2].x;
    }
  }
}

/// Sets dS to 0 where the row does not see the key. `row`: the row that this lane speaks for.
template <typename Row>
__device__ __forceinline__ void apply_mask(Scores& ds, const Row& row, int first_column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int word = 0; word < kConfig.key_columns / 32; ++word) {
    const uint32 bits = row.bits(first_column + 32 * word);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32 mine = __shfl_sync(kAllLanes, bits, half * 8 + lane / 4) >> (lane % 4 * 2);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        float(&c)[4] = ds[0][word * 4 + n];
        if ((mine & (1u << (8 * n))) == 0) c[2 * half] = 0;
        if ((mine & (2u << (8 * n))) == 0) c[2 * half + 1] = 0;
      }
    }
  }
}

/// s becomes what the biased score function takes (backward_score.h). Whether some R may be -inf.
template <typename Provider>
__device__ __forceinline__ bool add_bias(const AttentionCall& call, Provider& bias, Scores& s) {
  const BiasedScale scale = biased_scale<kConfig.softmax>(call);
  return bias.template for_each<1>([&](int m, int n, int e, float r) { s[m][n][e] = scale.of(s[m][n][e], r); });
}

/// dS of what R = -inf hides becomes 0.
template <typename Provider>
__device__ __forceinline__ void hide_masked(Provider& bias, Scores& ds) {
  bias.template for_each<1>([&](int m, int n, int e, float r) {
    if (r == ptx::minus_infinity()) ds[m][n][e] = 0;
  });
}

/// What the row sees that a lane speaks for, by the kind of mask. A row that does not exist sees nothing.
struct SequenceRows {
  using Row = SequenceRow;

  static __device__ __forceinline__ Row row(const AttentionCall&, const Work& work, bool exists, int row_of_tile) {
    if (!exists) return {};
    return {visible_columns(work.mask, static_cast<int>(work.first_row) + row_of_tile + work.mask.offset())};
  }
};

struct IntervalRows {
  using Row = IntervalRow;

  static __device__ __forceinline__ const int* pairs(const AttentionCall& call, const Work& work, int row_of_tile) {
    return call.intervals + work.head * call.interval_head_stride +
           (work.first_q + work.first_row + row_of_tile) * 2 * call.num_intervals;
  }
  static __device__ __forceinline__ Row row(const AttentionCall& call, const Work& work, bool exists, int row_of_tile) {
    return {{pairs(call, work, row_of_tile), exists ? call.num_intervals : 0, work.mask.seqlen_k}};
  }
};

using RowMask = Either<kConfig.interval_mask, IntervalRows, SequenceRows>::Type;

}  // namespace warploom
