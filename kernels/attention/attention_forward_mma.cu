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
#include "attention/attention_forward_config.h"
#include "attention/bias.h"
#include "attention/silu.h"
#include "attention/softmax.h"
#include "attention/visibility.h"
#include "attention/work.h"
#include "geometry/mask.h"
#include "ptx/mma.h"
#include "ptx/registers.h"
#include "tile/shared_tile.h"

namespace warploom {

using geometry::Interval;
using ptx::uint32;

template <bool Condition, typename A, typename B>
struct Either {
  using Type = A;
};
template <typename A, typename B>
struct Either<false, A, B> {
  using Type = B;
};
using Element = Either<kConfig.bfloat16, ptx::Bfloat16, ptx::Float16>::Type;

constexpr AttentionForwardMap kMap = shared_map(kConfig);
constexpr int kThreads = kConfig.warps * 32;
constexpr int kWarpRows = kConfig.query_rows / kConfig.warps;
constexpr int kRowBlocks = kWarpRows / 16;                       // m16 of a warp
constexpr int kKeyBlocks = kConfig.key_columns / 8;              // n8 of S
constexpr int kDepth = padded_dim(kConfig.head_dim) / 16;        // k16 of S
constexpr int kValueBlocks = padded_dim(kConfig.value_dim) / 8;  // n8 of O
static_assert(kWarpRows == 16 || kWarpRows == 32);
static_assert(sizeof(SequenceRow) == kMap.row_bytes && sizeof(IntervalRow) == kMap.row_bytes);
static_assert(sizeof(BiasRows) + sizeof(long long) <= kMap.bias_rows_bytes);
static_assert(kConfig.key_columns % 32 == 0 && kConfig.stages >= 2);

using QueryReader = tile::BlockReader<kConfig.query_rows>;
using KeyReader = tile::BlockReader<kConfig.key_columns>;
/// Of the first Blocks m16 blocks of a warp's rows.
template <int Blocks>
using Scores = float[Blocks][kKeyBlocks][4];
using Output = float[kRowBlocks][kValueBlocks][4];

constexpr bool kSoftmax = kConfig.score == ScoreKind::softmax;
constexpr bool kBiased = kConfig.bias != BiasKind::none;
constexpr bool kBucketed = kConfig.bias == BiasKind::bucketed;
constexpr bool kScalesRows = !kSoftmax && !kConfig.bfloat16;
static_assert(!kBiased || kConfig.stages == 2);
static_assert(!kBucketed ||
              sizeof(StagedTimes) + kConfig.warps * sizeof(BucketedWarp<kConfig.key_columns, kWarpRows>) ==
                  bias_bytes(kConfig));

using Score =
    Either<kSoftmax, SoftmaxScore<kBiased, kConfig.softcap, kRowBlocks>, SiluScore<kConfig.bfloat16, kBiased>>::Type;
using Bias = Either<
    kBucketed, BucketedBias<kConfig.key_columns, kWarpRows>,
    RowsBias<Element, kConfig.bias == BiasKind::rows32, kConfig.query_rows, kConfig.key_columns, kWarpRows>>::Type;

/// S = Q K^T for one key tile.
template <int Blocks>
__device__ __forceinline__ void scores(Scores<Blocks>& s, const QueryReader& query, const KeyReader& key) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    uint32 a[Blocks][4];
#pragma unroll
    for (int m = 0; m < Blocks; ++m) ptx::ldmatrix_x4(a[m], query.at(m, k));
#pragma unroll
    for (int n = 0; n < kKeyBlocks / 2; ++n) {
      uint32 b[4];  // keys 16n..+7 and +8..+15 as two n8 blocks: fragments (0,0) (1,0) (0,1) (1,1)
      ptx::ldmatrix_x4(b, key.at(n, k));
#pragma unroll
      for (int m = 0; m < Blocks; ++m) {
        if (k == 0) {
          for (float& x : s[m][2 * n]) x = 0;
          for (float& x : s[m][2 * n + 1]) x = 0;
        }
        ptx::mma_m16n8k16<Element>(s[m][2 * n], a[m], b[0], b[2]);
        ptx::mma_m16n8k16<Element>(s[m][2 * n + 1], a[m], b[1], b[3]);
      }
    }
  }
}

/// Sets the scores that their row does not see to what the score function turns into 0. `row`: the lane's row.
template <int Blocks, typename Row>
__device__ __forceinline__ void apply_mask(Scores<Blocks>& s, const Row& row, int first_column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int word = 0; word < kConfig.key_columns / 32; ++word) {
    const uint32 bits = row.bits(first_column + 32 * word);
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row_of_half = m * 16 + half * 8 + lane / 4;
        const uint32 mine = __shfl_sync(kAllLanes, bits, row_of_half) >> (lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
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
  const KeyReader& value;

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

/// One key tile as a warp sees it.
struct KeyTile {
  KeyReader keys, values;
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

/// The kind of mask: how a CTA finds its key tiles, and what a lane knows of its row. A row that does not exist sees
/// nothing.
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

  static __device__ __forceinline__ const int* pairs(const AttentionCall& p, const Work& work, int row_of_tile) {
    return p.intervals + work.head * p.interval_head_stride +
           (work.first_q + work.first_row + row_of_tile) * 2 * p.num_intervals;
  }
  static __device__ __forceinline__ Walk walk(const AttentionCall& p, unsigned char* shared, const Work& work,
                                              int rows) {
    return {pairs(p, work, 0), p.num_intervals, rows, work.mask.seqlen_k, reinterpret_cast<int*>(shared + kMap.walk)};
  }
  static __device__ __forceinline__ Row row(const AttentionCall& p, const Work& work, bool exists, int row_of_tile) {
    return {{pairs(p, work, row_of_tile), exists ? p.num_intervals : 0, work.mask.seqlen_k}};
  }
};

using Masking = Either<kConfig.interval_mask, IntervalMasking, SequenceMasking>::Type;

/// Where the sequence's and head's R lies, for all threads, in shared memory.
__device__ __forceinline__ void find_bias_rows(const AttentionCall& p, unsigned char* shared, const Work& work) {
  constexpr int kBytes = kConfig.bias == BiasKind::rows32 ? 4 : 2;
  BiasRows& rows = *reinterpret_cast<BiasRows*>(shared + kMap.bias_rows);
  auto& packed_first = *reinterpret_cast<unsigned long long*>(shared + kMap.bias_rows + sizeof(BiasRows));
  if (threadIdx.x == 0) packed_first = 0;
  __syncthreads();
  if (p.bias.packed && work.sequence < p.sequences) {
    const long long mine = packed_elements_before(p, work.sequence, kBytes, threadIdx.x, kThreads);
    if (mine != 0) atomicAdd(&packed_first, static_cast<unsigned long long>(mine));
  }
  __syncthreads();
  if (threadIdx.x == 0) rows = bias_rows(p, work, static_cast<long long>(packed_first), kBytes);
  __syncthreads();
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
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kValueBlocks; ++n) {
      for (float& x : o[m][n]) x = 0;
    }
  }
  const QueryReader query(base + kMap.query, warp_row);
  const KeyReader key(base + kMap.key, 0);
  const KeyReader value(base + kMap.value, 0);

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
    const KeyTile tile{key.moved(stage * kMap.key_bytes), value.moved(stage * kMap.value_bytes), first_column,
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
    attention_forward(const __grid_constant__ warploom::AttentionCall params) {
  extern __shared__ __align__(1024) unsigned char shared[];
  warploom::Work& work = *reinterpret_cast<warploom::Work*>(shared + warploom::kMap.work);
  if (threadIdx.x == 0) work = warploom::work_of(params, blockIdx.x, warploom::kConfig.query_rows);
  __syncthreads();
  if constexpr (warploom::kBucketed) {
    reinterpret_cast<warploom::StagedTimes*>(shared + warploom::kMap.bias)->fill(params, work);
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
