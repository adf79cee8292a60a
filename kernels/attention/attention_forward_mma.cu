// Attention forward through mma.sync, for sm_80 and newer: O = P V with P = silu(Z) / N or softmax(Z), under any mask,
// with any bias.
//
// One CTA computes one tile of query rows of one head of one sequence; a warp owns 16 or 32 of the rows. K and V tiles
// come through a ring of stages filled by cp.async, one block barrier a tile. S stays in registers: biased, masked and
// activated in place, packed to 16 bits and used as the A operand of P V, whose register layout is that of S
// (FlashAttention-2, section 3.3). What differs between the operators is the score function (silu.h, softmax.h), and
// between forms of the bias its provider (bias.h).
//
// The text before this file defines warploom::kConfig, an AttentionForwardConfig.
#include "attention/forward_steps.h"
#include "ptx/registers.h"

namespace warploom {

static_assert(kConfig.key_warps == 1);

/// Scales, rounds and stores a warp's rows: registers -> the warp's part of Q's shared memory -> 16 bytes a lane.
__device__ __forceinline__ void store_output(const AttentionCall& p, const Output& o, const Score& score,
                                             uint32 staging, const Work& work) {
  const int lane =
      ptx::lane_id();  // opaque, or its products would be computed before the main loop and kept through it
  const int warp_row = threadIdx.x / 32 * kWarpRows;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + m * 16 + half * 8 + lane / 4;
      const bool used = work.first_row + row < work.mask.seqlen_q;
      const float scale = score.finish_row(p, work, m, half, row, used);
      const bool holds = used && (!kSoftmax || scale != 0);  // else 0, even where V holds a NaN
#pragma unroll
      for (int n = 0; n < kValueBlocks; ++n) {
        const uint32 pair = ptx::pack<Element>(o[m][n][2 * half] * scale, o[m][n][2 * half + 1] * scale);
        ptx::store_shared_4(staging + geometry::swizzled_offset(kConfig.query_rows, row, n) + lane % 4 * 4,
                            holds ? pair : 0);
      }
    }
  }
  __syncwarp();
  const tile::GlobalRows out = rows_of(p.out, work.sequence, work.tensor_q + work.first_row, work.head);
  constexpr int kChunks = kConfig.value_dim / geometry::kChunkValues;
#pragma unroll 4
  for (int i = lane; i < kWarpRows * kChunks; i += 32) {
    const int row = warp_row + i / kChunks, chunk = i % kChunks;
    if (work.first_row + row < work.slot_q) {
      *reinterpret_cast<uint4*>(out.from(row).data + chunk * geometry::kChunkBytes) =
          ptx::load_shared_16(staging + geometry::swizzled_offset(kConfig.query_rows, row, chunk));
    }
  }
}

/// One tile of query rows.
__device__ __forceinline__ void attend(const AttentionCall& p, unsigned char* shared, const Work& work) {
  const uint32 base = ptx::shared_address(shared);
  int* const tile_numbers = reinterpret_cast<int*>(shared + kMap.tile_numbers);
  const int warp_row = threadIdx.x / 32 * kWarpRows;
  const int lane_row = warp_row + threadIdx.x % 32 % kWarpRows;  // the row that this lane speaks for
  const long long used = work.mask.seqlen_q - work.first_row;
  const int rows = used < 0 ? 0 : used < kConfig.query_rows ? static_cast<int>(used) : kConfig.query_rows;
  const bool row_exists = lane_row < rows;

  typename Masking::Walk walk = Masking::walk(p, shared, work, rows);
  typename Masking::Row& kept_row = reinterpret_cast<typename Masking::Row*>(shared + kMap.rows)[threadIdx.x];
  kept_row = Masking::row(p, work, row_exists, lane_row);

  int* const exponents = reinterpret_cast<int*>(shared + kMap.exponents);
  if constexpr (kScalesRows) exponents[lane_row] = 0;
  // The epilogue of an earlier tile may have written to Q's padding; K's is zeroed with it. V's is never used.
  tile::zero_padding<kConfig.query_rows, kConfig.head_dim, kThreads>(base + kMap.query);
#pragma unroll
  for (int stage = 0; stage < kConfig.stages; ++stage) {
    tile::zero_padding<kConfig.key_columns, kConfig.head_dim, kThreads>(base + kMap.key + stage * kMap.key_bytes);
  }
  const int first_tile = walk.tile();
  if (first_tile >= 0) {
    tile::copy_rows_async<kConfig.query_rows, kConfig.head_dim, kThreads>(
        base + kMap.query, rows_of(p.query, work.sequence, work.tensor_q + work.first_row, work.head), rows);
  }
  const int key_head = work.head / p.heads_per_key_head;
  const tile::GlobalRows keys = rows_of(p.key, work.sequence, work.tensor_k, key_head);
  const tile::GlobalRows values = rows_of(p.value, work.sequence, work.tensor_k, key_head);
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

  Output o;
  clear(o);
  const QueryReader query(base + kMap.query, warp_row);
  const KeyReader key(base + kMap.key, 0);

  Score score(p, exponents + warp_row);
  Bias bias(p, work, *reinterpret_cast<const BiasRows*>(shared + kMap.bias_rows), shared + kMap.bias);
  int next = first_tile;
  if (kBiased && next >= 0) bias.start(next * kConfig.key_columns);

  // Without a bias all but the newest stages' copies are awaited at the top; with one the bias of this tile is newer
  // than its keys and still on its way.
  constexpr int kInFlight = kBiased ? 1 : kConfig.stages - 2;
  for (int stage = 0;; stage = stage + 1 == kConfig.stages ? 0 : stage + 1) {
    ptx::cp_async_wait_group<kInFlight>();
    __syncthreads();  // every thread's part of this tile is there, and nobody reads the stage that is filled next
    const int number = tile_numbers[stage];
    if (number < 0) break;
    if constexpr (kBiased) next = walk.tile();
    load_next_tile(stage == 0 ? kConfig.stages - 1 : stage - 1);

    const int first_column = number * kConfig.key_columns;
    const Interval columns{first_column, first_column + kConfig.key_columns};
    const typename Masking::Row row = kept_row;
    const uint32 seeing = __ballot_sync(kAllLanes, row.sees_any(columns));
    const int next_column = next * kConfig.key_columns;
    if (seeing == 0) {
      if constexpr (kBiased) {
        bias.template wait<1>();
        if (next >= 0) bias.start(next_column);
      }
      continue;
    }
    // With its own order V's address is made anew for every tile: kept through the loop, it would not fit.
    const KeyTile tile{
        key.moved(stage * kMap.key_bytes),
        ValueReader((kKeysInOrder ? ptx::opaque(base) : base) + kMap.value + stage * kMap.value_bytes, 0), first_column,
        next_column, __all_sync(kAllLanes, !row_exists || row.sees_all(columns)) != 0};
    // Contexts are a few rows that see far: the second half of their warp has nothing to do there. A bucketed bias
    // makes so much code that it isn't compiled twice.
    if constexpr (kRowBlocks == 2 && !kBucketed) {
      if (seeing < (1u << 16)) {
        consume<1>(o, score, bias, query, tile, row);
        continue;
      }
    }
    consume<kRowBlocks>(o, score, bias, query, tile, row);
  }
  score.finish();
  store_output(p, o, score, base + kMap.query, work);
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, warploom::kConfig.min_blocks)
    attention_forward(const __grid_constant__ warploom::ForwardCallOf<warploom::kUserScore> params) {
  extern __shared__ __align__(1024) unsigned char shared[];
  warploom::Work& work = *reinterpret_cast<warploom::Work*>(shared + warploom::kMap.work);
  if (threadIdx.x == 0) work = warploom::work_of(params, blockIdx.x, warploom::kConfig.query_rows);
  __syncthreads();
  if constexpr (warploom::kBucketed) {
    reinterpret_cast<warploom::StagedTimes*>(shared + warploom::kMap.bias)->fill(params, work.head);
    __syncthreads();
  } else if constexpr (warploom::kBiased) {
    warploom::find_bias_rows(params, shared, work);
  }
  // One tile a CTA when the schedule knew the longest sequence; a sequence longer than that takes more turns.
  while (work.first_row < work.slot_q) {
    warploom::attend(params, shared, work);
    __syncthreads();  // the next tile's Q comes where this one's O was staged
    if (threadIdx.x == 0) {
      work.first_row += static_cast<long long>(params.schedule.query_tiles) * warploom::kConfig.query_rows;
    }
    __syncthreads();
  }
}
