// HSTU attention forward through mma.sync, for sm_80 and newer: O = silu(alpha Q K^T) V / N under any mask.
//
// One CTA computes one tile of query rows of one head of one sequence; a warp owns 16 or 32 of the rows. K and V tiles come
// through a ring of stages filled by cp.async, one block barrier a tile. S stays in registers: activated in place, packed to
// 16 bits and used as the A operand of P V, whose register layout is that of S (FlashAttention-2, section 3.3). No row
// maximum and no rescaling: silu needs neither.
//
// The text before this file defines warploom::kConfig, a HstuForwardConfig.
#include "attention/hstu_forward_config.h"
#include "attention/silu.h"
#include "attention/visibility.h"
#include "geometry/mask.h"
#include "ptx/mma.h"
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
constexpr int kRowBlocks = kWarpRows / 16;                      // m16 of a warp
constexpr int kKeyBlocks = kConfig.key_columns / 8;             // n8 of S
constexpr int kDepth = padded_dim(kConfig.head_dim) / 16;       // k16 of S
constexpr int kValueBlocks = padded_dim(kConfig.value_dim) / 8;  // n8 of O
constexpr int kElementBytes = 2;
static_assert(kWarpRows == 16 || kWarpRows == 32);
static_assert(sizeof(SequenceRow) == kMap.row_bytes && sizeof(IntervalRow) == kMap.row_bytes);
static_assert(kConfig.key_columns % 32 == 0 && kConfig.stages >= 2);

using QueryReader = tile::BlockReader<kConfig.query_rows>;
using KeyReader = tile::BlockReader<kConfig.key_columns>;
using Scores = float[kRowBlocks][kKeyBlocks][4];
using Output = float[kRowBlocks][kValueBlocks][4];

/// One sequence of the batch as the kernel needs it.
struct SequenceSlice {
  long long first_q;            // the first row, counted over the whole batch (divisor, intervals)
  long long tensor_q, tensor_k;  // the first row in the tensors: 0 in a dense batch, whose sequences are a batch stride apart
  long long slot_q;              // rows to write, used or not
  geometry::SequenceMask mask;
};

__device__ __forceinline__ long long cumulative(const void* values, bool wide, int b) {
  return wide ? static_cast<const long long*>(values)[b] : static_cast<const int*>(values)[b];
}

__device__ __forceinline__ int per_sequence(const int* values, int all, int b, int slot, int absent) {
  if (values != nullptr) return values[b];
  if (all < 0) return absent;
  return slot > 0 ? all : 0;
}

__device__ __forceinline__ SequenceSlice slice_of(const HstuForwardParams& p, int b) {
  SequenceSlice s{};
  s.mask.seqlen_k = p.seqlen_k;
  if (p.cu_seqlens_q == nullptr) {
    s.first_q = static_cast<long long>(b) * p.seqlen_q;
    s.slot_q = p.seqlen_q;
  } else {
    s.first_q = s.tensor_q = cumulative(p.cu_seqlens_q, p.cu_seqlens_q_64, b);
    if (b == p.sequences) {  // the rows that belong to nobody
      s.slot_q = p.total_q - s.first_q;
      s.mask.seqlen_k = 0;
      return s;
    }
    s.slot_q = cumulative(p.cu_seqlens_q, p.cu_seqlens_q_64, b + 1) - s.first_q;
    s.tensor_k = cumulative(p.cu_seqlens_k, p.cu_seqlens_k_64, b);
    s.mask.seqlen_k = static_cast<int>(cumulative(p.cu_seqlens_k, p.cu_seqlens_k_64, b + 1) - s.tensor_k);
  }
  const int slot_q = static_cast<int>(s.slot_q), slot_k = s.mask.seqlen_k;
  s.mask.seqlen_q = per_sequence(p.seqused_q, p.seqused_q_all, b, slot_q, slot_q);
  s.mask.seqlen_k = per_sequence(p.seqused_k, p.seqused_k_all, b, slot_k, slot_k);
  s.mask.left = p.left;
  s.mask.right = p.right;
  s.mask.num_contexts = per_sequence(p.num_contexts, p.num_contexts_all, b, s.mask.seqlen_k, 0);
  s.mask.num_targets = per_sequence(p.num_targets, p.num_targets_all, b, s.mask.seqlen_k, 0);
  s.mask.target_group_size = p.target_group_size;
  s.mask.target_window_from_history_end = p.target_window_from_history_end;
  return s;
}

__device__ __forceinline__ tile::GlobalRows rows_of(const void* data, const TensorStrides& strides, int b, long long row,
                                                    int head) {
  const long long offset = b * strides.batch + row * strides.row + head * strides.head;
  return {static_cast<const char*>(data) + offset * kElementBytes, strides.row * kElementBytes};
}

/// Q's fragments: read from shared memory at every use, or kept in registers where there is room for them.
class QueryFragments {
 public:
  __device__ __forceinline__ explicit QueryFragments(QueryReader reader) : reader_(reader) {
    if constexpr (kConfig.query_in_registers) {
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
        for (int k = 0; k < kDepth; ++k) ptx::ldmatrix_x4(kept_[m][k], reader.at(m, k));
      }
    }
  }

  __device__ __forceinline__ void read(uint32 (&a)[4], int m, int k) const {
    if constexpr (kConfig.query_in_registers) {
      for (int i = 0; i < 4; ++i) a[i] = kept_[m][k][i];
    } else {
      ptx::ldmatrix_x4(a, reader_.at(m, k));
    }
  }

 private:
  QueryReader reader_;
  uint32 kept_[kConfig.query_in_registers ? kRowBlocks : 1][kConfig.query_in_registers ? kDepth : 1][4];
};

/// S = Q K^T for one key tile.
__device__ __forceinline__ void scores(Scores& s, const QueryFragments& query, const KeyReader& key) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    uint32 a[kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) query.read(a[m], m, k);
#pragma unroll
    for (int n = 0; n < kKeyBlocks / 2; ++n) {
      uint32 b[4];  // keys 16n..+7 and +8..+15 as two n8 blocks: fragments (0,0) (1,0) (0,1) (1,1)
      ptx::ldmatrix_x4(b, key.at(n, k));
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
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
template <typename Row>
__device__ __forceinline__ void apply_mask(Scores& s, const Row& row, int first_column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int word = 0; word < kConfig.key_columns / 32; ++word) {
    const uint32 bits = row.bits(first_column + 32 * word);
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
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

/// O += silu(2 h) V for one key tile.
template <bool Exact>
__device__ __forceinline__ void accumulate_output(Output& o, const Scores& h, const KeyReader& value) {
#pragma unroll
  for (int k = 0; k < kKeyBlocks / 2; ++k) {
    uint32 p[kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &h[m][2 * k + i / 2][i % 2 * 2];
        p[m][i] = Exact ? ptx::pack<Element>(silu_of_half_exact(pair[0]), silu_of_half_exact(pair[1]))
                        : ptx::pack<Element>(silu_of_half(pair[0]), silu_of_half(pair[1]));
      }
    }
#pragma unroll
    for (int n = 0; n < kValueBlocks / 2; ++n) {
      uint32 b[4];  // transposed: keys run along the fragment's columns
      ptx::ldmatrix_x4_trans(b, value.at(k, n));
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        ptx::mma_m16n8k16<Element>(o[m][2 * n], p[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(o[m][2 * n + 1], p[m], b[2], b[3]);
      }
    }
  }
}

/// Divides, rounds and stores a warp's rows: registers -> the warp's part of Q's shared memory -> 16 bytes a lane.
__device__ __forceinline__ void store_output(const HstuForwardParams& p, const Output& o, uint32 staging, char* out,
                                             long long out_row_bytes, const SequenceSlice& s, long long first_row) {
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * kWarpRows;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + m * 16 + half * 8 + lane / 4;
      const bool used = first_row + row < s.mask.seqlen_q;
      float scale = p.inverse_divisor;
      if (p.divisor_rows != nullptr && used) {
        scale = 1.0f / p.divisor_rows[s.first_q + first_row + row];
      }
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
  constexpr int kChunks = kConfig.value_dim / geometry::kChunkValues;
#pragma unroll 4
  for (int i = lane; i < kWarpRows * kChunks; i += 32) {
    const int row = warp_row + i / kChunks, chunk = i % kChunks;
    if (first_row + row < s.slot_q) {
      *reinterpret_cast<uint4*>(out + row * out_row_bytes + chunk * geometry::kChunkBytes) =
          ptx::load_shared_16(staging + geometry::swizzled_offset(kConfig.query_rows, row, chunk));
    }
  }
}

/// The kind of mask: how a CTA finds its key tiles, and what a lane knows of its row. A row that does not exist sees nothing.
struct SequenceMasking {
  using Row = SequenceRow;
  using Walk = SequenceWalk<kConfig.key_columns>;

  static __device__ __forceinline__ Walk walk(const HstuForwardParams&, unsigned char* shared, const SequenceSlice& s, int,
                                              int first_row, int rows) {
    return {s.mask, {first_row, first_row + rows}, reinterpret_cast<geometry::Ranges*>(shared + kMap.walk)};
  }
  static __device__ __forceinline__ Row row(const HstuForwardParams&, const SequenceSlice& s, int, int i) {
    return {i < s.mask.seqlen_q ? visible_columns(s.mask, i + s.mask.offset()) : geometry::VisibleColumns{}};
  }
};

struct IntervalMasking {
  using Row = IntervalRow;
  using Walk = IntervalWalk<kConfig.key_columns, kThreads>;

  static __device__ __forceinline__ const int* pairs(const HstuForwardParams& p, const SequenceSlice& s, int head, int i) {
    return p.intervals + head * p.interval_head_stride + (s.first_q + i) * 2 * p.num_intervals;
  }
  static __device__ __forceinline__ Walk walk(const HstuForwardParams& p, unsigned char* shared, const SequenceSlice& s,
                                              int head, int first_row, int rows) {
    return {pairs(p, s, head, first_row), p.num_intervals, rows, s.mask.seqlen_k,
            reinterpret_cast<int*>(shared + kMap.walk)};
  }
  static __device__ __forceinline__ Row row(const HstuForwardParams& p, const SequenceSlice& s, int head, int i) {
    return {{pairs(p, s, head, i), i < s.mask.seqlen_q ? p.num_intervals : 0, s.mask.seqlen_k}};
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

/// One tile of query rows, from `first_row` of the sequence on.
__device__ __forceinline__ void attend(const HstuForwardParams& p, unsigned char* shared, const SequenceSlice& s, int b,
                                       int head, long long first_row) {
  const uint32 base = ptx::shared_address(shared);
  int* const tile_numbers = reinterpret_cast<int*>(shared + kMap.tile_numbers);
  const int warp_row = threadIdx.x / 32 * kWarpRows;
  const int lane_row = warp_row + threadIdx.x % 32 % kWarpRows;  // the row that this lane speaks for
  const long long used = s.mask.seqlen_q - first_row;
  const int rows = used < 0 ? 0 : used < kConfig.query_rows ? static_cast<int>(used) : kConfig.query_rows;
  const bool row_exists = lane_row < rows;

  typename Masking::Walk walk = Masking::walk(p, shared, s, head, static_cast<int>(first_row), rows);
  // A lane's row waits in shared memory: the registers are needed for S and O.
  typename Masking::Row& kept_row = reinterpret_cast<typename Masking::Row*>(shared + kMap.rows)[threadIdx.x];
  kept_row = Masking::row(p, s, head, static_cast<int>(first_row) + lane_row);

  if (walk.tile() >= 0) {
    tile::copy_rows_async<kConfig.query_rows, kConfig.head_dim, kThreads>(
        base + kMap.query, rows_of(p.query, p.query_strides, b, s.tensor_q + first_row, head), rows);
  }
  const int key_head = head / p.heads_per_key_head;
  const tile::GlobalRows keys = rows_of(p.key, p.key_strides, b, s.tensor_k, key_head);
  const tile::GlobalRows values = rows_of(p.value, p.value_strides, b, s.tensor_k, key_head);
  const auto load_next_tile = [&](int stage) {
    const int number = walk.tile();
    if (threadIdx.x == 0) tile_numbers[stage] = number;
    if (number >= 0) {
      const int first_key = number * kConfig.key_columns;
      tile::copy_rows_async<kConfig.key_columns, kConfig.head_dim, kThreads>(
          base + kMap.key + stage * kMap.key_bytes, keys.from(first_key), s.mask.seqlen_k - first_key);
      tile::copy_rows_async<kConfig.key_columns, kConfig.value_dim, kThreads>(
          base + kMap.value + stage * kMap.value_bytes, values.from(first_key), s.mask.seqlen_k - first_key);
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
  ptx::cp_async_wait_group<kConfig.stages - 2>();
  __syncthreads();  // Q is there
  const QueryFragments query(QueryReader(base + kMap.query, warp_row));
  const KeyReader key(base + kMap.key, 0);
  const KeyReader value(base + kMap.value, 0);

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
    Scores h;
    scores(h, query, key.moved(stage * kMap.key_bytes));
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
        for (float& x : h[m][n]) x *= p.half_alpha;
      }
    }
    if (!__all_sync(kAllLanes, !row_exists || row.sees_all(columns))) apply_mask(h, row, first_column);
    if (__any_sync(kAllLanes, any_below_tanh_limit(h))) {
      accumulate_output<true>(o, h, value.moved(stage * kMap.value_bytes));
    } else {
      accumulate_output<false>(o, h, value.moved(stage * kMap.value_bytes));
    }
  }
  const tile::GlobalRows out = rows_of(p.out, p.out_strides, b, s.tensor_q + first_row, head);
  store_output(p, o, base + kMap.query, const_cast<char*>(out.data), out.row_stride_bytes, s, first_row);
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, warploom::kConfig.min_blocks)
    hstu_forward(const __grid_constant__ warploom::HstuForwardParams params) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const warploom::geometry::WorkItem item = params.schedule.item(blockIdx.x);
  const warploom::SequenceSlice s = warploom::slice_of(params, item.sequence);
  // One tile a CTA when the schedule knew the longest sequence; a sequence longer than that takes more turns.
  for (long long tile = item.query_tile; tile * warploom::kConfig.query_rows < s.slot_q;
       tile += params.schedule.query_tiles) {
    warploom::attend(params, shared, s, item.sequence, item.head, tile * warploom::kConfig.query_rows);
    __syncthreads();  // the next tile's Q comes where this one's O was staged
  }
}
