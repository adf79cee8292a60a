// dQ alone through mma.sync, for sm_80 and newer: what makes the backward pass repeatable bit for bit.
//
// One CTA keeps a tile of query rows, Q and dO, and walks the key tiles that they see as the forward pass does; a warp
// owns 16 rows. S and dP are computed again, and dS, packed in registers, is the A operand of dQ += dS K. Every sum has
// a fixed order, where the other kernel's additions in memory have none.
//
// The text before this file defines warploom::kConfig, a BackwardDqConfig.
#include "attention/backward_config.h"
#include "attention/backward_rows.h"
#include "attention/bias_place.h"
#include "ptx/registers.h"

namespace warploom {

constexpr BackwardDqSharedMap kMap = shared_map(kConfig);
constexpr int kColumns = (kConfig.head_dim + 15) / 16;               // n16 of dQ
constexpr int kAhead = kConfig.stages > 1 ? kConfig.stages - 1 : 1;  // tiles begun before one is used
static_assert(sizeof(SequenceRow) == kMap.row_bytes && sizeof(IntervalRow) == kMap.row_bytes);
static_assert(sizeof(BiasRows) + sizeof(long long) <= kMap.bias_places_bytes);
static_assert(kWorkBytes == kMap.work_bytes && kConfig.stages >= 1 && (!kBiased || kConfig.stages <= 2));

using Sums = float[2 * kColumns][4];

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

/// How a CTA finds its key tiles, by the kind of mask.
struct SequenceTiles {
  using Walk = SequenceWalk<kConfig.key_columns>;

  static __device__ __forceinline__ Walk walk(const AttentionCall&, unsigned char* shared, const Work& work, int rows) {
    const int first_row = static_cast<int>(work.first_row);
    return {work.mask, {first_row, first_row + rows}, reinterpret_cast<geometry::Ranges*>(shared + kMap.walk)};
  }
};

struct IntervalTiles {
  using Walk = IntervalWalk<kConfig.key_columns, kThreads>;

  static __device__ __forceinline__ Walk walk(const AttentionCall& call, unsigned char* shared, const Work& work,
                                              int rows) {
    return {IntervalRows::pairs(call, work, 0), call.num_intervals, rows, work.mask.seqlen_k,
            reinterpret_cast<int*>(shared + kMap.walk)};
  }
};

using Tiles = Either<kConfig.interval_mask, IntervalTiles, SequenceTiles>::Type;

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

  typename Tiles::Walk walk = Tiles::walk(call, shared, work, rows);
  typename RowMask::Row& kept_row = reinterpret_cast<typename RowMask::Row*>(shared + kMap.rows)[threadIdx.x];
  kept_row = RowMask::row(call, work, row_exists, lane_row);

  // The epilogue of an earlier tile may have written to Q's padding.
  tile::zero_padding<kQueryRows, kConfig.head_dim, kThreads>(base + kMap.query);
  tile::zero_padding<kQueryRows, kConfig.value_dim, kThreads>(base + kMap.dout);
#pragma unroll
  for (int stage = 0; stage < kConfig.stages; ++stage) {
    tile::zero_padding<kConfig.key_columns, kConfig.head_dim, kThreads>(base + kMap.key + stage * kMap.key_bytes);
    tile::zero_padding<kConfig.key_columns, kConfig.value_dim, kThreads>(base + kMap.value + stage * kMap.value_bytes);
  }
  const int first_tile = walk.tile();
  if (first_tile >= 0) {
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
  for (int stage = 0; stage < kAhead; ++stage) load_next_tile(stage);

  Sums dq;
#pragma unroll
  for (int n = 0; n < 2 * kColumns; ++n) {
    for (float& x : dq[n]) x = 0;
  }
  int exponent = 0;
  const RowTerms terms = row_terms(p, work);
  Bias bias(call, work, *reinterpret_cast<const BiasRows*>(shared + kMap.bias_places), shared + kMap.bias);
  // Also awaited at the top of the loop, with the keys.
  const auto load_bias = [&](int number) {
    if constexpr (kBiased) {
      if (number >= 0) bias.start(number * kConfig.key_columns);
    }
  };
  load_bias(first_tile);
  for (int stage = 0;; stage = stage + 1 == kConfig.stages ? 0 : stage + 1) {
    ptx::cp_async_wait_group<kAhead - 1>();
    __syncthreads();  // every thread's part of this tile is there, and nobody reads the stage that is filled next
    const int number = tile_numbers[stage];
    if (number < 0) break;
    const int next = walk.tile();
    if constexpr (kConfig.stages > 1) load_next_tile(stage == 0 ? kConfig.stages - 1 : stage - 1);

    const int first_column = number * kConfig.key_columns;
    const Interval columns{first_column, first_column + kConfig.key_columns};
    const typename RowMask::Row row = kept_row;
    if (!__any_sync(kAllLanes, row.sees_any(columns))) {
      load_bias(next);
    } else {
      const bool whole = __all_sync(kAllLanes, !row_exists || row.sees_all(columns));
      const uint32 here = ptx::opaque(base);  // or the readers' addresses would be kept through the loop
      const KeyReader key(here + kMap.key + stage * kMap.key_bytes, 0);
      Scores s, dp;
      products<(kConfig.head_dim + 15) / 16>(s, QueryReader(here + kMap.query, warp_row), key);
      products<(kConfig.value_dim + 15) / 16>(dp, QueryReader(here + kMap.dout, warp_row),
                                              KeyReader(here + kMap.value + stage * kMap.value_bytes, 0));
      bool masks = false;
      if constexpr (kBiased) masks = add_bias(call, bias, s);
      apply_score(p, s, dp, terms);
      if (!whole) apply_mask(dp, row, first_column);
      if constexpr (kBiased) {
        if (masks) hide_masked(bias, dp);
        load_bias(next);
      }
      if constexpr (!kConfig.bfloat16) fit_float16(dp, dq, exponent);
      accumulate(dq, dp, key);
    }
    if constexpr (kConfig.stages == 1) {
      __syncthreads();  // nobody reads this tile
      load_next_tile(0);
    }
  }
  const float factor = kConfig.bfloat16 ? p.score_factor : p.score_factor * power_of_two(exponent);
  store_dq(p, dq, base + kMap.query, factor, work);
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, warploom::kConfig.min_blocks) attention_backward_dq(
    const __grid_constant__ warploom::BackwardParamsOf<warploom::kConfig.user_score != 0> params) {
  extern __shared__ __align__(1024) unsigned char shared[];
  warploom::Work& work = *reinterpret_cast<warploom::Work*>(shared + warploom::kMap.work);
  if (threadIdx.x == 0) work = warploom::work_of(params.call, blockIdx.x, warploom::kQueryRows);
  __syncthreads();
  warploom::prepare_bias(params.call, work, shared + warploom::kMap.bias, shared + warploom::kMap.bias_places);
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
