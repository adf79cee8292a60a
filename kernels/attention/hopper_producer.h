// The producer of the Hopper forward kernel: two warps, the scheduler and the loader.
#pragma once

#include "attention/hopper_masking.h"
#include "ptx/tma.h"

namespace warploom {

/// Rows `row`.. of one head to a tile of Rows rows and Dim columns from `column` on, panel by panel. One thread.
template <int Rows, int Dim>
__device__ __forceinline__ void load_tile(const ptx::TensorMap* map, uint32 tile, uint32 barrier, int row, int head,
                                          int sequence, int column = 0) {
#pragma unroll
  for (int panel = 0; panel < geometry::panels_of(Dim); ++panel) {
    ptx::tma_load<4>(map, tile + panel * Rows * geometry::kPanelRowBytes, barrier,
                     {column + panel * kPanelValues, row, head, sequence});
  }
}

// The scheduler: one warp that takes work items from the device counter, says what they are and loads their Q. It takes
// the next one when the loader comes to the last one and not before: an item taken early is one that an idle CTA cannot
// have. Only items of a few tiles, which the loader would come to before their next one is known, are taken further
// ahead, and none of the last ones, so that the CTAs end at about the same time.

struct Scheduler : trace::Pen<kConfig.trace> {
  const HopperForwardParams& params;
  const Shared& shared;
  const int lane;
  ItemRing::Cursor at;
  QueryRing::Cursor query_at;
  ItemRing::Cursor begun_at;  // the first item that the loader has not come to, as far as is known
  int ahead = 0;              // tiles of the items from there on

  /// The rest of the item in `at`, whose `work` is there: tells the others, loads Q, and waits until it is time
  /// for another item: when there are no more than `most_ahead` tiles that the loader has not come to.
  __device__ __forceinline__ void pass_on(int most_ahead) {
    Item& item = shared.item(at.slot());
    const Work& work = item.work;
    Masking::prepare_tiles(shared, at.slot(), lane);
    // A jagged batch is one sequence of the maps.
    const int sequence = params.call.cu_seqlens_q == nullptr ? work.sequence : 0;
    if (lane == 0) {
      item.sequence = sequence;
      item.first_key = static_cast<int>(work.tensor_k);
      item.key_head = work.head / params.call.heads_per_key_head;
      item.is_end = false;
      if constexpr (kShiftedBias) {
        // Before a sequence's packed rows there are whole chunks.
        const BiasRows rows = bias_rows(params.call.bias, work, work.head, 0, BiasTile::kElementBytes);
        const RowsPart part = RowsPart::of(rows, 0, work.first_row, 0, BiasTile::kElementBytes);
        item.bias_shift = part.shift(0);
        item.bias_row_shift = static_cast<int>(part.stride_bytes % geometry::kChunkBytes);
      }
      if constexpr (kMappedBias) {
        const BiasCall& bias = params.call.bias;
        item.bias_row = static_cast<int>(work.first_row) + (bias.query_rows ? 0 : work.mask.offset());
        item.bias_head = bias.head_stride == 0 ? 0 : work.head;
        item.bias_sequence = bias.batch_stride == 0 ? 0 : work.sequence;
      }
    }
    shared.items.publish(at);
    // With one slot for Q the last item still holds it, and the rows need not wait.
    if constexpr (kConfig.query_stages == 1) Masking::prepare_rows(shared, at.slot(), lane);
    mark(Mark::wait_empty, ForwardMarks::queries, query_at.passed);
    shared.queries.wait_empty(query_at);
    mark(Mark::load, ForwardMarks::queries, query_at.passed);
    if (lane == 0) {
      shared.queries.expect_and_publish_later(query_at, kConfig.consumers * kMap.query_bytes);
      for (int consumer = 0; consumer < kConfig.consumers; ++consumer) {
        load_tile<kWarpgroupRows, kConfig.head_dim>(
            &params.query, shared.query(query_at.slot(), consumer), shared.queries.full(query_at.slot()),
            static_cast<int>(work.tensor_q + work.first_row) + consumer * kWarpgroupRows, work.head, sequence);
      }
    }
    if constexpr (kConfig.query_stages > 1) Masking::prepare_rows(shared, at.slot(), lane);
    shared.queries.publish(query_at);  // Q and the rows' masks
    query_at.advance();
    __syncwarp();
    ahead += item.tiles;
    at.advance();
    mark(Mark::idle);
    for (; ahead > most_ahead || at.passed - begun_at.passed >= kItemSlots; begun_at.advance()) {
      ptx::mbarrier_wait(shared.begun(begun_at.slot()), begun_at.parity());
      ahead -= shared.item(begun_at.slot()).tiles;
    }
  }

  __device__ __forceinline__ void run() {
    const AttentionCall& call = params.call;
    const long long items = call.schedule.items();
    // One tile an item when the schedule knew the longest sequence; a longer one's items come again, so much further
    // on.
    const long long stride = static_cast<long long>(call.schedule.query_tiles) * kQueryRows;
    for (long long index = blockIdx.x; index < items;) {
      const int most_ahead = items - index > kLastItems * static_cast<long long>(gridDim.x) ? kAheadTiles : 0;
      mark(Mark::wait_empty, ForwardMarks::items, at.passed);
      shared.items.wait_empty(at);
      mark(Mark::load, ForwardMarks::items, at.passed);
      if (lane == 0) shared.item(at.slot()).work = work_of(call, index, kQueryRows);
      __syncwarp();
      long long first_row = shared.item(at.slot()).work.first_row;
      const long long end = shared.item(at.slot()).work.slot_q;
      while (first_row < end) {
        const Work& work = shared.item(at.slot()).work;
        pass_on(most_ahead);
        first_row += stride;
        if (first_row >= end) break;
        mark(Mark::wait_empty, ForwardMarks::items, at.passed);
        shared.items.wait_empty(at);
        mark(Mark::load, ForwardMarks::items, at.passed);
        if (lane == 0) {
          shared.item(at.slot()).work = work;
          shared.item(at.slot()).work.first_row = first_row;
        }
        __syncwarp();
      }
      unsigned taken = 0;
      if (lane == 0) taken = atomicAdd(&params.counters[0], 1u);
      index = static_cast<long long>(gridDim.x) + __shfl_sync(kAllLanes, taken, 0);
    }
    mark(Mark::wait_empty, ForwardMarks::items, at.passed);
    shared.items.wait_empty(at);
    mark(Mark::wait_empty, ForwardMarks::queries, query_at.passed);
    shared.queries.wait_empty(query_at);
    mark(Mark::load, ForwardMarks::items, at.passed);
    if (lane == 0) {
      shared.item(at.slot()).work = {};  // nothing to write
      shared.item(at.slot()).is_end = true;
    }
    shared.queries.publish(query_at);
    shared.items.publish(at);
    // The last CTA leaves the counters as it found them.
    if (lane == 0 && atomicAdd(&params.counters[1], 1u) == gridDim.x - 1) {
      params.counters[0] = 0;
      params.counters[1] = 0;
    }
  }
};

// The loader: one warp that loads the K and V tiles of the items.

struct Loader : trace::Pen<kConfig.trace> {
  const HopperForwardParams& params;
  const Shared& shared;
  const int lane;
  KeyRing::Cursor key_at, value_at;
  /// The V tile that goes with the last K tile. V runs one step behind K, as the consumers do, also across items.
  struct {
    int row = -1, head, sequence;
  } due;

  __device__ __forceinline__ void load_value() {
    if (due.row < 0) return;
    mark(Mark::wait_empty, ForwardMarks::values, value_at.passed);
    shared.values.wait_empty(value_at);
    mark(Mark::load, ForwardMarks::values, value_at.passed);
    if (lane == 0) {
      shared.values.expect(value_at, kMap.value_bytes);
      load_tile<kKeys, kConfig.value_dim>(&params.value, shared.value(value_at.slot()),
                                          shared.values.full(value_at.slot()), due.row, due.head, due.sequence);
    }
    value_at.advance();
    due.row = -1;
  }

  /// An item that sees no key is one tile that no consumer sees, without bytes.
  __device__ __forceinline__ void load_nothing(int kind) {
    load_value();
    mark(Mark::wait_empty, ForwardMarks::keys, key_at.passed);
    shared.keys.wait_empty(key_at);
    mark(Mark::wait_empty, ForwardMarks::values, value_at.passed);
    shared.values.wait_empty(value_at);
    if (lane == 0) {
      for (int consumer = 0; consumer < kMaxConsumers; ++consumer) {
        shared.note(key_at.slot()).kinds[consumer] = static_cast<unsigned char>(kind);
        shared.note(key_at.slot()).plain_tiles[consumer] = 0;
      }
      shared.keys.publish(key_at);
      shared.values.publish(value_at);
    }
    key_at.advance();
    value_at.advance();
  }

  __device__ __forceinline__ void load(const Item& item) {
    typename Masking::Tiles tiles(params.call, item, lane);
    if (tiles.tile < 0) load_nothing(kUnseenTile | kLastTile);
    while (tiles.tile >= 0) {
      const int first_column = tiles.tile * kKeys;
      int kind = tiles.kind();
      const int plain = tiles.plain_tiles();
      const uint32 seeing = __ballot_sync(kAllLanes, lane < kConfig.consumers && kind != kUnseenTile);
      tiles.advance();
      if (tiles.tile < 0) kind |= kLastTile;
      mark(Mark::wait_empty, ForwardMarks::keys, key_at.passed);
      shared.keys.wait_empty(key_at);
      mark(Mark::load, ForwardMarks::keys, key_at.passed);
      if (lane < kConfig.consumers) {
        shared.note(key_at.slot()).first_column = first_column;
        shared.note(key_at.slot()).kinds[lane] = static_cast<unsigned char>(kind);
        shared.note(key_at.slot()).plain_tiles[lane] = static_cast<unsigned short>(kind == kPlainTile ? plain : 0);
      }
      __syncwarp();
      if (lane == 0) {
        const uint32 full = shared.keys.full(key_at.slot());
        shared.keys.expect(key_at, kMap.key_bytes + (kMappedBias ? __popc(seeing) * kMap.bias_bytes : 0));
        load_tile<kKeys, kConfig.head_dim>(&params.key, shared.key(key_at.slot()), full, item.first_key + first_column,
                                           item.key_head, item.sequence);
        if constexpr (kMappedBias) {
          for (int consumer = 0; consumer < kConfig.consumers; ++consumer) {
            if ((seeing >> consumer & 1) == 0) continue;
            load_tile<kWarpgroupRows, kKeys>(&params.bias, shared.bias(key_at.slot(), consumer), full,
                                             item.bias_row + consumer * kWarpgroupRows, item.bias_head,
                                             item.bias_sequence, first_column);
          }
        }
      }
      key_at.advance();
      load_value();
      due = {item.first_key + first_column, item.key_head, item.sequence};
    }
  }

  __device__ __forceinline__ void run() {
    for (ItemRing::Cursor at;; at.advance()) {
      // The next item's first K comes before this one's last V, unless the consumers would have to wait for it.
      if (kConfig.query_stages == 1 || !__all_sync(kAllLanes, shared.items.is_full(at))) load_value();
      mark(Mark::wait_full, ForwardMarks::items, at.passed);
      shared.items.wait_full(at);
      const Item& item = shared.item(at.slot());
      const bool is_end = item.is_end;
      if (is_end) {
        load_nothing(kUnseenTile | kLastTile | kEndTile);  // for the consumers' last products
      } else {
        if (lane == 0) ptx::mbarrier_arrive(shared.begun(at.slot()));
        load(item);
      }
      shared.items.release(at);
      if (is_end) return;
    }
  }
};

}  // namespace warploom
