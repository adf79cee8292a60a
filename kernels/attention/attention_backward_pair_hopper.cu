// Attention backward for Hopper (sm_90a) in one pass, for heads over 128 wide: dK and dV, and sums for dQ, under any
// mask, HSTU and softmax.
//
// A cluster of two persistent CTAs takes work items (128 keys of one key head of one sequence), longest first; each CTA
// owns 64 of the keys, and both walk the tiles of queries that see any of them, of which each loads half for both. In a
// CTA one consumer warpgroup computes scores with keys along their rows, S^T = K Q^T and dP^T = V dO^T, of them P^T and
// dS^T, and dV += P^T dO with P^T from its registers. It puts dS^T in shared memory, its own CTA's and by an
// asynchronous copy the other's. From there the other consumer warpgroup computes dK += dS^T Q of its CTA's keys, and
// dQ = dS K of all 128 keys, for half of the head's columns, which it adds in global memory. So one's products run
// beside the other's scalar work, and half as much is added as with 64 keys. pipeline/pair_protocol.h describes the
// barriers as `hopper_pair`, and the protocol checker checks them.
//
// The text before this file defines warploom::kConfig, a HopperBackwardPairConfig.
#include "attention/hopper_backward_pair_producer.h"
#include "attention/hopper_backward_scores.h"
#include "attention/hopper_store.h"
#include "geometry/wgmma_descriptor.h"
#include "pipeline/turns.h"
#include "ptx/fence.h"
#include "ptx/grid_dependency.h"
#include "ptx/reduction.h"
#include "ptx/registers.h"
#include "ptx/warpgroup_registers.h"
#include "ptx/wgmma.h"

namespace warploom {

/// What both consumers are.
struct Consumer : trace::Pen<kConfig.trace> {
  const HopperBackwardParams& params;
  const Shared& shared;

  ItemRing::Cursor item_at;
  ResidentRing::Cursor resident_at;
  uint32 tiles = 0;  // passed

  __device__ __forceinline__ QueryRing::Cursor query_at() const { return {tiles}; }
  __device__ __forceinline__ DoutRing::Cursor dout_at() const { return {tiles}; }

  /// A warp's arrival on a barrier of both CTAs.
  __device__ __forceinline__ void release_both(uint32 barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive_on_both(barrier, shared.peer());
  }
  __device__ __forceinline__ void release_resident(int side) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.residents[side].release(resident_at);
    resident_at.advance();
  }

  /// Multiplies keys by alpha / 2, a power of two, where they lie. dQ's factor lacks it then.
  template <int Bytes>
  __device__ __forceinline__ void scale_keys(uint32 tile, int barrier) const {
    if constexpr (kConfig.scaled_key) scale_tile<Bytes>(tile, 0.5f * params.backward.call.alpha, barrier);
  }

  /// Writes the gradient of the item's keys; zeros for keys that the sequence has slots for, but no rows, and for an
  /// item that no query sees.
  template <int Dim>
  __device__ __forceinline__ void store(const Tensor& gradient, const float (&sums)[Dim / 2], float factor,
                                        bool is_seen) const {
    const Item& item = shared.item(item_at.slot());
    const Work& work = item.work;
    const int thread = static_cast<int>(ptx::opaque(threadIdx.x)) % kWarpgroup;  // or it is kept from before the loop
    const int first_row = shared.first_key(item) + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long row = first_row + half * 8;
      char* const to = const_cast<char*>(rows_of(gradient, work.sequence, work.tensor_k + row, work.head).data);
      store_row<Element, Dim>(to, sums, half, factor, is_seen && row < work.mask.seqlen_k, row < work.slot_k);
    }
  }
};

/// Scores, dS, and dV.
struct ScoreConsumer : Consumer {
  static constexpr int kDepth = (kConfig.head_dim + 15) / 16, kValueDepth = (kConfig.value_dim + 15) / 16;
  float dv[kConfig.value_dim / 2];
  bool starts = true;  // the next tile is its item's first
  PackedScores<kQueries> p;

  __device__ __forceinline__ void write_slopes(const PackedScores<kQueries>& ds) const {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32, warp = thread / 32;
    mark_step(Mark::hand_over, BackwardPairMarks::own_slopes, tiles);
    ptx::mbarrier_wait(shared.slopes.empty(tiles), SlopeStages::parity(tiles) ^ 1);
    const uint32 slopes = shared.own_slopes(tiles);
    // Lane l addresses row l mod 8 of block l / 8: of 8 keys, of the other 8, then of the next 8 queries.
    const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      ptx::stmatrix_x4(slopes + geometry::swizzled_offset(kKeys, row, 2 * k + lane / 16), ds[k][0], ds[k][1], ds[k][2],
                       ds[k][3]);
    }
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      constexpr int kBytes = 16 * kRowBytes;  // of a warp's keys
      ptx::bulk_copy_to_cta(slopes + kMap.slope_bytes + warp * kBytes, slopes + warp * kBytes, kBytes,
                            shared.slopes.other_full(tiles), shared.peer());
      ptx::mbarrier_arrive(shared.slopes.own_full(tiles));
    }
  }

  __device__ __forceinline__ void step(int flags) {
    const AttentionCall& call = params.backward.call;
    const int stage = query_at().slot(), warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    const bool is_masked = (flags & kQueryTileMasked) != 0;
    const uint32* const visible = shared.visible(stage) + warp / 2 * kQueries;
    const int first_bit = warp % 2 * 16;
    TransposedScores<kQueries> s, dp;
    PackedScores<kQueries> ds;
    {
      const uint32 key = ptx::opaque(geometry::descriptor_low(shared.key()));
      const uint32 query = geometry::descriptor_low(shared.query(stage));
      mark_step(Mark::product, BackwardPairMarks::score_product, tiles);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        ptx::wgmma_ss<Element, kQueries>(flat(s), key + geometry::k_major_step(kKeys, k * 16),
                                         query + geometry::k_major_step(kQueries, k * 16), k > 0);
      }
      ptx::wgmma_commit_group();
    }
    mark_step(Mark::wait_full, BackwardPairMarks::douts, tiles);
    shared.douts.wait_full(dout_at());
    const int rows = shared.note(stage).rows;
    // Rows past the sequence's end are another's, and 0 * NaN is not 0.
    if (rows < kQueries) {
      zero_rows<kQueries, kConfig.value_dim>(shared.dout(dout_at().slot()), rows, pipeline::kFirstWarpgroupId);
    }
    const uint32 dout = geometry::descriptor_low(shared.dout(dout_at().slot()), kQueries * kRowBytes);
    {
      const uint32 value = ptx::opaque(geometry::descriptor_low(shared.value()));
      mark_step(Mark::product, BackwardPairMarks::slope_product, tiles);
      if constexpr (kConfig.softmax) start_slopes<false>(dp, shared.row_terms(stage) + kQueries);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kValueDepth; ++k) {
        ptx::wgmma_ss<Element, kQueries>(flat(dp), value + geometry::k_major_step(kKeys, k * 16),
                                         dout + geometry::k_major_step(kQueries, k * 16), kConfig.softmax || k > 0);
      }
      ptx::wgmma_commit_group();
    }
    mark_step(starts ? Mark::idle : Mark::wait_product, BackwardPairMarks::value_product, tiles - 1);
    ptx::wgmma_wait_group<2>(dv);  // of the tile before
    if (!starts) release_both(shared.douts.empty(dout_at().before().slot()));
    [[maybe_unused]] NegatedLse<kQueries / 8> lse;
    if constexpr (kConfig.softmax) lse.load(shared.row_terms(stage));
    mark_step(Mark::wait_product, BackwardPairMarks::score_product, tiles);
    if constexpr (kConfig.splits_scores) {
      ptx::wgmma_wait_group<1>(flat(s));
      mark_step(Mark::scores);
      const bool exact = apply_probability<kConfig.softmax, kConfig.scaled_key, false>(call, s, p, lse);
      if (is_masked) hide_packed<kQueries>(visible, first_bit, p);
      issue_value_product(dout);
      mark_step(Mark::wait_product, BackwardPairMarks::slope_product, tiles);
      ptx::wgmma_wait_group<1>(flat(dp));
      mark_step(Mark::scores);
      if ((flags & kQueryTileLast) != 0) release_resident(1);
      apply_slope<kConfig.softmax>(exact, s, dp);
      pack_scores<Element>(ds, dp);
      if (is_masked) hide_packed<kQueries>(visible, first_bit, ds);
    } else {
      ptx::wgmma_wait_group<0>(flat(s), flat(dp));
      mark_step(Mark::scores);
      if ((flags & kQueryTileLast) != 0) release_resident(1);
      apply_score<kConfig.softmax, false, false, kConfig.scaled_key, false>(call, s, dp, shared.row_terms(stage), lse);
      pack_scores<Element>(p, s);
      pack_scores<Element>(ds, dp);
      if (is_masked) hide_packed<kQueries>(visible, first_bit, p, ds);
      issue_value_product(dout);
    }
    write_slopes(ds);
    starts = false;
    ++tiles;
  }

  __device__ __forceinline__ void issue_value_product(uint32 dout) {
    mark_step(Mark::product, BackwardPairMarks::value_product, tiles);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      ptx::wgmma_rs<Element, kConfig.value_dim, true>(dv, p[k], dout + geometry::transposed_step(k * 16),
                                                      k > 0 || !starts);
    }
    ptx::wgmma_commit_group();
  }

  /// A tile of nothing: dS comes to be passed on, but there is none.
  __device__ __forceinline__ void pass_nothing() {
    shared.douts.wait_full(dout_at());
    release_both(shared.douts.empty(dout_at().slot()));
    ptx::mbarrier_wait(shared.slopes.empty(tiles), SlopeStages::parity(tiles) ^ 1);
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(shared.slopes.own_full(tiles));
    ++tiles;
  }

  __device__ __forceinline__ void walk() {
    mark(Mark::wait_full, BackwardPairMarks::queries, tiles);
    shared.queries.wait_full(query_at());
    const bool is_seen = (shared.note(query_at().slot()).flags & kQueryTileSeen) != 0;
    if (is_seen) {
      mark(Mark::wait_full, BackwardPairMarks::keys, resident_at.passed);
      shared.residents[0].wait_full(resident_at);
      mark(Mark::wait_full, BackwardPairMarks::values, resident_at.passed);
      shared.residents[1].wait_full(resident_at);
      const Item& item = shared.item(item_at.slot());
      const int keys = item.work.mask.seqlen_k - shared.first_key(item);
      if (keys < kKeys) {
        zero_rows<kKeys, kConfig.head_dim>(shared.key(), geometry::max_of(keys, 0), pipeline::kFirstWarpgroupId);
      }
      scale_keys<kMap.key_bytes>(shared.key(), pipeline::kFirstWarpgroupId);
      starts = true;
      int flags;
      do {
        mark_step(Mark::wait_full, BackwardPairMarks::queries, tiles);
        shared.queries.wait_full(query_at());
        flags = shared.note(query_at().slot()).flags;
        step(flags);
      } while ((flags & kQueryTileLast) == 0);
      mark_step(Mark::wait_product, BackwardPairMarks::value_product, tiles - 1);
      ptx::wgmma_wait_group<0>(dv);
      release_both(shared.douts.empty(dout_at().before().slot()));
    } else {
      pass_nothing();
    }
    mark(Mark::epilogue, BackwardPairMarks::items, item_at.passed);
    store<kConfig.value_dim>(params.backward.dvalue, dv, params.backward.probability_factor, is_seen);
    shared.items.release(item_at);
  }

  __device__ __forceinline__ void run() {
    for (;; item_at.advance()) {
      mark(Mark::wait_full, BackwardPairMarks::items, item_at.passed);
      shared.items.wait_full(item_at);
      if (shared.item(item_at.slot()).is_end) break;
      walk();
    }
  }
};

/// dK, and sums for dQ.
struct SumConsumer : Consumer {
  static constexpr int kKeySteps = kKeys / 16;
  /// The columns of dQ: of four panels two; of three one, and a half.
  static constexpr bool kWhole = kKeyPanels == 4;
  static constexpr int kColumns = kWhole ? 128 : 64, kMoreColumns = 32;
  float dk[kConfig.head_dim / 2];
  float dq[kColumns / 2];
  float more[kMoreColumns / 2];
  int dq_tile = 0;
  int added = 0;  // blocks of 8 columns of dq that are in memory already

  /// Starts dS K of a CTA's keys: K's panels from `key` and, where the columns are not whole, `key_of_more` on.
  __device__ __forceinline__ void issue_query_product(uint32 slopes, uint32 key, uint32 key_of_more, bool adds) {
    const uint32 a = geometry::descriptor_low(slopes);
    const uint32 b = geometry::descriptor_low(key, kKeys * kRowBytes);
#pragma unroll
    for (int k = 0; k < kKeySteps; ++k) {
      ptx::wgmma_ss<Element, kColumns, true, true>(dq, a + geometry::transposed_step(k * 16),
                                                   b + geometry::transposed_step(k * 16), k > 0 || adds);
    }
    if constexpr (!kWhole) {
      const uint32 c = geometry::descriptor_low(key_of_more + shared.rank * kMoreColumns * 2, kKeys * kRowBytes);
#pragma unroll
      for (int k = 0; k < kKeySteps; ++k) {
        ptx::wgmma_ss<Element, kMoreColumns, true, true>(more, a + geometry::transposed_step(k * 16),
                                                         c + geometry::transposed_step(k * 16), k > 0 || adds);
      }
    }
  }

  /// Adds blocks `from` to `end` of sums, whose first one is the head's `first_block`, but for the first `done`.
  template <int Columns>
  __device__ __forceinline__ void add(const float (&sums)[Columns / 2], int first_block, int from, int end,
                                      int done) const {
    constexpr int kBlocks = kConfig.head_dim / 8, kFloats = 128;  // of a row of blocks; of a block of 16 x 8
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    float* const to = params.backward.dq_sums + static_cast<long long>(dq_tile) * (kQueries * kConfig.head_dim) +
                      (thread / 32 * kBlocks + first_block) * kFloats + thread % 32 * 4;
#pragma unroll
    for (int n = from; n < end; ++n) {
      if (n < done) continue;
      if (kBlocks % 8 == 0 || first_block + n < kBlocks) {
        ptx::red_add_4(to + n * kFloats, reinterpret_cast<const float(&)[4]>(sums[4 * n]));
      }
    }
  }
  /// dQ of the tile before, which is complete, to memory: what of it is not there yet.
  __device__ __forceinline__ void add_dq() {
    add<kColumns>(dq, sum_panel(shared.rank, 0) * 8, 0, kColumns / 8, added);
    if constexpr (!kWhole) {
      add<kMoreColumns>(more, 8 + static_cast<int>(shared.rank) * (kMoreColumns / 8), 0, kMoreColumns / 8, 0);
    }
  }

  /// The same while dS of the next tile is on its way, and no longer: what is left is added beside the next product,
  /// which takes less time than all of it does.
  __device__ __forceinline__ void add_while_waiting() {
    constexpr int kAtOnce = 2;
    mark_step(Mark::add);
#pragma unroll
    for (int n = 0; n < kColumns / 8; n += kAtOnce) {
      const auto has_come = [&] {
        return ptx::mbarrier_test_wait(shared.slopes.own_full(tiles), SlopeStages::parity(tiles));
      };
      if (added == n && !__all_sync(kAllLanes, has_come())) {
        add<kColumns>(dq, sum_panel(shared.rank, 0) * 8, n, n + kAtOnce, 0);
        added = n + kAtOnce;
      }
    }
  }

  template <bool IsFirst>
  __device__ __forceinline__ void step(int flags) {
    const int stage = query_at().slot();
    const int rows = shared.note(stage).rows, dq_tile_here = shared.note(stage).dq_tile;
    if (rows < kQueries) {
      zero_rows<kQueries, kConfig.head_dim>(shared.query(stage), rows, pipeline::kFirstWarpgroupId + 1);
    }
    const uint32 query = geometry::descriptor_low(shared.query(stage), kQueries * kRowBytes);
    const uint32 slopes = geometry::descriptor_low(shared.own_slopes(tiles));
    mark_step(Mark::product, BackwardPairMarks::key_product, tiles);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      ptx::wgmma_ss<Element, kConfig.head_dim, true>(dk, slopes + geometry::k_major_step(kKeys, k * 16),
                                                     query + geometry::transposed_step(k * 16), k > 0 || !IsFirst);
    }
    ptx::wgmma_commit_group();
    if constexpr (!IsFirst) {
      mark_step(Mark::add);
      add_dq();
    }
    dq_tile = dq_tile_here;
    mark_step(Mark::wait_full, BackwardPairMarks::other_slopes, tiles);
    ptx::mbarrier_wait(shared.slopes.other_full(tiles), SlopeStages::parity(tiles));
    mark_step(Mark::product, BackwardPairMarks::query_product, tiles);
    ptx::wgmma_fence();
    issue_query_product(shared.own_slopes(tiles), shared.key() + sum_panel(shared.rank, 0) * kKeys * kRowBytes,
                        shared.key() + kKeys * kRowBytes, false);
    issue_query_product(shared.other_slopes(tiles), shared.other_key(), shared.other_key() + kKeys * kRowBytes, true);
    ptx::wgmma_commit_group();
    mark_step(Mark::wait_product, BackwardPairMarks::key_product, tiles);
    ptx::wgmma_wait_group<1>(dk);
    release_both(shared.queries.empty(stage));
    mark_step(Mark::wait_product, BackwardPairMarks::query_product, tiles);
    if constexpr (kWhole) {
      ptx::wgmma_wait_group<0>(dq);
    } else {
      ptx::wgmma_wait_group<0>(dq, more);
    }
    release_both(shared.slopes.empty(tiles));
    if ((flags & kQueryTileLast) != 0) release_resident(0);
    ++tiles;
    added = 0;
    if ((flags & kQueryTileLast) == 0) add_while_waiting();
  }

  /// The next tile's flags, once dS of it is there.
  __device__ __forceinline__ int wait_tile() {
    mark_step(Mark::wait_full, BackwardPairMarks::own_slopes, tiles);
    ptx::mbarrier_wait(shared.slopes.own_full(tiles), SlopeStages::parity(tiles));
    shared.queries.wait_full(query_at());
    const int flags = shared.note(query_at().slot()).flags;
    if (threadIdx.x % kWarpgroup == 0) {
      if ((flags & kQueryTileSeen) != 0) {
        ptx::mbarrier_arrive_expect_tx(shared.slopes.other_full(tiles), kMap.slope_bytes);
      } else {
        ptx::mbarrier_arrive(shared.slopes.other_full(tiles));
      }
    }
    return flags;
  }

  __device__ __forceinline__ void walk() {
    int flags = wait_tile();
    const bool is_seen = (flags & kQueryTileSeen) != 0;
    if (is_seen) {
      shared.residents[0].wait_full(resident_at);
      const Item& item = shared.item(item_at.slot());
      const int keys = item.work.mask.seqlen_k - shared.other_first_key(item);
      if (keys < kKeys) {
        zero_rows<kKeys, 2 * geometry::kPanelColumns>(shared.other_key(), geometry::max_of(keys, 0),
                                                      pipeline::kFirstWarpgroupId + 1);
      }
      scale_keys<kMap.other_key_bytes>(shared.other_key(), pipeline::kFirstWarpgroupId + 1);
      step<true>(flags);
      while ((flags & kQueryTileLast) == 0) {
        flags = wait_tile();
        step<false>(flags);
      }
      mark_step(Mark::add);
      add_dq();
    } else {
      ptx::mbarrier_wait(shared.slopes.other_full(tiles), SlopeStages::parity(tiles));
      release_both(shared.queries.empty(query_at().slot()));
      release_both(shared.slopes.empty(tiles));
      ++tiles;
    }
    mark(Mark::epilogue, BackwardPairMarks::items, item_at.passed);
    store<kConfig.head_dim>(params.backward.dkey, dk, params.backward.score_factor, is_seen);
    shared.items.release(item_at);
  }

  __device__ __forceinline__ void run() {
    for (;; item_at.advance()) {
      mark(Mark::wait_full, BackwardPairMarks::items, item_at.passed);
      shared.items.wait_full(item_at);
      if (shared.item(item_at.slot()).is_end) break;
      walk();
    }
  }
};

/// In a traced kernel's CTA that does not record: plays the consumer without marks (trace::played_quietly).
template <typename Role>
__device__ __forceinline__ bool consumed_quietly(const HopperBackwardParams& params, const Shared& shared) {
  if constexpr (kConfig.trace != trace::Level::off) {
    if (!trace::records(params.sheet)) {
      Role consumer{{{params.sheet, false}, params, shared}};
      consumer.run();
      return true;
    }
  }
  return false;
}

}  // namespace warploom

extern "C" __global__ void __cluster_dims__(warploom::kClusterCtas, 1, 1) __launch_bounds__(warploom::kThreads, 1)
    attention_backward_pair_hopper(const __grid_constant__ warploom::HopperBackwardParams params) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const Shared shared(dynamic);
  ptx::launch_dependents();  // dQ from its sums, which waits for their end
  if (threadIdx.x == 0) {
    constexpr int kWarps = kWarpgroup / 32;  // of a consumer
    // Every thread arrives for itself: tools that look for races do not see what __syncwarp orders before an arrival.
    shared.items.init(kConsumers * kWarpgroup + 2 * 32);  // the consumers and the loaders
    for (int side = 0; side < 2; ++side) {
      shared.residents[side].init(kWarps);
    }
    ptx::mbarrier_init(shared.request, 1);
    // Both CTAs' readers. A Q tile comes with what every lane of its loader writes.
    shared.queries.init(2 * kWarps, 32);
    shared.douts.init(2 * kWarps);
    shared.slopes.init(kWarps, 2 * kWarps);
    ptx::mbarrier_init(shared.mail_full, 1);
    ptx::mbarrier_init(shared.mail_empty, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive_relaxed();  // before a copy or an arrival from the other CTA can come
  ptx::cluster_wait();
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (warpgroup == kConsumers) {
    ptx::setmaxnreg_dec<40>();
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) % kWarpgroup / 32, 0);
    if (warp == 0) {
      trace::Pen<kConfig.trace> pen(params.sheet);
      pen.start_trace(kConsumers, lane == 0);
      hand_out_items<kItemKeys, true, BackwardPairMarks::items>(pen, params.backward.call, params.counters, shared,
                                                                lane, PrepareItem{params.backward.call},
                                                                TakesForCluster{shared});
      pen.finish_trace(kConsumers);
    } else if (warp == 1) {
      if (!trace::played_quietly<kConfig.trace, Loader<0>>(params.sheet, params, shared, lane)) {
        Loader<0> loader{{params.sheet}, params, shared, lane, {}, {}};
        loader.start_trace(kConsumers + 1, lane == 0);
        loader.run();
        loader.finish_trace(kConsumers + 1);
      }
    } else if (warp == 2) {
      if (!trace::played_quietly<kConfig.trace, Loader<1>>(params.sheet, params, shared, lane)) {
        Loader<1> loader{{params.sheet}, params, shared, lane, {}, {}};
        loader.start_trace(kConsumers + 2, lane == 0);
        loader.run();
        loader.finish_trace(kConsumers + 2);
      }
    }
  } else {
    if (warpgroup == 0) {
      ptx::setmaxnreg_inc<240>();
      if (!consumed_quietly<ScoreConsumer>(params, shared)) {
        ScoreConsumer consumer{{{params.sheet}, params, shared}};
        consumer.start_trace(0, threadIdx.x % kWarpgroup == 0);
        consumer.run();
        consumer.finish_trace(0);
      }
    } else {
      ptx::setmaxnreg_inc<224>();
      if (!consumed_quietly<SumConsumer>(params, shared)) {
        SumConsumer consumer{{{params.sheet}, params, shared}};
        consumer.start_trace(1, threadIdx.x % kWarpgroup == 0);
        consumer.run();
        consumer.finish_trace(1);
      }
    }
  }
  ptx::cluster_sync();  // nobody leaves while its memory is written or its barriers are arrived on
}
