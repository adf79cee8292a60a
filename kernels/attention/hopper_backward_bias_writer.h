// The gradient of a bias whose rows begin anywhere, or are packed, in the one-pass Hopper backward kernel: a warp of
// the producer for each consumer reads that one's part of every score tile, which TMA could not store, and writes it
// row by row, four bytes a lane. It clears what no query tile holds when an item's tiles are done.
#pragma once

#include "attention/hopper_backward_producer.h"

namespace warploom {

struct Writer {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int who;  // the consumer
  const int lane;
  ScoreRing::Cursor at;

  /// Where a panel's columns of the item's gradient are, of one head; rows count as the gradient's.
  struct Panel {
    char* first;  // of row 0
    long long stride_bytes;
    int rows, columns;  // that there are
  };
  __device__ __forceinline__ Panel panel_of(const Work& work, int head) const {
    const BiasCall& gradient = params.backward.bias_gradient;
    const BiasRows& place = shared.bias_place(1 + who).of_queries;
    const int column = static_cast<int>(work.first_row) + who * geometry::kPanelColumns;
    // What lies past the keys of a packed row becomes 0 with them.
    const int columns = gradient.packed ? static_cast<int>(place.stride_bytes) / 2 : place.columns;
    return {place.data + head * place.head_stride_bytes - bias_row_of_query(gradient, work) * place.stride_bytes +
                column * 2ll,
            place.stride_bytes, shared.bias_place(1 + who).rows,
            geometry::min_of(columns - column, geometry::kPanelColumns)};
  }

  /// One row of up to 64 values, of which `pair` are this lane's two.
  __device__ __forceinline__ void write_row(char* row, int columns, uint32 pair) const {
    const int left = columns - 2 * lane;
    if (reinterpret_cast<unsigned long long>(row) % 4 == 0) {
      if (left >= 2) {
        *reinterpret_cast<uint32*>(row + 4 * lane) = pair;
      } else if (left == 1) {
        *reinterpret_cast<unsigned short*>(row + 4 * lane) = static_cast<unsigned short>(pair);
      }
    } else {
      // Words lie between the lanes' pairs.
      const uint32 next = __shfl_down_sync(kAllLanes, pair, 1);
      if (left >= 3 && lane < 31) {
        *reinterpret_cast<uint32*>(row + 4 * lane + 2) = __byte_perm(pair, next, 0x5432);
      } else if (left >= 2) {
        *reinterpret_cast<unsigned short*>(row + 4 * lane + 2) = static_cast<unsigned short>(pair >> 16);
      }
      if (lane == 0 && left >= 1) *reinterpret_cast<unsigned short*>(row) = static_cast<unsigned short>(pair);
    }
  }

  /// Rows [first, first + count) of the panel, as far as they are there: of a tile in shared memory, or zeros.
  template <bool Zeros>
  __device__ __forceinline__ void write(const Panel& panel, int first, int count, uint32 tile) const {
    if (panel.columns <= 0) return;
    const int begin = geometry::max_of(0, -first), end = geometry::min_of(count, panel.rows - first);
    char* row = panel.first + (first + begin) * panel.stride_bytes;
#pragma unroll 4
    for (int r = begin; r < end; ++r) {
      uint32 pair = 0;
      if constexpr (!Zeros) {
        pair = ptx::load_shared_4(tile + geometry::swizzled_offset(kQueries, r, lane / 4) + lane % 4 * 4);
      }
      write_row(row, panel.columns, pair);
      row += panel.stride_bytes;
    }
  }

  __device__ __forceinline__ void write(const Item& item) {
    const AttentionCall& call = params.backward.call;
    const BiasCall& gradient = params.backward.bias_gradient;
    const Work& work = item.work;
    if (work.sequence >= call.sequences) return;  // rows that belong to nobody have no R, and see nothing
    place_bias_rows(call, gradient, work, shared.bias_place(1 + who), lane);
    const int first = bias_row_of_query(gradient, work);
    const auto walk = Masking::walk(call, item);
#pragma unroll 1
    for (QueryTile tile = walk.next({-1, 0}); tile.number >= 0; tile = walk.next(tile)) {
      shared.scores.wait_full(at);
      write<false>(panel_of(work, tile.head), first + tile.number * kQueries, kQueries,
                   shared.score_tile(at.slot()) + who * kQueries * kRowBytes);
      __syncwarp();
      if (lane == 0) shared.scores.release(at);
      at.advance();
    }
    QueryTile tile = walk.next({-1, 0});
#pragma unroll 1
    for (int head = 0; head < call.heads_per_key_head; ++head) {
      const Panel panel = panel_of(work, head);
      int done = 0;
#pragma unroll 1
      for (; tile.number >= 0 && tile.head == head; tile = walk.next(tile)) {
        const int row = first + tile.number * kQueries;
        write<true>(panel, done, row - done, 0);
        done = geometry::max_of(row + kQueries, done);
      }
      write<true>(panel, done, panel.rows - done, 0);
    }
  }

  __device__ __forceinline__ void run() {
    for (ItemRing::Cursor item_at;; item_at.advance()) {
      shared.items.wait_full(item_at);
      const Item& item = shared.item(item_at.slot());
      if (item.is_end) return;
      write(item);
      shared.items.release(item_at);
    }
  }
};

}  // namespace warploom
