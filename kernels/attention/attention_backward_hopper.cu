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
#include "attention/hopper_backward_order.h"
#include "attention/hopper_backward_producer.h"
#include "attention/hopper_backward_scores.h"
#include "attention/hopper_backward_shared.h"
#include "attention/hopper_backward_steps.h"
#include "attention/hopper_backward_sums.h"
#include "attention/hopper_backward_tables.h"
#include "attention/hopper_store.h"
#include "geometry/wgmma_descriptor.h"
#include "ptx/fence.h"
#include "ptx/grid_dependency.h"
#include "ptx/reduction.h"
#include "ptx/registers.h"
#include "ptx/stmatrix.h"
#include "ptx/tma.h"
#include "ptx/warpgroup_registers.h"
#include "ptx/wgmma.h"

namespace warploom {

static_assert(kConfig.consumers == 2 && kKeys == 128 && (kQueries == 64 || kQueries == 128));
static_assert(kConfig.head_dim <= (kQueries == 128 ? 64 : 128));
static_assert(kConfig.stored_bias ? !kConfig.bias_float32 || kConfig.bias_rows : !kConfig.bias_gradient);
static_assert(!kConfig.bias_gradient || kConfig.gradient_rows || (kConfig.bfloat16 && kConfig.accumulate_dq));
static_assert(kConfig.table_bias ? !kConfig.stored_bias && !kConfig.clears_sums && kQueries == 64
                                 : !kConfig.table_gradients);
static_assert(kConfig.clears_sums ? kConfig.accumulate_dq && !kConfig.bias_gradient : !kConfig.converts_sums);
static_assert(!kConfig.orders_sums || (kConfig.clears_sums && !kConfig.converts_sums && kConfig.bfloat16));

/// Whether what is invisible becomes 0 before it is rounded.
constexpr bool kHidesScores = !kConfig.bfloat16 || kBiased;

constexpr int kDqGradientStep = kDqByRows ? 64 * kRowBytes : 0;  // bytes of dS from one consumer's part to the other's
constexpr int kDqKeyStep = kDqByRows ? 0 : kDqColumns == 64 ? kKeys * kRowBytes : kDqColumns * 2;  // bytes of K

/// Where registers are scarcest, addresses are computed where they are needed and not kept through the loop.
constexpr bool kFewRegisters = !kConfig.bfloat16 || kQueries == 128 || kConfig.bias_rows || kConfig.table_bias;

__device__ __forceinline__ int thread_of_warpgroup() {
  return static_cast<int>(kFewRegisters ? ptx::opaque(threadIdx.x) : threadIdx.x) % kWarpgroup;
}

struct Consumer : trace::Pen<kConfig.trace> {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int who;

  ItemRing::Cursor item_at;
  KeyRing::Cursor key_at;
  TileRing::Cursor at;
  ScoreRing::Cursor score_at;
  SumsRing::Cursor staged_at;

  float dk[kConfig.head_dim / 2];
  float dv[kConfig.value_dim / 2];
  WarpExponents exponents;

  /// Starts this consumer's columns of dS K, over Count times 16 keys of the item.
  template <int Count>
  __device__ __forceinline__ void issue_dq(float (&dq)[kDqColumns / 2], int buffer, int first_k = 0,
                                           bool is_first = false) {
    // Of an item's first tile there is none before: K's and V's places stand for its dS, and nobody wants the result.
    const uint32 gradient = geometry::descriptor_low((is_first ? shared.key(key_at.slot()) : shared.score_tile(buffer)) + who * kDqGradientStep) +
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
    if constexpr (kConfig.orders_sums) return stage_dq(dq);
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

  /// The same to the warp that adds them (hopper_backward_order.h).
  __device__ __forceinline__ void stage_dq(const float (&dq)[kDqColumns / 2]) {
    constexpr int kBlocks = kConfig.head_dim / 8, kBlockBytes = 512;
    const int thread = thread_of_warpgroup();
    const int first_row = (kDqByRows ? who * 4 : 0) + thread / 32,
              first_column = kDqByRows ? 0 : who * (kDqColumns / 8);
    const uint32 to = shared.sums() + (first_row * kBlocks + first_column) * kBlockBytes + thread % 32 * 16;
    shared.staged.wait_empty(staged_at);
#pragma unroll
    for (int n = 0; n < kDqColumns / 8; ++n) {
      if (kDqByRows || kConfig.head_dim == 2 * kDqColumns || first_column + n < kBlocks) {
        ptx::store_shared_float4(to + n * kBlockBytes, reinterpret_cast<const float(&)[4]>(dq[4 * n]));
      }
    }
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.staged.publish(staged_at);
    staged_at.advance();
  }

  /// After the products with a score tile; in float16 every lane has read its exponents.
  __device__ __forceinline__ void release_scores(const ScoreRing::Cursor& tile) const {
    if (!kConfig.bfloat16 || threadIdx.x % kWarpgroup == 0) {
      shared.scores.release(tile);
    }
  }

  /// gradient_rows: the warp's part of a tile, from its registers. first_key: of its 16, in the item.
  __device__ __forceinline__ void write_bias_gradient(int stage, int first_key,
                                                      const TransposedScores<kQueries>& ds) const {
    const BiasCall& gradient = params.backward.bias_gradient;
    const Item& item = shared.item(item_at.slot());
    const volatile BiasTileNote& note = shared.bias_note(stage);
    const RowsPart part = gradient_part(gradient, item, note.head, note.row - bias_row_of_query(gradient, item.work),
                                        static_cast<int>(item.work.first_row) + first_key);
    KeyRowsBias<Element, kConfig.bias_float32, kQueries, 16>::write(0, part, ds, params.backward.bias_factor);
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
    mark_step(Mark::wait_full, BackwardMarks::scores, before.passed);
    shared.scores.wait_full(before);
    mark_step(Mark::product, BackwardMarks::query_product, before.passed);
    float dq[kDqColumns / 2];
    if (!kConfig.bfloat16 && is_scaled(before.slot())) {
      // Part after part, each multiplied.
#pragma unroll 1
      for (int k = 0; k < kKeys / 16; ++k) {
        issue_dq<1>(dq, before.slot(), k);
        mark_step(Mark::wait_product, BackwardMarks::query_product, before.passed);
        ptx::wgmma_wait_group<0>(dq);
        mark_step(Mark::add);
        scale_all(dq, power_of_two(shared.exponent(before.slot(), k)));
        add_dq(dq, dq_tile);
      }
      release_scores(before);
    } else {
      issue_dq<kKeys / 16>(dq, before.slot());
      mark_step(Mark::wait_product, BackwardMarks::query_product, before.passed);
      ptx::wgmma_wait_group<0>(dq);
      release_scores(before);
      mark_step(Mark::add);
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
    mark_step(Mark::hand_over, BackwardMarks::scores, score_at.passed);
    shared.scores.wait_empty(score_at);
    write_scores<kQueries>(ds, 0);
    if constexpr (!kConfig.bfloat16) {
      if (threadIdx.x % 32 == 0) shared.exponent(buffer, who * 4 + warp) = exponents.gradient;
    }
    publish_scores();
  }

  __device__ __forceinline__ TablePart table_part() const { return {params, shared, item_at.slot(), at.slot()}; }

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
    mark_step(Mark::product, BackwardMarks::score_products, at.passed);
    {
      const uint32 key = geometry::descriptor_low(here.key() + who * 64 * kRowBytes);
      const uint32 value = geometry::descriptor_low(here.value() + who * 64 * kRowBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        ptx::wgmma_ss<Element, kQueries>(flat(s), key + geometry::k_major_step(kKeys, k * 16),
                                         query + geometry::k_major_step(kQueries, k * 16), k > 0);
      }
      if constexpr (kConfig.softmax) {
        start_slopes<true>(dp, shared.row_terms(stage) + kQueries);
        ptx::wgmma_fence();
      }
#pragma unroll
      for (int k = 0; k < kValueDepth; ++k) {
        ptx::wgmma_ss<Element, kQueries>(flat(dp), value + geometry::k_major_step(kKeys, k * 16),
                                         dout + geometry::k_major_step(kQueries, k * 16), kConfig.softmax || k > 0);
      }
      ptx::wgmma_commit_group();
    }
    mark_step(Mark::wait_product, BackwardMarks::score_products, at.passed);
    ptx::wgmma_wait_group<0>(flat(s), flat(dp));
    mark_step(Mark::scores);

    const bool is_masked = (flags & kQueryTileMasked) != 0;
    const uint32* const visible = visible_of(stage, warp);
    const int first_bit = warp % 2 * 16;
    [[maybe_unused]] const int first_key = who * 64 + warp * 16;
    [[maybe_unused]] bool is_hiding = false;
    [[maybe_unused]] const TablePart tables = table_part();
    if constexpr (kConfig.stored_bias) is_hiding = add_bias(*this, stage, first_key, is_masked, visible, first_bit, s);
    if constexpr (kConfig.table_bias) is_hiding = add_tables(*this, tables, is_masked, s);
    apply_score<kConfig.softmax, kConfig.softcap, !kConfig.bfloat16, kConfig.scaled_key, kBiased>(
        params.backward.call, s, dp, shared.row_terms(stage), NegatedLseInPlace{shared.row_terms(stage)});
    PackedScores<kQueries> p, ds;
    if (kConfig.table_bias && is_hiding) {
      tables.hide(s);
      tables.hide(dp);
    }
    if constexpr (kConfig.stored_bias) {
      if (is_hiding) hide_masked(BiasTile::of(params.backward.call, here, stage), first_key, s, dp);
    }
    if constexpr (kHidesScores) {
      if (is_masked) hide_invisible(visible, first_bit, s, dp);
    }
    if constexpr (kConfig.gradient_rows) write_bias_gradient(stage, first_key, dp);
    if constexpr (kConfig.table_gradients) {
      tables.take(dp, tables.put_diagonals(dp));
      tables.add_positions_gradient();
    }
    if constexpr (!kConfig.bfloat16) {  // what is invisible must not decide the exponents
      if constexpr (!kConfig.softmax) fit_float16(flat(s), dv, exponents.probability);  // else at most 1
      fit_float16(flat(dp), dk, exponents.gradient);
    }
    pack_scores<Element>(p, s);
    pack_scores<Element>(ds, dp);
    if constexpr (!kHidesScores) {
      if (is_masked)
        for_each_visible<kQueries>(visible, first_bit, [&](int k, int i, uint32 mask) {
          p[k][i] &= mask;
          ds[k][i] &= mask;
        });
    }

    if constexpr (kConfig.accumulate_dq) hand_over(ds);
    const int dq_tile = shared.note(stage).dq_tile;

    mark_step(Mark::product, BackwardMarks::gradient_products, at.passed);
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
      mark_step(Mark::wait_product, BackwardMarks::gradient_products, at.passed);
      ptx::wgmma_wait_group<0>(dk, dv);
      free_barrier_arrive(at.slot());
      if constexpr (kConfig.accumulate_dq && !IsFirst) finish_dq(dq_tile_before);
    } else {
      const ScoreRing::Cursor before = score_at.before();
      mark_step(Mark::wait_full, BackwardMarks::scores, before.passed);
      shared.scores.wait_full(before);
      float dq[kDqColumns / 2];
      mark_step(Mark::product, BackwardMarks::query_product, before.passed);
      issue_dq<kKeys / 16>(dq, before.slot());
      mark_step(Mark::wait_product, BackwardMarks::gradient_products, at.passed);
      ptx::wgmma_wait_group<1>(dk, dv);
      free_barrier_arrive(at.slot());
      mark_step(Mark::wait_product, BackwardMarks::query_product, before.passed);
      ptx::wgmma_wait_group<0>(dq);
      release_scores(before);
      mark_step(Mark::add);
      add_dq(dq, dq_tile_before);
    }
    at.advance();
    score_at.advance();
    return dq_tile;
  }

  template <bool IsFirst>
  __device__ __forceinline__ int step_of_form(int flags, int dq_tile_before, bool first) {
    if constexpr (!kOverlaps) {
      return step<IsFirst>(flags, dq_tile_before);
    } else if constexpr (kDqByRows) {
      return step_in_halves<IsFirst>(*this, flags, dq_tile_before, first);
    } else {
      return overlapped_step<IsFirst>(*this, flags, dq_tile_before, first);
    }
  }

  /// Multiplies this consumer's rows of K or V by a power of two, where they lie. A barrier of its threads must follow.
  template <int Dim>
  __device__ __forceinline__ void scale_rows(uint32 tile, float factor) {
    const uint32 factors = ptx::pack<ptx::Bfloat16>(factor, factor);
    const uint32 rows = tile + who * 64 * kRowBytes;
    constexpr int kPanels = geometry::panels_of(Dim);
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
  }
  /// K by alpha / 2, which dQ's factor lacks then; V by the factor of a bias's gradient.
  __device__ __forceinline__ void scale_residents() {
    if constexpr (kConfig.scaled_key) scale_rows<kConfig.head_dim>(shared.key(key_at.slot()), 0.5f * params.backward.call.alpha);
    if constexpr (kConfig.scaled_value) scale_rows<kConfig.value_dim>(shared.value(key_at.slot()), params.backward.bias_factor);
    ptx::named_barrier_sync(pipeline::kFirstWarpgroupId + who, kWarpgroup);
  }

  /// The warp's rows of dK or dV to shared memory.
  template <int Dim>
  __device__ __forceinline__ void stage_gradient(uint32 tile, const float (&sums)[Dim / 2], float factor) const {
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x)) % kWarpgroup, row = thread / 32 * 16 + thread % 16;
    const uint32 address = tile + row * kRowBytes, swizzle = row % 8 * geometry::kChunkBytes;
#pragma unroll
    for (int n = 0; n < Dim / 8; ++n) {
      ptx::stmatrix_x2(address + (n * geometry::kChunkBytes ^ swizzle),
                       ptx::pack<Element>(sums[4 * n] * factor, sums[4 * n + 1] * factor),
                       ptx::pack<Element>(sums[4 * n + 2] * factor, sums[4 * n + 3] * factor));
    }
  }
  /// Where all of the consumer's keys are used: by TMA, from its panel of the score tile that comes next.
  __device__ __forceinline__ bool start_stores(bool is_seen) {
    const Item& item = shared.item(item_at.slot());
    const Work& work = item.work;
    const long long first = work.first_row + who * 64;
    if (!is_seen || first + 64 > work.mask.seqlen_k || first + 64 > work.slot_k) return false;
    const uint32 place = shared.score_tile(score_at.slot()) + who * (kQueries * kRowBytes);
    shared.scores.wait_empty(score_at);
    stage_gradient<kConfig.head_dim>(place, dk, params.backward.score_factor);
    stage_gradient<kConfig.value_dim>(place + 64 * kRowBytes, dv, params.backward.probability_factor);
    ptx::fence_proxy_async_shared();
    ptx::named_barrier_sync(pipeline::kFirstWarpgroupId + who, kWarpgroup);
    if (threadIdx.x % kWarpgroup == 0) {
      const int row = static_cast<int>(work.tensor_k + first);
      ptx::tma_store<4>(&params.bias, place, {0, row, work.head, item.sequence});
      ptx::tma_store<4>(&params.bias_gradient, place + 64 * kRowBytes, {0, row, work.head, item.sequence});
      ptx::bulk_commit_group();
    }
    return true;
  }
  /// Until they have been read.
  __device__ __forceinline__ void end_stores() const {
    if (threadIdx.x % kWarpgroup == 0) ptx::bulk_wait_group_read<0>();
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
    mark_step(Mark::wait_full, BackwardMarks::tiles, at.passed);
    shared.tiles.wait_full(at);
    int flags = shared.note(at.slot()).flags;
    const bool is_seen = (flags & kQueryTileSeen) != 0;
    if (is_seen) {
      exponents = {};
      mark_step(Mark::wait_full, BackwardMarks::residents, key_at.passed);
      shared.keys.wait_full(key_at);
      if constexpr (kConfig.scaled_key || kConfig.scaled_value) {
        mark_step(Mark::scores);
        scale_residents();
      }
      int dq_tile = 0;
      if constexpr (kPeels) {
        dq_tile = step_of_form<true>(flags, 0, true);
        if constexpr (kConfig.clears_sums) ptx::mbarrier_wait(shared.clear_of(item_at.slot()), item_at.parity());
        while ((flags & kQueryTileLast) == 0) {
          mark_step(Mark::wait_full, BackwardMarks::tiles, at.passed);
          shared.tiles.wait_full(at);
          flags = shared.note(at.slot()).flags;
          dq_tile = step_of_form<false>(flags, dq_tile, false);
        }
      } else {
        bool first = true;
#pragma unroll 1
        while (true) {
          dq_tile = step_of_form<false>(flags, dq_tile, first);
          if (kConfig.clears_sums && first) ptx::mbarrier_wait(shared.clear_of(item_at.slot()), item_at.parity());
          first = false;
          if ((flags & kQueryTileLast) != 0) break;
          mark_step(Mark::wait_full, BackwardMarks::tiles, at.passed);
          shared.tiles.wait_full(at);
          flags = shared.note(at.slot()).flags;
        }
      }
      if constexpr ((kConfig.experiment & 128) != 0) {
        shared.scores.wait_full(score_at.before());
        release_scores(score_at.before());
      } else if constexpr (kConfig.accumulate_dq) finish_dq(dq_tile);
      if constexpr (kConfig.table_gradients) table_part().flush();
      shared.keys.release(key_at);
      key_at.advance();
    } else {
      free_barrier_arrive(at.slot());
      at.advance();
    }
    mark(Mark::epilogue, BackwardMarks::items, item_at.passed);
    if ((kConfig.experiment & 32) == 0 || params.counters == nullptr) {
      if (!kStoresByTma || !start_stores(is_seen)) store_gradients(is_seen);
    }
    shared.items.release(item_at);
  }

  __device__ __forceinline__ void run() {
    if (who == kConfig.consumers - 1) pass_turn(who);
    if constexpr (kConfig.table_gradients) table_part().clear();
    for (;; item_at.advance()) {
      mark(Mark::wait_full, BackwardMarks::items, item_at.passed);
      shared.items.wait_full(item_at);
      if (shared.item(item_at.slot()).is_end) break;
      walk();
    }
    if constexpr (kStoresByTma) end_stores();
    if (who == 0) take_turn(*this);  // the barriers end as they began
  }
};

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, 1)
    attention_backward_hopper(const __grid_constant__ warploom::HopperBackwardParams params) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const Shared shared(dynamic);
  // dQ from its sums, which waits for their end.
  if (kConfig.accumulate_dq && (!kConfig.converts_sums || params.sums.queries.items() == 0)) ptx::launch_dependents();
  if ((kConfig.experiment & 16) != 0 && threadIdx.x >= 32 && threadIdx.x < 36) {
    ptx::tma_prefetch_map(&params.query + threadIdx.x - 32);
  }
  if (threadIdx.x == 0) {
    constexpr uint32 kReaders = kConfig.consumers * kWarpgroup;
    // And the loader, and who clears, keeps the sums, adds to them or lays out tables.
    shared.items.init(kReaders + 32 * (1 + kConfig.bias_gradient + kStoresTiles + kConfig.clears_sums +
                                       kConfig.orders_sums + kConfig.table_bias));
    shared.keys.init(kReaders, 32);
    // The loader's lanes, and the copies of each, or who lays out tables.
    shared.tiles.init(1, kConfig.bias_rows ? 64 : 32 + kConfig.table_bias);
    shared.scores.init(kConfig.bfloat16 ? kConfig.consumers + kStoresTiles : kReaders, kReaders / 32);
    ptx::mbarrier_init(shared.request, 1);
    ptx::mbarrier_init(shared.landing, 1);
    if constexpr (kConfig.clears_sums) {
      for (int slot = 0; slot < kBackwardItemSlots; ++slot) ptx::mbarrier_init(shared.clear_of(slot), 1);
    }
    if constexpr (kConfig.orders_sums) shared.staged.init(1, kReaders / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == kConfig.consumers) {
    ptx::setmaxnreg_dec<kSplits && !kBiased ? 24 : 40>();
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) % kWarpgroup / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (warp == 0) {
      if (trace::played_quietly<kConfig.trace, Scheduler>(params.sheet, params, shared, lane)) return;
      Scheduler scheduler{{params.sheet}, params, shared, lane, {}};
      scheduler.start_trace(kConfig.consumers, lane == 0);
      scheduler.run();
      scheduler.finish_trace(kConfig.consumers);
    } else if (warp == 1) {
      if (trace::played_quietly<kConfig.trace, Loader>(params.sheet, params, shared, lane)) return;
      Loader loader{{params.sheet}, params, shared, lane, {}, {}};
      loader.start_trace(kConfig.consumers + 1, lane == 0);
      loader.run();
      loader.finish_trace(kConfig.consumers + 1);
    } else if (kConfig.bias_gradient && warp == 2) {
      const Clearer clearer{params, shared, lane};
      clearer.run();
    } else if (kStoresTiles && warp == 3) {
      const GradientStorer storer{params, shared, lane};
      storer.run();
    } else if (kConfig.table_bias && warp == 2) {
      TableLoader loader{params, shared, lane};
      loader.run();
    } else if (kConfig.clears_sums && warp == 2) {
      const SumsKeeper keeper{params, shared, lane};
      keeper.run();
    } else if (kConfig.orders_sums && warp == 3) {
      SumsAdder adder{params, shared, lane, {}};
      adder.run();
    } else if (kConfig.converts_sums && warp == 3) {
      const SumsConverter converter{params, shared, lane, shared.sums(), shared.converted()};
      converter.run();
    }
  } else {
    ptx::setmaxnreg_inc<kSplits && !kBiased ? 240 : 232>();
    if (!trace::played_quietly<kConfig.trace, Consumer>(params.sheet, params, shared, warpgroup)) {
      Consumer consumer{{params.sheet}, params, shared, warpgroup};
      consumer.start_trace(warpgroup, threadIdx.x % kWarpgroup == 0);
      consumer.run();
      consumer.finish_trace(warpgroup);
    }
    if constexpr (kConfig.converts_sums) convert_tail(params, shared, warpgroup);
  }
}
