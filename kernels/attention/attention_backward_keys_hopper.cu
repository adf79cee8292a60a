// dK and dV of attention backward for Hopper (sm_90a): HSTU and softmax, under any mask, repeatable bit for bit.
//
// A persistent CTA takes work items (64 keys of one key head of one sequence) from a device counter, longest first, and
// walks the tiles of 64 queries that see them, for each query head that shares the key head. Two consumer warpgroups
// divide the four products: the first computes S^T = K Q^T, P^T from it, and
// dV += P^T dO; the second dP^T = V dO^T, dS^T from it and the slope, and dK += dS^T Q. So each holds one gradient
// whole, P and dS stay in registers as operands, and the scores (softmax: P) are all that goes between them, in shared
// memory, each thread's to the thread with the same place. A product of the tile before is always beside a consumer's
// scores. pipeline/attention_protocols.h describes the barriers as `hopper_keys`, and the protocol checker checks them.
//
// The text before this file defines warploom::kConfig, a HopperBackwardKeysConfig.
#include "attention/backward_score.h"
#include "attention/hopper_backward_keys_producer.h"
#include "attention/hopper_backward_scores.h"
#include "attention/hopper_store.h"
#include "geometry/wgmma_descriptor.h"
#include "pipeline/turns.h"
#include "ptx/registers.h"
#include "ptx/warpgroup_registers.h"
#include "ptx/wgmma.h"

namespace warploom {

/// What is handed on where the query does not see the key: a NaN that no instruction makes.
constexpr uint32 kHiddenSlope = 0x7fc0deadu;

/// Consumer `Side`: its scores are the resident tile times its own ring's tiles, its sums what comes of them times the
/// other ring's.
template <int Side>
struct Consumer {
  static constexpr int kDepth = ((Side == 0 ? kConfig.head_dim : kConfig.value_dim) + 15) / 16;
  static constexpr int kWidth = Side == 0 ? kConfig.value_dim : kConfig.head_dim;
  static constexpr int kOther = 1 - Side;
  /// dK's product is issued as soon as dS is packed, which frees its Q tile early, and ends in the next step; with
  /// float16, whose exponents touch the sums, ptxas would serialise that. dV's goes beside the next S, which is urgent.
  static constexpr bool kSumsAtOnce = Side == 1 && kConfig.bfloat16;
  const HopperBackwardParams& params;
  const Shared& shared;

  uint32 items = 0;  // passed
  uint32 tiles = 0;  // passed, of either ring; what is pending is of the tile before
  ResidentRing::Cursor resident_at;
  uint32 slopes = 0;  // passed

  float sums[kWidth / 2];
  uint32 packed[kRows / 16][4];  // P^T or dS^T
  bool pending = false;          // packed waits for its product
  bool starts = false;           // that product starts an item's sums
  bool finishing = false;        // that product ends the item before
  bool has_sums = false;         // the current item has had a step
  int exponent = 0;              // float16: sums and packed are divided by 2^exponent

  __device__ __forceinline__ ItemRing::Cursor item_at() const { return {items}; }
  __device__ __forceinline__ TileRing::Cursor tile_at() const { return {tiles}; }

  /// A warp's arrival.
  template <typename Ring>
  __device__ __forceinline__ void release(const Ring& ring, typename Ring::Cursor at) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring.release(at);
  }

  /// Starts sums += packed B, where packed is of the tile `at`. Where nothing is pending, what comes of it is never
  /// used.
  __device__ __forceinline__ void issue_sums(TileRing::Cursor at) {
    const uint32 tile = shared.tile(kOther, at.slot());
    if (pending) {
      shared.tiles[kOther].wait_full(at);
      const int rows = shared.note(kOther, at.slot()).rows;
      if (rows < kRows) zero_rows<kRows, kWidth>(tile, rows, pipeline::kFirstWarpgroupId + Side);
    }
    const uint32 b = geometry::descriptor_low(tile, kRows * geometry::kPanelRowBytes);
    ptx::wgmma_fence();  // after a branch, or ptxas adds its own and serialises
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
      ptx::wgmma_rs<Element, kWidth, true>(sums, packed[k], b + geometry::transposed_step(k * 16), k > 0 || !starts);
    }
    ptx::wgmma_commit_group();
  }

  /// After the product has ended.
  __device__ __forceinline__ void sums_done() {
    if (pending) release(shared.tiles[kOther], tile_at().before());
    pending = false;
  }

  /// Writes an item's gradients and lets it go.
  __device__ __forceinline__ void end_item(ItemRing::Cursor at, bool is_empty) {
    const BackwardParams& p = params.backward;
    const Work& work = shared.item(at.slot()).work;
    float factor = Side == 0 ? p.probability_factor : p.score_factor;
    if constexpr (!kConfig.bfloat16) factor *= power_of_two(exponent);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long row = work.first_row + accumulator_row() + half * 8;
      char* const to =
          const_cast<char*>(rows_of(Side == 0 ? p.dvalue : p.dkey, work.sequence, work.tensor_k + row, work.head).data);
      store_row<Element, kWidth>(to, sums, half, factor, row < work.mask.seqlen_k && !is_empty, row < work.slot_k);
    }
    shared.items.release(at);
    finishing = false;
  }

  __device__ __forceinline__ void issue_scores(float (&s)[kRows / 2]) {
    // Opaque, or its steps would be computed before the loop and kept through it.
    const uint32 a = ptx::opaque(geometry::descriptor_low(shared.resident(Side)));
    const uint32 b = geometry::descriptor_low(shared.tile(Side, tile_at().slot()));
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      ptx::wgmma_ss<Element, kRows>(s, a + geometry::k_major_step(kRows, k * 16),
                                    b + geometry::k_major_step(kRows, k * 16), k > 0);
    }
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ volatile QueryTilePlace& place() const { return shared.note(Side, tile_at().slot()); }

  /// What the score function reads of the queries 8 n + 2 (lane mod 4) and the next.
  __device__ __forceinline__ float2 terms_of(int n) const {
    return ptx::load_shared_float2(shared.terms(Side, tile_at().slot()) + n * 32 + threadIdx.x % 4 * 8);
  }

  // The slopes' slots, by named barriers of both consumers' threads.

  __device__ __forceinline__ int slope_slot() const { return static_cast<int>(slopes % kMap.slope_slots); }
  __device__ __forceinline__ uint32 slope_place(int n) const {
    return shared.slope(slope_slot()) + n * (kWarpgroup * 16) + threadIdx.x % kWarpgroup * 16;
  }

  // The score function. HSTU: side 0 hands on h = z / 2, from which either consumer computes what it needs, one P, the
  // other the slope, at the same time. Softmax: it hands on P, or P times the cap's slope.

  /// Softmax: S^T to P^T, in place, and what side 1 multiplies with. In parts: many at a time hide the latency of what
  /// they wait for, all of them would take too many registers.
  template <int First = 0>
  __device__ __forceinline__ void apply_softmax_and_hand_on(float (&s)[kRows / 2]) {
    const AttentionCall& call = params.backward.call;
    constexpr int kBlocks = kRows / (kConfig.softcap ? 32 : 16);
    float2 lse[kBlocks];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) lse[n] = terms_of(First + n);
    float slope[kBlocks][4];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[4 * (First + n) + i];
        const float of_query = i % 2 == 0 ? lse[n].x : lse[n].y;
        slope[n][i] = 1;  // times P, and the cap's slope
        if constexpr (kConfig.softcap) {
          softmax_capped_slope(call.alpha / call.softcap, call.softcap, of_query, 0, x, slope[n][i]);
        } else {
          softmax_slope(call.alpha, of_query, 0, x, slope[n][i]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) ptx::store_shared_float4(slope_place(First + n), slope[n]);
    if constexpr (First + kBlocks < kRows / 8) apply_softmax_and_hand_on<First + kBlocks>(s);
  }

  /// HSTU with a divisor a row: multiplies by its inverse.
  __device__ __forceinline__ void divide(float (&x)[kRows / 2]) const {
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
      const float2 divisor = terms_of(n);
      const float over[2] = {over_divisor(divisor.x), over_divisor(divisor.y)};
#pragma unroll
      for (int i = 0; i < 4; ++i) x[4 * n + i] *= over[i % 2];
    }
  }

  /// Side 0: S^T to P^T, in place.
  __device__ __forceinline__ void activate(float (&s)[kRows / 2], int flags) {
    const AttentionCall& call = params.backward.call;
    const bool partial = (flags & kQueryTileMasked) != 0;
    uint32 hidden = 0;
    if (partial) {
      hidden = hidden_scores(call, shared.item(item_at().slot()).work, place().head, place().first_query);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        if ((hidden >> i & 1) != 0) s[i] = 0;  // what is hidden must not decide how the rest is computed
      }
    }
    bool exact = !kConfig.bfloat16;
    if constexpr (!kConfig.softmax) {
      if constexpr (!kConfig.scaled_key) {
        const float half_alpha = 0.5f * call.alpha;
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) s[i] *= half_alpha;
      }
      if constexpr (kConfig.bfloat16) {
        exact = __any_sync(kAllLanes, any_below_tanh_limit(reinterpret_cast<float(&)[1][kRows / 8][4]>(s)));
      }
    }
    ptx::named_barrier_sync(pipeline::kFirstSlopeEmptyId + slope_slot(), 2 * kWarpgroup);
    if constexpr (kConfig.softmax) {
      apply_softmax_and_hand_on(s);
    } else {
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n) {
        ptx::store_shared_float4(slope_place(n), reinterpret_cast<const float(&)[4]>(s[4 * n]));
      }
      shared.exact(slope_slot()) = exact;
    }
    if (partial) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        if ((hidden >> i & 1) != 0) ptx::store_shared_4(slope_place(i / 4) + i % 4 * 4, kHiddenSlope);
      }
    }
    ptx::named_barrier_arrive(pipeline::kFirstSlopeFullId + slope_slot(), 2 * kWarpgroup);
    ++slopes;
    if constexpr (!kConfig.softmax) {
      if (exact) {
#pragma unroll
        for (float& x : s) x = silu_of_half_exact(x);
      } else {
#pragma unroll
        for (float& x : s) x = silu_of_half(x);
      }
      if (call.divisor_rows != nullptr) divide(s);
    }
    if (partial) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        if ((hidden >> i & 1) != 0) s[i] = 0;
      }
    }
  }

  /// Side 1: dP^T to dS^T, in place, by a function of it and what side 0 has handed on. In two halves, as above.
  template <bool Exact, bool Partial>
  __device__ __forceinline__ void differentiate_as(float (&dp)[kRows / 2]) {
    constexpr int kBlocks = kRows / 16;
#pragma unroll
    for (int first = 0; first < kRows / 8; first += kBlocks) {
      float given[kBlocks][4];
      float2 delta[kBlocks];
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) ptx::load_shared_float4(given[n], slope_place(first + n));
      if constexpr (kConfig.softmax) {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) delta[n] = terms_of(first + n);
      }
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = dp[4 * (first + n) + i];
          float probability;
          if constexpr (kConfig.softmax) {
            x = (x - (i % 2 == 0 ? delta[n].x : delta[n].y)) * given[n][i];
          } else if constexpr (Exact) {
            hstu_slope_exact(given[n][i], probability, x);
          } else {
            hstu_slope(given[n][i], probability, x);
          }
          if (Partial && __float_as_uint(given[n][i]) == kHiddenSlope) x = 0;
        }
      }
    }
  }

  __device__ __forceinline__ void differentiate(float (&dp)[kRows / 2], int flags) {
    ptx::named_barrier_sync(pipeline::kFirstSlopeFullId + slope_slot(), 2 * kWarpgroup);
    const bool exact = !kConfig.softmax && (!kConfig.bfloat16 || shared.exact(slope_slot()) != 0);
    if ((flags & kQueryTileMasked) != 0) {
      if (exact) {
        differentiate_as<true, true>(dp);
      } else {
        differentiate_as<false, true>(dp);
      }
    } else if (exact) {
      differentiate_as<true, false>(dp);
    } else {
      differentiate_as<false, false>(dp);
    }
    ptx::named_barrier_arrive(pipeline::kFirstSlopeEmptyId + slope_slot(), 2 * kWarpgroup);
    ++slopes;
    if constexpr (!kConfig.softmax) {
      if (params.backward.call.divisor_rows != nullptr) divide(dp);
    }
  }

  __device__ __forceinline__ void begin_item() {
    shared.residents[Side].wait_full(resident_at);
    if constexpr (Side == 0 && kConfig.scaled_key) {
      scale_tile<kMap.head_tile_bytes>(shared.resident(Side), 0.5f * params.backward.call.alpha,
                                       pipeline::kFirstWarpgroupId + Side);
    }
  }

  /// Scores of a query tile, with the pending product beside them.
  __device__ __forceinline__ void step(int flags) {
    float s[kRows / 2];
    ptx::wgmma_fence();
    if constexpr (Side == 1 && !kSumsAtOnce) issue_sums(tile_at().before());
    issue_scores(s);
    if constexpr (Side == 0) issue_sums(tile_at().before());
    if constexpr (Side == 1) {
      ptx::wgmma_wait_group<1>(sums);
      sums_done();
      ptx::wgmma_wait_group<0>(s);
    } else {
      ptx::wgmma_wait_group<1>(s);
    }
    if ((flags & kQueryTileLast) != 0) {
      release(shared.residents[Side], resident_at);
      resident_at.advance();
    }
    if constexpr (Side == 0) {
      activate(s, flags);
    } else {
      differentiate(s, flags);
    }
    release(shared.tiles[Side], tile_at());
    if constexpr (Side == 0) {
      ptx::wgmma_wait_group<0>(sums, s);
      sums_done();
    }
    if (finishing) end_item(item_at().before(), false);
    if constexpr (!kConfig.bfloat16 && !(kConfig.softmax && Side == 0)) {  // softmax's P is at most 1
      if (!has_sums) exponent = 0;
      fit_float16(s, sums, exponent);
    }
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) packed[i / 4][i % 4] = ptx::pack<Element>(s[2 * i], s[2 * i + 1]);
    pending = true;
    starts = !has_sums;
    has_sums = true;
    if constexpr (kSumsAtOnce) issue_sums(tile_at());
  }

  /// An item whose keys no query sees, or the end, which has none: finishes the item before, and writes this one's
  /// zeros.
  __device__ __forceinline__ void pass_over() {
    if constexpr (!kSumsAtOnce) issue_sums(tile_at().before());
    ptx::wgmma_wait_group<0>(sums);
    sums_done();
#pragma unroll 1
    for (int empty = finishing ? 0 : 1; empty < 2; ++empty) {
      end_item(empty == 0 ? item_at().before() : item_at(), empty == 1);
    }
    shared.tiles[kOther].wait_full(tile_at());  // the other ring has such a tile too
    release(shared.tiles[Side], tile_at());
    release(shared.tiles[kOther], tile_at());
  }

  __device__ __forceinline__ void run() {
    if (Side == 1) {
      for (int slot = 0; slot < kMap.slope_slots; ++slot) {
        ptx::named_barrier_arrive(pipeline::kFirstSlopeEmptyId + slot, 2 * kWarpgroup);
      }
    }
    walk();
    if (Side == 0) {  // the barriers end as they began
      for (int slot = 0; slot < kMap.slope_slots; ++slot) {
        ptx::named_barrier_sync(pipeline::kFirstSlopeEmptyId + slot, 2 * kWarpgroup);
      }
    }
  }

  __device__ __forceinline__ void walk() {
    for (;; ++items) {
      shared.items.wait_full(item_at());
      has_sums = false;
      for (bool is_last = false; !is_last; ++tiles) {
        shared.tiles[Side].wait_full(tile_at());
        const int flags = place().flags;
        is_last = (flags & kQueryTileLast) != 0;
        if ((flags & kQueryTileSeen) == 0) {
          const bool is_end = shared.item(item_at().slot()).is_end;
          pass_over();
          if (is_end) return;
        } else {
          if (!has_sums) begin_item();
          step(flags);
        }
      }
      finishing = has_sums;
    }
  }
};

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, 1)
    attention_backward_keys_hopper(const __grid_constant__ warploom::HopperBackwardParams params) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const Shared shared(dynamic);
  if (threadIdx.x == 0) {
    constexpr int kWarps = kWarpgroup / 32;
    // Every thread arrives for itself: tools that look for races do not see what __syncwarp orders before an arrival.
    shared.items.init(kConsumers * kWarpgroup + 2 * 32);  // the consumers and the loaders
    for (int side = 0; side < kConsumers; ++side) {
      shared.residents[side].init(kWarps);
      shared.tiles[side].init(kConsumers * kWarps, 1 + 32);  // TMA, and the lanes' copies of the terms
    }
    ptx::mbarrier_init(shared.request, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (warpgroup == kConsumers) {
    ptx::setmaxnreg_dec<40>();
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) % kWarpgroup / 32, 0);
    if (warp == 0) {
      hand_out_items<kRows, true>(params.backward.call, params.counters, shared, lane,
                                  PrepareItem{params.backward.call});
    } else if (warp == 1) {
      Loader<0>{params, shared, lane, {}, {}}.run();
    } else if (warp == 2) {
      Loader<1>{params, shared, lane, {}, {}}.run();
    }
  } else {
    ptx::setmaxnreg_inc<232>();
    if (warpgroup == 0) {
      Consumer<0> consumer{params, shared};
      consumer.run();
    } else {
      Consumer<1> consumer{params, shared};
      consumer.run();
    }
  }
}
