// The producer of the Hopper kernel for dQ, and what it shares with the consumers: types under kConfig, which stands in
// front of this file, the CTA's shared memory, and the mask.
#pragma once

#include "attention/backward_config.h"
#include "attention/hopper_backward_dq_config.h"
#include "attention/hopper_bias_elements.h"
#include "attention/hopper_bias_place.h"
#include "attention/hopper_items.h"
#include "attention/hopper_key_walk.h"
#include "attention/hopper_tiles.h"
#include "tile/tma_tile.h"

namespace warploom {

using geometry::Interval;
using trace::Mark;
using Element = ptx::ElementOf<kConfig.bfloat16>;

constexpr HopperBackwardDqSharedMap kMap = shared_map(kConfig);
constexpr int kThreads = (kConfig.consumers + 1) * kWarpgroup;
constexpr int kQueryRows = kConfig.consumers * kConsumerRows;
constexpr int kKeys = kConfig.key_columns;
constexpr int kKeyBlocks = kKeys / 8;
constexpr int kDim = kConfig.head_dim, kValueDim = kConfig.value_dim;
constexpr int kBiasElementBytes = 2;

/// Registers a thread after setmaxnreg, by number of consumers: their sum over the CTA is what it got at launch. Where
/// the products' operands in registers leave few, the producer, unless it reads lists of intervals, can do with less.
struct RegisterBudget {
  int producer, consumer;
};
constexpr RegisterBudget kBudgets[] = {{0, 0}, {56, 256}, {40, 232}, {32, 160}, {32, 112}};
constexpr bool kManyOperands = kDim / 2 + kKeys + kKeys / 4 > 192;
constexpr RegisterBudget kBudget =
    kConfig.consumers == 2 && kManyOperands ? RegisterBudget{24, 240} : kBudgets[kConfig.consumers];

/// What the scheduler hands to the loaders and the consumers.
struct Item {
  Work work;
  int sequence, first_key, key_head;  // where K and V begin in their tensor maps
  bool is_end;                        // no item: everybody stops
  SeenColumns<kConfig.consumers> columns;
  // stored_bias: where the sequence begins in a packed one, in elements, its rows, and the item's part of it.
  long long packed_first;
  int rows_of_bias;
  RowsPart bias;
};
static_assert(sizeof(Item) <= kMap.item_bytes);

/// What a loader tells about a key tile, beside the tile itself.
struct KeyTileNote {
  int first_column, flags;
};
static_assert(sizeof(KeyTileNote) == kMap.note_bytes);

using ItemRing = pipeline::MbarrierRing<kMap.item_slots>;
using QueryRing = pipeline::MbarrierRing<1>;
using KeyRing = pipeline::MbarrierRing<kConfig.stages>;
using ValueRing = pipeline::MbarrierRing<kConfig.value_stages>;

/// The CTA's shared memory.
struct Shared {
  using ItemCursor = ItemRing::Cursor;
  unsigned char* bytes;
  uint32 address;
  ItemRing items;
  QueryRing queries;  // of consumer 0; the others' follow
  KeyRing keys;
  ValueRing values;
  uint32 request;  // barrier: the loader of K and V has come to the last item

  __device__ __forceinline__ explicit Shared(unsigned char* dynamic)
      : bytes(dynamic),
        address(ptx::shared_address(dynamic)),
        items{address + kMap.barriers},
        queries{items.barriers + ItemRing::kBytes},
        keys{queries.barriers + kConfig.consumers * QueryRing::kBytes},
        values{keys.barriers + KeyRing::kBytes},
        request(values.barriers + ValueRing::kBytes) {}

  __device__ __forceinline__ Item& item(int slot) const {
    return *reinterpret_cast<Item*>(bytes + kMap.items + slot * kMap.item_bytes);
  }
  __device__ __forceinline__ QueryRing queries_of(int who) const {
    return {queries.barriers + who * QueryRing::kBytes};
  }
  __device__ __forceinline__ volatile KeyTileNote& note(int stage) const {
    return reinterpret_cast<volatile KeyTileNote*>(bytes + kMap.notes)[stage];
  }
  __device__ __forceinline__ uint32 terms() const { return address + kMap.terms; }
  __device__ __forceinline__ uint32 query(int who) const { return address + kMap.query + who * kMap.query_bytes; }
  __device__ __forceinline__ uint32 dout(int who) const { return address + kMap.dout + who * kMap.dout_bytes; }
  __device__ __forceinline__ uint32 key(int stage) const { return address + kMap.key + stage * kMap.key_bytes; }
  __device__ __forceinline__ uint32 value(int stage) const { return address + kMap.value + stage * kMap.value_bytes; }
};

/// The kind of mask: how the key tiles are found, and what a row sees.
struct SequenceMasking {
  using Walk = SequenceKeyWalk<kConfig.consumers, kKeys>;
  static __device__ __forceinline__ void prepare(Item& item) { item.columns.prepare<kKeys>(item.work); }
  static __device__ __forceinline__ SequenceRow row(const AttentionCall&, const Work& work, int row_of_tile) {
    if (row_of_tile >= rows_of_item<kConfig.consumers>(work)) return {};
    return {visible_columns(work.mask, static_cast<int>(work.first_row) + row_of_tile + work.mask.offset())};
  }
};

struct IntervalMasking {
  using Walk = IntervalKeyWalk<kConfig.consumers, kKeys>;
  static __device__ __forceinline__ void prepare(Item&) {}
  static __device__ __forceinline__ IntervalRow row(const AttentionCall& call, const Work& work, int row_of_tile) {
    const int count = row_of_tile < rows_of_item<kConfig.consumers>(work) ? call.num_intervals : 0;
    return {{call.intervals + work.head * call.interval_head_stride +
                 (work.first_q + work.first_row + row_of_tile) * 2 * call.num_intervals,
             count, work.mask.seqlen_k}};
  }
};

template <bool Intervals>
struct MaskingOf {
  using Type = SequenceMasking;
};
template <>
struct MaskingOf<true> {
  using Type = IntervalMasking;
};
using Masking = MaskingOf<kConfig.interval_mask>::Type;

/// The rest of an item.
struct PrepareItem {
  const AttentionCall& call;
  __device__ __forceinline__ void operator()(Item& item, int lane) const {
    Masking::prepare(item);
    if constexpr (kConfig.stored_bias) place_bias<kBiasElementBytes>(call, item, lane);
    if (lane != 0) return;
    const Work& work = item.work;
    if constexpr (kConfig.stored_bias) {
      const BiasRows rows =
          bias_rows(call.bias, work, work.head, item.packed_first, item.rows_of_bias, kBiasElementBytes);
      item.bias = RowsPart::of(rows, 0, work.first_row, 0, kBiasElementBytes);
      const long long places = reinterpret_cast<long long>(item.bias.data) | item.bias.stride_bytes;
      item.bias.aligned = places % (2 * kBiasElementBytes) == 0 && item.bias.columns % 2 == 0;  // BiasPairs
    }
    item.sequence = call.cu_seqlens_q == nullptr ? work.sequence : 0;  // a jagged batch is one sequence of the maps
    item.first_key = static_cast<int>(work.tensor_k);
    item.key_head = work.head / call.heads_per_key_head;
  }
};

/// What the score function reads of a consumer's rows comes by each lane's own copies, as 0 for rows that do not exist.
__device__ __forceinline__ void load_terms(const BackwardParams& p, const Shared& shared, const Work& work, int who,
                                           int lane) {
  const int rows = rows_of_item<kConfig.consumers>(work);
  const long long first = work.first_q + work.first_row;
#pragma unroll
  for (int row = who * kConsumerRows + lane; row < (who + 1) * kConsumerRows; row += 32) {
    if constexpr (kConfig.softmax) {
      ptx::cp_async_small<8>(shared.terms() + row * 8, p.row_terms + work.head * p.call.total_q + first + row,
                             row < rows);
    } else if (p.call.divisor_rows != nullptr) {
      ptx::cp_async_small<4>(shared.terms() + row * 8, p.call.divisor_rows + first + row, row < rows);
    }
  }
}

/// One warp: Q and dO of each item, and its terms, for each consumer as soon as it has done with the item before.
__device__ __forceinline__ void load_queries(const trace::Pen<kConfig.trace>& pen, const HopperBackwardParams& params,
                                             const Shared& shared, int lane) {
  QueryRing::Cursor query_at;
  for (ItemRing::Cursor at;; at.advance()) {
    pen.mark(Mark::wait_full, BackwardDqMarks::items, at.passed);
    shared.items.wait_full(at);
    const Item& item = shared.item(at.slot());
    const bool is_end = item.is_end;
    if (!is_end) {
#pragma unroll 1
      for (int who = 0; who < kConfig.consumers; ++who) {
        const QueryRing queries = shared.queries_of(who);
        pen.mark(Mark::wait_empty, BackwardDqMarks::queries + who, query_at.passed);
        queries.wait_empty(query_at);
        pen.mark(Mark::load, BackwardDqMarks::queries + who, query_at.passed);
        const uint32 full = queries.full(query_at.slot());
        if (lane == 0) {
          queries.expect(query_at, kMap.query_bytes + kMap.dout_bytes);
          const int row = static_cast<int>(item.work.tensor_q + item.work.first_row) + who * kConsumerRows;
          tile::tma_load_rows<kConsumerRows, kDim>(&params.query, shared.query(who), full, row, item.work.head,
                                                   item.sequence);
          tile::tma_load_rows<kConsumerRows, kValueDim>(&params.dout, shared.dout(who), full, row, item.work.head,
                                                        item.sequence);
        }
        load_terms(params.backward, shared, item.work, who, lane);
        ptx::cp_async_mbarrier_arrive(full);
      }
      query_at.advance();
    }
    shared.items.release(at);
    if (is_end) return;
  }
}

/// One warp: the K and V tiles that each item sees.
struct KeyLoader : trace::Pen<kConfig.trace> {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;
  KeyRing::Cursor key_at;
  ValueRing::Cursor value_at;

  /// An item that sees no key is one tile that no consumer sees, without bytes.
  __device__ __forceinline__ void load_nothing() {
    mark(Mark::wait_empty, BackwardDqMarks::keys, key_at.passed);
    shared.keys.wait_empty(key_at);
    mark(Mark::wait_empty, BackwardDqMarks::values, value_at.passed);
    shared.values.wait_empty(value_at);
    if (lane == 0) {
      shared.note(key_at.slot()).flags = kLastKeyTile;
      shared.keys.publish(key_at);
      shared.values.publish(value_at);
    }
    key_at.advance();
    value_at.advance();
  }

  __device__ __forceinline__ void load(const Item& item) {
    typename Masking::Walk walk(params.backward.call, item.work, item.columns, lane);
    if (walk.tile() < 0) load_nothing();
    while (walk.tile() >= 0) {
      const int first_column = walk.tile() * kKeys;
      int flags = walk.flags();
      walk.advance();
      if (walk.tile() < 0) flags |= kLastKeyTile;
      mark(Mark::wait_empty, BackwardDqMarks::keys, key_at.passed);
      shared.keys.wait_empty(key_at);
      mark(Mark::load, BackwardDqMarks::keys, key_at.passed);
      if (lane == 0) {
        shared.note(key_at.slot()).first_column = first_column;
        shared.note(key_at.slot()).flags = flags;
        shared.keys.expect(key_at, kMap.key_bytes);
        tile::tma_load_rows<kKeys, kDim>(&params.key, shared.key(key_at.slot()), shared.keys.full(key_at.slot()),
                                         item.first_key + first_column, item.key_head, item.sequence);
      }
      if constexpr (kConfig.stored_bias) {
        RowsPart part = item.bias;
        part.data += first_column * kBiasElementBytes;
        part.columns -= first_column;
        prefetch_bias<kQueryRows, kKeys>(part, lane);
      }
      mark(Mark::wait_empty, BackwardDqMarks::values, value_at.passed);
      shared.values.wait_empty(value_at);
      mark(Mark::load, BackwardDqMarks::values, value_at.passed);
      if (lane == 0) {
        shared.values.expect(value_at, kMap.value_bytes);
        tile::tma_load_rows<kKeys, kValueDim>(&params.value, shared.value(value_at.slot()),
                                              shared.values.full(value_at.slot()), item.first_key + first_column,
                                              item.key_head, item.sequence);
      }
      key_at.advance();
      value_at.advance();
    }
  }

  __device__ __forceinline__ void run() {
    for (ItemRing::Cursor at;; at.advance()) {
      mark(Mark::wait_full, BackwardDqMarks::items, at.passed);
      shared.items.wait_full(at);
      const Item& item = shared.item(at.slot());
      const bool is_end = item.is_end;
      if (!is_end) {
        if (lane == 0) ptx::mbarrier_arrive(shared.request);
        load(item);
      }
      shared.items.release(at);
      if (is_end) return;
    }
  }
};

}  // namespace warploom
