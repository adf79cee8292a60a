// Attention backward for Hopper (sm_90a) in one pass, for heads up to 128 wide: dK and dV, and sums for dQ, under any
// mask, HSTU and softmax.
//
// A persistent CTA takes work items (128 keys of one key head of one sequence) from a device counter, longest first:
// its producer loads K and V once and then the tiles of queries that see them, Q and dO, by TMA. Each of two consumer
// warpgroups owns 64 of the keys. Scores are computed with keys along their rows, S^T = K Q^T and dP^T = V dO^T, so
// that packed P^T and dS^T are A operands of dV += P^T dO and dK += dS^T Q as they stand. dQ += dS K needs the dS of
// both warpgroups, through shared memory: it is computed one tile late, so that neither waits for the other, each its
// half of the queries or of the head's columns, and added in global memory. pipeline/backward_protocols.h describes the
// barriers as `hopper_backward`, and the protocol checker checks them.
//
// The text before this file defines warploom::kConfig, a HopperBackwardConfig.
#include "attention/hopper_backward_bias.h"
#include "attention/hopper_backward_producer.h"
#include "attention/hopper_backward_scores.h"
#include "attention/hopper_backward_shared.h"
#include "attention/hopper_backward_steps.h"
#include "attention/hopper_store.h"
#include "geometry/wgmma_descriptor.h"
#include "ptx/fence.h"
#include "ptx/reduction.h"
#include "ptx/registers.h"
#include "ptx/warpgroup_registers.h"
#include "ptx/wgmma.h"

namespace warploom {

static_assert(kConfig.consumers == 2 && kKeys == 128 && (kQueries == 64 || kQueries == 128));
static_assert(kConfig.head_dim <= (kQueries == 128 ? 64 : 128));
// A gradient's tile is the one that dQ is computed from, which float16 with its exponents is not.
static_assert(kConfig.dense_bias ? kConfig.bfloat16 && kConfig.accumulate_dq : !kConfig.bias_gradient);

constexpr int kDqGradientStep = kDqByRows ? 64 * kRowBytes : 0;  // bytes of dS from one consumer's part to the other's
constexpr int kDqKeyStep = kDqByRows ? 0 : kDqColumns == 64 ? kKeys * kRowBytes : kDqColumns * 2;  // bytes of K

/// Where registers are scarcest, addresses are computed where they are needed and not kept through the loop.
constexpr bool kFewRegisters = !kConfig.bfloat16 || kQueries == 128;

__device__ __forceinline__ int thread_of_warpgroup() {
  return static_cast<int>(kFewRegisters ? ptx::opaque(threadIdx.x) : threadIdx.x) % kWarpgroup;
}

struct Consumer {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int who;

  ItemRing::Cursor item_at;
  KeyRing::Cursor key_at;
  TileRing::Cursor at;
  ScoreRing::Cursor score_at;

  float dk[kConfig.head_dim / 2];
  float dv[kConfig.value_dim / 2];
  WarpExponents exponents;

  /// Starts this consumer's columns of dS K, over Count times 16 keys of the item.
  template <int Count>
  __device__ __forceinline__ void issue_dq(float (&dq)[kDqColumns / 2], int buffer, int first_k = 0) {
    const uint32 gradient = geometry::descriptor_low(shared.score_tile(buffer) + who * kDqGradientStep) +
                            geometry::k_major_step(kQueries, first_k * 16);
    const uint32 key =
        geometry::descriptor_low(shared.key() + who * kDqKeyStep) + geometry::transposed_step(first_k * 16);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Count; ++k) {
      ptx::wgmma_ss<Element, kDqColumns, true>(dq, gradient + geometry::k_major_step(kQueries, k * 16),
                                               key + geometry::transposed_step(k * 16), k > 0);
    }
    ptx::wgmma_commit_group();
  }

  /// Adds this consumer's columns of dQ to their sums, in the order of its accumulators.
  __device__ __forceinline__ void add_dq(const float (&dq)[kDqColumns / 2], int dq_tile) {
    constexpr int kBlocks = kConfig.head_dim / 8, kFloats = 128;  // of a row of blocks; of a block of 16 x 8
    const int thread = thread_of_warpgroup();
    const int first_row = (kDqByRows ? who * 4 : 0) + thread / 32,
              first_column = kDqByRows ? 0 : who * (kDqColumns / 8);
    float* const sums = params.backward.dq_sums + static_cast<long long>(dq_tile) * (kQueries * kConfig.head_dim) +
                        (first_row * kBlocks + first_column) * kFloats + thread % 32 * 4;
#pragma unroll
    for (int n = 0; n < kDqColumns / 8; ++n) {
      if (kDqByRows || kConfig.head_dim == 2 * kDqColumns || first_column + n < kBlocks) {
        ptx::red_add_4(sums + n * kFloats, reinterpret_cast<const float(&)[4]>(dq[4 * n]));
      }
    }
  }

  /// After the products with a score tile; in float16 every lane has read its exponents.
  __device__ __forceinline__ void release_scores(const ScoreRing::Cursor& tile) const {
    if (!kConfig.bfloat16 || threadIdx.x % kWarpgroup == 0) {
      if constexpr (kConfig.bias_gradient) ptx::bulk_wait_group_read<0>();
      shared.scores.release(tile);
    }
  }

  /// This consumer's keys of a score tile to the bias's gradient, whose tile it is.
  __device__ __forceinline__ void store_bias_gradient(const ScoreRing::Cursor& tile) const {
    if (threadIdx.x % kWarpgroup >= 32) return;
    const int buffer = tile.slot();
    const volatile BiasTileNote& note = shared.bias_note(buffer, who);
    const Work& work = shared.item(item_at.slot()).work;
    store_panel(params, {static_cast<int>(work.first_row) + who * 64, note.row, note.head, work.sequence},
                shared.score_tile(buffer) + who * kQueries * kRowBytes, threadIdx.x % 32);
  }

  /// float16: whether a warp's part of dS was divided.
  __device__ __forceinline__ bool is_scaled(int buffer) const {
    int bits = 0;
    for (int warp = 0; warp < kKeys / 16; ++warp) bits |= shared.exponent(buffer, warp);
    return bits != 0;
  }

  /// dQ of the tile before, alone.
  __device__ __forceinline__ void finish_dq(int dq_tile) {
    const ScoreRing::Cursor before = score_at.before();
    shared.scores.wait_full(before);
    if constexpr (kConfig.bias_gradient) store_bias_gradient(before);
    float dq[kDqColumns / 2];
    if (!kConfig.bfloat16 && is_scaled(before.slot())) {
      // Part after part, each multiplied.
#pragma unroll 1
      for (int k = 0; k < kKeys / 16; ++k) {
        issue_dq<1>(dq, before.slot(), k);
        ptx::wgmma_wait_group<0>(dq);
        scale_all(dq, power_of_two(shared.exponent(before.slot(), k)));
        add_dq(dq, dq_tile);
      }
      release_scores(before);
    } else {
      issue_dq<kKeys / 16>(dq, before.slot());
      ptx::wgmma_wait_group<0>(dq);
      release_scores(before);
      add_dq(dq, dq_tile);
    }
  }

  /// The warp's dS of some queries into the score tile.
  template <int Rows>
  __device__ __forceinline__ void write_scores(const PackedScores<Rows>& ds, int first_query) const {
    const int warp = thread_of_warpgroup() / 32;
    store_transposed(shared.score_tile(score_at.slot()), kQueries, first_query, who * 64 + warp * 16, ds);
  }
  __device__ __forceinline__ void publish_scores() const {
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.scores.publish(score_at);
  }

  /// The warp's part of dS to both consumers.
  __device__ __forceinline__ void hand_over(const PackedScores<kQueries>& ds) {
    const int warp = thread_of_warpgroup() / 32, buffer = score_at.slot();
    shared.scores.wait_empty(score_at);
    write_scores<kQueries>(ds, 0);
    if constexpr (!kConfig.bfloat16) {
      if (threadIdx.x % 32 == 0) shared.exponent(buffer, who * 4 + warp) = exponents.gradient;
    }
    if constexpr (kConfig.bias_gradient) {
      if (threadIdx.x % kWarpgroup == 0) {  // the stage will have been released
        shared.bias_note(buffer, who).row = shared.bias_note(at.slot()).row;
        shared.bias_note(buffer, who).head = shared.bias_note(at.slot()).head;
      }
    }
    publish_scores();
  }

  /// The words of the keys that the warp's are among (for_each_visible).
  __device__ __forceinline__ const uint32* visible_of(int stage, int warp) const {
    return shared.visible(stage) + (who * 2 + warp / 2) * kQueries;
  }

  /// One query tile, whose Q and dO have come, and dQ of the one before. Returns the tile's number among dQ's sums.
  template <bool IsFirst>
  __device__ __forceinline__ int step(int flags, int dq_tile_before) {
    const int stage = at.slot();
    const int warp = thread_of_warpgroup() / 32;
    Shared here = shared;
    if constexpr (kFewRegisters) here.address = ptx::opaque(here.address);
    const uint32 query = geometry::descriptor_low(here.query(stage), kQueries * kRowBytes);
    const uint32 dout = geometry::descriptor_low(here.dout(stage), kQueries * kRowBytes);
    TransposedScores<kQueries> s, dp;
    {
      const uint32 key = geometry::descriptor_low(here.key() + who * 64 * kRowBytes);
      const uint32 value = geometry::descriptor_low(here.value() + who * 64 * kRowBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        ptx::wgmma_ss<Element, kQueries>(flat(s), key + geometry::k_major_step(kKeys, k * 16),
                                         query + geometry::k_major_step(kQueries, k * 16), k > 0);
      }
#pragma unroll
      for (int k = 0; k < kValueDepth; ++k) {
        ptx::wgmma_ss<Element, kQueries>(flat(dp), value + geometry::k_major_step(kKeys, k * 16),
                                         dout + geometry::k_major_step(kQueries, k * 16), k > 0);
      }
      ptx::wgmma_commit_group();
    }
    ptx::wgmma_wait_group<0>(flat(s), flat(dp));

    apply_score<kConfig.softmax, kConfig.softcap, !kConfig.bfloat16, kConfig.scaled_key, false>(
        params.backward.call, s, dp, shared.row_terms(stage));
    PackedScores<kQueries> p, ds;
    const bool is_masked = (flags & kQueryTileMasked) != 0;
    const uint32* const visible = visible_of(stage, warp);
    const int first_bit = warp % 2 * 16;
    if constexpr (!kConfig.bfloat16) {
      // Before the exponents: they must not depend on what is invisible.
      if (is_masked) hide_invisible(visible, first_bit, s, dp);
      if constexpr (!kConfig.softmax) fit_float16(flat(s), dv, exponents.probability);  // else at most 1
      fit_float16(flat(dp), dk, exponents.gradient);
    }
    pack_scores<Element>(p, s);
    pack_scores<Element>(ds, dp);
    if constexpr (kConfig.bfloat16) {
      if (is_masked)
        for_each_visible<kQueries>(visible, first_bit, [&](int k, int i, uint32 mask) {
          p[k][i] &= mask;
          ds[k][i] &= mask;
        });
    }

    if constexpr (kConfig.accumulate_dq) hand_over(ds);
    const int dq_tile = shared.note(stage).dq_tile;

    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      ptx::wgmma_rs<Element, kConfig.value_dim, true>(dv, p[k], dout + geometry::transposed_step(k * 16),
                                                      !IsFirst || k > 0);
    }
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      ptx::wgmma_rs<Element, kConfig.head_dim, true>(dk, ds[k], query + geometry::transposed_step(k * 16),
                                                     !IsFirst || k > 0);
    }
    ptx::wgmma_commit_group();
    if constexpr (IsFirst || !kConfig.bfloat16 || !kConfig.accumulate_dq) {
      ptx::wgmma_wait_group<0>(dk, dv);
      free_barrier_arrive(at.slot());
      if constexpr (kConfig.accumulate_dq && !IsFirst) finish_dq(dq_tile_before);
    } else {
      const ScoreRing::Cursor before = score_at.before();
      shared.scores.wait_full(before);
      float dq[kDqColumns / 2];
      issue_dq<kKeys / 16>(dq, before.slot());
      ptx::wgmma_wait_group<1>(dk, dv);
      free_barrier_arrive(at.slot());
      ptx::wgmma_wait_group<0>(dq);
      release_scores(before);
      add_dq(dq, dq_tile_before);
    }
    at.advance();
    score_at.advance();
    return dq_tile;
  }

  template <bool IsFirst>
  __device__ __forceinline__ int step_of_form(int flags, int dq_tile_before) {
    if constexpr (!kOverlaps) {
      return step<IsFirst>(flags, dq_tile_before);
    } else if constexpr (kDqByRows) {
      return step_in_halves<IsFirst>(*this, flags, dq_tile_before);
    } else {
      return overlapped_step<IsFirst>(*this, flags, dq_tile_before);
    }
  }

  /// Multiplies this consumer's keys by alpha / 2, a power of two, where they lie. dQ's factor lacks it then.
  __device__ __forceinline__ void scale_keys() {
    const float factor = 0.5f * params.backward.call.alpha;
    const uint32 factors = ptx::pack<ptx::Bfloat16>(factor, factor);
    const uint32 rows = shared.key() + who * 64 * kRowBytes;
    constexpr int kPanels = geometry::panels_of(kConfig.head_dim);
#pragma unroll 4
    for (int i = threadIdx.x % kWarpgroup * geometry::kChunkBytes; i < 64 * kRowBytes;
         i += kWarpgroup * geometry::kChunkBytes) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const uint32 at_chunk = rows + panel * kKeys * kRowBytes + i;
        uint4 k = ptx::load_shared_16(at_chunk);
        k.x = ptx::multiply_bfloat16(k.x, factors);
        k.y = ptx::multiply_bfloat16(k.y, factors);
        k.z = ptx::multiply_bfloat16(k.z, factors);
        k.w = ptx::multiply_bfloat16(k.w, factors);
        ptx::store_shared_16(at_chunk, k);
      }
    }
    ptx::fence_proxy_async_shared();
    ptx::named_barrier_sync(pipeline::kFirstWarpgroupId + who, kWarpgroup);
  }

  /// dK and dV of the item in item_at; zeros for keys that the sequence has slots for, but no rows, and for an item
  /// that no query sees.
  __device__ __forceinline__ void store_gradients(bool is_seen) {
    const Work& work = shared.item(item_at.slot()).work;
    float key_factor = params.backward.score_factor, value_factor = params.backward.probability_factor;
    if constexpr (!kConfig.bfloat16) {
      key_factor *= power_of_two(exponents.gradient);
      value_factor *= power_of_two(exponents.probability);
    }
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x)) % kWarpgroup;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long row = work.first_row + who * 64 + thread / 32 * 16 + thread % 32 / 4 + half * 8;
      const bool used = is_seen && row < work.mask.seqlen_k, writes = row < work.slot_k;
      const long long tensor_row = work.tensor_k + row;
      store_row<Element, kConfig.head_dim>(rows_of(params.backward.dkey, work.sequence, tensor_row, work.head).data, dk,
                                           half, key_factor, used, writes);
      store_row<Element, kConfig.value_dim>(rows_of(params.backward.dvalue, work.sequence, tensor_row, work.head).data,
                                            dv, half, value_factor, used, writes);
    }
  }

  /// The item in item_at.
  __device__ __forceinline__ void walk() {
    shared.tiles.wait_full(at);
    int flags = shared.note(at.slot()).flags;
    const bool is_seen = (flags & kQueryTileSeen) != 0;
    if (is_seen) {
      exponents = {};
      shared.keys.wait_full(key_at);
      if constexpr (kConfig.scaled_key) scale_keys();
      int dq_tile = step_of_form<true>(flags, 0);
      while ((flags & kQueryTileLast) == 0) {
        shared.tiles.wait_full(at);
        flags = shared.note(at.slot()).flags;
        dq_tile = step_of_form<false>(flags, dq_tile);
      }
      if constexpr (kConfig.accumulate_dq) finish_dq(dq_tile);
      shared.keys.release(key_at);
      key_at.advance();
    } else {
      free_barrier_arrive(at.slot());
      at.advance();
    }
    store_gradients(is_seen);
    shared.items.release(item_at);
  }

  __device__ __forceinline__ void run() {
    if (who == kConfig.consumers - 1) pass_turn(who);
    for (;; item_at.advance()) {
      shared.items.wait_full(item_at);
      if (shared.item(item_at.slot()).is_end) break;
      walk();
    }
    if (who == 0) take_turn(who);  // the barriers end as they began
  }
};

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, 1)
    attention_backward_hopper(const __grid_constant__ warploom::HopperBackwardParams params) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const Shared shared(dynamic);
  if (threadIdx.x == 0) {
    constexpr uint32 kReaders = kConfig.consumers * kWarpgroup;
    shared.items.init(kReaders + 32 * (1 + kConfig.bias_gradient));  // and the loader, and who clears
    shared.keys.init(kReaders, 32);
    shared.tiles.init(1, 32);
    shared.scores.init(kConfig.bfloat16 ? kConfig.consumers : kReaders, kReaders / 32);
    ptx::mbarrier_init(shared.request, 1);
    ptx::mbarrier_init(shared.landing, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == kConfig.consumers) {
    ptx::setmaxnreg_dec<kSplits && !kConfig.dense_bias ? 24 : 40>();
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) % kWarpgroup / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (warp == 0) {
      Scheduler scheduler{params, shared, lane, {}};
      scheduler.run();
    } else if (warp == 1) {
      Loader loader{params, shared, lane, {}, {}};
      loader.run();
    } else if (kConfig.bias_gradient && warp == 2) {
      const Clearer clearer{params, shared, lane};
      clearer.run();
    }
  } else {
    ptx::setmaxnreg_inc<kSplits && !kConfig.dense_bias ? 240 : 232>();
    Consumer consumer{params, shared, warpgroup};
    consumer.run();
  }
}
