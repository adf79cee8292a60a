// The steps of attention_backward_mma.cu, which includes this file where kConfig, a BackwardConfig, is known: products,
// score function, mask, and what becomes of P and dS.
#pragma once

#include "attention/backward_config.h"
#include "attention/backward_score.h"
#include "attention/backward_visibility.h"
#include "attention/work.h"
#include "ptx/mma.h"
#include "ptx/reduction.h"
#include "ptx/registers.h"
#include "tile/shared_tile.h"

namespace warploom {

using ptx::uint32;
using Element = ptx::ElementOf<kConfig.bfloat16>;

/// Blocks of 16 columns of each of `warps` warps that share `dim` columns. Those past the end are computed from
/// whatever the tile's last panel holds, and dropped.
WARPLOOM_HD constexpr int column_blocks(int dim, int warps) {
  return (dim + 16 * warps - 1) / (16 * warps);
}

constexpr BackwardSharedMap kMap = shared_map(kConfig);
constexpr int kThreads = kConfig.warps * 32;
constexpr int kSharing = warps_of_group(kConfig);
constexpr int kKeyBlocks = kConfig.key_blocks;                             // m16 of a warp
constexpr int kWarpQueries = kConfig.query_rows / kSharing;                // of a warp's scores
constexpr int kQueryBlocks = kWarpQueries / 8;                             // n8 of S
constexpr int kKeyColumns = column_blocks(kConfig.head_dim, kSharing);     // n16 of dK
constexpr int kValueColumns = column_blocks(kConfig.value_dim, kSharing);  // n16 of dV
constexpr int kDqColumnWarps = kConfig.warps / kConfig.dq_row_warps;
constexpr int kDqRowBlocks = kConfig.query_rows / 16 / kConfig.dq_row_warps;  // m16 of dQ
constexpr int kDqColumns = column_blocks(kConfig.head_dim, kDqColumnWarps);   // n16 of dQ
constexpr int kQueryWords = kConfig.query_rows / 32;
// Steps of the products' loops side by side: many hide the latency of loads, but where lists of intervals, exponents,
// the cap, or columns that no power of two divides take registers too, they would spill.
constexpr bool kOddColumns = kSharing > 1 && kConfig.head_dim <= 128 && kConfig.value_dim <= 128 &&
                             (kConfig.head_dim % 64 != 0 || kConfig.value_dim % 64 != 0);
constexpr bool kBiased = kConfig.bias != BiasKind::none;
constexpr bool kFewRegisters = kConfig.interval_mask || !kConfig.bfloat16 || kConfig.softcap || kOddColumns;
constexpr bool kFewestRegisters =
    kConfig.softcap && !kConfig.accumulate_dq && kConfig.head_dim <= 64 && kConfig.value_dim <= 64;
constexpr int kUnroll = kFewestRegisters ? 1 : kFewRegisters ? 2 : 16;
// Tables, with their gradients: R is added before dP is there, and P goes into dV before dS is taken back, for their
// registers.
constexpr bool kEarlyBias = kConfig.bias == BiasKind::bucketed && kConfig.bias_gradient;
constexpr bool kEarlyDv = kEarlyBias && kSharing == 1 && kConfig.bfloat16;
constexpr int kDqUnroll = kFewRegisters || kConfig.head_dim > 128 ? 1 : 4;
static_assert(kKeyBlocks == 1 || kKeyBlocks == 2);
static_assert(key_groups(kConfig) * kSharing == kConfig.warps && kWarpQueries % 16 == 0);
static_assert(kDqRowBlocks >= 1 && kDqRowBlocks * kConfig.dq_row_warps * 16 == kConfig.query_rows);
static_assert(kConfig.stages == 1 || kConfig.stages == 2);
static_assert(kWorkBytes == kMap.work_bytes && sizeof(QueryTile) == kMap.tile_bytes);

using KeyReader = tile::BlockReader<kConfig.key_rows>;
using QueryReader = tile::BlockReader<kConfig.query_rows>;
using Scores = float[kKeyBlocks][kQueryBlocks][4];
using Packed =
    uint32[kKeyBlocks][kQueryBlocks][2];  // pairs of neighbouring queries: of key row lane / 4, and 8 further
template <int Columns>
using Sums = float[kKeyBlocks][2 * Columns][4];

template <typename Array>
__device__ __forceinline__ void set_to_zero(Array& sums) {
  for (auto& row : sums) {
    for (auto& block : row) {
      for (float& x : block) x = 0;
    }
  }
}

/// Blocks of 16 columns from a warp's first one on. Where the warps' parts start at multiples of a power of two the
/// address is found by the exclusive or of a constant.
template <int Rows, int Columns>
class ColumnReader {
 public:
  __device__ __forceinline__ ColumnReader(uint32 tile, int part)
      : blocks_(tile, 0, kConstant ? part * Columns : 0), first_(kConstant ? 0 : part * Columns) {}
  __device__ __forceinline__ uint32 at(int row_block, int column_block) const {
    return blocks_.at(row_block, kConstant ? column_block : first_ + column_block);
  }

 private:
  static constexpr bool kConstant = Columns % 4 == 0 || Columns == 2 || Columns == 1;
  tile::BlockReader<Rows> blocks_;
  int first_;
};

/// s = A B^T over Depth blocks of 16: of the warp's keys and its part of the queries.
template <int Depth>
__device__ __forceinline__ void products(Scores& s, const KeyReader& keys, const QueryReader& queries) {
  set_to_zero(s);
#pragma unroll kUnroll
  for (int k = 0; k < Depth; ++k) {
    uint32 a[kKeyBlocks][4];
#pragma unroll
    for (int m = 0; m < kKeyBlocks; ++m) ptx::ldmatrix_x4(a[m], keys.at(m, k));
#pragma unroll
    for (int n = 0; n < kQueryBlocks / 2; ++n) {
      uint32 b[4];  // queries 16n..+7 and +8..+15 as two n8 blocks: fragments (0,0) (1,0) (0,1) (1,1)
      ptx::ldmatrix_x4(b, queries.at(n, k));
#pragma unroll
      for (int m = 0; m < kKeyBlocks; ++m) {
        ptx::mma_m16n8k16<Element>(s[m][2 * n], a[m], b[0], b[2]);
        ptx::mma_m16n8k16<Element>(s[m][2 * n + 1], a[m], b[1], b[3]);
      }
    }
  }
}

/// sums += X^T B for the warp's keys and its part of the columns: X is P or dS, B is dO or Q. `own`: X of the warp's
/// queries; `shared`: where X of all queries stands when warps share their keys.
template <int Columns>
__device__ __forceinline__ void accumulate(Sums<Columns>& sums, const Packed& own, const KeyReader& shared,
                                           const ColumnReader<kConfig.query_rows, Columns>& b_tile) {
#pragma unroll
  for (int k = 0; k < kConfig.query_rows / 16; ++k) {
    uint32 a[kKeyBlocks][4];
#pragma unroll
    for (int m = 0; m < kKeyBlocks; ++m) {
      if constexpr (kSharing == 1) {
        for (int i = 0; i < 4; ++i) a[m][i] = own[m][2 * k + i / 2][i % 2];
      } else {
        ptx::ldmatrix_x4(a[m], shared.at(m, k));
      }
    }
#pragma unroll
    for (int n = 0; n < Columns; ++n) {
      uint32 b[4];  // transposed: queries run along the fragment's columns
      ptx::ldmatrix_x4_trans(b, b_tile.at(k, n));
#pragma unroll
      for (int m = 0; m < kKeyBlocks; ++m) {
        ptx::mma_m16n8k16<Element>(sums[m][2 * n], a[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(sums[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// The first of the warp's keys in the tile, and its part of the queries and columns.
__device__ __forceinline__ int warp_key(int thread = threadIdx.x) {
  return thread / 32 / kSharing * kKeyBlocks * 16;
}
__device__ __forceinline__ int warp_part(int thread = threadIdx.x) {
  return thread / 32 % kSharing;
}

/// From S, with its bias already (backward_bias.h), and dP to P and dS. terms: of the warp's first query, in shared
/// memory (BackwardSharedMap::row_terms).
__device__ __forceinline__ void apply_score(const BackwardParams& p, Scores& s, Scores& dp, const float* terms) {
  const AttentionCall& call = p.call;
  const int lane = threadIdx.x % 32;
  if constexpr (kConfig.softmax) {
    apply_softmax<kConfig.softcap>(score_scale<kBiased>(call), s, dp, [&](int, int n, int i) {
      const float4 rows = reinterpret_cast<const float4*>(terms)[n * 4 + lane % 4];  // lse, delta of two queries
      return i % 2 == 0 ? float2{rows.x, rows.y} : float2{rows.z, rows.w};
    });
  } else {
    if constexpr (kConfig.user_score != 0) {
      apply_user_score<ScoreExpression, kBiased>(static_cast<const UserBackwardParams&>(p), s, dp);
    } else {
      apply_hstu<!kConfig.bfloat16, kBiased>(call.alpha, s, dp);
    }
    if (call.divisor_rows == nullptr) return;
#pragma unroll
    for (int n = 0; n < kQueryBlocks; ++n) {
      const float2 divisor = reinterpret_cast<const float2*>(terms)[n * 4 + lane % 4];
      const float over[2] = {over_divisor(divisor.x), over_divisor(divisor.y)};
#pragma unroll
      for (int m = 0; m < kKeyBlocks; ++m) {
        for (int i = 0; i < 4; ++i) {
          s[m][n][i] *= over[i % 2];
          dp[m][n][i] *= over[i % 2];
        }
      }
    }
  }
}

/// Sets P and dS of what is not visible to 0, whatever was computed there. visible, whole: of the tile.
__device__ __forceinline__ void apply_mask(Scores& s, Scores& dp, const uint32* visible, const int* whole) {
  const int lane = threadIdx.x % 32;
  const int first_query = warp_part() * kWarpQueries;
  constexpr int kWords = kWarpQueries >= 32 ? kWarpQueries / 32 : 1;
#pragma unroll
  for (int word = 0; word < kWords; ++word) {
    const int query_word = first_query / 32 + word;
    if (whole[query_word]) continue;
#pragma unroll
    for (int m = 0; m < kKeyBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = warp_key() + m * 16 + half * 8 + lane / 4;
        const uint32 bits = visible[key * kQueryWords + query_word] >> (first_query % 32 + lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < 4 && word * 4 + n < kQueryBlocks; ++n) {
          const int block = word * 4 + n;
          if ((bits & (1u << (8 * n))) == 0) s[m][block][2 * half] = dp[m][block][2 * half] = 0;
          if ((bits & (2u << (8 * n))) == 0) s[m][block][2 * half + 1] = dp[m][block][2 * half + 1] = 0;
        }
      }
    }
  }
}

/// float16 only: the powers of two by which the CTA's P and dS are divided before they are rounded, since both may pass
/// 65504 where the gradients do not. They only grow.
struct Exponents {
  int probability = 0, gradient = 0;
};

template <typename Array>
__device__ __forceinline__ void scale_all(Array& values, float factor) {
  for (auto& row : values) {
    for (auto& block : row) {
      for (float& x : block) x *= factor;
    }
  }
}

__device__ __forceinline__ float largest_of(const Scores& values) {
  float largest = 0;
#pragma unroll
  for (int m = 0; m < kKeyBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kQueryBlocks; ++n) {
      for (const float x : values[m][n]) largest = fmaxf(largest, fabsf(x));
    }
  }
  return largest;
}

/// float16 only: divides P and dS, and makes the exponents large enough first. maxima: shared memory, two floats a
/// warp.
__device__ __forceinline__ void fit_float16(Scores& s, Scores& dp, Sums<kKeyColumns>& dk, Sums<kValueColumns>& dv,
                                            Exponents& exponents, float* maxima) {
  float largest[2] = {largest_of(s), largest_of(dp)};
  const bool beyond = largest[0] > kFitsFloat16 * power_of_two(exponents.probability) ||
                      largest[1] > kFitsFloat16 * power_of_two(exponents.gradient);
  if (__syncthreads_or(beyond)) {
    for (int which = 0; which < 2; ++which) {
      for (int offset = 16; offset > 0; offset /= 2) {
        largest[which] = fmaxf(largest[which], __shfl_xor_sync(kAllLanes, largest[which], offset));
      }
      if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32 * 2 + which] = largest[which];
    }
    __syncthreads();
    const auto needed = [&](int which, int old) {
      float most = 0;
      for (int warp = 0; warp < kConfig.warps; ++warp) most = fmaxf(most, maxima[warp * 2 + which]);
      return float16_exponent(most, old);
    };
    const Exponents old = exponents;
    exponents = {needed(0, old.probability), needed(1, old.gradient)};
    __syncthreads();  // the maxima have been read
    scale_all(dv, power_of_two(old.probability - exponents.probability));
    scale_all(dk, power_of_two(old.gradient - exponents.gradient));
  }
  scale_all(s, power_of_two(-exponents.probability));
  scale_all(dp, power_of_two(-exponents.gradient));
}

__device__ __forceinline__ void pack_all(Packed& packed, const Scores& values) {
#pragma unroll
  for (int m = 0; m < kKeyBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kQueryBlocks; ++n) {
      packed[m][n][0] = ptx::pack<Element>(values[m][n][0], values[m][n][1]);
      packed[m][n][1] = ptx::pack<Element>(values[m][n][2], values[m][n][3]);
    }
  }
}

/// Writes the warp's part of P or dS into a tile (key, query).
__device__ __forceinline__ void store_scores(uint32 tile, const Packed& packed) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kKeyBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = warp_key() + m * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < kQueryBlocks; ++n) {
        const int chunk = warp_part() * kQueryBlocks + n;
        ptx::store_shared_4(tile + geometry::swizzled_offset(kConfig.key_rows, key, chunk) + lane % 4 * 4,
                            packed[m][n][half]);
      }
    }
  }
}

/// dQ of one query tile, added to its sums. score_gradient: its dS. scale: what its dS were divided by.
__device__ __forceinline__ void add_dq(float* sums, uint32 score_gradient, uint32 keys, float scale) {
  const int warp = threadIdx.x / 32;
  const int row_part = warp / kDqColumnWarps, column_part = warp % kDqColumnWarps;
  const ColumnReader<kConfig.key_rows, kDqRowBlocks> gradients(score_gradient, row_part);
  const ColumnReader<kConfig.key_rows, kDqColumns> key(keys, column_part);
  float dq[kDqRowBlocks][2 * kDqColumns][4];
  set_to_zero(dq);
#pragma unroll kDqUnroll
  for (int k = 0; k < kConfig.key_rows / 16; ++k) {
    uint32 a[kDqRowBlocks][4];
#pragma unroll
    for (int m = 0; m < kDqRowBlocks; ++m) {
      // Transposed from (key, query): the fragments off the diagonal change places.
      uint32 block[4];
      ptx::ldmatrix_x4_trans(block, gradients.at(k, m));
      a[m][0] = block[0], a[m][1] = block[2], a[m][2] = block[1], a[m][3] = block[3];
    }
#pragma unroll
    for (int n = 0; n < kDqColumns; ++n) {
      uint32 b[4];
      ptx::ldmatrix_x4_trans(b, key.at(k, n));
#pragma unroll
      for (int m = 0; m < kDqRowBlocks; ++m) {
        ptx::mma_m16n8k16<Element>(dq[m][2 * n], a[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(dq[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
  constexpr int kBlocksOfRow = kConfig.head_dim / 8;
  constexpr int kFloats = 128;  // of a 16 x 8 block
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kDqRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < 2 * kDqColumns; ++n) {
      const int column = column_part * 2 * kDqColumns + n;
      if (2 * kDqColumns * kDqColumnWarps != kBlocksOfRow && column >= kBlocksOfRow) break;
      float* const block = sums + ((row_part * kDqRowBlocks + m) * kBlocksOfRow + column) * kFloats;
      if constexpr (!kConfig.bfloat16) {
        for (float& x : dq[m][n]) x *= scale;
      }
      if constexpr (kConfig.vector_reduction) {
        ptx::red_add_4(block + lane * 4, dq[m][n]);
      } else {
        for (int i = 0; i < 4; ++i) ptx::red_add(block + i * 32 + lane, dq[m][n][i]);
      }
    }
  }
}

/// Rounds a warp's sums times `factor` into a tile of shared memory.
template <int Columns>
__device__ __forceinline__ void stage_sums(uint32 tile, const Sums<Columns>& sums, float factor) {
  // Opaque, so that no address is computed before the main loop and kept through it.
  const int thread = static_cast<int>(ptx::opaque(threadIdx.x)), lane = thread % 32;
#pragma unroll
  for (int m = 0; m < kKeyBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = warp_key(thread) + m * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < 2 * Columns; ++n) {
        const float* pair = &sums[m][n][2 * half];
        ptx::store_shared_4(
            tile + geometry::swizzled_offset(kConfig.key_rows, key, warp_part(thread) * 2 * Columns + n) + lane % 4 * 4,
            ptx::pack<Element>(pair[0] * factor, pair[1] * factor));
      }
    }
  }
}

/// Stores a staged tile: rows up to the slot's end, those past the used ones as 0.
template <int Columns>
__device__ __forceinline__ void store_rows(const tile::GlobalRows& to, uint32 tile, const Work& work) {
  constexpr int kChunks = Columns / geometry::kChunkValues;
#pragma unroll 4
  for (int i = static_cast<int>(ptx::opaque(threadIdx.x)); i < kConfig.key_rows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    if (work.first_row + row < work.slot_k) {
      const bool used = work.first_row + row < work.mask.seqlen_k;
      const uint4 values = ptx::load_shared_16(tile + geometry::swizzled_offset(kConfig.key_rows, row, chunk));
      *reinterpret_cast<uint4*>(to.from(row).data + chunk * geometry::kChunkBytes) = used ? values : uint4{0, 0, 0, 0};
    }
  }
}

}  // namespace warploom
