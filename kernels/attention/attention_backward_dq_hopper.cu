// dQ of attention backward for Hopper (sm_90a): HSTU and softmax, under any mask, repeatable bit for bit.
//
// As in the forward kernel a persistent CTA takes work items (a tile of query rows of one head of one sequence) from a
// device counter, longest first, and walks the key tiles that they see; each consumer warpgroup owns 64 of the rows. In
// its turn on the tensor core a consumer issues dQ += dS K of the tile before, S = Q K^T and dP = dO V^T of this one;
// then it turns S and dP into dS, packed in registers as the next turn's operand, while the other consumer has its
// turn. With sums_at_once it issues dQ's product then, beside the other's. pipeline/two_kernel_protocols.h describes
// the barriers as `hopper_dq`, and the protocol checker checks them.
//
// The text before this file defines warploom::kConfig, a HopperBackwardDqConfig.
#include "attention/backward_score.h"
#include "attention/hopper_backward_dq_producer.h"
#include "attention/hopper_backward_scores.h"
#include "attention/hopper_bias_elements.h"
#include "attention/hopper_store.h"
#include "geometry/wgmma_descriptor.h"
#include "pipeline/turns.h"
#include "ptx/registers.h"
#include "ptx/warpgroup_registers.h"
#include "ptx/wgmma.h"

namespace warploom {

using Scores = float[1][kKeyBlocks][4];

/// Sets the values of the keys that their row does not see to 0.
template <typename Row>
__device__ __forceinline__ void apply_mask(float (&x)[kKeys / 2], const Row (&rows)[2], int first_column) {
#pragma unroll
  for (int word = 0; word < (kKeys + 31) / 32; ++word) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32 bits = rows[half].bits(first_column + 32 * word) >> (threadIdx.x % 4 * 2);
#pragma unroll
      for (int n = 0; n < 4 && word * 4 + n < kKeyBlocks; ++n) {
        float* const c = &x[4 * (word * 4 + n) + 2 * half];
        if ((bits & (1u << (8 * n))) == 0) c[0] = 0;
        if ((bits & (2u << (8 * n))) == 0) c[1] = 0;
      }
    }
  }
}

struct Consumer : trace::Pen<kConfig.trace> {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int who;

  uint32 items = 0;  // passed, and with them Q's slots
  uint32 tiles = 0;  // passed; what is pending is of the tile before

  float dq[kDim / 2];
  uint32 ds[kKeys / 16][4];
  bool pending = false;   // ds waits for its product with K in sums_at, `valid_keys` rows of which are the sequence's
  bool has_sums = false;  // the item has had a product
  int valid_keys = 0;
  int exponent = 0;  // float16: dq and ds are divided by 2^exponent

  __device__ __forceinline__ ItemRing::Cursor item_at() const { return {items}; }
  __device__ __forceinline__ QueryRing::Cursor query_at() const { return {items}; }
  __device__ __forceinline__ KeyRing::Cursor key_at() const { return {tiles}; }
  __device__ __forceinline__ ValueRing::Cursor value_at() const { return {tiles}; }

  /// A warp's arrival.
  template <typename Ring>
  __device__ __forceinline__ void release(const Ring& ring, typename Ring::Cursor at) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring.release(at);
  }

  __device__ __forceinline__ void take_turn() const {
    if constexpr (kConfig.turns && kConfig.consumers > 1) {
      mark_step(Mark::turn);
      ptx::named_barrier_sync(pipeline::kFirstTurnId + who, 2 * kWarpgroup);
      settle_marks(shared.items.full(0));
    }
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (kConfig.turns && kConfig.consumers > 1) {
      const int next = who + 1 == kConfig.consumers ? 0 : who + 1;
      ptx::named_barrier_arrive(pipeline::kFirstTurnId + next, 2 * kWarpgroup);
    }
  }

  /// Of one of the thread's rows: softmax's lse and delta, or its divisor.
  __device__ __forceinline__ float2 row_terms(int half) const {
    return ptx::load_shared_float2(shared.terms() + (who * kConsumerRows + accumulator_row() + half * 8) * 8);
  }

  /// Starts dQ += dS K, with K in `at`.
  __device__ __forceinline__ void issue_sums(KeyRing::Cursor at) {
    mark_step(Mark::product, BackwardDqMarks::query_product, at.passed);
    const uint32 tile = shared.key(at.slot());
    if (valid_keys < kKeys) zero_rows<kKeys, kDim>(tile, valid_keys, pipeline::kFirstWarpgroupId + who);
    const uint32 key = geometry::descriptor_low(tile, kKeys * geometry::kPanelRowBytes);
    ptx::wgmma_fence();  // after a branch, or ptxas adds its own and serialises
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      ptx::wgmma_rs<Element, kDim, true>(dq, ds[k], key + geometry::transposed_step(k * 16), k > 0 || has_sums);
    }
    ptx::wgmma_commit_group();
  }

  /// After the product has ended.
  __device__ __forceinline__ void sums_done() {
    release(shared.keys, key_at().before());
    pending = false;
    has_sums = true;
  }

  __device__ __forceinline__ void flush() {
    if constexpr (kConfig.sums_at_once) {
      if (pending) mark_step(Mark::wait_product, BackwardDqMarks::query_product, key_at().before().passed);
      ptx::wgmma_wait_group<0>(dq);
      if (pending) sums_done();
    } else {
      if (!pending) return;
      issue_sums(key_at().before());
      mark_step(Mark::wait_product, BackwardDqMarks::query_product, key_at().before().passed);
      ptx::wgmma_wait_group<0>(dq);
      sums_done();
    }
  }

  /// Hides what its row does not see.
  __device__ __forceinline__ void hide(float (&x)[kKeys / 2], const Work& work, int first_column) const {
    const AttentionCall& call = params.backward.call;
    const int row = who * kConsumerRows + accumulator_row();
    const decltype(Masking::row(call, work, row)) rows[2] = {Masking::row(call, work, row),
                                                             Masking::row(call, work, row + 8)};
    apply_mask(x, rows, first_column);
  }

  /// From S and dP to dS, in dp.
  __device__ __forceinline__ void differentiate(float (&s)[kKeys / 2], float (&dp)[kKeys / 2], bool masked,
                                                const Work& work, int first_column) const {
    const AttentionCall& call = params.backward.call;
    Scores& score = reinterpret_cast<Scores&>(s);
    Scores& gradient = reinterpret_cast<Scores&>(dp);
    if constexpr (kConfig.softmax) {
      const float2 terms[2] = {row_terms(0), row_terms(1)};
      apply_softmax<kConfig.softcap>(score_scale<kConfig.stored_bias>(call), score, gradient,
                                     [&](int, int, int i) { return terms[i / 2]; });
    } else {
      if (masked) hide(s, work, first_column);  // what is hidden must not decide how the rest is computed
      apply_hstu<!kConfig.bfloat16, kConfig.scaled_query || kConfig.stored_bias>(call.alpha, score, gradient);
      if (call.divisor_rows != nullptr) {
        const float over[2] = {over_divisor(row_terms(0).x), over_divisor(row_terms(1).x)};
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) dp[i] *= over[i / 2 % 2];
      }
    }
    if (masked) hide(dp, work, first_column);
  }

  /// Scores of a key tile, after the pending product.
  template <bool WithSums>
  __device__ __forceinline__ void step() {
    float s[kKeys / 2], dp[kKeys / 2];
    // Opaque, or their steps would be computed before the loop and kept through it.
    const uint32 query = ptx::opaque(geometry::descriptor_low(shared.query(who)));
    const uint32 dout = ptx::opaque(geometry::descriptor_low(shared.dout(who)));
    const uint32 key = geometry::descriptor_low(shared.key(key_at().slot()));
    const uint32 value = geometry::descriptor_low(shared.value(value_at().slot()));
    [[maybe_unused]] BiasPairs<Element, kKeyBlocks> r;
    if constexpr (kConfig.stored_bias) {
      r.read(shared.item(item_at().slot()).bias, who * kConsumerRows + accumulator_row(),
             shared.note(key_at().slot()).first_column);
    }
    take_turn();
    if constexpr (WithSums && !kConfig.sums_at_once) issue_sums(key_at().before());
    mark_step(Mark::product, BackwardDqMarks::score_product, tiles);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < (kDim + 15) / 16; ++k) {
      ptx::wgmma_ss<Element, kKeys>(s, query + geometry::k_major_step(kConsumerRows, k * 16),
                                    key + geometry::k_major_step(kKeys, k * 16), k > 0);
    }
    ptx::wgmma_commit_group();
    if constexpr (WithSums) {  // before dP: issuing it takes as long as the products before it
      if (pending) mark_step(Mark::wait_product, BackwardDqMarks::query_product, key_at().before().passed);
      ptx::wgmma_wait_group<1>(dq);
      if (pending) sums_done();
    }
    mark_step(Mark::wait_full, BackwardDqMarks::values, tiles);
    shared.values.wait_full(value_at());
    mark_step(Mark::product, BackwardDqMarks::slope_product, tiles);
    ptx::wgmma_fence();  // after a branch, or ptxas adds its own and serialises
#pragma unroll
    for (int k = 0; k < (kValueDim + 15) / 16; ++k) {
      ptx::wgmma_ss<Element, kKeys>(dp, dout + geometry::k_major_step(kConsumerRows, k * 16),
                                    value + geometry::k_major_step(kKeys, k * 16), k > 0);
    }
    ptx::wgmma_commit_group();
    pass_turn();
    mark_step(Mark::wait_product, BackwardDqMarks::slope_product, tiles);
    ptx::wgmma_wait_group<0>(s, dp);
    mark_step(Mark::scores);
    const int first_column = shared.note(key_at().slot()).first_column;
    const int flags = shared.note(key_at().slot()).flags;
    release(shared.values, value_at());
    const Work& work = shared.item(item_at().slot()).work;
    [[maybe_unused]] uint32 hidden = 0;
    if constexpr (kConfig.stored_bias) {
      BiasedScale scale = biased_scale<kConfig.softmax>(params.backward.call);
      if constexpr (kConfig.scaled_query) scale.of_score = 1;
      hidden = r.add_to(s, scale);
    }
    differentiate(s, dp, (flags >> (kNeedsMaskShift + who) & 1) != 0, work, first_column);
    if constexpr (kConfig.stored_bias) {
      if (__any_sync(kAllLanes, hidden != 0)) {
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) dp[i] = (hidden >> i & 1) != 0 ? 0 : dp[i];
      }
    }
    if ((flags & kLastKeyTile) != 0) shared.queries_of(who).release(query_at());
    if constexpr (!kConfig.bfloat16) fit_float16(dp, dq, exponent);
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) ds[i / 4][i % 4] = ptx::pack<Element>(dp[2 * i], dp[2 * i + 1]);
    pending = true;
    valid_keys = work.mask.seqlen_k - first_column;
    if constexpr (kConfig.sums_at_once) issue_sums(key_at());
  }

  /// Passes over a key tile that none of the warpgroup's rows sees.
  __device__ __forceinline__ void skip(int flags) {
    take_turn();
    mark_step(Mark::idle);
    pass_turn();
    flush();
    mark_step(Mark::wait_full, BackwardDqMarks::values, tiles);
    shared.values.wait_full(value_at());  // a slot may be released only in the round in which it was filled
    release(shared.keys, key_at());
    release(shared.values, value_at());
    if ((flags & kLastKeyTile) != 0) shared.queries_of(who).release(query_at());
  }

  __device__ __forceinline__ void store(const Work& work) {
    const BackwardParams& p = params.backward;
    float factor = p.score_factor;
    if constexpr (!kConfig.bfloat16) factor *= power_of_two(exponent);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long row = work.first_row + who * kConsumerRows + accumulator_row() + half * 8;
      char* const to = const_cast<char*>(rows_of(p.dquery, work.sequence, work.tensor_q + row, work.head).data);
      store_row<Element, kDim>(to, dq, half, factor, row < work.mask.seqlen_q && has_sums, row < work.slot_q);
    }
  }

  __device__ __forceinline__ void run() {
    if (who == kConfig.consumers - 1) pass_turn();
    for (;; ++items) {
      mark(Mark::wait_full, BackwardDqMarks::items, items);
      shared.items.wait_full(item_at());
      if (shared.item(item_at().slot()).is_end) {
        shared.items.release(item_at());
        break;
      }
      has_sums = false;
      exponent = 0;
      mark_step(Mark::wait_full, BackwardDqMarks::queries + who, items);
      shared.queries_of(who).wait_full(query_at());
      if constexpr (kConfig.scaled_query) {
        mark_step(Mark::scores);
        scale_tile<kMap.query_bytes>(shared.query(who), 0.5f * params.backward.call.alpha,
                                     pipeline::kFirstWarpgroupId + who);
      }
      bool last;
      do {
        mark_step(Mark::wait_full, BackwardDqMarks::keys, tiles);
        shared.keys.wait_full(key_at());
        const int flags = shared.note(key_at().slot()).flags;
        last = (flags & kLastKeyTile) != 0;
        if ((flags >> who & 1) == 0) {
          skip(flags);
        } else if (pending || kConfig.sums_at_once) {
          step<true>();
        } else {
          step<false>();
        }
        ++tiles;
      } while (!last);
      flush();
      mark(Mark::epilogue, BackwardDqMarks::items, items);
      store(shared.item(item_at().slot()).work);
      shared.items.release(item_at());
    }
    if (who == 0) take_turn();
  }
};

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, 1)
    attention_backward_dq_hopper(const __grid_constant__ warploom::HopperBackwardParams params) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const Shared shared(dynamic);
  if (threadIdx.x == 0) {
    // Where all read or write, every thread arrives for itself: tools that look for races do not see what __syncwarp
    // orders before an arrival.
    constexpr int kReaders = kConfig.consumers * kWarpgroup, kWarps = kReaders / 32;
    shared.items.init(kReaders + 2 * 32);  // the consumers and the loaders
    for (int who = 0; who < kConfig.consumers; ++who) {
      shared.queries_of(who).init(kWarpgroup, 1 + 32);  // TMA, and the lanes' copies of the terms
    }
    shared.keys.init(kWarps);
    shared.values.init(kWarps);
    ptx::mbarrier_init(shared.request, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == kConfig.consumers) {
    ptx::setmaxnreg_dec<kBudget.producer>();
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) % kWarpgroup / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (warp == 0) {
      trace::Pen<kConfig.trace> pen(params.sheet);
      pen.start_trace(kConfig.consumers, lane == 0);
      hand_out_items<kQueryRows, false, BackwardDqMarks::items>(pen, params.backward.call, params.counters, shared,
                                                                lane, PrepareItem{params.backward.call});
      pen.finish_trace(kConfig.consumers);
    } else if (warp == 1) {
      if (trace::played_quietly<kConfig.trace, KeyLoader>(params.sheet, params, shared, lane)) return;
      KeyLoader loader{{params.sheet}, params, shared, lane, {}, {}};
      loader.start_trace(kConfig.consumers + 1, lane == 0);
      loader.run();
      loader.finish_trace(kConfig.consumers + 1);
    } else if (warp == 2) {
      trace::Pen<kConfig.trace> pen(params.sheet);
      pen.start_trace(kConfig.consumers + 2, lane == 0);
      load_queries(pen, params, shared, lane);
      pen.finish_trace(kConfig.consumers + 2);
    }
  } else {
    ptx::setmaxnreg_inc<kBudget.consumer>();
    if (trace::played_quietly<kConfig.trace, Consumer>(params.sheet, params, shared, warpgroup)) return;
    Consumer consumer{{params.sheet}, params, shared, warpgroup};
    consumer.start_trace(warpgroup, threadIdx.x % kWarpgroup == 0);
    consumer.run();
    consumer.finish_trace(warpgroup);
  }
}
