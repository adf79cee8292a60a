// HSTU attention forward through mma.sync, for sm_80 and newer: O = silu(alpha Q K^T) V / N under any mask.
//
// One CTA computes one tile of query rows of one head of one sequence; a warp owns 16 or 32 of the rows. K and V tiles
// come through a ring of stages filled by cp.async, one block barrier a tile. S stays in registers: activated in place,
// packed to 16 bits and used as the A operand of P V, whose register layout is that of S (FlashAttention-2,
// section 3.3). No row maximum and no rescaling: silu needs neither.
//
// The text before this file defines warploom::kConfig, a HstuForwardConfig.
#include "attention/hstu_forward_config.h"
#include "attention/silu.h"
#include "attention/visibility.h"
#include "geometry/mask.h"
#include "ptx/mma.h"
#include "ptx/registers.h"
#include "tile/shared_tile.h"

namespace warploom {

using geometry::Interval;
using ptx::uint32;

template <bool IsBfloat16>
struct ElementOf {
  using Type = ptx::Float16;
};
template <>
struct ElementOf<true> {
  using Type = ptx::Bfloat16;
};
using Element = ElementOf<kConfig.bfloat16>::Type;

constexpr HstuForwardSharedMap kMap = shared_map(kConfig);
constexpr int kThreads = kConfig.warps * 32;
constexpr int kWarpRows = kConfig.query_rows / kConfig.warps;
constexpr int kRowBlocks = kWarpRows / 16;                       // m16 of a warp
constexpr int kKeyBlocks = kConfig.key_columns / 8;              // n8 of S
constexpr int kDepth = padded_dim(kConfig.head_dim) / 16;        // k16 of S
constexpr int kValueBlocks = padded_dim(kConfig.value_dim) / 8;  // n8 of O
constexpr int kElementBytes = 2;
static_assert(kWarpRows == 16 || kWarpRows == 32);
static_assert(sizeof(SequenceRow) == kMap.row_bytes && sizeof(IntervalRow) == kMap.row_bytes);
static_assert(kConfig.key_columns % 32 == 0 && kConfig.stages >= 2);

using QueryReader = tile::BlockReader<kConfig.query_rows>;
using KeyReader = tile::BlockReader<kConfig.key_columns>;
/// Of the first Blocks m16 blocks of a warp's rows.
template <int Blocks>
using Scores = float[Blocks][kKeyBlocks][4];
using Output = float[kRowBlocks][kValueBlocks][4];

/// What a CTA works on. It stays in shared memory: held in registers all through the main loop it would make them
/// spill.
struct Work {
  geometry::SequenceMask mask;
  int sequence, head;
  long long first_row;           // of the tile, in the sequence
  long long slot_q;              // rows of the sequence to write, used or not
  long long first_q;             // the sequence's first row, counted over the whole batch (divisor, intervals)
  long long tensor_q, tensor_k;  // its first row in the tensors; 0 in a dense batch, whose sequences are a stride apart
};
static_assert(sizeof(Work) == kMap.work_bytes);

__device__ __forceinline__ long long cumulative(const void* values, bool wide, int b) {
  return wide ? static_cast<const long long*>(values)[b] : static_cast<const int*>(values)[b];
}

__device__ __forceinline__ int per_sequence(const int* values, int all, int b, int slot, int absent) {
  if (values != nullptr) return values[b];
  if (all < 0) return absent;
  return slot > 0 ? all : 0;
}

__device__ __forceinline__ Work work_of(const HstuForwardParams& p, long long index) {
  const geometry::WorkItem item = p.schedule.item(index);
  const int b = item.sequence;
  Work work{};
  work.sequence = b;
  work.head = item.head;
  work.first_row = static_cast<long long>(item.query_tile) * kConfig.query_rows;
  work.mask.seqlen_k = p.seqlen_k;
  if (p.cu_seqlens_q == nullptr) {
    work.first_q = static_cast<long long>(b) * p.seqlen_q;
    work.slot_q = p.seqlen_q;
  } else {
    work.first_q = work.tensor_q = cumulative(p.cu_seqlens_q, p.cu_seqlens_q_64, b);
    if (b == p.sequences) {  // the rows that belong to nobody
      work.slot_q = p.total_q - work.first_q;
      work.mask.seqlen_k = 0;
      return work;
    }
    work.slot_q = cumulative(p.cu_seqlens_q, p.cu_seqlens_q_64, b + 1) - work.first_q;
    work.tensor_k = cumulative(p.cu_seqlens_k, p.cu_seqlens_k_64, b);
    work.mask.seqlen_k = static_cast<int>(cumulative(p.cu_seqlens_k, p.cu_seqlens_k_64, b + 1) - work.tensor_k);
  }
  const int slot_q = static_cast<int>(work.slot_q), slot_k = work.mask.seqlen_k;
  work.mask.seqlen_q = per_sequence(p.seqused_q, p.seqused_q_all, b, slot_q, slot_q);
  work.mask.seqlen_k = per_sequence(p.seqused_k, p.seqused_k_all, b, slot_k, slot_k);
  work.mask.left = p.left;
  work.mask.right = p.right;
  work.mask.num_contexts = per_sequence(p.num_contexts, p.num_contexts_all, b, work.mask.seqlen_k, 0);
  work.mask.num_targets = per_sequence(p.num_targets, p.num_targets_all, b, work.mask.seqlen_k, 0);
  work.mask.target_group_size = p.target_group_size;
  work.mask.target_window_from_history_end = p.target_window_from_history_end;
  return work;
}

__device__ __forceinline__ tile::GlobalRows rows_of(const void* data, const TensorStrides& strides, int sequence,
                                                    long long row, int head) {
  const long long offset = sequence * strides.batch + row * strides.row + head * strides.head;
  return {static_cast<const char*>(data) + offset * kElementBytes, strides.row * kElementBytes};
}

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

/// Sets the scores that their row does not see to 0, whose silu is 0. `row`: the lane's row.
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
          if ((mine & (1u << (8 * n))) == 0) c[2 * half] = 0;
          if ((mine & (2u << (8 * n))) == 0) c[2 * half + 1] = 0;
        }
      }
    }
  }
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}

/// float16 only: makes the rows' powers of two large enough for these scores and scales O to them. P = silu(2 h) may
/// pass 65504 where O, after V and the divisor, does not. `exponents`: of the warp's rows, in shared memory.
template <int Blocks>
__device__ __forceinline__ void scale_rows(Output& o, const Scores<Blocks>& h, int* exponents) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < Blocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = 0;
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) largest = fmaxf(largest, fmaxf(h[m][n][2 * half], h[m][n][2 * half + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      int& kept = exponents[m * 16 + half * 8 + lane / 4];
      const int old = kept;
      const int needed = (__float_as_int(largest) >> 23) - 127 + 2 - 15;  // 2 h < 2^(15 + needed)
      const int exponent = needed > old ? needed : old;
      __syncwarp();  // the four lanes of a row have read before one writes
      if (lane % 4 == 0) kept = exponent;
      const float rescale = power_of_two(old - exponent);
#pragma unroll
      for (int n = 0; n < kValueBlocks; ++n) {
        o[m][n][2 * half] *= rescale;
        o[m][n][2 * half + 1] *= rescale;
      }
    }
  }
  __syncwarp();  // every lane may read the exponents
}

/// O += silu(2 h) V for one key tile. Exact: by the exact form, and in float16 divided by the rows' powers of two.
template <bool Exact, int Blocks>
__device__ __forceinline__ void accumulate_output(Output& o, const Scores<Blocks>& h, const int* exponents,
                                                  const KeyReader& value) {
  const auto probability = [](float x, float factor) {
    if constexpr (!Exact) return silu_of_half(x);
    return kConfig.bfloat16 ? silu_of_half_exact(x) : silu_of_half_exact(x) * factor;
  };
#pragma unroll
  for (int k = 0; k < kKeyBlocks / 2; ++k) {
    uint32 p[Blocks][4];
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &h[m][2 * k + i / 2][i % 2 * 2];
        float factor = 1;
        if constexpr (Exact && !kConfig.bfloat16) {
          factor = power_of_two(-exponents[m * 16 + i % 2 * 8 + threadIdx.x % 32 / 4]);
        }
        p[m][i] = ptx::pack<Element>(probability(pair[0], factor), probability(pair[1], factor));
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

/// One key tile for the first Blocks m16 blocks of the warp's rows. `whole`: all of them see all of it.
template <int Blocks, typename Row>
__device__ __forceinline__ void consume(const HstuForwardParams& p, Output& o, const QueryReader& query,
                                        const KeyReader& key, const KeyReader& value, const Row& row, bool whole,
                                        int first_column, int* exponents, bool& rows_scaled) {
  Scores<Blocks> h;
  scores<Blocks>(h, query, key);
#pragma unroll
  for (int m = 0; m < Blocks; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      for (float& x : h[m][n]) x *= p.half_alpha;
    }
  }
  if (!whole) apply_mask<Blocks>(h, row, first_column);
  bool exact = any_below_tanh_limit(h);
  if constexpr (!kConfig.bfloat16) {
    rows_scaled |= __any_sync(kAllLanes, any_beyond_float16(h));
    exact |= rows_scaled;
  }
  if (__any_sync(kAllLanes, exact)) {
    if constexpr (!kConfig.bfloat16) scale_rows<Blocks>(o, h, exponents);
    accumulate_output<true, Blocks>(o, h, exponents, value);
  } else {
    accumulate_output<false, Blocks>(o, h, exponents, value);
  }
}

/// Divides, rounds and stores a warp's rows: registers -> the warp's part of Q's shared memory -> 16 bytes a lane.
__device__ __forceinline__ void store_output(const HstuForwardParams& p, const Output& o, uint32 staging,
                                             const int* exponents, const Work& work) {
  const int lane =
      ptx::lane_id();  // opaque, or its products would be computed before the main loop and kept through it
  const int warp_row = threadIdx.x / 32 * kWarpRows;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + m * 16 + half * 8 + lane / 4;
      const bool used = work.first_row + row < work.mask.seqlen_q;
      float scale = p.inverse_divisor;
      if (p.divisor_rows != nullptr && used) scale = 1.0f / p.divisor_rows[work.first_q + work.first_row + row];
      if constexpr (!kConfig.bfloat16) scale *= power_of_two(exponents[row]);
#pragma unroll
      for (int n = 0; n < kValueBlocks; ++n) {
        const uint32 pair = ptx::pack<Element>(o[m][n][2 * half] * scale, o[m][n][2 * half + 1] * scale);
        // A row past the used ones is 0 even where V holds a NaN.
        ptx::store_shared_4(staging + geometry::swizzled_offset(kConfig.query_rows, row, n) + lane % 4 * 4,
                            used ? pair : 0);
      }
    }
  }
  __syncwarp();
  const tile::GlobalRows out = rows_of(p.out, p.out_strides, work.sequence, work.tensor_q + work.first_row, work.head);
  constexpr int kChunks = kConfig.value_dim / geometry::kChunkValues;
#pragma unroll 4
  for (int i = lane; i < kWarpRows * kChunks; i += 32) {
    const int row = warp_row + i / kChunks, chunk = i % kChunks;
    if (work.first_row + row < work.slot_q) {
      *reinterpret_cast<uint4*>(const_cast<char*>(out.from(row).data) + chunk * geometry::kChunkBytes) =
          ptx::load_shared_16(staging + geometry::swizzled_offset(kConfig.query_rows, row, chunk));
    }
  }
}

/// The kind of mask: how a CTA finds its key tiles, and what a lane knows of its row. A row that does not exist sees
/// nothing.
struct SequenceMasking {
  using Row = SequenceRow;
  using Walk = SequenceWalk<kConfig.key_columns>;

  static __device__ __forceinline__ Walk walk(const HstuForwardParams&, unsigned char* shared, const Work& work,
                                              int rows) {
    const int first_row = static_cast<int>(work.first_row);
    return {work.mask, {first_row, first_row + rows}, reinterpret_cast<geometry::Ranges*>(shared + kMap.walk)};
  }
  static __device__ __forceinline__ Row row(const HstuForwardParams&, const Work& work, bool exists, int row_of_tile) {
    if (!exists) return {};
    return {visible_columns(work.mask, static_cast<int>(work.first_row) + row_of_tile + work.mask.offset())};
  }
};

struct IntervalMasking {
  using Row = IntervalRow;
  using Walk = IntervalWalk<kConfig.key_columns, kThreads>;

  static __device__ __forceinline__ const int* pairs(const HstuForwardParams& p, const Work& work, int row_of_tile) {
    return p.intervals + work.head * p.interval_head_stride +
           (work.first_q + work.first_row + row_of_tile) * 2 * p.num_intervals;
  }
  static __device__ __forceinline__ Walk walk(const HstuForwardParams& p, unsigned char* shared, const Work& work,
                                              int rows) {
    return {pairs(p, work, 0), p.num_intervals, rows, work.mask.seqlen_k, reinterpret_cast<int*>(shared + kMap.walk)};
  }
  static __device__ __forceinline__ Row row(const HstuForwardParams& p, const Work& work, bool exists,
                                            int row_of_tile) {
    return {{pairs(p, work, row_of_tile), exists ? p.num_intervals : 0, work.mask.seqlen_k}};
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
__device__ __forceinline__ void attend(const HstuForwardParams& p, unsigned char* shared, const Work& work) {
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
  if constexpr (!kConfig.bfloat16) exponents[lane_row] = 0;
  // The epilogue of an earlier tile may have written to Q's padding; K's is zeroed with it. V's is never used.
  tile::zero_padding<kConfig.query_rows, kConfig.head_dim, kThreads>(base + kMap.query);
#pragma unroll
  for (int stage = 0; stage < kConfig.stages; ++stage) {
    tile::zero_padding<kConfig.key_columns, kConfig.head_dim, kThreads>(base + kMap.key + stage * kMap.key_bytes);
  }
  if (walk.tile() >= 0) {
    tile::copy_rows_async<kConfig.query_rows, kConfig.head_dim, kThreads>(
        base + kMap.query, rows_of(p.query, p.query_strides, work.sequence, work.tensor_q + work.first_row, work.head),
        rows);
  }
  const int key_head = work.head / p.heads_per_key_head;
  const tile::GlobalRows keys = rows_of(p.key, p.key_strides, work.sequence, work.tensor_k, key_head);
  const tile::GlobalRows values = rows_of(p.value, p.value_strides, work.sequence, work.tensor_k, key_head);
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

  bool rows_scaled = false;
  for (int stage = 0;; stage = stage + 1 == kConfig.stages ? 0 : stage + 1) {
    ptx::cp_async_wait_group<kConfig.stages - 2>();
    __syncthreads();  // every thread's part of this tile is there, and nobody reads the stage that is filled next
    const int number = tile_numbers[stage];
    if (number < 0) break;
    load_next_tile(stage == 0 ? kConfig.stages - 1 : stage - 1);

    const int first_column = number * kConfig.key_columns;
    const Interval columns{first_column, first_column + kConfig.key_columns};
    const typename Masking::Row row = kept_row;
    const uint32 seeing = __ballot_sync(kAllLanes, row.sees_any(columns));
    if (seeing == 0) continue;
    const bool whole = __all_sync(kAllLanes, !row_exists || row.sees_all(columns));
    const KeyReader keys_of_tile = key.moved(stage * kMap.key_bytes);
    const KeyReader values_of_tile = value.moved(stage * kMap.value_bytes);
    // Contexts are a few rows that see far: the second half of their warp has nothing to do there.
    if (kRowBlocks == 2 && seeing < (1u << 16)) {
      consume<1>(p, o, query, keys_of_tile, values_of_tile, row, whole, first_column, exponents + warp_row,
                 rows_scaled);
    } else {
      consume<kRowBlocks>(p, o, query, keys_of_tile, values_of_tile, row, whole, first_column, exponents + warp_row,
                          rows_scaled);
    }
  }
  store_output(p, o, base + kMap.query, exponents, work);
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, warploom::kConfig.min_blocks)
    hstu_forward(const __grid_constant__ warploom::HstuForwardParams params) {
  extern __shared__ __align__(1024) unsigned char shared[];
  warploom::Work& work = *reinterpret_cast<warploom::Work*>(shared + warploom::kMap.work);
  if (threadIdx.x == 0) work = warploom::work_of(params, blockIdx.x);
  __syncthreads();
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
