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
#include "attention/hopper_backward_producer.h"
#include "attention/hopper_backward_scores.h"
#include "attention/hopper_backward_shared.h"
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

/// A consumer's part of dQ is 64 queries, or of 64 queries a panel of columns, or half of one. Columns past the head's
/// end are zeros of K's, and not added.
constexpr bool kDqByRows = kQueries == 128;
constexpr int kDqColumns = kDqByRows ? kConfig.head_dim : kConfig.head_dim > geometry::kPanelColumns ? 64 : 32;
constexpr int kDqGradientStep = kDqByRows ? 64 * kRowBytes : 0;  // bytes of dS from one consumer's part to the other's
constexpr int kDqKeyStep = kDqByRows ? 0 : kDqColumns == 64 ? kKeys * kRowBytes : kDqColumns * 2;  // bytes of K

/// Where registers are scarcest, addresses are computed where they are needed and not kept through the loop.
constexpr bool kFewRegisters = !kConfig.bfloat16 || kQueries == 128 || (kConfig.variant & 2048);

__device__ __forceinline__ int thread_of_warpgroup() {
  return static_cast<int>(kFewRegisters ? ptx::opaque(threadIdx.x) : threadIdx.x) % kWarpgroup;
}

constexpr int kVariant = kConfig.variant;
constexpr bool kSplit = kVariant & 1, kDqFirst = kVariant & 2, kCarry = kVariant & 4, kTurn = kVariant & 8,
               kNoAct = kVariant & 16, kNoRed = kVariant & 32, kNoHand = kVariant & 64, kTrace = kVariant & 256,
               kHalves = kVariant & 512, kNew = kVariant & 128, kNoFence = kVariant & 4096;
#ifndef BW_TRACE_PTR
#define BW_TRACE_PTR 0
#endif

/// In place: h becomes P, dp's factor less 1 (or, exact, the factor) goes where h was.
template <bool Halved, int Blocks>
__device__ __forceinline__ bool hstu_parts(float alpha, float (&s)[1][Blocks][4], uint32 (&p)[Blocks / 2][4]) {
  if constexpr (!Halved) {
    const float half_alpha = 0.5f * alpha;
#pragma unroll
    for (int n = 0; n < Blocks; ++n)
      for (float& x : s[0][n]) x *= half_alpha;
  }
  const bool exact = __any_sync(0xffffffffu, any_below_tanh_limit(s));
  float(&x)[4 * Blocks] = reinterpret_cast<float(&)[4 * Blocks]>(s);
  if (exact) {
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) {
      float value[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        constexpr float kMinusTwoLog2E = -2.885390081777927f;
        const float bounded = ptx::max_nan(x[2 * i + j], -1e30f);
        const float sigma = ptx::rcp_approx(1.0f + ptx::ex2_approx(bounded * kMinusTwoLog2E));
        value[j] = (bounded + bounded) * sigma;
        const float slope = fmaf(-sigma, value[j], value[j]) + sigma;
        x[2 * i + j] = slope + slope;
      }
      p[i / 4][i % 4] = ptx::pack<Element>(value[0], value[1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) {
      float value[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float h = x[2 * i + j], t = ptx::tanh_approx(h);
        value[j] = fmaf(h, t, h);
        x[2 * i + j] = fmaf(-value[j], t, value[j]) + t;
      }
      p[i / 4][i % 4] = ptx::pack<Element>(value[0], value[1]);
    }
  }
  return exact;
}

struct Consumer {
  unsigned long long trace_at = 0;
  uint32 trace_on = 0;
  __device__ __forceinline__ void mark(uint32 tag) {
    if constexpr (kTrace) {
      asm volatile("{.reg .pred p; .reg .u32 t; setp.ne.u32 p, %0, 0; mov.u32 t, %%clock; @p st.global.v2.u32 [%1], {t, %2};}" ::"r"(trace_on), "l"(trace_at), "r"(tag) : "memory");
      trace_at += 8;
    }
  }
  __device__ __forceinline__ void take_turn() const { if constexpr (kTurn) ptx::named_barrier_sync(8 + who, 256); }
  __device__ __forceinline__ void pass_turn() const { if constexpr (kTurn) ptx::named_barrier_arrive(8 + 1 - who, 256); }
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
        geometry::descriptor_low(shared.key(key_at.slot()) + who * kDqKeyStep) + geometry::transposed_step(first_k * 16);
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
        if (!kNoRed || dq_tile < 0) ptx::red_add_4(sums + n * kFloats, reinterpret_cast<const float(&)[4]>(dq[4 * n]));
      }
    }
  }

  /// The warpgroup's products with a tile have ended, and its lanes have read the notes.
  __device__ __forceinline__ void release_tile(const TileRing::Cursor& tile) const {
    free_barrier_arrive(tile.slot());
  }
  __device__ __forceinline__ void release_tile() const { release_tile(at); }

  /// After the products with a score tile; in float16 every lane has read its exponents.
  __device__ __forceinline__ void release_scores(const ScoreRing::Cursor& tile) const {
    if (!kConfig.bfloat16 || threadIdx.x % kWarpgroup == 0) shared.scores.release(tile);
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

  /// The warp's part of dS to both consumers.
  __device__ __forceinline__ void hand_over(const PackedScores<kQueries>& ds) {
    const int warp = thread_of_warpgroup() / 32, buffer = score_at.slot();
    shared.scores.wait_empty(score_at);
    if (!kNoHand) store_transposed(shared.score_tile(buffer), kQueries, 0, who * 64 + warp * 16, ds);
    if constexpr (!kConfig.bfloat16) {
      if (threadIdx.x % 32 == 0) shared.exponent(buffer, who * 4 + warp) = exponents.gradient;
    }
    if (!kNoHand && !kNoFence) ptx::fence_proxy_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.scores.publish(score_at);
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
      const uint32 key = geometry::descriptor_low(here.key(key_at.slot()) + who * 64 * kRowBytes);
      const uint32 value = geometry::descriptor_low(here.value(key_at.slot()) + who * 64 * kRowBytes);
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

    apply_score<kConfig.softmax, kConfig.softcap, !kConfig.bfloat16, kConfig.scaled_key>(params.backward.call, s, dp,
                                                                                         shared.row_terms(stage));
    PackedScores<kQueries> p, ds;
    const bool is_masked = (flags & kQueryTileMasked) != 0;
    const uint32* const visible = shared.visible(stage) + (who * 2 + warp / 2) * kQueries;
    const int first_bit = warp % 2 * 16;
    if constexpr (!kConfig.bfloat16) {
      // Before the exponents: they must not depend on what is invisible.
      if (is_masked)
        for_each_visible<kQueries>(visible, first_bit, [&](int k, int i, uint32 mask) {
          float(&s_pair)[2] = reinterpret_cast<float(&)[2]>(s[0][2 * k + i / 2][i % 2 * 2]);
          float(&dp_pair)[2] = reinterpret_cast<float(&)[2]>(dp[0][2 * k + i / 2][i % 2 * 2]);
          if ((mask & 1) == 0) s_pair[0] = dp_pair[0] = 0;
          if ((mask >> 16) == 0) s_pair[1] = dp_pair[1] = 0;
        });
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
      release_tile();
      if constexpr (kConfig.accumulate_dq && !IsFirst) finish_dq(dq_tile_before);
    } else {
      const ScoreRing::Cursor before = score_at.before();
      shared.scores.wait_full(before);
      float dq[kDqColumns / 2];
      issue_dq<kKeys / 16>(dq, before.slot());
      ptx::wgmma_wait_group<1>(dk, dv);
      release_tile();
      ptx::wgmma_wait_group<0>(dq);
      release_scores(before);
      add_dq(dq, dq_tile_before);
    }
    at.advance();
    score_at.advance();
    return dq_tile;
  }

  template <int Rows, bool Last>
  __device__ __forceinline__ void mask_part(bool is_masked, const uint32* visible, int first_bit, PackedScores<Rows>& p) {
    if (is_masked) for_each_visible<Rows>(visible, first_bit, [&](int k, int i, uint32 mask) { p[k][i] &= mask; });
  }

  template <int Rows>
  __device__ __forceinline__ bool probabilities(TransposedScores<Rows>& s, PackedScores<Rows>& p, const float* terms) {
    if constexpr (kNoAct) {
      pack_scores<Element>(p, s);
      return false;
    } else if constexpr (kConfig.softmax) {
      const int pair = threadIdx.x % 4;
#pragma unroll
      for (int n = 0; n < Rows / 8; ++n) {
        const float4 rows = reinterpret_cast<const float4*>(terms)[n * 4 + pair];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          s[0][n][i] = ptx::ex2_approx(fmaf(s[0][n][i], params.backward.call.alpha, -(i % 2 == 0 ? rows.x : rows.z)) * kLog2E);
      }
      pack_scores<Element>(p, s);
      return false;
    } else {
      return hstu_parts<kConfig.scaled_key>(params.backward.call.alpha, s, p);
    }
  }
  template <int Rows>
  __device__ __forceinline__ void slopes(bool exact, const TransposedScores<Rows>& s, TransposedScores<Rows>& dp, const float* terms) {
    constexpr int Blocks = Rows / 8;
    if constexpr (kNoAct) {
    } else if constexpr (kConfig.softmax) {
      const int pair = threadIdx.x % 4;
#pragma unroll
      for (int n = 0; n < Rows / 8; ++n) {
        const float4 rows = reinterpret_cast<const float4*>(terms)[n * 4 + pair];
#pragma unroll
        for (int i = 0; i < 4; ++i) dp[0][n][i] = s[0][n][i] * (dp[0][n][i] - (i % 2 == 0 ? rows.y : rows.w));
      }
    } else if (exact) {
#pragma unroll
      for (int n = 0; n < Blocks; ++n)
        for (int i = 0; i < 4; ++i) dp[0][n][i] *= s[0][n][i];
    } else {
#pragma unroll
      for (int n = 0; n < Blocks; ++n)
        for (int i = 0; i < 4; ++i) dp[0][n][i] = fmaf(dp[0][n][i], s[0][n][i], dp[0][n][i]);
    }
  }

  template <bool IsFirst>
  __device__ __forceinline__ int step_new(int flags, int dq_tile_before) {
    const int stage = at.slot();
    const int warp = thread_of_warpgroup() / 32;
    Shared here = shared;
    if constexpr (kFewRegisters) here.address = ptx::opaque(here.address);
    const uint32 query = geometry::descriptor_low(here.query(stage), kQueries * kRowBytes);
    const uint32 dout = geometry::descriptor_low(here.dout(stage), kQueries * kRowBytes);
    const bool is_masked = (flags & kQueryTileMasked) != 0;
    const uint32* const visible = shared.visible(stage) + (who * 2 + warp / 2) * kQueries;
    const int first_bit = warp % 2 * 16;
    TransposedScores<kQueries> s, dp;
    take_turn();
    {
      const uint32 key = geometry::descriptor_low(here.key(key_at.slot()) + who * 64 * kRowBytes);
      const uint32 value = geometry::descriptor_low(here.value(key_at.slot()) + who * 64 * kRowBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        ptx::wgmma_ss<Element, kQueries>(flat(s), key + geometry::k_major_step(kKeys, k * 16),
                                         query + geometry::k_major_step(kQueries, k * 16), k > 0);
      }
      if constexpr (kSplit) ptx::wgmma_commit_group();
#pragma unroll
      for (int k = 0; k < kValueDepth; ++k) {
        ptx::wgmma_ss<Element, kQueries>(flat(dp), value + geometry::k_major_step(kKeys, k * 16),
                                         dout + geometry::k_major_step(kQueries, k * 16), k > 0);
      }
      ptx::wgmma_commit_group();
    }
    mark(3);
    PackedScores<kQueries> p, ds;
    if constexpr (kCarry && !IsFirst) {
      ptx::wgmma_wait_group<kSplit ? 1 : 0>(flat(s), dk, dv);
      release_tile(at.before());
    } else {
      ptx::wgmma_wait_group<kSplit ? 1 : 0>(flat(s));
    }
    if constexpr (!kSplit) ptx::wgmma_wait_group<0>(flat(dp));
    mark(4);
    if constexpr (!kSplit) pass_turn();
    bool exact = false;
    if constexpr (kSplit) {
      exact = probabilities<kQueries>(s, p, shared.row_terms(stage));
      mask_part<kQueries, false>(is_masked, visible, first_bit, p);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kQueries / 16; ++k) {
        ptx::wgmma_rs<Element, kConfig.value_dim, true>(dv, p[k], dout + geometry::transposed_step(k * 16),
                                                        !IsFirst || k > 0);
      }
      ptx::wgmma_commit_group();
      mark(5);
      ptx::wgmma_wait_group<1>(flat(dp));
      pass_turn();
      mark(6);
    }
    if constexpr (kSplit) {
      slopes<kQueries>(exact, s, dp, shared.row_terms(stage));
      pack_scores<Element>(ds, dp);
      mask_part<kQueries, true>(is_masked, visible, first_bit, ds);
    } else {
      if (!kNoAct) apply_score<kConfig.softmax, kConfig.softcap, !kConfig.bfloat16, kConfig.scaled_key>(params.backward.call, s, dp,
                                                                                         shared.row_terms(stage));
      pack_scores<Element>(p, s);
      pack_scores<Element>(ds, dp);
      if (is_masked)
        for_each_visible<kQueries>(visible, first_bit, [&](int k, int i, uint32 mask) {
          p[k][i] &= mask;
          ds[k][i] &= mask;
        });
    }
    mark(7);
    hand_over(ds);
    const int dq_tile = shared.note(stage).dq_tile;
    mark(9);
    const ScoreRing::Cursor before = score_at.before();
    float dq[kDqColumns / 2];
    ptx::wgmma_fence();
    if constexpr (!kSplit) {
#pragma unroll
      for (int k = 0; k < kQueries / 16; ++k) {
        ptx::wgmma_rs<Element, kConfig.value_dim, true>(dv, p[k], dout + geometry::transposed_step(k * 16),
                                                        !IsFirst || k > 0);
      }
      if constexpr (kDqFirst) ptx::wgmma_commit_group();
    }
    if constexpr (kDqFirst && !IsFirst) {
      shared.scores.wait_full(before);
      mark(11);
      issue_dq<kKeys / 16>(dq, before.slot());
      ptx::wgmma_fence();
    }
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      ptx::wgmma_rs<Element, kConfig.head_dim, true>(dk, ds[k], query + geometry::transposed_step(k * 16),
                                                     !IsFirst || k > 0);
    }
    ptx::wgmma_commit_group();
    mark(10);
    if constexpr (IsFirst) {
      if constexpr (!kCarry) {
        ptx::wgmma_wait_group<0>(dk, dv);
        release_tile();
      }
    } else if constexpr (kDqFirst) {
      ptx::wgmma_wait_group<1>(dq, dv);
      mark(14);
      release_scores(before);
      add_dq(dq, dq_tile_before);
      mark(15);
      if constexpr (!kCarry) {
        ptx::wgmma_wait_group<0>(dk, dv);
        mark(13);
        release_tile();
      }
    } else {
      shared.scores.wait_full(before);
      mark(11);
      issue_dq<kKeys / 16>(dq, before.slot());
      mark(12);
      ptx::wgmma_wait_group<1>(dk, dv);
      mark(13);
      release_tile();
      ptx::wgmma_wait_group<0>(dq);
      mark(14);
      release_scores(before);
      add_dq(dq, dq_tile_before);
      mark(15);
    }
    at.advance();
    score_at.advance();
    return dq_tile;
  }

  /// 128 queries in two halves.
  template <bool IsFirst>
  __device__ __forceinline__ int step_halves(int flags, int dq_tile_before) {
    const int stage = at.slot();
    const int warp = thread_of_warpgroup() / 32;
    Shared here = shared;
    here.address = ptx::opaque(here.address);
    const uint32 query = geometry::descriptor_low(here.query(stage), kQueries * kRowBytes);
    const uint32 dout = geometry::descriptor_low(here.dout(stage), kQueries * kRowBytes);
    const bool is_masked = (flags & kQueryTileMasked) != 0;
    const uint32* const visible = shared.visible(stage) + (who * 2 + warp / 2) * kQueries;
    const int first_bit = warp % 2 * 16;
    constexpr int kHalf = 64, kHalfStep = kHalf * kRowBytes / 16;
    TransposedScores<kHalf> s[2], dp[2];
    take_turn();
    {
      const uint32 key = geometry::descriptor_low(here.key(key_at.slot()) + who * 64 * kRowBytes);
      const uint32 value = geometry::descriptor_low(here.value(key_at.slot()) + who * 64 * kRowBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int k = 0; k < kDepth; ++k)
          ptx::wgmma_ss<Element, kHalf>(flat(s[half]), key + geometry::k_major_step(kKeys, k * 16),
                                        query + half * kHalfStep + geometry::k_major_step(kQueries, k * 16), k > 0);
#pragma unroll
        for (int k = 0; k < kValueDepth; ++k)
          ptx::wgmma_ss<Element, kHalf>(flat(dp[half]), value + geometry::k_major_step(kKeys, k * 16),
                                        dout + half * kHalfStep + geometry::k_major_step(kQueries, k * 16), k > 0);
        ptx::wgmma_commit_group();
      }
    }
    mark(3);
    const ScoreRing::Cursor before = score_at.before();
    float dq[kDqColumns / 2];
    int dq_tile = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kCarry && !IsFirst) {
        ptx::wgmma_wait_group<1>(flat(s[half]), flat(dp[half]), dk, dv);
        if (half == 0) release_tile(at.before());
      } else {
        ptx::wgmma_wait_group<1>(flat(s[half]), flat(dp[half]));
      }
      mark(4 + half);
      if (half == 1) pass_turn();
      if (!kNoAct) apply_score<kConfig.softmax, kConfig.softcap, false, kConfig.scaled_key>(params.backward.call, s[half], dp[half],
                                                                               shared.row_terms(stage) + half * kHalf * (kConfig.softmax ? 2 : 1));
      PackedScores<kHalf> p, ds;
      pack_scores<Element>(p, s[half]);
      pack_scores<Element>(ds, dp[half]);
      if (is_masked)
        for_each_visible<kHalf>(visible + half * kHalf, first_bit, [&](int k, int i, uint32 mask) {
          p[k][i] &= mask;
          ds[k][i] &= mask;
        });
      if (half == 0) shared.scores.wait_empty(score_at);
      if (!kNoHand) store_transposed(shared.score_tile(score_at.slot()), kQueries, half * kHalf, who * 64 + warp * 16, ds);
      if (half == 1) {
        if (!kNoHand && !kNoFence) ptx::fence_proxy_async_shared();
        __syncwarp();
        if (threadIdx.x % 32 == 0) shared.scores.publish(score_at);
        dq_tile = shared.note(stage).dq_tile;
        mark(9);
        if constexpr (!IsFirst) {
          shared.scores.wait_full(before);
          mark(11);
          issue_dq<kKeys / 16>(dq, before.slot());
        }
      }
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kHalf / 16; ++k)
        ptx::wgmma_rs<Element, kConfig.value_dim, true>(dv, p[k], dout + half * kHalfStep + geometry::transposed_step(k * 16),
                                                        !IsFirst || half > 0 || k > 0);
#pragma unroll
      for (int k = 0; k < kHalf / 16; ++k)
        ptx::wgmma_rs<Element, kConfig.head_dim, true>(dk, ds[k], query + half * kHalfStep + geometry::transposed_step(k * 16),
                                                       !IsFirst || half > 0 || k > 0);
      ptx::wgmma_commit_group();
      mark(7 + half);
    }
    if constexpr (!IsFirst) {
      ptx::wgmma_wait_group<1>(dq);
      mark(14);
      release_scores(before);
      add_dq(dq, dq_tile_before);
      mark(15);
    }
    if constexpr (!kCarry) {
      ptx::wgmma_wait_group<0>(dk, dv);
      mark(13);
      release_tile();
    }
    at.advance();
    score_at.advance();
    return dq_tile;
  }
  template <bool IsFirst>
  __device__ __forceinline__ int any_step(int flags, int dq_tile_before) {
    if constexpr (kHalves) return step_halves<IsFirst>(flags, dq_tile_before);
    else if constexpr (kNew) return step_new<IsFirst>(flags, dq_tile_before);
    else return step<IsFirst>(flags, dq_tile_before);
  }

  /// Multiplies this consumer's keys by alpha / 2, a power of two, where they lie. dQ's factor lacks it then.
  __device__ __forceinline__ void scale_keys() {
    const float factor = 0.5f * params.backward.call.alpha;
    const uint32 factors = ptx::pack<ptx::Bfloat16>(factor, factor);
    const uint32 rows = shared.key(key_at.slot()) + who * 64 * kRowBytes;
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
      mark(22);
      int dq_tile = any_step<true>(flags, 0);
      while ((flags & kQueryTileLast) == 0) {
        shared.tiles.wait_full(at);
        flags = shared.note(at.slot()).flags;
        mark(2);
        dq_tile = any_step<false>(flags, dq_tile);
        mark(1);
      }
      if constexpr (kCarry) {
        ptx::wgmma_wait_group<0>(dk, dv);
        release_tile(at.before());
      }
      mark(23);
      if constexpr (kConfig.accumulate_dq) finish_dq(dq_tile);
      mark(24);
      shared.keys.release(key_at);
      key_at.advance();
    } else {
      release_tile();
      at.advance();
    }
    store_gradients(is_seen);
    mark(25);
    shared.items.release(item_at);
  }

  __device__ __forceinline__ void run() {
    if constexpr (kTrace) {
      trace_on = blockIdx.x < 2 && threadIdx.x % 128 == 0;
      trace_at = BW_TRACE_PTR + (blockIdx.x * 2 + who) * 65536ull * 2;
    }
    if (who == 1) pass_turn();
    for (;; item_at.advance()) {
      mark(20);
      shared.items.wait_full(item_at);
      mark(21);
      if (shared.item(item_at.slot()).is_end) {
        if (who == 0) take_turn();
        return;
      }
      walk();
    }
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
    shared.items.init(kReaders + 32);
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
    ptx::setmaxnreg_dec<(kVariant & 1024) ? 24 : 40>();
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) % kWarpgroup / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (warp == 0) {
      Scheduler scheduler{params, shared, lane, {}};
      scheduler.run();
    } else if (warp == 1) {
      Loader loader{params, shared, lane, {}, {}};
      loader.run();
    }
  } else {
    ptx::setmaxnreg_inc<(kVariant & 1024) || kTwoWarps ? 240 : 232>();
    Consumer consumer{0, 0, params, shared, warpgroup};
    consumer.run();
  }
}
