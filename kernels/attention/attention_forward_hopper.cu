// Attention forward for Hopper (sm_90a): O = score function(alpha Q K^T) V under any mask, HSTU and softmax.
//
// A persistent CTA takes work items (a tile of query rows of one head of one sequence) from a device counter, longest
// first: its producer's scheduler warp says what an item is and loads Q, its loader warp the K and V tiles that the
// item sees, all by TMA; each consumer warpgroup owns 64 of the rows. In one step a consumer issues S of a key tile and
// P V of the tile before, back to back, and turns S into P while P V runs; the steps go on across work items. Consumers
// issue in turns, so that one computes scores while another has the tensor core (FlashAttention-3, sections 3.1
// and 3.2). pipeline/attention_protocols.h describes the barriers as `hopper_attention`, and the protocol checker
// checks them.
//
// The text before this file defines warploom::kConfig, a HopperForwardConfig.
#include "attention/hopper_masking.h"
#include "attention/hopper_producer.h"
#include "attention/hopper_rows.h"
#include "attention/hopper_shared.h"
#include "geometry/wgmma_descriptor.h"
#include "pipeline/turns.h"
#include "ptx/fence.h"
#include "ptx/named_barrier.h"
#include "ptx/warpgroup_registers.h"
#include "ptx/wgmma.h"

namespace warploom {

/// Sets the scores that their row does not see.
template <typename Row>
__device__ __forceinline__ void apply_mask(WarpgroupScores<kKeys>& s, const Row (&rows)[2], int first_column) {
#pragma unroll
  for (int word = 0; word < (kKeys + 31) / 32; ++word) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32 bits = rows[half].bits(first_column + 32 * word) >> (threadIdx.x % 4 * 2);
#pragma unroll
      for (int n = 0; n < 4 && word * 4 + n < kKeys / 8; ++n) {
        float(&c)[4] = s[0][word * 4 + n];
        if ((bits & (1u << (8 * n))) == 0) c[2 * half] = Rows::invisible();
        if ((bits & (2u << (8 * n))) == 0) c[2 * half + 1] = Rows::invisible();
      }
    }
  }
}

/// Four words a lane, of column blocks 0..3 of one row: after it lane q of the row has block q's four words in order.
__device__ __forceinline__ void transpose_in_quad(uint32 (&w)[4]) {
  const bool odd = threadIdx.x % 2 != 0, upper = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32 received = __shfl_xor_sync(kAllLanes, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = received;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32 received = __shfl_xor_sync(kAllLanes, upper ? w[i] : w[i + 2], 2);
    (upper ? w[i] : w[i + 2]) = received;
  }
}

/// Scales, rounds and stores a thread's two rows of O (zeros where the sequence has slots but no rows), 16 bytes a
/// lane.
__device__ __forceinline__ void store_output(const AttentionCall& call, const float (&o)[kConfig.value_dim / 2],
                                             Rows& rows, bool empty, const Work& work, int consumer) {
  const int lane = threadIdx.x % 32;
  const int row_of_tile = consumer * kWarpgroupRows + threadIdx.x % kWarpgroup / 32 * 16 + lane / 4;
  constexpr int kBlocks = kConfig.value_dim / 8;
  rows.finish();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const long long row = work.first_row + row_of_tile + half * 8;
    const bool used = row < work.mask.seqlen_q;
    const float scale = used ? rows.output_scale(call, half, work.first_q + row) : 0;
    char* const to = const_cast<char*>(rows_of(call.out, work.sequence, work.tensor_q + row, work.head).data);
#pragma unroll
    for (int group = 0; group < kBlocks; group += 4) {
      uint32 w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = group + i;
        w[i] = n < kBlocks && used && !empty
                   ? ptx::pack<Element>(o[4 * n + 2 * half] * scale, o[4 * n + 2 * half + 1] * scale)
                   : 0;
      }
      transpose_in_quad(w);
      if (row < work.slot_q && group + lane % 4 < kBlocks) {
        *reinterpret_cast<uint4*>(to + (group + lane % 4) * geometry::kChunkBytes) = uint4{w[0], w[1], w[2], w[3]};
      }
    }
    if constexpr (Rows::kHasLse) {
      if (call.lse != nullptr && lane % 4 == 0 && row < work.slot_q) {
        call.lse[work.sequence * call.lse_batch_stride + work.head * call.lse_head_stride + work.tensor_q + row] =
            used ? rows.lse(half) : Rows::invisible();
      }
    }
  }
}

/// Zeros the rows of a V tile from `valid` on: they belong to another sequence, and 0 * NaN is not 0. Consumers may do
/// so at the same time.
__device__ __forceinline__ void zero_rows(uint32 tile, int valid, int consumer) {
  constexpr int kChunks = kMap.value_bytes / geometry::kPanelRowBytes / kKeys * geometry::kPanelChunks;
  for (int i = valid * kChunks + threadIdx.x % kWarpgroup; i < kKeys * kChunks; i += kWarpgroup) {
    ptx::store_shared_16(tile + geometry::swizzled_offset(kKeys, i / kChunks, i % kChunks), uint4{0, 0, 0, 0});
  }
  ptx::fence_proxy_async_shared();
  ptx::named_barrier_sync(pipeline::kFirstWarpgroupId + consumer, kWarpgroup);
}

/// Multiplies a warpgroup's Q by a power of two, in shared memory.
__device__ __forceinline__ void scale_query(uint32 tile, float factor, int consumer) {
  const uint32 factors = ptx::pack<ptx::Bfloat16>(factor, factor);
#pragma unroll 4
  for (int at = threadIdx.x % kWarpgroup * geometry::kChunkBytes; at < kMap.query_bytes;
       at += kWarpgroup * geometry::kChunkBytes) {
    uint4 q = ptx::load_shared_16(tile + at);
    q.x = ptx::multiply_bfloat16(q.x, factors);
    q.y = ptx::multiply_bfloat16(q.y, factors);
    q.z = ptx::multiply_bfloat16(q.z, factors);
    q.w = ptx::multiply_bfloat16(q.w, factors);
    ptx::store_shared_16(tile + at, q);
  }
  ptx::fence_proxy_async_shared();
  ptx::named_barrier_sync(pipeline::kFirstWarpgroupId + consumer, kWarpgroup);
}

struct Consumer : trace::Pen<kConfig.trace> {
  const AttentionCall& call;
  const Shared& shared;
  const int who;
  const bool elected;  // arrives on barriers for the warpgroup

  ItemRing::Cursor item_at;
  QueryRing::Cursor query_at;
  KeyRing::Cursor key_at, value_at;

  Rows rows;           // of the current item
  Rows finished_rows;  // of the item whose last product is still to come
  float o[kConfig.value_dim / 2];
  uint32 p[kKeys / 16][4];

  ItemRing::Cursor finished_at;
  bool pending = false;         // P waits for its product with V, `valid_keys` rows of which are the sequence's
  bool starts = false;          // that product starts an item's O
  bool finishing = false;       // that product (none when nothing is pending) ends the item in finished_at
  bool finished_empty = false;  // that item has seen nothing: its rows are 0
  bool has_output = false;      // the current item has had a step
  int valid_keys = 0;

  __device__ __forceinline__ void take_turn() const {
    mark_step(Mark::turn);
    if constexpr (kConfig.turns && kConfig.consumers > 1) {
      ptx::named_barrier_sync(pipeline::kFirstTurnId + who, 2 * kWarpgroup);
    }
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (kConfig.turns && kConfig.consumers > 1) {
      const int next = who + 1 == kConfig.consumers ? 0 : who + 1;
      ptx::named_barrier_arrive(pipeline::kFirstTurnId + next, 2 * kWarpgroup);
    }
  }

  /// Starts O += P V.
  __device__ __forceinline__ void issue_output() {
    shared.values.wait_full(value_at);
    mark_step(Mark::product, kValueMarks, value_at.passed);
    const uint32 tile = shared.value(value_at.slot());
    if (valid_keys < kKeys) zero_rows(tile, valid_keys, who);
    const uint32 value = geometry::descriptor_low(tile, kKeys * geometry::kPanelRowBytes);
    ptx::wgmma_fence();  // after a branch, or ptxas adds its own and serialises
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      ptx::wgmma_rs<Element, kConfig.value_dim, true>(o, p[k], value + geometry::transposed_step(k * 16),
                                                      k > 0 || !starts);
    }
    ptx::wgmma_commit_group();
  }

  /// After O += P V has ended.
  __device__ __forceinline__ void release_value() {
    if (elected) shared.values.release(value_at);
    value_at.advance();
    pending = false;
  }

  /// Writes the finished item's rows and lets it go.
  __device__ __forceinline__ void end_item() {
    mark(Mark::epilogue, kItemMarks, finished_at.passed);
    store_output(call, o, finished_rows, finished_empty, shared.item(finished_at.slot()).work, who);
    shared.items.release(finished_at);
    finished_at.advance();
    finishing = false;
  }

  /// What is pending, alone.
  __device__ __forceinline__ void flush() {
    if (pending) {
      issue_output();
      mark_step(Mark::wait_product, kValueMarks, value_at.passed);
      ptx::wgmma_wait_group<0>(o);
      release_value();
    }
    if (finishing) end_item();
  }

  /// S of a key tile, with the pending product beside it.
  template <bool WithOutput>
  __device__ __forceinline__ void step(int seqlen_k, int first_column, int flags) {
    WarpgroupScores<kKeys> s;
    float(&flat)[kKeys / 2] = reinterpret_cast<float(&)[kKeys / 2]>(s);
    const uint32 query = geometry::descriptor_low(shared.query(query_at.slot(), who));
    const uint32 key = geometry::descriptor_low(shared.key(key_at.slot()));
    take_turn();
    mark_step(Mark::product, kKeyMarks, key_at.passed);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      ptx::wgmma_ss<Element, kKeys>(flat, query + geometry::k_major_step(kWarpgroupRows, k * 16),
                                    key + geometry::k_major_step(kKeys, k * 16), k > 0);
    }
    ptx::wgmma_commit_group();
    if constexpr (WithOutput) issue_output();
    pass_turn();
    mark_step(Mark::wait_product, kKeyMarks, key_at.passed);
    ptx::wgmma_wait_group<WithOutput ? 1 : 0>(flat);
    mark_step(Mark::scores);
    if (elected) {
      shared.keys.release(key_at);
      if ((flags & kLastTile) != 0) shared.queries.release(query_at);
    }

    Rows::template prepare<kKeys>(s, call);
    if ((flags >> (kMaskShift + who) & 1) != 0) {
      const int row_of_tile = who * kWarpgroupRows + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
      const Masking::Row seen[2] = {Masking::row(call, shared, item_at.slot(), row_of_tile),
                                    Masking::row(call, shared, item_at.slot(), row_of_tile + 8)};
      apply_mask(s, seen, first_column);
    }
    float rescale[2];
    const bool must_rescale = rows.template activate<kKeys>(s, call, rescale);
    if constexpr (WithOutput) {
      mark_step(Mark::wait_product, kValueMarks, value_at.passed);
      ptx::wgmma_wait_group<0>(o, flat);
      release_value();
      if (finishing) end_item();
      mark_step(Mark::scores);
    }
    if (must_rescale && has_output) {
#pragma unroll
      for (int i = 0; i < kConfig.value_dim / 2; ++i) o[i] *= rescale[i / 2 % 2];
    }
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i / 4][i % 4] = ptx::pack<Element>(flat[2 * i], flat[2 * i + 1]);
    pending = true;
    starts = !has_output;
    has_output = true;
    valid_keys = seqlen_k - first_column;
  }

  /// Passes over a key tile that none of the warpgroup's rows sees.
  __device__ __forceinline__ void skip(int flags) {
    take_turn();
    pass_turn();
    ptx::named_barrier_sync(pipeline::kFirstWarpgroupId + who, kWarpgroup);  // all have read the tile's note
    if (elected) {
      shared.keys.release(key_at);
      if ((flags & kLastTile) != 0) shared.queries.release(query_at);
    }
  }

  /// The steps of the item in item_at. Afterwards its last product with V is pending, or its rows are written.
  __device__ __forceinline__ void walk() {
    const int seqlen_k = shared.item(item_at.slot()).work.mask.seqlen_k;
    rows = Rows{};
    has_output = false;
    mark_step(Mark::wait_full, kQueryMarks, query_at.passed);
    shared.queries.wait_full(query_at);
    if constexpr (kConfig.scaled_query) scale_query(shared.query(query_at.slot(), who), 0.5f * call.alpha, who);
    bool last;
    do {
      mark_step(Mark::wait_full, kKeyMarks, key_at.passed);
      shared.keys.wait_full(key_at);
      const int first_column = shared.note(key_at.slot()).first_column, flags = shared.note(key_at.slot()).flags;
      const bool sees = (flags >> who & 1) != 0;
      last = (flags & kLastTile) != 0;
      if (!sees) {
        skip(flags);
      } else if (pending) {
        step<true>(seqlen_k, first_column, flags);
      } else {
        step<false>(seqlen_k, first_column, flags);
      }
      key_at.advance();
      if (sees && !last) continue;
      // One place in the code for what is pending before a tile that is passed over, and at the end of the item.
#pragma unroll 1
      for (int at_end = 0; at_end <= (last ? 1 : 0); ++at_end) {
        if (at_end == 1) {
          finished_rows = rows;
          finished_empty = !has_output;
          finishing = true;
        }
        if (at_end == 1 ? !pending || kConfig.query_stages == 1 : !sees) flush();
      }
      if (!sees) {
        shared.values.wait_full(value_at);  // a slot may be released only in the round in which it was filled
        if (elected) shared.values.release(value_at);
        value_at.advance();
      }
    } while (!last);
    query_at.advance();
  }

  __device__ __forceinline__ void run() {
    if (who == kConfig.consumers - 1) pass_turn();
    for (bool is_end = false; !is_end; item_at.advance()) {
      mark(Mark::wait_full, kItemMarks, item_at.passed);
      shared.items.wait_full(item_at);
      is_end = shared.item(item_at.slot()).is_end;
      walk();
    }
    if (who == 0) take_turn();
  }
};

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, 1)
    attention_forward_hopper(const __grid_constant__ warploom::HopperForwardParams params) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const Shared shared(dynamic);
  if (threadIdx.x == 0) {
    shared.items.init(kConfig.consumers * kWarpgroup + 32, 32);  // the consumers and the loader; the scheduler
    shared.queries.init(kConfig.consumers);
    shared.keys.init(kConfig.consumers);
    shared.values.init(kConfig.consumers);
    ptx::mbarrier_init(shared.request, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  constexpr RegisterBudget kBudget = kRegisterBudgets[kConfig.consumers];
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == kConfig.consumers) {
    ptx::setmaxnreg_dec<kBudget.producer>();
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) % kWarpgroup / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (warp == 0) {
      Scheduler scheduler{{}, params, shared, lane, {}, {}};
      scheduler.start_trace(params.sheet, kConfig.consumers, lane == 0);
      scheduler.run();
      scheduler.finish_trace(params.sheet, kConfig.consumers);
    } else if (warp == 1) {
      Loader loader{{}, params, shared, lane, {}, {}, {}};
      loader.start_trace(params.sheet, kConfig.consumers + 1, lane == 0);
      loader.run();
      loader.finish_trace(params.sheet, kConfig.consumers + 1);
    }
  } else {
    ptx::setmaxnreg_inc<kBudget.consumer>();
    Consumer consumer{{}, params.call, shared, warpgroup, threadIdx.x % kWarpgroup == 0};
    consumer.start_trace(params.sheet, warpgroup, threadIdx.x % kWarpgroup == 0);
    consumer.run();
    consumer.finish_trace(params.sheet, warpgroup);
  }
}
