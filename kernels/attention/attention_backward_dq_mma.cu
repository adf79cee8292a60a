// dQ alone through mma.sync, for sm_80 and newer: what makes the backward pass repeatable bit for bit.
//
// One CTA keeps a tile of query rows, Q and dO, and walks the key tiles that they see as the forward pass does; a warp
// owns 16 rows. S and dP are computed again, and dS, packed in registers, is the A operand of dQ += dS K. Every sum has
// a fixed order, where the other kernel's additions in memory have none.
//
// The text before this file defines warploom::kConfig, a BackwardDqConfig.
#include "attention/backward_config.h"
#include "attention/backward_score.h"
#include "attention/visibility.h"
#include "attention/work.h"
#include "geometry/mask.h"
#include "ptx/mma.h"
#include "ptx/registers.h"
#include "tile/shared_tile.h"

namespace warploom {

using geometry::Interval;
using ptx::uint32;
using Element = ptx::ElementOf<kConfig.bfloat16>;

constexpr BackwardDqSharedMap kMap = shared_map(kConfig);
constexpr int kThreads = kConfig.warps * 32;
constexpr int kQueryRows = kConfig.warps * 16;
constexpr int kKeyBlocks = kConfig.key_columns / 8;     // n8 of S
constexpr int kColumns = (kConfig.head_dim + 15) / 16;  // n16 of dQ
static_assert(sizeof(SequenceRow) == kMap.row_bytes && sizeof(IntervalRow) == kMap.row_bytes);
static_assert(kWorkBytes == kMap.work_bytes && kConfig.key_columns % 32 == 0 && kConfig.stages >= 2);

using QueryReader = tile::BlockReader<kQueryRows>;
using KeyReader = tile::BlockReader<kConfig.key_columns>;
using Scores = float[1][kKeyBlocks][4];
using Sums = float[2 * kColumns][4];

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
    if (row >= work.mask.seqlen_q) continue;
    if constexpr (kConfig.softmax) {
      const SoftmaxRowTerms held = p.row_terms[work.head * p.call.total_q + work.first_q + row];
      terms.of[half] = {held.lse, held.delta};
    } else if (p.call.divisor_rows != nullptr) {
      terms.of[half].x = over_divisor(p.call.divisor_rows[work.first_q + row]);
    }
  }
  return terms;
}

__device__ __forceinline__ void apply_score(const AttentionCall& call, Scores& s, Scores& dp, const RowTerms& terms) {
  if constexpr (kConfig.softmax) {
    apply_softmax<kConfig.softcap>({call.alpha, call.softcap}, s, dp, [&](int, int, int i) { return terms.of[i / 2]; });
  } else {
    apply_hstu<!kConfig.bfloat16>(call.alpha, s, dp);
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

/// float16 only: divides dS by 2^exponent, which first grows, and dQ with it, where a dS of the warp would not fit.
__device__ __forceinline__ void fit_float16(Scores& ds, Sums& dq, int& exponent) {
  float largest = 0;
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
    for (const float x : ds[0][n]) largest = fmaxf(largest, fabsf(x));
  }
  if (__any_sync(kAllLanes, largest > kFitsFloat16 * power_of_two(exponent))) {
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
    const int old = exponent;
    exponent = float16_exponent(largest, old);
#pragma unroll
    for (int n = 0; n < 2 * kColumns; ++n) {
      for (float& x : dq[n]) x *= power_of_two(old - exponent);
    }
  }
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
    for (float& x : ds[0][n]) x *= power_of_two(-exponent);
  }
}

/// dq += dS K for one key tile.
__device__ __forceinline__ void accumulate(Sums& dq, const Scores& ds, const KeyReader& keys) {
#pragma unroll
  for (int k = 0; k < kKeyBlocks / 2; ++k) {
    uint32 a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &ds[0][2 * k + i / 2][i % 2 * 2];
      a[i] = ptx::pack<Element>(pair[0], pair[1]);
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      uint32 b[4];
      ptx::ldmatrix_x4_trans(b, keys.at(k, n));
      ptx::mma_m16n8k16<Element>(dq[2 * n], a, b[0], b[1]);
      ptx::mma_m16n8k16<Element>(dq[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// Rounds and stores a warp's rows through its part of Q's shared memory.
__device__ __forceinline__ void store_dq(const BackwardParams& p, const Sums& dq, uint32 staging, float factor,
                                         const Work& work) {
  const int lane = ptx::lane_id();  // opaque, so that no address is computed before the main loop and kept through it
  const int warp_row = threadIdx.x / 32 * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + half * 8 + lane / 4;
    const bool used = work.first_row + row < work.mask.seqlen_q;
#pragma unroll
    for (int n = 0; n < 2 * kColumns; ++n) {
      const uint32 pair = ptx::pack<Element>(dq[n][2 * half] * factor, dq[n][2 * half + 1] * factor);
      ptx::store_shared_4(staging + geometry::swizzled_offset(kQueryRows, row, n) + lane % 4 * 4, used ? pair : 0);
    }
  }
  __syncwarp();
  const tile::GlobalRows to = rows_of(p.dquery, work.sequence, work.tensor_q + work.first_row, work.head);
  constexpr int kChunks = kConfig.head_dim / geometry::kChunkValues;
#pragma unroll 4
  for (int i = lane; i < 16 * kChunks; i += 32) {
    const int row = warp_row + i / kChunks, chunk = i % kChunks;
    if (work.first_row + row < work.slot_q) {
      *reinterpret_cast<uint4*>(to.from(row).data + chunk * geometry::kChunkBytes) =
          ptx::load_shared_16(staging + geometry::swizzled_offset(kQueryRows, row, chunk));
    }
  }
}

/// The kind of mask, as in the forward pass.
struct SequenceMasking {
  using Row = SequenceRow;
  using Walk = SequenceWalk<kConfig.key_columns>;

  static __device__ __forceinline__ Walk walk(const AttentionCall&, unsigned char* shared, const Work& work, int rows) {
    const int first_row = static_cast<int>(work.first_row);
    return {work.mask, {first_row, first_row + rows}, reinterpret_cast<geometry::Ranges*>(shared + kMap.walk)};
  }
  static __device__ __forceinline__ Row row(const AttentionCall&, const Work& work, bool exists, int row_of_tile) {
    if (!exists) return {};
    return {visible_columns(work.mask, static_cast<int>(work.first_row) + row_of_tile + work.mask.offset())};
  }
};

struct IntervalMasking {
  using Row = IntervalRow;
  using Walk = IntervalWalk<kConfig.key_columns, kThreads>;

  static __device__ __forceinline__ const int* pairs(const AttentionCall& call, const Work& work, int row_of_tile) {
    return call.intervals + work.head * call.interval_head_stride +
           (work.first_q + work.first_row + row_of_tile) * 2 * call.num_intervals;
  }
  static __device__ __forceinline__ Walk walk(const AttentionCall& call, unsigned char* shared, const Work& work,
                                              int rows) {
    return {pairs(call, work, 0), call.num_intervals, rows, work.mask.seqlen_k,
            reinterpret_cast<int*>(shared + kMap.walk)};
  }
  static __device__ __forceinline__ Row row(const AttentionCall& call, const Work& work, bool exists, int row_of_tile) {
    return {{pairs(call, work, row_of_tile), exists ? call.num_intervals : 0, work.mask.seqlen_k}};
  }
};

template <bool Intervals>
struct MaskingOf {
  using Type = SequenceMasking;
};
template <>
struct MaskingOf<true> {
  using Type = IntervalMasking;
};
using Masking = MaskingOf<kConfig.interval_mask>::Type;

/// One tile of query rows.
__device__ __forceinline__ void differentiate(const BackwardParams& p, unsigned char* shared, const Work& work) {
  const AttentionCall& call = p.call;
  const uint32 base = ptx::shared_address(shared);
  int* const tile_numbers = reinterpret_cast<int*>(shared + kMap.tile_numbers);
  const int warp_row = threadIdx.x / 32 * 16;
  const int lane_row = warp_row + threadIdx.x % 16;  // the row that this lane speaks for
  const long long used = work.mask.seqlen_q - work.first_row;
  const int rows = used < 0 ? 0 : used < kQueryRows ? static_cast<int>(used) : kQueryRows;
  const bool row_exists = lane_row < rows;

  typename Masking::Walk walk = Masking::walk(call, shared, work, rows);
  typename Masking::Row& kept_row = reinterpret_cast<typename Masking::Row*>(shared + kMap.rows)[threadIdx.x];
  kept_row = Masking::row(call, work, row_exists, lane_row);

  // The epilogue of an earlier tile may have written to Q's padding.
  tile::zero_padding<kQueryRows, kConfig.head_dim, kThreads>(base + kMap.query);
  tile::zero_padding<kQueryRows, kConfig.value_dim, kThreads>(base + kMap.dout);
#pragma unroll
  for (int stage = 0; stage < kConfig.stages; ++stage) {
    tile::zero_padding<kConfig.key_columns, kConfig.head_dim, kThreads>(base + kMap.key + stage * kMap.key_bytes);
    tile::zero_padding<kConfig.key_columns, kConfig.value_dim, kThreads>(base + kMap.value + stage * kMap.value_bytes);
  }
  if (walk.tile() >= 0) {
    tile::copy_rows_async<kQueryRows, kConfig.head_dim, kThreads>(
        base + kMap.query, rows_of(call.query, work.sequence, work.tensor_q + work.first_row, work.head), rows);
    tile::copy_rows_async<kQueryRows, kConfig.value_dim, kThreads>(
        base + kMap.dout, rows_of(call.dout, work.sequence, work.tensor_q + work.first_row, work.head), rows);
  }
  const int key_head = work.head / call.heads_per_key_head;
  const tile::GlobalRows keys = rows_of(call.key, work.sequence, work.tensor_k, key_head);
  const tile::GlobalRows values = rows_of(call.value, work.sequence, work.tensor_k, key_head);
  const auto load_next_tile = [&](int stage) {
    const int number = walk.tile();
    if (threadIdx.x == 0) tile_numbers[stage] = number;
    if (number >= 0) {
      const int first_key = number * kConfig.key_columns;
      tile::copy_rows_async<kConfig.key_columns, kConfig.head_dim, kThreads>(
          base + kMap.key + stage * kMap.key_bytes, keys.from(first_key), work.mask.seqlen_k - first_key);
      tile::copy_rows_async<kConfig.key_columns, kConfig.value_dim, kThreads>(
          base + kMap.value + stage * kMap.value_bytes, values.from(first_key), work.mask.seqlen_k - first_key);
      walk.advance();
    }
    ptx::cp_async_commit_group();  // an empty group keeps the count of groups in step with the tiles
  };
#pragma unroll
  for (int stage = 0; stage < kConfig.stages - 1; ++stage) load_next_tile(stage);

  Sums dq;
#pragma unroll
  for (int n = 0; n < 2 * kColumns; ++n) {
    for (float& x : dq[n]) x = 0;
  }
  int exponent = 0;
  const RowTerms terms = row_terms(p, work);
  for (int stage = 0;; stage = stage + 1 == kConfig.stages ? 0 : stage + 1) {
    ptx::cp_async_wait_group<kConfig.stages - 2>();
    __syncthreads();  // every thread's part of this tile is there, and nobody reads the stage that is filled next
    const int number = tile_numbers[stage];
    if (number < 0) break;
    load_next_tile(stage == 0 ? kConfig.stages - 1 : stage - 1);

    const int first_column = number * kConfig.key_columns;
    const Interval columns{first_column, first_column + kConfig.key_columns};
    const typename Masking::Row row = kept_row;
    if (!__any_sync(kAllLanes, row.sees_any(columns))) continue;
    const bool whole = __all_sync(kAllLanes, !row_exists || row.sees_all(columns));
    const uint32 here = ptx::opaque(base);  // or the readers' addresses would be kept through the loop
    const KeyReader key(here + kMap.key + stage * kMap.key_bytes, 0);
    Scores s, dp;
    products<(kConfig.head_dim + 15) / 16>(s, QueryReader(here + kMap.query, warp_row), key);
    products<(kConfig.value_dim + 15) / 16>(dp, QueryReader(here + kMap.dout, warp_row),
                                            KeyReader(here + kMap.value + stage * kMap.value_bytes, 0));
    apply_score(call, s, dp, terms);
    if (!whole) apply_mask(dp, row, first_column);
    if constexpr (!kConfig.bfloat16) fit_float16(dp, dq, exponent);
    accumulate(dq, dp, key);
  }
  const float factor = kConfig.bfloat16 ? p.score_factor : p.score_factor * power_of_two(exponent);
  store_dq(p, dq, base + kMap.query, factor, work);
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, warploom::kConfig.min_blocks)
    attention_backward_dq(const __grid_constant__ warploom::BackwardParams params) {
  extern __shared__ __align__(1024) unsigned char shared[];
  warploom::Work& work = *reinterpret_cast<warploom::Work*>(shared + warploom::kMap.work);
  if (threadIdx.x == 0) work = warploom::work_of(params.call, blockIdx.x, warploom::kQueryRows);
  __syncthreads();
  // One tile a CTA when the schedule knew the longest sequence; a sequence longer than that takes more turns.
  while (work.first_row < work.slot_q) {
    warploom::differentiate(params, shared, work);
    __syncthreads();  // the next tile's Q comes where this one's dQ was staged
    if (threadIdx.x == 0) {
      work.first_row += static_cast<long long>(params.call.schedule.query_tiles) * warploom::kQueryRows;
    }
    __syncthreads();
  }
}
