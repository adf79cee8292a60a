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
#include "attention/hopper_backward_tables.h"
#include "geometry/wgmma_descriptor.h"
#include "ptx/registers.h"
#include "ptx/wgmma.h"

namespace warploom {

/// A consumer's part of dQ is 64 queries, or of 64 queries a panel of columns, or half of one. Columns past the head's
/// end are zeros of K's, and not added.
constexpr bool kDqByRows = kQueries == 128;
constexpr int kDqColumns = kDqByRows ? kConfig.head_dim : kConfig.head_dim > geometry::kPanelColumns ? 64 : 32;

/// Whether scores have something added.
constexpr bool kBiased = kConfig.stored_bias || kConfig.table_bias;

/// Whether a gradient's tiles are those that dQ is computed from.
constexpr bool kStoresTiles = kConfig.bias_gradient && !kConfig.gradient_rows;

/// Whether these steps are the kernel's.
constexpr bool kOverlaps = kConfig.bfloat16 && kConfig.accumulate_dq && !kConfig.gradient_rows && !kConfig.bias_float32;
/// Whether P comes before dP is there. Takes 16 registers more.
constexpr bool kSplits = kOverlaps && kConfig.splits_scores;
/// Whether consumers begin their tiles in turns, so that one's products run under the other's scalar work.
constexpr bool kTurns = kOverlaps && kDqByRows;
/// Whether TMA stores dK and dV, from where the next tile of dS will be.
constexpr bool kStoresByTma = kDqByRows && kOverlaps && (kConfig.experiment & 4) != 0;
/// Whether an item's first step is code of its own.
constexpr bool kPeels = !kOverlaps || kConfig.table_bias || (kConfig.experiment & 1) == 0;

template <typename Consumer>
__device__ __forceinline__ void take_turn(const Consumer& c) {
  if constexpr (kTurns) {
    c.mark_step(Mark::turn);
    ptx::named_barrier_sync(pipeline::kFirstBackwardTurnId + c.who, 2 * kWarpgroup);
    c.settle_marks(c.shared.items.full(0));
  }
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
    if constexpr (kDqByRows || kConfig.bias_rows || kConfig.table_bias)
      base = ptx::opaque(base);  // addresses are computed here and not kept: registers
    const int stage = c.at.slot(), keys = c.key_at.slot() * kKeySlotBytes;
    return {geometry::descriptor_low(base + kMap.key + keys + c.who * 64 * kRowBytes),
            geometry::descriptor_low(base + kMap.value + keys + c.who * 64 * kRowBytes),
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
  /// Softmax's dP begins at what start_slopes has loaded.
  template <int Rows>
  __device__ __forceinline__ void issue_slopes(TransposedScores<Rows>& dp) const {
#pragma unroll
    for (int k = 0; k < kValueDepth; ++k) {
      ptx::wgmma_ss<Element, Rows>(flat(dp), value + geometry::k_major_step(kKeys, k * 16),
                                   dout + geometry::k_major_step(kQueries, k * 16), kConfig.softmax || k > 0);
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
__device__ __forceinline__ void end_dq(Consumer& c, float (&dq)[kDqColumns / 2], int dq_tile, bool is_first) {
  c.mark_step(Mark::wait_product, BackwardMarks::query_product, c.score_at.before().passed);
  ptx::wgmma_wait_group<After>(dq);
  if (is_first) return;
  c.release_scores(c.score_at.before());
  c.mark_step(Mark::add);
  c.add_dq(dq, dq_tile);
}

/// HSTU: dS takes the factor that the bias's gradient has, whose tile it is.
constexpr bool kScalesSlopes =
    kConfig.bias_gradient && !kConfig.gradient_rows && !kConfig.softmax && !kConfig.scaled_value;
/// Whether R = -inf is looked for only where a score is far down, which makes HSTU's form the exact one.
constexpr bool kLooksLate = kSplits && !kConfig.softmax;

/// R to the scores (hopper_backward_bias.h). HSTU's form, exact or not, must not depend on an R that is invisible: such
/// scores become 0.
template <typename Consumer>
__device__ __forceinline__ bool add_bias(const Consumer& c, int stage, int first_key, bool is_masked,
                                         const uint32* visible, int first_bit, TransposedScores<kQueries>& s) {
  const AttentionCall& call = c.params.backward.call;
  const bool is_hiding = add_bias<!kLooksLate>(call, BiasTile::of(call, c.shared, stage), first_key, s);
  if (!kConfig.softmax && is_masked) hide_invisible(visible, first_bit, s);
  return is_hiding;
}
/// What is invisible becomes 0, beside tables, where what says so is not kept: registers.
template <typename Consumer, typename... Scores>
__device__ __forceinline__ void hide_unseen(const Consumer& c, int stage, Scores&... scores) {
  const int warp = static_cast<int>(ptx::opaque(threadIdx.x)) % kWarpgroup / 32;
  hide_invisible(c.visible_of(stage, warp), warp % 2 * 16, scores...);
}
/// R from tables; returns whether some R of the warp is -inf.
template <typename Consumer>
__device__ __forceinline__ bool add_tables(const Consumer& c, const TablePart& tables, bool is_masked,
                                           TransposedScores<kQueries>& s) {
  const bool is_hiding = tables.add_to(s);
  if (!kConfig.softmax && is_masked) hide_unseen(c, tables.stage, s);
  return is_hiding;
}
/// A tile of 64 queries, whose Q and dO have come, and dQ of the one before. Returns the tile's number among dQ's sums.
template <bool IsFirst, typename Consumer>
__device__ __forceinline__ int overlapped_step(Consumer& c, int flags, int dq_tile_before, bool first) {
  const bool is_first = kPeels ? IsFirst : first;
  const AttentionCall& call = c.params.backward.call;
  const int stage = c.at.slot();
  const int warp = static_cast<int>(kConfig.bias_rows ? ptx::opaque(threadIdx.x) : threadIdx.x) % kWarpgroup / 32;
  const StepOperands operands = StepOperands::of(c);
  const bool is_masked = (flags & kQueryTileMasked) != 0;
  const uint32* const visible = c.visible_of(stage, warp);
  const int first_bit = warp % 2 * 16;

  [[maybe_unused]] const int first_key = c.who * 64 + warp * 16;
  [[maybe_unused]] bool is_hiding = false;
  const float* const terms = c.shared.row_terms(stage);
  [[maybe_unused]] const TablePart tables = c.table_part();

  TransposedScores<kQueries> s, dp;
  PackedScores<kQueries> p, ds;
  c.mark_step(Mark::product, BackwardMarks::score_products, c.at.passed);
  ptx::wgmma_fence();
  operands.issue_scores<kQueries>(s);
  if constexpr (kSplits || kBiased) {
    ptx::wgmma_commit_group();
    c.mark_step(Mark::product, BackwardMarks::slope_product, c.at.passed);
  }
  if constexpr (kConfig.softmax) {
    start_slopes<true>(dp, terms + kQueries);
    ptx::wgmma_fence();
  }
  operands.issue_slopes<kQueries>(dp);
  ptx::wgmma_commit_group();
  [[maybe_unused]] NegatedLse<kQueries / 8> lse;
  if constexpr (kConfig.softmax) lse.load(terms);  // before the wait, which hides the way
  c.mark_step(Mark::wait_product, BackwardMarks::score_products, c.at.passed);
  if constexpr (kSplits) {
    ptx::wgmma_wait_group<1>(flat(s));
    c.mark_step(Mark::scores);
    if constexpr (kConfig.stored_bias) is_hiding = add_bias(c, stage, first_key, is_masked, visible, first_bit, s);
    if constexpr (kConfig.table_bias) is_hiding = add_tables(c, tables, is_masked, s);
    bool exact = apply_probability<kConfig.softmax, kConfig.scaled_key, kBiased>(call, s, p, lse);
    if (kConfig.stored_bias && kLooksLate && exact) {
      is_hiding = hides_some(BiasTile::of(call, c.shared, stage), first_key);
    }
    if constexpr (kScalesSlopes) {
      scale_slopes(exact, c.params.backward.bias_factor, s);
      exact = true;
    }
    if (is_masked) hide_packed<kQueries>(visible, first_bit, p);
    if (kConfig.stored_bias && is_hiding) hide_masked(BiasTile::of(call, c.shared, stage), first_key, p);
    if (kConfig.table_bias && is_hiding) tables.hide(p);
    c.mark_step(Mark::product, BackwardMarks::gradient_products, c.at.passed);
    ptx::wgmma_fence();
    operands.issue_gradient<kConfig.value_dim>(c.dv, p, operands.dout, !is_first);
    ptx::wgmma_commit_group();
    c.mark_step(Mark::wait_product, BackwardMarks::slope_product, c.at.passed);
    ptx::wgmma_wait_group<1>(flat(dp));
    c.mark_step(Mark::scores);
    apply_slope<kConfig.softmax>(exact, s, dp);
    if constexpr (kConfig.table_bias) {
      if (is_masked) hide_unseen(c, stage, dp);
      if (is_hiding) tables.hide(dp);
      if constexpr (kConfig.table_gradients) tables.take(dp, tables.put_diagonals(dp));
    }
    pack_scores<Element>(ds, dp);
    if (!kConfig.table_bias && is_masked) hide_packed<kQueries>(visible, first_bit, ds);
    if (kConfig.stored_bias && is_hiding) hide_masked(BiasTile::of(call, c.shared, stage), first_key, ds);
  } else {
    if constexpr (kBiased) {  // beside dP's product
      ptx::wgmma_wait_group<1>(flat(s));
      c.mark_step(Mark::scores);
      if constexpr (kConfig.stored_bias) is_hiding = add_bias(c, stage, first_key, is_masked, visible, first_bit, s);
      if constexpr (kConfig.table_bias) is_hiding = add_tables(c, tables, is_masked, s);
      c.mark_step(Mark::wait_product, BackwardMarks::slope_product, c.at.passed);
      ptx::wgmma_wait_group<0>(flat(dp));
    } else {
      ptx::wgmma_wait_group<0>(flat(s), flat(dp));
    }
    c.mark_step(Mark::scores);
    apply_score<kConfig.softmax, kConfig.softcap, false, kConfig.scaled_key, kBiased>(call, s, dp, terms, lse);
    if constexpr (kScalesSlopes) scale_all(flat(dp), c.params.backward.bias_factor);
    if constexpr (kConfig.table_bias) {
      if (is_masked) hide_unseen(c, stage, s, dp);
      if (is_hiding) {
        tables.hide(s);
        tables.hide(dp);
      }
      pack_scores<Element>(p, s);
      if constexpr (kConfig.table_gradients) {
        c.mark_step(Mark::product, BackwardMarks::gradient_products, c.at.passed);
        ptx::wgmma_fence();
        operands.issue_gradient<kConfig.value_dim>(c.dv, p, operands.dout, !is_first);
        ptx::wgmma_commit_group();
        const float total = tables.put_diagonals(dp);
        ptx::wgmma_wait_group<0>(c.dv);  // P's registers are free
        tables.take(dp, total);
      }
      pack_scores<Element>(ds, dp);
    } else {
      pack_scores<Element>(p, s);
      pack_scores<Element>(ds, dp);
      if (is_masked) hide_packed<kQueries>(visible, first_bit, p, ds);
    }
    if (kConfig.stored_bias && is_hiding) {
      hide_masked(BiasTile::of(call, c.shared, stage), first_key, p);
      hide_masked(BiasTile::of(call, c.shared, stage), first_key, ds);
    }
  }
  c.hand_over(ds);
  const int dq_tile = c.shared.note(stage).dq_tile;

  float dq[kDqColumns / 2];
  constexpr bool kHasDv = kSplits || kConfig.table_gradients;
  if constexpr (!kHasDv) c.mark_step(Mark::product, BackwardMarks::gradient_products, c.at.passed);
  ptx::wgmma_fence();
  if constexpr (!kHasDv) {
    operands.issue_gradient<kConfig.value_dim>(c.dv, p, operands.dout, !is_first);
    ptx::wgmma_commit_group();
  }
  if constexpr (!IsFirst) {
    c.mark_step(Mark::wait_full, BackwardMarks::scores, c.score_at.before().passed);
    if (!is_first) c.shared.scores.wait_full(c.score_at.before());
    c.mark_step(Mark::product, BackwardMarks::query_product, c.score_at.before().passed);
    c.template issue_dq<kKeys / 16>(dq, c.score_at.before().slot(), 0, is_first);
    ptx::wgmma_fence();
  }
  c.mark_step(Mark::product, BackwardMarks::key_product, c.at.passed);
  operands.issue_gradient<kConfig.head_dim>(c.dk, ds, operands.query, !is_first);
  ptx::wgmma_commit_group();
  if constexpr (kConfig.table_gradients) tables.add_positions_gradient();
  if constexpr (!IsFirst) end_dq<1>(c, dq, dq_tile_before, is_first);
  c.mark_step(Mark::wait_product, BackwardMarks::key_product, c.at.passed);
  ptx::wgmma_wait_group<0>(c.dk, c.dv);
  free_barrier_arrive(stage);
  c.at.advance();
  c.score_at.advance();
  return dq_tile;
}

/// The same for a tile of 128 queries: the products of either half run under the other's scalar work.
template <bool IsFirst, typename Consumer>
__device__ __forceinline__ int step_in_halves(Consumer& c, int flags, int dq_tile_before, bool first) {
  const bool is_first = kPeels ? IsFirst : first;
  constexpr int kHalf = kQueries / 2;
  const AttentionCall& call = c.params.backward.call;
  const int stage = c.at.slot(), warp = static_cast<int>(ptx::opaque(threadIdx.x)) % kWarpgroup / 32;
  const StepOperands operands = StepOperands::of(c);
  const bool is_masked = (flags & kQueryTileMasked) != 0;
  const float* const terms = c.shared.row_terms(stage);

  TransposedScores<kHalf> s[2], dp[2];
  take_turn(c);
  ptx::wgmma_fence();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    c.mark_step(Mark::product, BackwardMarks::score_products, c.at.passed);
    operands.from(half * kHalf).template issue_scores<kHalf>(s[half]);
    if constexpr (kConfig.softmax) {
      if (half == 0) {  // a fence between the products of the second half would tie the first one's to them
#pragma unroll
        for (int i = 0; i < 2; ++i) start_slopes<true>(dp[i], terms + kQueries + i * kHalf * 2);
        ptx::wgmma_fence();
      }
    }
    operands.from(half * kHalf).template issue_slopes<kHalf>(dp[half]);
    ptx::wgmma_commit_group();
  }
  float dq[kDqColumns / 2];
  int dq_tile = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    [[maybe_unused]] NegatedLse<kHalf / 8> lse;
    if constexpr (kConfig.softmax) lse.load(terms + half * kHalf);
    c.mark_step(Mark::wait_product, BackwardMarks::score_products, c.at.passed);
    ptx::wgmma_wait_group<1>(flat(s[half]), flat(dp[half]));
    if (half == 1) pass_turn(c.who);
    c.mark_step(Mark::scores);
    apply_score<kConfig.softmax, kConfig.softcap, false, kConfig.scaled_key, false>(call, s[half], dp[half],
                                                                                    terms + half * kHalf, lse);
    PackedScores<kHalf> p, ds;
    pack_scores<Element>(p, s[half]);
    pack_scores<Element>(ds, dp[half]);
    if (is_masked) hide_packed<kHalf>(c.visible_of(stage, warp) + half * kHalf, warp % 2 * 16, p, ds);

    c.mark_step(Mark::hand_over, BackwardMarks::scores, c.score_at.passed);
    if (half == 0) c.shared.scores.wait_empty(c.score_at);
    if (kStoresByTma && half == 0 && is_first) c.end_stores();
    c.template write_scores<kHalf>(ds, half * kHalf);
    if (half == 1) {
      c.publish_scores();
      dq_tile = c.shared.note(stage).dq_tile;
      if constexpr (!IsFirst) {
        c.mark_step(Mark::wait_full, BackwardMarks::scores, c.score_at.before().passed);
        if (!is_first) c.shared.scores.wait_full(c.score_at.before());
        c.mark_step(Mark::product, BackwardMarks::query_product, c.score_at.before().passed);
        c.template issue_dq<kKeys / 16>(dq, c.score_at.before().slot(), 0, is_first);
      }
    }
    const StepOperands here = operands.from(half * kHalf);
    c.mark_step(Mark::product, BackwardMarks::gradient_products, c.at.passed);
    ptx::wgmma_fence();
    here.issue_gradient<kConfig.value_dim>(c.dv, p, here.dout, !is_first || half == 1);
    here.issue_gradient<kConfig.head_dim>(c.dk, ds, here.query, !is_first || half == 1);
    ptx::wgmma_commit_group();
  }
  if constexpr (!IsFirst) end_dq<1>(c, dq, dq_tile_before, is_first);
  c.mark_step(Mark::wait_product, BackwardMarks::gradient_products, c.at.passed);
  ptx::wgmma_wait_group<0>(c.dk, c.dv);
  free_barrier_arrive(stage);
  c.at.advance();
  c.score_at.advance();
  return dq_tile;
}

}  // namespace warploom
