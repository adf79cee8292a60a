// Attention backward through mma.sync, for sm_80 and newer: dK and dV, and sums for dQ, of HSTU and softmax attention.
//
// One CTA keeps a tile of keys of one key head and walks the query tiles that see it, for each query head that shares
// the key head. Scores are computed with keys along their rows, S^T = K Q^T and dP^T = V dO^T, so that packed P^T and
// dS^T are A operands of dV += P^T dO and dK += dS^T Q as they stand. A warp owns 16 or 32 of the keys; where the head
// is too wide for one warp's registers several share their keys: each computes the scores of a part of the queries,
// they exchange P and dS through shared memory, and each sums a part of the columns. dQ += dS K needs the dS of all
// warps: it is computed one tile late, behind the barrier that the next tile needs anyway, and added in global memory.
// A bias is read, and its gradient written or added up, by the warp that owns the keys and for its part of the queries.
//
// The text before this file defines warploom::kConfig, a BackwardConfig.
#include "attention/backward_bias.h"
#include "attention/backward_config.h"
#include "attention/backward_steps.h"
#include "attention/backward_visibility.h"
#include "attention/work.h"
#include "geometry/mask.h"
#include "pipeline/turns.h"
#include "ptx/named_barrier.h"
#include "ptx/registers.h"
#include "tile/shared_tile.h"

namespace warploom {

using geometry::Interval;

/// The kind of mask: how a CTA finds its query tiles, and what a query row sees.
struct SequenceMasking {
  using Walk = SequenceQueryWalk<kConfig.query_rows>;

  /// One thread prepares the walk; a barrier must follow.
  static __device__ __forceinline__ void prepare(unsigned char* shared, const Work& work, Interval keys) {
    *reinterpret_cast<geometry::Ranges*>(shared + kMap.walk) = seeing_any(work.mask, keys);
  }
  static __device__ __forceinline__ Walk walk(const BackwardParams& p, unsigned char* shared, const Work&, Interval) {
    return {reinterpret_cast<const geometry::Ranges*>(shared + kMap.walk), p.call.heads_per_key_head};
  }
  static __device__ __forceinline__ SequenceRow row(const BackwardParams&, const Work& work, int, int query) {
    return {visible_columns(work.mask, query + work.mask.offset())};
  }
};

struct IntervalMasking {
  using Walk = IntervalQueryWalk<kConfig.query_rows, kThreads>;

  static __device__ __forceinline__ void prepare(unsigned char*, const Work&, Interval) {}
  static __device__ __forceinline__ const int* pairs(const BackwardParams& p, const Work& work, int head, int query) {
    return p.call.intervals + head * p.call.interval_head_stride + (work.first_q + query) * 2 * p.call.num_intervals;
  }
  static __device__ __forceinline__ Walk walk(const BackwardParams& p, unsigned char* shared, const Work& work,
                                              Interval keys) {
    const int heads = p.call.heads_per_key_head;
    return {pairs(p, work, work.head * heads, 0),
            p.call.interval_head_stride,
            p.call.num_intervals,
            work.mask.seqlen_q,
            work.mask.seqlen_k,
            keys,
            heads,
            reinterpret_cast<int*>(shared + kMap.walk)};
  }
  static __device__ __forceinline__ IntervalRow row(const BackwardParams& p, const Work& work, int head, int query) {
    return {{pairs(p, work, head, query), p.call.num_intervals, work.mask.seqlen_k}};
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

/// Starts the copies of a query tile into a stage, and writes what it sees.
__device__ __forceinline__ void load_queries(const BackwardParams& p, unsigned char* shared, uint32 base,
                                             const Work& work, int first_key, QueryTile tile, int stage) {
  const int head = work.head * p.call.heads_per_key_head + tile.head;
  const int first = tile.number * kConfig.query_rows;
  const int rows = geometry::min_of(work.mask.seqlen_q - first, kConfig.query_rows);
  tile::copy_rows_async<kConfig.query_rows, kConfig.head_dim, kThreads>(
      base + kMap.query + stage * kMap.query_bytes, rows_of(p.call.query, work.sequence, work.tensor_q + first, head),
      rows);
  tile::copy_rows_async<kConfig.query_rows, kConfig.value_dim, kThreads>(
      base + kMap.dout + stage * kMap.dout_bytes, rows_of(p.call.dout, work.sequence, work.tensor_q + first, head),
      rows);
  if (static_cast<int>(threadIdx.x) < kConfig.query_rows) {
    const int row = static_cast<int>(threadIdx.x);
    const uint32 terms = base + kMap.row_terms + stage * kMap.row_terms_bytes;
    if constexpr (kConfig.softmax) {
      ptx::cp_async_small<8>(terms + row * 8, p.row_terms + head * p.call.total_q + work.first_q + first + row,
                             row < rows);
    } else if (p.call.divisor_rows != nullptr) {
      ptx::cp_async_small<4>(terms + row * 4, p.call.divisor_rows + work.first_q + first + row, row < rows);
    }
  }
  // A table's NaN would reach the sums from a row that does not exist.
  constexpr bool kMustExist = kConfig.bias == BiasKind::bucketed;
  write_visibility<kConfig.query_rows, kConfig.key_rows, kThreads, kMustExist>(
      [&](int query) { return Masking::row(p, work, head, first + query); }, rows, first_key,
      reinterpret_cast<uint32*>(shared + kMap.visible + stage * kMap.visible_bytes),
      reinterpret_cast<int*>(shared + kMap.whole) + stage * kQueryWords);
}

/// One tile of keys.
__device__ __forceinline__ void differentiate(const BackwardParams& p, unsigned char* shared, const Work& work) {
  const uint32 base = ptx::shared_address(shared);
  QueryTile* const tiles = reinterpret_cast<QueryTile*>(shared + kMap.tiles);
  const int first_key = static_cast<int>(work.first_row);

  const Interval keys{first_key, first_key + kConfig.key_rows};
  if (threadIdx.x == 0) Masking::prepare(shared, work, keys);
  __syncthreads();
  // Puts the tile after `before` into a place of the ring and starts its copies.
  const auto load_next = [&](QueryTile before, int place, int stage) {
    const QueryTile tile = Masking::walk(p, shared, work, keys).next(before);
    if (threadIdx.x == 0) tiles[place] = tile;
    if (tile.number >= 0) load_queries(p, shared, base, work, first_key, tile, stage);
    ptx::cp_async_commit_group();
    return tile;
  };
  Bias bias(p, shared, work);
  const auto load_bias = [&](QueryTile tile) {
    if constexpr (kBiased) {
      if (tile.number >= 0) bias.start(tile);
      ptx::cp_async_commit_group();
    }
  };
  // The epilogue of an earlier tile may have written to K's and V's padding.
  tile::zero_padding<kConfig.key_rows, kConfig.head_dim, kThreads>(base + kMap.key);
  tile::zero_padding<kConfig.key_rows, kConfig.value_dim, kThreads>(base + kMap.value);
#pragma unroll
  for (int stage = 0; stage < kConfig.stages; ++stage) {
    tile::zero_padding<kConfig.query_rows, kConfig.head_dim, kThreads>(base + kMap.query + stage * kMap.query_bytes);
    tile::zero_padding<kConfig.query_rows, kConfig.value_dim, kThreads>(base + kMap.dout + stage * kMap.dout_bytes);
  }
  const int keys_left = work.mask.seqlen_k - first_key;
  tile::copy_rows_async<kConfig.key_rows, kConfig.head_dim, kThreads>(
      base + kMap.key, rows_of(p.call.key, work.sequence, work.tensor_k + first_key, work.head), keys_left);
  tile::copy_rows_async<kConfig.key_rows, kConfig.value_dim, kThreads>(
      base + kMap.value, rows_of(p.call.value, work.sequence, work.tensor_k + first_key, work.head), keys_left);
  load_bias(load_next({-1, 0}, 0, 0));

  Sums<kKeyColumns> dk;
  Sums<kValueColumns> dv;
  set_to_zero(dk);
  set_to_zero(dv);
  Exponents exponents;
  for (int n = 0;; ++n) {
    const int stage = kConfig.stages == 1 ? 0 : n % 2;
    const int buffer = kConfig.accumulate_dq ? n % 2 * kMap.score_bytes : 0;
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // every thread's part of this tile is there, and so is every warp's dS of the one before
    const QueryTile tile = tiles[n % kMap.kept_tiles];
    QueryTile next{-1, 0};
    if (kConfig.stages == 2 && tile.number >= 0) next = load_next(tile, (n + 1) % kMap.kept_tiles, stage ^ 1);
    const int exponent_before = exponents.gradient;
    const auto add_dq_before = [&] {
      const QueryTile before = tiles[(n - 1) % kMap.kept_tiles];
      const int group = p.call.heads_per_key_head;
      float* const sums =
          p.dq_sums + dq_sums_offset(work.first_q, work.sequence, before.number, p.call.schedule.heads * group,
                                     work.head * group + before.head, kConfig.query_rows, kConfig.head_dim);
      const uint32 here = ptx::opaque(base);
      add_dq(sums, here + kMap.score_gradient + (kMap.score_bytes - buffer), here + kMap.key,
             power_of_two(exponent_before));
    };
    // Half of the warps do it at the end of this tile, so that their scores meet the others' products (where its code,
    // twice, leaves enough registers).
    const bool late = !kFewRegisters && threadIdx.x >= kThreads / 2;
    if (kConfig.accumulate_dq && n > 0 && (!late || tile.number < 0)) add_dq_before();
    if (tile.number < 0) break;
    if constexpr (kBiased) {
      const bool first = n == 0 && p.call.heads_per_key_head > 1;
      bias.begin(tile, first || (n > 0 && tile.head != tiles[(n - 1) % kMap.kept_tiles].head));
    }

    // Opaque, or the readers' addresses would be kept through the loop.
    const uint32 here = ptx::opaque(base);
    const uint32 queries = here + kMap.query + stage * kMap.query_bytes;
    const uint32 douts = here + kMap.dout + stage * kMap.dout_bytes;
    const uint32 score_gradient = here + kMap.score_gradient + buffer;
    Scores s, dp;
    products<column_blocks(kConfig.head_dim, 1)>(s, KeyReader(here + kMap.key, warp_key()),
                                                 QueryReader(queries, warp_part() * kWarpQueries));
    bool masks = false;
    if constexpr (kEarlyBias) masks = add_bias(p.call, bias, tile, s);
    products<column_blocks(kConfig.value_dim, 1)>(dp, KeyReader(here + kMap.value, warp_key()),
                                                  QueryReader(douts, warp_part() * kWarpQueries));
    if constexpr (kBiased && !kEarlyBias) masks = add_bias(p.call, bias, tile, s);
    const int terms_of_query = kConfig.softmax ? 2 : 1;
    apply_score(p, s, dp,
                reinterpret_cast<const float*>(shared + kMap.row_terms + stage * kMap.row_terms_bytes) +
                    warp_part() * kWarpQueries * terms_of_query);
    apply_mask(s, dp, reinterpret_cast<const uint32*>(shared + kMap.visible + stage * kMap.visible_bytes),
               reinterpret_cast<const int*>(shared + kMap.whole) + stage * kQueryWords);
    const auto take_bias_gradient = [&] {
      if constexpr (kBiased) {
        bias.take_gradient(tile, dp);
        if constexpr (kConfig.stages == 2) load_bias(next);
      }
    };
    const auto add_to_dv = [&](const Packed& p16) {
      accumulate<kValueColumns>(dv, p16, KeyReader(here + kMap.probabilities, warp_key()),
                                ColumnReader<kConfig.query_rows, kValueColumns>(douts, warp_part()));
    };
    if constexpr (kBiased) {
      if (masks) hide_masked(bias, tile, s, dp);
    }
    Packed p16, ds16;
    if constexpr (kEarlyDv) {
      pack_all(p16, s);
      add_to_dv(p16);
    }
    take_bias_gradient();
    if constexpr (!kConfig.bfloat16) {
      fit_float16(s, dp, dk, dv, exponents, reinterpret_cast<float*>(shared + kMap.maxima));
    }
    if constexpr (!kEarlyDv) pack_all(p16, s);
    pack_all(ds16, dp);
    if constexpr (kSharing > 1) store_scores(here + kMap.probabilities, p16);
    if constexpr (kSharing > 1 || kConfig.accumulate_dq) store_scores(score_gradient, ds16);
    if constexpr (kSharing > 1) {
      // The warps that share these keys have each other's part.
      ptx::named_barrier_sync(pipeline::kFirstKeyGroupId + static_cast<int>(threadIdx.x) / 32 / kSharing,
                              kSharing * 32);
    }
    if constexpr (!kEarlyDv) add_to_dv(p16);
    accumulate<kKeyColumns>(dk, ds16, KeyReader(score_gradient, warp_key()),
                            ColumnReader<kConfig.query_rows, kKeyColumns>(queries, warp_part()));
    if (kConfig.accumulate_dq && n > 0 && late) add_dq_before();
    if constexpr (kConfig.stages == 1) {
      __syncthreads();  // nobody reads this tile
      load_bias(load_next(tile, (n + 1) % kMap.kept_tiles, 0));
    }
  }

  bias.finish();
  float dk_factor = p.score_factor, dv_factor = p.probability_factor;
  if constexpr (!kConfig.bfloat16) {
    dk_factor *= power_of_two(exponents.gradient);
    dv_factor *= power_of_two(exponents.probability);
  }
  __syncthreads();  // nobody reads K
  stage_sums<kKeyColumns>(base + kMap.key, dk, dk_factor);
  stage_sums<kValueColumns>(base + kMap.value, dv, dv_factor);
  __syncthreads();
  store_rows<kConfig.head_dim>(rows_of(p.dkey, work.sequence, work.tensor_k + first_key, work.head), base + kMap.key,
                               work);
  store_rows<kConfig.value_dim>(rows_of(p.dvalue, work.sequence, work.tensor_k + first_key, work.head),
                                base + kMap.value, work);
  if constexpr (writes_bias_gradient(kConfig)) {
    clear_unseen(bias, p.call.heads_per_key_head, work.mask.seqlen_q,
                 [&](QueryTile tile) { return Masking::walk(p, shared, work, keys).next(tile); });
  }
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, warploom::kConfig.min_blocks)
    attention_backward(const __grid_constant__ warploom::BackwardParamsOf<warploom::kConfig.user_score != 0> params) {
  extern __shared__ __align__(1024) unsigned char shared[];
  warploom::Work& work = *reinterpret_cast<warploom::Work*>(shared + warploom::kMap.work);
  if (threadIdx.x == 0) work = warploom::work_of(params.call, blockIdx.x, warploom::kConfig.key_rows);
  __syncthreads();
  warploom::Bias::prepare(params, shared, work);
  __syncthreads();
  // One tile a CTA when the schedule knew the longest sequence; a sequence longer than that takes more turns.
  // A bias's gradient may have columns past the keys.
  while (work.first_row < warploom::Bias::columns(params, shared, work)) {
    constexpr bool kWrites = warploom::writes_bias_gradient(warploom::kConfig);
    if (!kWrites || work.first_row < work.slot_k) {
      warploom::differentiate(params, shared, work);
    } else if constexpr (kWrites) {
      warploom::clear_unseen(warploom::Bias(params, shared, work), params.call.heads_per_key_head, 0,
                             [](warploom::QueryTile) { return warploom::QueryTile{-1, 0}; });
    }
    __syncthreads();  // the next tile's K comes where this one's dK was staged
    if (threadIdx.x == 0) {
      work.first_row += static_cast<long long>(params.call.schedule.query_tiles) * warploom::kConfig.key_rows;
    }
    __syncthreads();
  }
}
