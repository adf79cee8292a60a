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
#include "attention/hopper_bias.h"
#include "attention/hopper_bias_producer.h"
#include "attention/hopper_masking.h"
#include "attention/hopper_producer.h"
#include "attention/hopper_rows.h"
#include "attention/hopper_shared.h"
#include "geometry/wgmma_descriptor.h"
#include "pipeline/turns.h"
#include "ptx/fence.h"
#include "ptx/named_barrier.h"
#include "ptx/stmatrix.h"
#include "ptx/warpgroup_registers.h"
#include "ptx/wgmma.h"

namespace warploom {

/// Sets the scores that their row does not see.
template <typename Row>
__device__ __forceinline__ void apply_mask(WarpgroupScores<kKeys>& s, const Row (&rows)[2], int first_column) {
  constexpr int kBlocksOfWord = 16;  // two columns each
#pragma unroll
  for (int first = 0; first < kKeys / 8; first += kBlocksOfWord) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32 bits = rows[half].own_bits_from(first_column + 8 * first + static_cast<int>(threadIdx.x % 4 * 2));
#pragma unroll
      for (int n = 0; n < kBlocksOfWord && first + n < kKeys / 8; ++n) {
        float(&c)[4] = s[0][first + n];
        c[2 * half] = select_by_bit(bits, 2 * n, c[2 * half], Rows::invisible());
        c[2 * half + 1] = select_by_bit(bits, 2 * n + 1, c[2 * half + 1], Rows::invisible());
      }
    }
  }
}

/// Where a warp's 16 rows of O go.
struct OutputRows {
  int lane;
  tile::GlobalRows to;  // the lane's first row
  int slots, used;      // rows that there are, and that are not 0
  uint32 staging;       // a panel of shared memory
};

/// Stores the columns of O from panel First on: through shared memory, so that a lane stores 16 bytes of a row.
template <int First>
__device__ __forceinline__ void store_panels(const OutputRows& rows, const float (&o)[kConfig.value_dim / 2],
                                             const float (&scale)[2]) {
  constexpr int kFirstBlock = First * geometry::kPanelChunks, kBlocks = kConfig.value_dim / 8 - kFirstBlock;
  const int lane = rows.lane, chunk = lane % geometry::kPanelChunks;
  // Lane l gives stmatrix a row of block l / 8: two halves of the rows, two blocks of columns.
  const uint32 write = rows.staging + lane % 16 * geometry::kPanelRowBytes +
                       geometry::swizzled_chunk(lane % 8, lane / 16) * geometry::kChunkBytes;
#pragma unroll
  for (int n = 0; n < geometry::kPanelChunks && n < kBlocks; n += 2) {
    uint32 w[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * (kFirstBlock + n + i / 2) + i % 2 * 2;
      if (n + i / 2 < kBlocks) w[i] = ptx::pack<Element>(o[at] * scale[i % 2], o[at + 1] * scale[i % 2]);
    }
    ptx::stmatrix_x4(write ^ n * geometry::kChunkBytes, w[0], w[1], w[2], w[3]);
  }
  __syncwarp();
  // Every fourth row, the swizzle's bits of which differ from the first one's in one place.
  const uint32 read = rows.staging + geometry::swizzled_offset(kWarpRows, lane / 8, chunk);
  constexpr uint32 kFourRowsOn = 4 * geometry::kChunkBytes;
  char* to = rows.to.data + (kFirstBlock + chunk) * geometry::kChunkBytes;
#pragma unroll
  for (int i = 0; i < kWarpRows / 4; ++i) {
    const int row = lane / 8 + 4 * i;
    const uint32 from = (i % 2 == 0 ? read : read ^ kFourRowsOn) + 4 * i * geometry::kPanelRowBytes;
    uint4 w{0, 0, 0, 0};
    if (row < rows.used) w = ptx::load_shared_16(from);
    if (row < rows.slots && chunk < kBlocks) *reinterpret_cast<uint4*>(to) = w;
    to += 4 * rows.to.row_stride_bytes;
  }
  __syncwarp();
  if constexpr (kBlocks > geometry::kPanelChunks) store_panels<First + 1>(rows, o, scale);
}

/// Scales, rounds and stores a warp's 16 rows of O (zeros where the sequence has slots but no rows).
__device__ __forceinline__ void store_output(const AttentionCall& call, const float (&o)[kConfig.value_dim / 2],
                                             Rows& rows, bool empty, const Work& work, int first_of_tile,
                                             uint32 staging) {
  // Whatever comes of it is computed here: kept from item to item it would take registers.
  const int lane = ptx::in_register(threadIdx.x % 32);
  const long long first_row = work.first_row + first_of_tile;
  const int slots = geometry::min_of(static_cast<int>(work.slot_q - first_row), kWarpRows);
  const int used = empty ? 0 : geometry::min_of(static_cast<int>(work.mask.seqlen_q - first_row), kWarpRows);
  rows.finish();
  float scale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    scale[half] = row < used ? rows.output_scale(call, half, work.first_q + first_row + row) : 0;
    if constexpr (Rows::kHasLse) {
      if (call.lse != nullptr && lane % 4 == 0 && row < slots) {
        call.lse[work.sequence * call.lse_batch_stride + work.head * call.lse_head_stride + work.tensor_q + first_row +
                 row] = row < used ? rows.lse(half) : Rows::invisible();
      }
    }
  }
  const tile::GlobalRows to = rows_of(call.out, work.sequence, work.tensor_q + first_row + lane / 8, work.head);
  store_panels<0>({lane, to, slots, used, staging}, o, scale);
}

/// Zeros the rows of a V tile from `valid` on: they belong to another sequence, and 0 * NaN is not 0. Consumers may do
/// so at the same time.
__device__ __forceinline__ void zero_rows(uint32 tile, int valid, int consumer) {
  constexpr int kChunks = kMap.value_bytes / geometry::kPanelRowBytes / kKeys * geometry::kPanelChunks;
  for (int i = valid * kChunks + ptx::in_register(threadIdx.x % kWarpgroup); i < kKeys * kChunks; i += kWarpgroup) {
    ptx::store_shared_16(tile + geometry::swizzled_offset(kKeys, i / kChunks, i % kChunks), uint4{0, 0, 0, 0});
  }
  ptx::fence_proxy_async_shared();
  ptx::named_barrier_sync(pipeline::kFirstWarpgroupId + consumer, kWarpgroup);
}

/// Multiplies a warpgroup's Q by a power of two, in shared memory.
__device__ __forceinline__ void scale_query(uint32 tile, float factor, int consumer) {
  const uint32 factors = ptx::pack<ptx::Bfloat16>(factor, factor);
#pragma unroll 4
  for (int at = ptx::in_register(threadIdx.x % kWarpgroup) * geometry::kChunkBytes; at < kMap.query_bytes;
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
  const int elected;              // arrives on barriers for the warpgroup
  const int own_turn, next_turn;  // named barriers
  const uint32 shared_low;        // of the descriptor of a tile at the start of shared memory

  ItemRing::Cursor item_at;
  QueryRing::Cursor query_at;
  KeyRing::Cursor key_at, value_at;

  Rows rows;           // of the current item
  Rows finished_rows;  // of the item whose last product is still to come; unused when it ends before `rows` is needed
  float o[kConfig.value_dim / 2];
  uint32 p[kKeys / 16][4];

  ItemRing::Cursor finished_at;
  bool pending = false;         // P waits for its product with V, `valid_keys` rows of which are the sequence's
  bool finishing = false;       // that product (none when nothing is pending) ends the item in finished_at
  bool finished_empty = false;  // that item has seen nothing: its rows are 0
  int has_sum = 0;              // O holds products of the item; else the next one starts it
  bool has_output = false;      // the current item has had a step
  int valid_keys = 0;

  __device__ __forceinline__ void take_turn() const {
    if constexpr (kConfig.turns && kConfig.consumers > 1) {
      mark_step(Mark::turn);
      ptx::named_barrier_sync(own_turn, 2 * kWarpgroup);
      settle_marks(shared.items.full(0));
    }
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (kConfig.turns && kConfig.consumers > 1) {
      ptx::named_barrier_arrive(next_turn, 2 * kWarpgroup);
    }
  }

  /// Starts S = Q K^T.
  __device__ __forceinline__ void issue_scores(float (&s)[kKeys / 2], int slot) const {
    const uint32 query = geometry::descriptor_low(shared.query(query_at.slot(), who));
    const uint32 key = shared_low + kMap.key / geometry::kChunkBytes + slot * (kMap.key_bytes / geometry::kChunkBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      ptx::wgmma_ss<Element, kKeys>(s, query + geometry::k_major_step(kWarpgroupRows, k * 16),
                                    key + geometry::k_major_step(kKeys, k * 16), k > 0);
    }
    ptx::wgmma_commit_group();
  }

  /// Starts O += P V, of V's filling `number`. Plain: in the middle of an item, and all of the tile's rows are the
  /// sequence's.
  template <bool Plain>
  __device__ __forceinline__ void issue_output(KeyRing::Slot at, uint32 number) {
    shared.values.wait_full(at);
    mark_step(Mark::product, ForwardMarks::values, number);
    if (!Plain && valid_keys < kKeys) zero_rows(shared.value(at.index), valid_keys, who);
    constexpr uint32 kFirst = geometry::descriptor_low(kMap.value, kKeys * geometry::kPanelRowBytes) -
                              geometry::descriptor_low(0);  // another leading offset than shared_low's
    const uint32 value = shared_low + kFirst + at.index * (kMap.value_bytes / geometry::kChunkBytes);
    ptx::wgmma_fence();  // after a branch, or ptxas adds its own and serialises
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      ptx::wgmma_rs<Element, kConfig.value_dim, true>(o, p[k], value + geometry::transposed_step(k * 16),
                                                      k > 0 ? 1 : has_sum);
    }
    ptx::wgmma_commit_group();
    has_sum = 1;
  }

  /// After S is there, and R has been read.
  __device__ __forceinline__ void release_key(KeyRing::Slot at) const {
    if constexpr (kBiased) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) shared.keys.release(at);
    } else {
      if (elected) shared.keys.release(at);
    }
  }
  __device__ __forceinline__ void release_query(int kind) const {
    if ((kind & kLastTile) != 0 && elected) shared.queries.release(query_at);
  }

  /// After O += P V has ended.
  __device__ __forceinline__ void release_value() {
    if (elected) shared.values.release(value_at);
    value_at.advance();
    pending = false;
  }

  /// Writes the finished item's rows and lets it go.
  __device__ __forceinline__ void end_item() {
    mark(Mark::epilogue, ForwardMarks::items, finished_at.passed);
    const int warp = ptx::in_register(threadIdx.x) % kWarpgroup / 32;
    store_output(call, o, kEndsItemFirst ? rows : finished_rows, finished_empty, shared.item(finished_at.slot()).work,
                 who * kWarpgroupRows + warp * kWarpRows, shared.staging(who, warp));
    shared.items.release(finished_at);
    finished_at.advance();
    finishing = false;
    has_sum = 0;
    if constexpr (kEndsItemFirst) rows = Rows{};
  }

  /// What is pending, alone.
  __device__ __forceinline__ void flush() {
    if (pending) {
      issue_output<false>(value_at.place(), value_at.passed);
      mark_step(Mark::wait_product, ForwardMarks::values, value_at.passed);
      ptx::wgmma_wait_group<0>(o);
      release_value();
    }
    if (finishing) end_item();
  }

  /// P of the probabilities.
  __device__ __forceinline__ void pack(const float (&s)[kKeys / 2]) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i / 4][i % 4] = ptx::pack<Element>(s[2 * i], s[2 * i + 1]);
  }
  __device__ __forceinline__ void rescale_output(const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < kConfig.value_dim / 2; ++i) o[i] *= rescale[i / 2 % 2];
  }

  /// P of a key tile, K's filling `number`, that all rows see whole, beside the product of the tile before.
  __device__ __forceinline__ void plain_step(KeyRing::Slot key, KeyRing::Slot value, uint32 number) {
    WarpgroupScores<kKeys> s;
    float(&flat)[kKeys / 2] = reinterpret_cast<float(&)[kKeys / 2]>(s);
    take_turn();
    mark_step(Mark::product, ForwardMarks::keys, number);
    issue_scores(flat, key.index);
    issue_output<true>(value, number - 1);
    pass_turn();
    mark_step(Mark::wait_product, ForwardMarks::keys, number);
    Diagonals computed;
    read_bias(computed, call, shared, item_at.slot(), key.index, who);
    ptx::wgmma_wait_group<1>(flat);
    mark_step(Mark::scores);
    if constexpr (kBiased) add_bias<true>(s, computed, call, shared, item_at.slot(), key.index, who);
    release_key(key);
    if constexpr (!kBiased) Rows::template prepare<kKeys>(s, call);
    float rescale[2];
    const bool must_rescale = rows.template activate<kKeys>(s, call, rescale);
    mark_step(Mark::wait_product, ForwardMarks::values, number - 1);
    if (must_rescale) {
      ptx::wgmma_wait_group<0>(o, flat);
      rescale_output(rescale);
    } else {
      ptx::wgmma_wait_group<0>(o, flat);
    }
    mark_step(Mark::scores);
    if (elected) shared.values.release(value);
    pack(flat);
  }

  /// The steps over key tiles in the middle of an item that all rows see whole: where the time is spent. Ends at a tile
  /// of another kind.
  __device__ __forceinline__ void plain_steps() {
    KeyRing::Slot value = value_at.place(), key = key_at.place();
    while (true) {
      mark_step(Mark::wait_full, ForwardMarks::keys, key_at.passed);
      shared.keys.wait_full(key);
      int left = shared.note(key.index).plain_tiles[who];
      if (left == 0 || !has_plain_bias(shared, key.index, who)) break;
      key_at.passed += left;
      while (true) {
        plain_step(key, value, key_at.passed - left);
        value = key;
        key = key.next();
        if (--left == 0) break;
        mark_step(Mark::wait_full, ForwardMarks::keys, key_at.passed - left);
        shared.keys.wait_full(key);
        if (!has_plain_bias(shared, key.index, who)) break;
      }
      if constexpr (kBucketed) key_at.passed -= left;
    }
    value_at = key_at.before();
    // As it was, said again: the loop need not keep registers for it.
    valid_keys = kKeys;
    pending = has_output = true;
    finishing = finished_empty = false;
    if constexpr (!kEndsItemFirst) finished_rows = Rows{};
  }

  /// S of a key tile of any kind, with the pending product beside it.
  template <bool WithOutput>
  __device__ __forceinline__ void step(int first_column, int kind) {
    WarpgroupScores<kKeys> s;
    float(&flat)[kKeys / 2] = reinterpret_cast<float(&)[kKeys / 2]>(s);
    take_turn();
    mark_step(Mark::product, ForwardMarks::keys, key_at.passed);
    issue_scores(flat, key_at.slot());
    if constexpr (WithOutput) issue_output<false>(value_at.place(), value_at.passed);
    pass_turn();
    mark_step(Mark::wait_product, ForwardMarks::keys, key_at.passed);
    ptx::wgmma_wait_group<WithOutput ? 1 : 0>(flat);
    mark_step(Mark::scores);
    if constexpr (kBiased) add_bias<false>(s, {}, call, shared, item_at.slot(), key_at.slot(), who);
    release_key(key_at.place());
    release_query(kind);
    if constexpr (!kBiased) Rows::template prepare<kKeys>(s, call);
    if ((kind & kMaskedTile) != 0) {
      const int row_of_tile = who * kWarpgroupRows + threadIdx.x % kWarpgroup / 32 * kWarpRows + threadIdx.x % 32 / 4;
      const Masking::Row seen[2] = {Masking::row(call, shared, item_at.slot(), row_of_tile),
                                    Masking::row(call, shared, item_at.slot(), row_of_tile + 8)};
      apply_mask(s, seen, first_column);
    }
    const auto end_output = [&] {
      mark_step(Mark::wait_product, ForwardMarks::values, value_at.passed);
      ptx::wgmma_wait_group<0>(o, flat);
      release_value();
      if (finishing) end_item();
      mark_step(Mark::scores);
    };
    if constexpr (WithOutput && kEndsItemFirst) end_output();
    float rescale[2];
    const bool must_rescale = rows.template activate<kKeys>(s, call, rescale);
    if constexpr (WithOutput && !kEndsItemFirst) end_output();
    if (must_rescale) rescale_output(rescale);
    pack(flat);
    pending = true;
    has_output = true;
    valid_keys = shared.item(item_at.slot()).work.mask.seqlen_k - first_column;
  }

  /// Passes over a key tile that none of the warpgroup's rows sees.
  __device__ __forceinline__ void skip(int kind) {
    take_turn();
    mark_step(Mark::idle);
    pass_turn();
    ptx::named_barrier_sync(pipeline::kFirstWarpgroupId + who, kWarpgroup);  // all have read the tile's note
    release_key(key_at.place());
    release_query(kind);
  }

  /// The steps of the item in item_at. Afterwards its last product with V is pending, or its rows are written. False
  /// after what stands for the end of all items.
  __device__ __forceinline__ bool walk() {
    if constexpr (!kEndsItemFirst) rows = Rows{};
    has_output = false;
    mark_step(Mark::wait_full, ForwardMarks::queries, query_at.passed);
    shared.queries.wait_full(query_at);
    mark_step(Mark::scores);
    if constexpr (kConfig.scaled_query) scale_query(shared.query(query_at.slot(), who), 0.5f * call.alpha, who);
    bool last, more;
    do {
      if (has_output && pending) {
        plain_steps();
      } else {
        mark_step(Mark::wait_full, ForwardMarks::keys, key_at.passed);
        shared.keys.wait_full(key_at);
      }
      const int first_column = shared.note(key_at.slot()).first_column, kind = shared.note(key_at.slot()).kinds[who];
      const bool sees = (kind & kUnseenTile) == 0;
      last = (kind & kLastTile) != 0;
      more = (kind & kEndTile) == 0;
      if (!sees) {
        skip(kind);
      } else if (pending) {
        step<true>(first_column, kind);
      } else {
        step<false>(first_column, kind);
      }
      key_at.advance();
      if (sees && !last) continue;
      // One place in the code for what is pending before a tile that is passed over, and at the end of the item.
#pragma unroll 1
      for (int at_end = 0; at_end <= (last ? 1 : 0); ++at_end) {
        if (at_end == 1) {
          if constexpr (!kEndsItemFirst) finished_rows = rows;
          finished_empty = !has_output;
          finishing = true;
        }
        if (at_end == 1 ? !pending || kConfig.query_stages == 1 : !sees) flush();
      }
      if (!sees) {
        mark_step(Mark::wait_full, ForwardMarks::values, value_at.passed);
        shared.values.wait_full(value_at);  // a slot may be released only in the round in which it was filled
        // By all warps: one still on its way from the item's epilogue could find the slot filled once more, and wait
        // on.
        ptx::named_barrier_sync(pipeline::kFirstWarpgroupId + who, kWarpgroup);
        if (elected) shared.values.release(value_at);
        value_at.advance();
      }
    } while (!last);
    query_at.advance();
    return more;
  }

  __device__ __forceinline__ void run() {
    if (who == kConfig.consumers - 1) pass_turn();
    for (bool more = true; more; item_at.advance()) {
      mark(Mark::wait_full, ForwardMarks::items, item_at.passed);
      shared.items.wait_full(item_at);
      more = walk();
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
  if (threadIdx.x == kConfig.consumers * kWarpgroup) {
    ptx::tma_prefetch_map(&params.query);
    ptx::tma_prefetch_map(&params.key);
    ptx::tma_prefetch_map(&params.value);
  }
  if (threadIdx.x == 0) {
    // The consumers, the loader and the warps that bring R; the scheduler.
    shared.items.init(kConfig.consumers * kWarpgroup + 32 + kBiasWarps * 32, 32);
    shared.queries.init(kConfig.consumers, 32);
    shared.keys.init(kConfig.consumers * kKeyReleases, 1 + kBiasPublications);
    shared.values.init(kConfig.consumers);
    for (int slot = 0; slot < kItemSlots; ++slot) ptx::mbarrier_init(shared.begun(slot), 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  constexpr RegisterBudget kBudget = register_budget(kConfig);
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == kConfig.consumers) {
    ptx::setmaxnreg_dec<kBudget.producer>();
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) % kWarpgroup / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (warp == 0) {
      if (trace::played_quietly<kConfig.trace, Scheduler>(params.sheet, params, shared, lane)) return;
      Scheduler scheduler{{params.sheet}, params, shared, lane, {}, {}};
      scheduler.start_trace(kConfig.consumers, lane == 0);
      scheduler.run();
      scheduler.finish_trace(kConfig.consumers);
    } else if (warp == 1) {
      if (trace::played_quietly<kConfig.trace, Loader>(params.sheet, params, shared, lane)) return;
      Loader loader{{params.sheet}, params, shared, lane, {}, {}, {}};
      loader.start_trace(kConfig.consumers + 1, lane == 0);
      loader.run();
      loader.finish_trace(kConfig.consumers + 1);
    } else if constexpr (kBiasWarps > 0) {
      bring_bias(params.call, shared, lane, warp - 2);
    }
  } else {
    ptx::setmaxnreg_inc<kBudget.consumer>();
    const int next = warpgroup + 1 == kConfig.consumers ? 0 : warpgroup + 1;
    // By shuffle, or the compiler computes it again wherever it is needed.
    const uint32 shared_low = __shfl_sync(kAllLanes, geometry::descriptor_low(shared.address), 0);
    if constexpr (kConfig.trace != trace::Level::off) {
      if (!trace::records(params.sheet)) {
        Consumer quiet{{params.sheet, false},
                       params.call,
                       shared,
                       warpgroup,
                       ptx::in_register(threadIdx.x % kWarpgroup == 0),
                       ptx::in_register(pipeline::kFirstTurnId + warpgroup),
                       ptx::in_register(pipeline::kFirstTurnId + next),
                       shared_low};
        return quiet.run();
      }
    }
    Consumer consumer{{params.sheet},
                      params.call,
                      shared,
                      warpgroup,
                      ptx::in_register(threadIdx.x % kWarpgroup == 0),
                      ptx::in_register(pipeline::kFirstTurnId + warpgroup),
                      ptx::in_register(pipeline::kFirstTurnId + next),
                      shared_low};
    consumer.start_trace(warpgroup, threadIdx.x % kWarpgroup == 0);
    consumer.run();
    consumer.finish_trace(warpgroup);
  }
}
