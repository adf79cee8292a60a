// The steps of a forward kernel through mma.sync: what a warp does with one key tile, how a CTA finds its tiles, and
// where the bias lies.
//
// The text before this file defines warploom::kConfig, an AttentionForwardConfig.
#pragma once

#include "attention/attention_forward_config.h"
#include "attention/bias.h"
#include "attention/bias_place.h"
#include "attention/silu.h"
#include "attention/softmax.h"
#include "attention/user_score.h"
#include "attention/visibility.h"
#include "attention/work.h"
#include "geometry/mask.h"
#include "ptx/mma.h"
#include "tile/shared_tile.h"

namespace warploom {

using geometry::Interval;
using ptx::uint32;

using Element = Either<kConfig.bfloat16, ptx::Bfloat16, ptx::Float16>::Type;

constexpr AttentionForwardMap kMap = shared_map(kConfig);
constexpr int kThreads = kConfig.warps * 32;
constexpr int kRowWarps = kConfig.warps / kConfig.key_warps;
constexpr int kWarpRows = kConfig.query_rows / kRowWarps;
constexpr int kWarpColumns = kConfig.key_columns / kConfig.key_warps;
constexpr int kRowBlocks = kWarpRows / 16;                       // m16 of a warp
constexpr int kKeyBlocks = kWarpColumns / 8;                     // n8 of S
constexpr int kDepth = padded_dim(kConfig.head_dim) / 16;        // k16 of S
constexpr int kValueBlocks = padded_dim(kConfig.value_dim) / 8;  // n8 of O
static_assert(kWarpRows == 16 || kWarpRows == 32);
static_assert(sizeof(SequenceRow) == kMap.row_bytes && sizeof(IntervalRow) == kMap.row_bytes);
static_assert(sizeof(BiasRows) + sizeof(long long) <= kMap.bias_rows_bytes);
static_assert(kConfig.key_columns % 32 == 0 && kConfig.stages >= 2);

using QueryReader = tile::BlockReader<kConfig.query_rows>;
// The order of K's blocks. Order b saves a move for each register of B, and is used where no kernel spills with it:
// beside a bias, and for widths between these, it has not been looked at.
constexpr bool kKeysInOrder = kConfig.bias == BiasKind::none && kConfig.key_warps == 1 &&
                              (kConfig.head_dim == 64 || kConfig.head_dim == 128 || kConfig.head_dim == 256);
constexpr geometry::BlockOrder kOrderOfB = kKeysInOrder ? geometry::BlockOrder::b : geometry::BlockOrder::a;
using KeyReader = tile::BlockReader<kConfig.key_columns, kOrderOfB>;
using ValueReader = tile::BlockReader<kConfig.key_columns>;
/// Of the first Blocks m16 blocks of a warp's rows.
template <int Blocks>
using Scores = float[Blocks][kKeyBlocks][4];
using Output = float[kRowBlocks][kValueBlocks][4];

constexpr bool kSoftmax = kConfig.score == ScoreKind::softmax;
constexpr bool kUserScore = kConfig.user_score != 0;
constexpr bool kBiased = kConfig.bias != BiasKind::none;
constexpr bool kBucketed = kConfig.bias == BiasKind::bucketed;
constexpr bool kScalesRows = !kSoftmax && !kConfig.bfloat16;
static_assert(!kBiased || (kConfig.stages == 2 && kConfig.key_warps == 1));
static_assert(!kBucketed ||
              sizeof(StagedTimes) + kConfig.warps * sizeof(BucketedWarp<kConfig.key_columns, kWarpRows>) ==
                  bias_bytes(kConfig));

using HstuScore = Either<kUserScore, UserScore<ScoreExpression, kConfig.bfloat16, kBiased>,
                         SiluScore<kConfig.bfloat16, kBiased>>::Type;
using Score = Either<kSoftmax, SoftmaxScore<kBiased, kConfig.softcap, kRowBlocks>, HstuScore>::Type;
using Bias = Either<
    kBucketed, BucketedBias<kConfig.key_columns, kWarpRows>,
    RowsBias<Element, kConfig.bias == BiasKind::rows32, kConfig.query_rows, kConfig.key_columns, kWarpRows>>::Type;

__device__ __forceinline__ void clear(Output& o) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kValueBlocks; ++n) {
      for (float& x : o[m][n]) x = 0;
    }
  }
}

/// S = Q K^T for the warp's columns of one key tile.
template <int Blocks>
__device__ __forceinline__ void scores(Scores<Blocks>& s, const QueryReader& query, const KeyReader& key) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    uint32 a[Blocks][4];
#pragma unroll
    for (int m = 0; m < Blocks; ++m) ptx::ldmatrix_x4(a[m], query.at(m, k));
#pragma unroll
    for (int n = 0; n < kKeyBlocks / 2; ++n) {
      uint32 b[4];  // keys 16n..+7 and +8..+15
      ptx::ldmatrix_x4(b, key.at(n, k));
#pragma unroll
      for (int m = 0; m < Blocks; ++m) {
        if (k == 0) {
          for (float& x : s[m][2 * n]) x = 0;
          for (float& x : s[m][2 * n + 1]) x = 0;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::mma_m16n8k16<Element>(s[m][2 * n + i], a[m], b[geometry::b_register(kOrderOfB, i, 0)],
                                     b[geometry::b_register(kOrderOfB, i, 1)]);
        }
      }
    }
  }
}

/// Sets the scores that their row does not see to what the score function turns into 0. `row`: the lane's row.
template <int Blocks, typename Row>
__device__ __forceinline__ void apply_mask(Scores<Blocks>& s, const Row& row, int first_column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int word = 0; word < (kKeyBlocks + 3) / 4; ++word) {
    const uint32 bits = row.bits(first_column + 32 * word);
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row_of_half = m * 16 + half * 8 + lane / 4;
        const uint32 mine = __shfl_sync(kAllLanes, bits, row_of_half) >> (lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < (kKeyBlocks < 4 ? kKeyBlocks : 4); ++n) {
          float(&c)[4] = s[m][word * 4 + n];
          if ((mine & (1u << (8 * n))) == 0) c[2 * half] = Score::masked();
          if ((mine & (2u << (8 * n))) == 0) c[2 * half + 1] = Score::masked();
        }
      }
    }
  }
}

/// O += P V for one key tile. A struct, because older NVRTCs take a generic lambda for a host function.
template <int Blocks>
struct AccumulateOutput {
  Output& o;
  const Scores<Blocks>& s;
  const ValueReader& value;

  /// probability(m, half of the m16 block, score): an element of P.
  template <typename Probability>
  __device__ __forceinline__ void operator()(Probability probability) const {
#pragma unroll
    for (int k = 0; k < kKeyBlocks / 2; ++k) {
      uint32 p[Blocks][4];
#pragma unroll
      for (int m = 0; m < Blocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = &s[m][2 * k + i / 2][i % 2 * 2];
          p[m][i] = ptx::pack<Element>(probability(m, i % 2, pair[0]), probability(m, i % 2, pair[1]));
        }
      }
#pragma unroll
      for (int n = 0; n < kValueBlocks / 2; ++n) {
        uint32 b[4];  // transposed: keys run along the fragment's columns
        ptx::ldmatrix_x4_trans(b, value.at(k, n));
#pragma unroll
        for (int m = 0; m < Blocks; ++m) {
          ptx::mma_m16n8k16<Element>(o[m][2 * n], p[m], b[0], b[1]);
          ptx::mma_m16n8k16<Element>(o[m][2 * n + 1], p[m], b[2], b[3]);
        }
      }
    }
  }
};

/// One key tile, or the warp's columns of it, as a warp sees it.
struct KeyTile {
  KeyReader keys;
  ValueReader values;
  int first_column;
  int next_column;  ///< of the tile after it; negative: there is none
  bool whole;       ///< all of the warp's rows see all of it
};

/// One key tile for the first Blocks m16 blocks of the warp's rows.
template <int Blocks, typename Row>
__device__ __forceinline__ void consume(Output& o, Score& score, Bias& bias, const QueryReader& query,
                                        const KeyTile& tile, const Row& row) {
  Scores<Blocks> s;
  scores<Blocks>(s, query, tile.keys);
  bool bias_masks = false;
  if constexpr (kBiased) {
    bias.template wait<1>();
    bias_masks =
        bias.template for_each<Blocks>([&](int m, int n, int e, float r) { s[m][n][e] = score.biased(s[m][n][e], r); });
  }
  score.scale(s);
  if (!tile.whole) apply_mask<Blocks>(s, row, tile.first_column);
  if constexpr (kBiased) {
    if (bias_masks) {
      bias.template for_each<Blocks>([&](int m, int n, int e, float r) {
        if (r == ptx::minus_infinity()) s[m][n][e] = Score::masked();
      });
    }
    if (tile.next_column >= 0) bias.start(tile.next_column);
  }
  score.activate(s, o, AccumulateOutput<Blocks>{o, s, tile.values});
}

/// The kind of mask: how a CTA finds its key tiles, and what a lane knows of its row. A row that does not exist sees
/// nothing.
struct SequenceMasking {
  using Row = SequenceRow;
  using Walk = SequenceWalk<kConfig.key_columns>;

  static __device__ __forceinline__ Walk walk(const AttentionCall&, unsigned char* shared, const Work& work, int rows,
                                              int first_tile = 0) {
    const int first_row = static_cast<int>(work.first_row);
    return {
        work.mask, {first_row, first_row + rows}, reinterpret_cast<geometry::Ranges*>(shared + kMap.walk), first_tile};
  }
  static __device__ __forceinline__ Row row(const AttentionCall&, const Work& work, bool exists, int row_of_tile) {
    if (!exists) return {};
    return {visible_columns(work.mask, static_cast<int>(work.first_row) + row_of_tile + work.mask.offset())};
  }
};

struct IntervalMasking {
  using Row = IntervalRow;
  using Walk = IntervalWalk<kConfig.key_columns, kThreads>;

  static __device__ __forceinline__ const int* pairs(const AttentionCall& p, const Work& work, int row_of_tile) {
    return p.intervals + work.head * p.interval_head_stride +
           (work.first_q + work.first_row + row_of_tile) * 2 * p.num_intervals;
  }
  static __device__ __forceinline__ Walk walk(const AttentionCall& p, unsigned char* shared, const Work& work, int rows,
                                              int first_tile = 0) {
    return {pairs(p, work, 0), p.num_intervals, rows, work.mask.seqlen_k, reinterpret_cast<int*>(shared + kMap.walk),
            first_tile};
  }
  static __device__ __forceinline__ Row row(const AttentionCall& p, const Work& work, bool exists, int row_of_tile) {
    return {{pairs(p, work, row_of_tile), exists ? p.num_intervals : 0, work.mask.seqlen_k}};
  }
};

using Masking = Either<kConfig.interval_mask, IntervalMasking, SequenceMasking>::Type;

/// Where the sequence's and head's R lies, for all threads, in shared memory.
__device__ __forceinline__ void find_bias_rows(const AttentionCall& p, unsigned char* shared, const Work& work) {
  constexpr int kBytes = kConfig.bias == BiasKind::rows32 ? 4 : 2;
  place_bias(p, p.bias, work, work.head, kBytes, reinterpret_cast<BiasRows*>(shared + kMap.bias_rows),
             reinterpret_cast<unsigned long long*>(shared + kMap.bias_rows + sizeof(BiasRows)));
}

}  // namespace warploom
