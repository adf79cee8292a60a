// Steps of the one-pass Hopper backward kernel in which a consumer's scalar work runs beside its own products: for
// bfloat16. (attention_backward_hopper.cu has the step of the others, whose products all wait for all of
// the scalar work.)
//
// Products with P and dS are issued as soon as these are packed. dQ of the tile before comes before the last product
// with dS, so that it is added to memory while that one runs: additions of both consumers at once, with nothing beside
// them, took a fifth of the time.
#pragma once

#include "attention/hopper_backward_bias.h"
#include "attention/hopper_backward_scores.h"
#include "attention/hopper_backward_shared.h"
#include "geometry/wgmma_descriptor.h"
#include "ptx/registers.h"
#include "ptx/wgmma.h"

namespace warploom {

/// A consumer's part of dQ is 64 queries, or of 64 queries a panel of columns, or half of one. Columns past the head's
/// end are zeros of K's, and not added.
constexpr bool kDqByRows = kQueries == 128;
constexpr int kDqColumns = kDqByRows ? kConfig.head_dim : kConfig.head_dim > geometry::kPanelColumns ? 64 : 32;

/// Whether these steps are the kernel's.
constexpr bool kOverlaps = kConfig.bfloat16 && kConfig.accumulate_dq;
/// Whether P comes before dP is there. Takes 16 registers more.
constexpr bool kSplits = kOverlaps && kConfig.splits_scores;
/// Whether consumers begin their tiles in turns, so that one's products run under the other's scalar work.
constexpr bool kTurns = kOverlaps && kDqByRows;

__device__ __forceinline__ void take_turn(int who) {
  if constexpr (kTurns) ptx::named_barrier_sync(pipeline::kFirstBackwardTurnId + who, 2 * kWarpgroup);
}
__device__ __forceinline__ void pass_turn(int who) {
  if constexpr (kTurns) ptx::named_barrier_arrive(pipeline::kFirstBackwardTurnId + 1 - who, 2 * kWarpgroup);
}

/// Low words of descriptors: of this consumer's rows of K and V, and of a tile's Q and dO from some query on.
struct StepOperands {
  uint32 key, value, query, dout;

  template <typename Consumer>
  static __device__ __forceinline__ StepOperands of(const Consumer& c) {
    const Shared& shared = c.shared;
    uint32 base = shared.address;
    if constexpr (kDqByRows) base = ptx::opaque(base);  // addresses are computed here and not kept: registers
    const int stage = c.at.slot();
    return {geometry::descriptor_low(base + kMap.key + c.who * 64 * kRowBytes),
            geometry::descriptor_low(base + kMap.value + c.who * 64 * kRowBytes),
            geometry::descriptor_low(base + kMap.query + stage * kMap.query_bytes, kQueries * kRowBytes),
            geometry::descriptor_low(base + kMap.dout + stage * kMap.dout_bytes, kQueries * kRowBytes)};
  }
  __device__ __forceinline__ StepOperands from(int first_query) const {
    const uint32 step = geometry::transposed_step(first_query);
    return {key, value, query + step, dout + step};
  }

  /// S^T = K Q^T, or with V and dO dP^T.
  template <int Rows>
  __device__ __forceinline__ void issue_scores(TransposedScores<Rows>& s) const {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      ptx::wgmma_ss<Element, Rows>(flat(s), key + geometry::k_major_step(kKeys, k * 16),
                                   query + geometry::k_major_step(kQueries, k * 16), k > 0);
    }
  }
  template <int Rows>
  __device__ __forceinline__ void issue_slopes(TransposedScores<Rows>& dp) const {
#pragma unroll
    for (int k = 0; k < kValueDepth; ++k) {
      ptx::wgmma_ss<Element, Rows>(flat(dp), value + geometry::k_major_step(kKeys, k * 16),
                                   dout + geometry::k_major_step(kQueries, k * 16), k > 0);
    }
  }
  /// sums += x^T times the rows of a tile, Q or dO.
  template <int Dim, int Steps>
  static __device__ __forceinline__ void issue_gradient(float (&sums)[Dim / 2], const uint32 (&x)[Steps][4],
                                                        uint32 rows, bool adds) {
#pragma unroll
    for (int k = 0; k < Steps; ++k) {
      ptx::wgmma_rs<Element, Dim, true>(sums, x[k], rows + geometry::transposed_step(k * 16), adds || k > 0);
    }
  }
};

/// dQ of the tile before, of which its wgmmas are the newest but `After` groups, to memory.
template <int After, typename Consumer>
__device__ __forceinline__ void end_dq(Consumer& c, float (&dq)[kDqColumns / 2], int dq_tile) {
  ptx::wgmma_wait_group<After>(dq);
  c.release_scores(c.score_at.before());
  c.add_dq(dq, dq_tile);
}

/// HSTU: dS takes the factor that the bias's gradient has.
constexpr bool kScalesSlopes = kConfig.bias_gradient && !kConfig.softmax;

/// R to the scores (hopper_backward_bias.h). HSTU's form, exact or not, must not depend on an R that is invisible: such
/// scores become 0.
template <typename Consumer>
__device__ __forceinline__ bool add_bias(const Consumer& c, int stage, int first_key, bool is_masked,
                                         const uint32* visible, int first_bit, TransposedScores<kQueries>& s) {
  const bool is_hiding = add_bias(c.params.backward.call, c.shared.bias(stage), first_key, s);
  if (!kConfig.softmax && is_masked) {
    for_each_visible<kQueries>(visible, first_bit, [&](int k, int i, uint32 mask) {
      if ((mask & 1) == 0) pair_of(s, k, i)[0] = 0;
      if ((mask >> 16) == 0) pair_of(s, k, i)[1] = 0;
    });
  }
  return is_hiding;
}

/// A tile of 64 queries, whose Q and dO have come, and dQ of the one before. Returns the tile's number among dQ's sums.
template <bool IsFirst, typename Consumer>
__device__ __forceinline__ int overlapped_step(Consumer& c, int flags, int dq_tile_before) {
  const AttentionCall& call = c.params.backward.call;
  const int stage = c.at.slot(), warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
  const StepOperands operands = StepOperands::of(c);
  const bool is_masked = (flags & kQueryTileMasked) != 0;
  const uint32* const visible = c.visible_of(stage, warp);
  const int first_bit = warp % 2 * 16;

  [[maybe_unused]] const int first_key = c.who * 64 + warp * 16;
  [[maybe_unused]] bool is_hiding = false;

  TransposedScores<kQueries> s, dp;
  PackedScores<kQueries> p, ds;
  ptx::wgmma_fence();
  operands.issue_scores<kQueries>(s);
  if constexpr (kSplits) ptx::wgmma_commit_group();
  operands.issue_slopes<kQueries>(dp);
  ptx::wgmma_commit_group();
  if constexpr (kSplits) {
    ptx::wgmma_wait_group<1>(flat(s));
    if constexpr (kConfig.dense_bias) is_hiding = add_bias(c, stage, first_key, is_masked, visible, first_bit, s);
    bool exact = apply_probability<kConfig.softmax, kConfig.scaled_key, kConfig.dense_bias>(call, s, p,
                                                                                            c.shared.row_terms(stage));
    if constexpr (kScalesSlopes) {
      scale_slopes(exact, c.params.backward.bias_factor, s);
      exact = true;
    }
    if (is_masked) hide_packed<kQueries>(visible, first_bit, p);
    if (kConfig.dense_bias && is_hiding) hide_masked(c.shared.bias(stage), first_key, p);
    ptx::wgmma_fence();
    operands.issue_gradient<kConfig.value_dim>(c.dv, p, operands.dout, !IsFirst);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>(flat(dp));
    apply_slope<kConfig.softmax>(exact, s, dp, c.shared.row_terms(stage));
    pack_scores<Element>(ds, dp);
    if (is_masked) hide_packed<kQueries>(visible, first_bit, ds);
    if (kConfig.dense_bias && is_hiding) hide_masked(c.shared.bias(stage), first_key, ds);
  } else {
    ptx::wgmma_wait_group<0>(flat(s), flat(dp));
    if constexpr (kConfig.dense_bias) is_hiding = add_bias(c, stage, first_key, is_masked, visible, first_bit, s);
    apply_score<kConfig.softmax, kConfig.softcap, false, kConfig.scaled_key, kConfig.dense_bias>(
        call, s, dp, c.shared.row_terms(stage));
    if constexpr (kScalesSlopes) scale_all(flat(dp), c.params.backward.bias_factor);
    pack_scores<Element>(p, s);
    pack_scores<Element>(ds, dp);
    if (is_masked) hide_packed<kQueries>(visible, first_bit, p, ds);
    if (kConfig.dense_bias && is_hiding) {
      hide_masked(c.shared.bias(stage), first_key, p);
      hide_masked(c.shared.bias(stage), first_key, ds);
    }
  }
  c.hand_over(ds);
  const int dq_tile = c.shared.note(stage).dq_tile;

  float dq[kDqColumns / 2];
  ptx::wgmma_fence();
  if constexpr (!kSplits) {
    operands.issue_gradient<kConfig.value_dim>(c.dv, p, operands.dout, !IsFirst);
    ptx::wgmma_commit_group();
  }
  if constexpr (!IsFirst) {
    c.shared.scores.wait_full(c.score_at.before());
    c.template issue_dq<kKeys / 16>(dq, c.score_at.before().slot());
    ptx::wgmma_fence();
  }
  operands.issue_gradient<kConfig.head_dim>(c.dk, ds, operands.query, !IsFirst);
  ptx::wgmma_commit_group();
  if constexpr (kConfig.bias_gradient && !IsFirst) c.store_bias_gradient(c.score_at.before());
  if constexpr (!IsFirst) end_dq<1>(c, dq, dq_tile_before);
  ptx::wgmma_wait_group<0>(c.dk, c.dv);
  free_barrier_arrive(stage);
  c.at.advance();
  c.score_at.advance();
  return dq_tile;
}

/// The same for a tile of 128 queries: the products of either half run under the other's scalar work.
template <bool IsFirst, typename Consumer>
__device__ __forceinline__ int step_in_halves(Consumer& c, int flags, int dq_tile_before) {
  constexpr int kHalf = kQueries / 2;
  const AttentionCall& call = c.params.backward.call;
  const int stage = c.at.slot(), warp = static_cast<int>(ptx::opaque(threadIdx.x)) % kWarpgroup / 32;
  const StepOperands operands = StepOperands::of(c);
  const bool is_masked = (flags & kQueryTileMasked) != 0;

  TransposedScores<kHalf> s[2], dp[2];
  take_turn(c.who);
  ptx::wgmma_fence();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    operands.from(half * kHalf).template issue_scores<kHalf>(s[half]);
    operands.from(half * kHalf).template issue_slopes<kHalf>(dp[half]);
    ptx::wgmma_commit_group();
  }
  float dq[kDqColumns / 2];
  int dq_tile = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    ptx::wgmma_wait_group<1>(flat(s[half]), flat(dp[half]));
    if (half == 1) pass_turn(c.who);
    apply_score<kConfig.softmax, kConfig.softcap, false, kConfig.scaled_key, false>(
        call, s[half], dp[half], c.shared.row_terms(stage) + half * kHalf * (kConfig.softmax ? 2 : 1));
    PackedScores<kHalf> p, ds;
    pack_scores<Element>(p, s[half]);
    pack_scores<Element>(ds, dp[half]);
    if (is_masked) hide_packed<kHalf>(c.visible_of(stage, warp) + half * kHalf, warp % 2 * 16, p, ds);

    if (half == 0) c.shared.scores.wait_empty(c.score_at);
    c.template write_scores<kHalf>(ds, half * kHalf);
    if (half == 1) {
      c.publish_scores();
      dq_tile = c.shared.note(stage).dq_tile;
      if constexpr (!IsFirst) {
        c.shared.scores.wait_full(c.score_at.before());
        c.template issue_dq<kKeys / 16>(dq, c.score_at.before().slot());
      }
    }
    const StepOperands here = operands.from(half * kHalf);
    ptx::wgmma_fence();
    here.issue_gradient<kConfig.value_dim>(c.dv, p, here.dout, !IsFirst || half == 1);
    here.issue_gradient<kConfig.head_dim>(c.dk, ds, here.query, !IsFirst || half == 1);
    ptx::wgmma_commit_group();
  }
  if constexpr (!IsFirst) end_dq<1>(c, dq, dq_tile_before);
  ptx::wgmma_wait_group<0>(c.dk, c.dv);
  free_barrier_arrive(stage);
  c.at.advance();
  c.score_at.advance();
  return dq_tile;
}

}  // namespace warploom
