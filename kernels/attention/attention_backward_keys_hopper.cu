// dK and dV of attention backward for Hopper (sm_90a): HSTU and softmax, under any mask, repeatable bit for bit.
//
// A persistent CTA takes work items (64 keys of one key head of one sequence) from a device counter, longest first, and
// walks the tiles of queries that see them, for each query head that shares the key head. Two consumer warpgroups
// hold one gradient each: the first dV += P^T dO, the second dK += dS^T Q. The scores are divided tile by tile: a
// tile's owner, the consumers in turn, computes S^T = K Q^T and dP^T = V dO^T, and of them P^T and dS^T. One of these
// stays in its registers as the operand of its own gradient, the other goes to the other consumer through shared
// memory, 16 bits a value. So while one consumer computes scores, the other's products keep the tensor core.
// pipeline/two_kernel_protocols.h describes the barriers as `hopper_keys`, and the protocol checker checks them.
//
// The text before this file defines warploom::kConfig, a HopperBackwardKeysConfig.
#include "attention/backward_score.h"
#include "attention/hopper_backward_keys_producer.h"
#include "attention/hopper_backward_scores.h"
#include "attention/hopper_bias_elements.h"
#include "attention/hopper_store.h"
#include "geometry/wgmma_descriptor.h"
#include "pipeline/turns.h"
#include "ptx/registers.h"
#include "ptx/warpgroup_registers.h"
#include "ptx/wgmma.h"

namespace warploom {

using Values = float[kQueries / 2];
using Packed = uint32[kQueries / 16][4];

constexpr bool kFewRegisters = kConfig.softcap || kConfig.interval_mask || !kConfig.bfloat16;

/// Where registers are scarce, opaque: or addresses would be computed before the loop and kept through it.
__device__ __forceinline__ int thread_of_warpgroup() {
  return static_cast<int>(kFewRegisters || kConfig.stored_bias ? ptx::opaque(threadIdx.x) : threadIdx.x) % kWarpgroup;
}

/// The consumer that sums dV (Side 0, from the tiles of ring 1) or dK (Side 1, of ring 0).
template <int Side>
struct Consumer : trace::Pen<kConfig.trace> {
  static constexpr int kDepth = (kConfig.head_dim + 15) / 16, kValueDepth = (kConfig.value_dim + 15) / 16;
  static constexpr int kWidth = Side == 0 ? kConfig.value_dim : kConfig.head_dim;
  static constexpr int kOther = 1 - Side;
  static constexpr int kProduct = BackwardKeysMarks::value_product + Side;
  const HopperBackwardParams& params;
  const Shared& shared;

  uint32 items = 0;  // whose sums are not complete: the first one
  uint32 tiles = 0;  // summed
  ResidentRing::Cursor resident_at;
  float sums[kWidth / 2];
  bool starts = true;      // the next tile is its item's first
  bool finishing = false;  // the item before `items` has its sums, and is to be written
  int exponent = 0;        // float16: sums are divided by 2^exponent

  /// A warp's arrival.
  template <typename Ring>
  __device__ __forceinline__ void release(const Ring& ring, typename Ring::Cursor at) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring.release(at);
  }

  __device__ __forceinline__ void wait_tile(TileRing::Cursor at) const {
    mark_step(Mark::wait_full, BackwardKeysMarks::queries, at.passed);
    shared.tiles[0].wait_full(at);
    mark_step(Mark::wait_full, BackwardKeysMarks::douts, at.passed);
    shared.tiles[1].wait_full(at);
  }

  __device__ __forceinline__ void release_residents() {
    release(shared.residents[0], resident_at);
    release(shared.residents[1], resident_at);
    resident_at.advance();
  }

  /// Writes an item's gradients and lets it go.
  __device__ __forceinline__ void end_item(ItemRing::Cursor at, bool is_empty) {
    mark(Mark::epilogue, BackwardKeysMarks::items, at.passed);
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
  }
  __device__ __forceinline__ void finish() {
    if (finishing) end_item({items - 1}, false);
    finishing = false;
  }

  /// Before a product with a tile of the sums' ring: rows past the sequence's end are another's, and 0 * NaN is not 0.
  __device__ __forceinline__ void clean(TileRing::Cursor at) const {
    const int rows = shared.note(kOther, at.slot()).rows;
    if (rows < kQueries) {
      zero_rows<kQueries, kWidth>(shared.tile(kOther, at.slot()), rows, pipeline::kFirstWarpgroupId + Side);
    }
  }

  __device__ __forceinline__ uint32 sums_operand(TileRing::Cursor at) const {
    return geometry::descriptor_low(shared.tile(kOther, at.slot()), kQueries * geometry::kPanelRowBytes);
  }

  /// float16: the sums take the exponent of what is added to them next.
  __device__ __forceinline__ void adapt_sums(int added) {
    if constexpr (!kConfig.bfloat16) {
      if (!starts && added != exponent) scale_all(sums, power_of_two(exponent - added));
      exponent = added;
    }
  }

  __device__ __forceinline__ void issue_scores(Values& s, Values& dp, int slot) const {
    // Opaque, or the steps would be computed before the loop and kept through it.
    const uint32 key = ptx::opaque(geometry::descriptor_low(shared.resident(0)));
    const uint32 value = ptx::opaque(geometry::descriptor_low(shared.resident(1)));
    const uint32 query = geometry::descriptor_low(shared.tile(0, slot));
    const uint32 dout = geometry::descriptor_low(shared.tile(1, slot));
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      ptx::wgmma_ss<Element, kQueries>(s, key + geometry::k_major_step(kKeys, k * 16),
                                       query + geometry::k_major_step(kQueries, k * 16), k > 0);
    }
#pragma unroll
    for (int k = 0; k < kValueDepth; ++k) {
      ptx::wgmma_ss<Element, kQueries>(dp, value + geometry::k_major_step(kKeys, k * 16),
                                       dout + geometry::k_major_step(kQueries, k * 16), k > 0);
    }
    ptx::wgmma_commit_group();
  }

  /// S^T and dP^T to P^T and dS^T, in place, of some of the queries: Blocks blocks of 8 from `First` on.
  template <int First, int Blocks>
  __device__ __forceinline__ void apply_score(Values& s, Values& dp, int slot) const {
    using Part = float[1][Blocks][4];
    Part& score = reinterpret_cast<Part&>(s[4 * First]);
    Part& gradient = reinterpret_cast<Part&>(dp[4 * First]);
    const AttentionCall& call = params.backward.call;
    // Of the queries 8 n + 2 (lane mod 4) and the next: softmax's lse and delta, or divisors.
    const auto terms_of = [&](int ring, int n) __attribute__((always_inline)) {
      return ptx::load_shared_float2(shared.terms(ring, slot) + (First + n) * 32 + threadIdx.x % 4 * 8);
    };
    if constexpr (kConfig.softmax) {
      float2 lse[Blocks], delta[Blocks];
#pragma unroll
      for (int n = 0; n < Blocks; ++n) {
        lse[n] = terms_of(0, n);
        delta[n] = terms_of(1, n);
      }
      apply_softmax<kConfig.softcap>(score_scale<kConfig.stored_bias>(call), score, gradient, [&](int, int n, int i) {
        return i % 2 == 0 ? float2{lse[n].x, delta[n].x} : float2{lse[n].y, delta[n].y};
      });
    } else {
      apply_hstu<!kConfig.bfloat16, kConfig.stored_bias>(call.alpha, score, gradient);
      if (call.divisor_rows != nullptr) {
#pragma unroll
        for (int n = 0; n < Blocks; ++n) {
          const float2 divisor = terms_of(0, n);
          const float over[2] = {over_divisor(divisor.x), over_divisor(divisor.y)};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            score[0][n][i] *= over[i % 2];
            gradient[0][n][i] *= over[i % 2];
          }
        }
      }
    }
  }

  /// The same of blocks First to End, some at a time: many hide the latency of what they wait for, all of them take too
  /// many registers.
  template <int First, int End>
  __device__ __forceinline__ void apply_scores(Values& s, Values& dp, int slot) const {
    constexpr bool kOneByOne = kFewRegisters || (kConfig.softmax && kConfig.stored_bias);
    constexpr int kBlocks = kOneByOne ? 1 : kQueries / 16;
    apply_score<First, kBlocks>(s, dp, slot);
    if constexpr (First + kBlocks < End) apply_scores<First + kBlocks, End>(s, dp, slot);
  }

  __device__ __forceinline__ static void hide(Values& x, uint32 hidden) {
#pragma unroll
    for (int i = 0; i < kQueries / 2; ++i) {
      if ((hidden >> i & 1) != 0) x[i] = 0;
    }
  }

  __device__ __forceinline__ void write_bias_gradient(int slot, const Values& ds) const {
    RowsPart part = shared.bias_place(slot).gradient;
    const int key = thread_of_warpgroup() / 32 * 16;
    part.data += key * kBiasElementBytes;
    part.columns -= key;
    part.aligned = false;  // as the compiler knows then: from the registers
    KeyRowsBias<Element, false, kQueries, 16>::write(0, part, reinterpret_cast<const float(&)[1][kQueries / 8][4]>(ds),
                                                     params.backward.bias_factor);
  }

  /// float16: the power of two by which the warp's values are divided, since they may pass 65504 where the gradients do
  /// not. Of the tile alone, so that it does not matter whose tile it is.
  __device__ __forceinline__ static int fit(Values& x) {
    int of_tile = 0;
    if constexpr (!kConfig.bfloat16) {
      float none[1] = {};
      fit_float16(x, none, of_tile);
    }
    return of_tile;
  }

  __device__ __forceinline__ static void pack(Packed& packed, const Values& x) {
#pragma unroll
    for (int i = 0; i < kQueries / 4; ++i) packed[i / 4][i % 4] = ptx::pack<Element>(x[2 * i], x[2 * i + 1]);
  }

  /// The other consumer's operand, of tile `number`.
  __device__ __forceinline__ void hand_over(const Packed& packed, int of_tile, uint32 number) const {
    mark_step(Mark::hand_over, BackwardKeysMarks::handoffs + Side, number);
    const int thread = thread_of_warpgroup(), lane = thread % 32, warp = thread / 32;
    // Lane l addresses row l mod 8 of block l / 8: of 8 keys, of the other 8, then of the next 8 queries.
    const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
    ptx::named_barrier_sync(pipeline::kFirstHandoffEmptyId + Side, 2 * kWarpgroup);
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      ptx::stmatrix_x4(shared.handoff(Side) + geometry::swizzled_offset(kKeys, row, 2 * k + lane / 16), packed[k][0],
                       packed[k][1], packed[k][2], packed[k][3]);
    }
    if constexpr (!kConfig.bfloat16) {
      if (lane == 0) shared.exponent(Side) = of_tile;
    }
    ptx::fence_proxy_async_shared();
    ptx::named_barrier_arrive(pipeline::kFirstHandoffFullId + Side, 2 * kWarpgroup);
  }

  /// After the sums' product with the other consumer's tile.
  __device__ __forceinline__ void other_done(TileRing::Cursor at) const {
    release(shared.tiles[kOther], at);
    ptx::named_barrier_arrive(pipeline::kFirstHandoffEmptyId + kOther, 2 * kWarpgroup);
  }

  /// What a tile's flags say of the item that it belongs to, after its product was issued.
  __device__ __forceinline__ void pass(int flags) {
    ++tiles;
    starts = finishing = (flags & kQueryTileLast) != 0;
    if (finishing) ++items;
  }

  /// Until what the other consumer hands over is there.
  __device__ __forceinline__ void await_other(TileRing::Cursor at) {
    mark_step(Mark::wait_full, BackwardKeysMarks::handoffs + kOther, at.passed);
    ptx::named_barrier_sync(pipeline::kFirstHandoffFullId + kOther, 2 * kWarpgroup);
    settle_marks(shared.items.full(0));
    clean(at);
    if constexpr (!kConfig.bfloat16) adapt_sums(shared.exponent(kOther));
  }

  /// Starts the sums' product with the other consumer's tile. Where there is none, what comes of it is never used.
  __device__ __forceinline__ void issue_other(TileRing::Cursor at) {
    const uint32 a = geometry::descriptor_low(shared.handoff(kOther)), b = sums_operand(at);
    ptx::wgmma_fence();  // after a branch, or ptxas adds its own and serialises
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      ptx::wgmma_ss<Element, kWidth, true>(sums, a + geometry::k_major_step(kKeys, k * 16),
                                           b + geometry::transposed_step(k * 16), k > 0 || !starts);
    }
    ptx::wgmma_commit_group();
  }

  /// The item of this consumer's next tile, which comes after one with these flags.
  __device__ __forceinline__ ItemRing::Cursor item_of_own(int other_flags) const {
    return {items + ((other_flags & kQueryTileLast) != 0 ? 1 : 0)};
  }

  /// A tile of this consumer's, `own`, and before it in the sums the other's tile in front of it, unless other_flags
  /// is 0.
  __device__ __forceinline__ void step(TileRing::Cursor own, int own_flags, int other_flags) {
    const TileRing::Cursor other = own.before();
    const bool has_other = other_flags != 0;
    const ItemRing::Cursor item = item_of_own(other_flags);
    const int slot = own.slot();
    Values s, dp;
    finish();
    mark_step(Mark::product, BackwardKeysMarks::score_products, own.passed);
    ptx::wgmma_fence();
    issue_scores(s, dp, slot);
    constexpr int kHalf = kQueries / 16;  // of the blocks of 8 queries
    [[maybe_unused]] TransposedBias<Element, 2 * kHalf> r;
    if constexpr (kConfig.stored_bias) r.read(shared.bias_place(slot).values, 0, thread_of_warpgroup());
    if constexpr (!kConfig.bfloat16) ptx::wgmma_wait_group<0>(s, dp);  // before the sums are touched
    if (has_other) await_other(other);
    mark_step(has_other ? Mark::product : Mark::idle, kProduct, other.passed);
    issue_other(other);
    mark_step(Mark::wait_product, BackwardKeysMarks::score_products, own.passed);
    ptx::wgmma_wait_group<1>(s, dp);
    mark_step(Mark::scores);
    if ((own_flags & kQueryTileLast) != 0) release_residents();

    bool partial = (own_flags & kQueryTileMasked) != 0;
    uint32 hidden = 0;
    if (partial) {
      hidden = hidden_scores(params.backward.call, shared.item(item.slot()).work, shared.note(Side, slot).head,
                             shared.note(Side, slot).first_query);
      if (!kConfig.softmax && !kConfig.stored_bias) hide(s, hidden);  // it must not decide how the rest is computed
    }
    if constexpr (kConfig.stored_bias) {
      const BiasedScale scale = biased_scale<kConfig.softmax>(params.backward.call);
      partial |= r.add_to(s, 0, scale, hidden);
      r.read(shared.bias_place(slot).values, 1, thread_of_warpgroup());
      partial |= r.add_to(s, 1, scale, hidden);
      if (!kConfig.softmax && partial) hide(s, hidden);
    }
    apply_scores<0, kHalf>(s, dp, slot);
    mark_step(has_other ? Mark::wait_product : Mark::idle, kProduct, other.passed);
    ptx::wgmma_wait_group<0>(sums);
    if (has_other) {
      other_done(other);
      pass(other_flags);
    }
    mark_step(Mark::scores);
    apply_scores<kHalf, 2 * kHalf>(s, dp, slot);
    release(shared.tiles[Side], own);
    if (partial) {
      hide(s, hidden);
      hide(dp, hidden);
    }
    if constexpr (kConfig.bias_gradient) write_bias_gradient(slot, dp);
    Values& kept = Side == 0 ? s : dp;
    Values& handed = Side == 0 ? dp : s;
    const int of_kept = Side == 0 && kConfig.softmax ? 0 : fit(kept);  // softmax's P is at most 1
    const int of_handed = Side == 1 && kConfig.softmax ? 0 : fit(handed);
    Packed packed;
    pack(packed, handed);
    hand_over(packed, of_handed, own.passed);
    mark_step(Mark::scores);
    pack(packed, kept);
    finish();
    clean(own);
    adapt_sums(of_kept);
    const uint32 b = sums_operand(own);
    mark_step(Mark::product, kProduct, own.passed);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      ptx::wgmma_rs<Element, kWidth, true>(sums, packed[k], b + geometry::transposed_step(k * 16), k > 0 || !starts);
    }
    ptx::wgmma_commit_group();
    mark_step(Mark::wait_product, kProduct, own.passed);
    ptx::wgmma_wait_group<0>(sums);
    release(shared.tiles[kOther], own);
    pass(own_flags);
  }

  /// The other consumer's tile alone.
  __device__ __forceinline__ void step_of_other(TileRing::Cursor at, int flags) {
    finish();
    await_other(at);
    mark_step(Mark::product, kProduct, at.passed);
    issue_other(at);
    mark_step(Mark::wait_product, kProduct, at.passed);
    ptx::wgmma_wait_group<0>(sums);
    other_done(at);
    pass(flags);
  }

  /// A tile of nothing: an item whose keys no query sees, which gets zeros, or the end, which has none. Returns whether
  /// it is the end.
  __device__ __forceinline__ bool pass_over(TileRing::Cursor at) {
    finish();
    const ItemRing::Cursor item = {items};
    mark(Mark::wait_full, BackwardKeysMarks::items, items);
    shared.items.wait_full(item);
    const bool is_end = shared.item(item.slot()).is_end;
    if constexpr (kConfig.bias_gradient) {
      const Clearer clearer{params, shared, static_cast<int>(threadIdx.x) % 32};
      if (!is_end) clearer.clear_unseen(shared.item(item.slot()), 1 + static_cast<int>(threadIdx.x) / 32);
    }
    end_item(item, true);
    ++items;
    release(shared.tiles[0], at);
    release(shared.tiles[1], at);
    ++tiles;
    starts = true;
    return is_end;
  }

  __device__ __forceinline__ void walk() {
    for (bool has_other = Side == 1;; has_other = true) {
      int other_flags = 0;
      if (has_other) {
        const TileRing::Cursor at = {tiles};
        wait_tile(at);
        other_flags = shared.note(kOther, at.slot()).flags;
        if ((other_flags & kQueryTileSeen) == 0) {
          if (pass_over(at)) return;
          other_flags = 0;
        } else {
          mark(Mark::wait_full, BackwardKeysMarks::items, items);
          shared.items.wait_full(ItemRing::Cursor{items});
          release(shared.tiles[Side], at);  // the owner alone reads it there
          if ((other_flags & kQueryTileLast) != 0) release_residents();
        }
      }
      const TileRing::Cursor own = {tiles + (other_flags != 0 ? 1 : 0)};
      wait_tile(own);
      const int own_flags = shared.note(Side, own.slot()).flags;
      if ((own_flags & kQueryTileSeen) == 0) {
        if (other_flags != 0) step_of_other(own.before(), other_flags);
        if (pass_over(own)) return;
      } else {
        mark(Mark::wait_full, BackwardKeysMarks::items, item_of_own(other_flags).passed);
        shared.items.wait_full(item_of_own(other_flags));
        mark_step(Mark::wait_full, BackwardKeysMarks::keys, resident_at.passed);
        shared.residents[0].wait_full(resident_at);
        mark_step(Mark::wait_full, BackwardKeysMarks::values, resident_at.passed);
        shared.residents[1].wait_full(resident_at);
        step(own, own_flags, other_flags);
      }
    }
  }

  __device__ __forceinline__ void run() {
    ptx::named_barrier_arrive(pipeline::kFirstHandoffEmptyId + kOther, 2 * kWarpgroup);
    walk();
    ptx::named_barrier_sync(pipeline::kFirstHandoffEmptyId + Side, 2 * kWarpgroup);  // the barriers end as they began
  }
};

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, 1)
    attention_backward_keys_hopper(const __grid_constant__ warploom::HopperBackwardParams params) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const Shared shared(dynamic);
  if (threadIdx.x == 0) {
    constexpr int kWarps = kConsumers * kWarpgroup / 32;
    // Every thread arrives for itself: tools that look for races do not see what __syncwarp orders before an arrival.
    // The consumers, the loaders, and who clears.
    shared.items.init(kConsumers * kWarpgroup + (2 + kConfig.bias_gradient) * 32);
    for (int ring = 0; ring < 2; ++ring) {
      shared.residents[ring].init(kWarps);
      shared.tiles[ring].init(kWarps, 1 + 32);  // TMA, and the lanes' copies of the terms
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
      trace::Pen<kConfig.trace> pen(params.sheet);
      pen.start_trace(kConsumers, lane == 0);
      hand_out_items<kKeys, true, BackwardKeysMarks::items>(pen, params.backward.call, params.counters, shared, lane,
                                                            PrepareItem{params.backward});
      pen.finish_trace(kConsumers);
    } else if (warp == 1) {
      if (trace::played_quietly<kConfig.trace, Loader<0>>(params.sheet, params, shared, lane)) return;
      Loader<0> loader{{params.sheet}, params, shared, lane, {}, {}};
      loader.start_trace(kConsumers + 1, lane == 0);
      loader.run();
      loader.finish_trace(kConsumers + 1);
    } else if (warp == 2) {
      if (trace::played_quietly<kConfig.trace, Loader<1>>(params.sheet, params, shared, lane)) return;
      Loader<1> loader{{params.sheet}, params, shared, lane, {}, {}};
      loader.start_trace(kConsumers + 2, lane == 0);
      loader.run();
      loader.finish_trace(kConsumers + 2);
    } else if constexpr (kConfig.bias_gradient) {
      const Clearer clearer{params, shared, lane};
      clearer.run();
    }
  } else {
    ptx::setmaxnreg_inc<232>();
    if (warpgroup == 0) {
      if (trace::played_quietly<kConfig.trace, Consumer<0>>(params.sheet, params, shared)) return;
      Consumer<0> consumer{{params.sheet}, params, shared};
      consumer.start_trace(0, threadIdx.x % kWarpgroup == 0);
      consumer.run();
      consumer.finish_trace(0);
    } else {
      if (trace::played_quietly<kConfig.trace, Consumer<1>>(params.sheet, params, shared)) return;
      Consumer<1> consumer{{params.sheet}, params, shared};
      consumer.start_trace(1, threadIdx.x % kWarpgroup == 0);
      consumer.run();
      consumer.finish_trace(1);
    }
  }
}
