// The gradient of a stored bias in the Hopper backward kernels over tiles of keys: where an item's part of it lies, and
// the warp that clears what of it no query tile holds.
//
// In front of this file stand the kernel's Shared, Item and Masking, kKeys and kQueries, and kGradientRows: whether the
// gradient's rows begin anywhere. kClearsChunks: whether those that begin at multiples of 16 bytes are cleared apart;
// kClearingWarps: those of the consumers and one more.
#pragma once

#include "attention/bias_key_rows.h"

namespace warploom {

/// kGradientRows: the part of a head's gradient that begins beside a query row and a key of the item; with all rows
/// that the sequence has, also those past its used ones, and all that a packed row takes.
__device__ __forceinline__ RowsPart gradient_part(const BiasCall& gradient, const Item& item, int head, int first_query,
                                                  int first_key) {
  BiasRows rows = bias_rows(gradient, item.work, head, item.packed_first, item.rows_of_bias, kBiasElementBytes);
  const int first = -bias_row_of_query(gradient, item.work);
  rows.first_row = first;
  rows.end_row = first + item.rows_of_bias;
  if (gradient.packed) rows.columns = static_cast<int>(packed_pitch(item.work, kBiasElementBytes));
  RowsPart part = RowsPart::of(rows, 0, first_query, first_key, kBiasElementBytes);
  part.aligned = false;  // as the compiler knows then
  return part;
}

/// The warp that clears what of the gradient's columns of an item no query tile holds.
struct Clearer {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int lane;

  /// Rows [begin, end) of a head, counted as the gradient's. By ordinary stores: TMA's would keep the loads of tiles
  /// waiting behind them.
  __device__ __forceinline__ void clear(const Item& item, int head, int begin, int end) const {
    const BiasCall& gradient = params.backward.bias_gradient;
    const Work& work = item.work;
    if constexpr (kGradientRows) {
      const RowsPart part = gradient_part(gradient, item, head, begin - bias_row_of_query(gradient, work),
                                          static_cast<int>(work.first_row));
      constexpr int kChunks = kKeys * kBiasElementBytes / geometry::kChunkBytes + 1;
      const int row_bytes = geometry::min_of(part.columns, kKeys) * kBiasElementBytes;
      if (kClearsChunks &&
          ((reinterpret_cast<long long>(part.data) | part.stride_bytes) % geometry::kChunkBytes) == 0) {
        clear_chunks(part, end - begin, row_bytes);
        return;
      }
#pragma unroll 1
      for (int i = lane; i < (end - begin) * kChunks; i += 32) clear_chunk(part, i / kChunks, i % kChunks, row_bytes);
      return;
    }
    constexpr int kChunks = kKeys * 2 / geometry::kChunkBytes, kRowsAtOnce = 32 / kChunks;
    const long long column = work.first_row + lane % kChunks * geometry::kChunkValues;
    if (column >= gradient.num_columns) return;
    int left = geometry::min_of(end, static_cast<int>(gradient.num_rows)) - (begin + lane / kChunks);
    char* to =
        static_cast<char*>(gradient.values) + 2 * (work.sequence * gradient.batch_stride + head * gradient.head_stride +
                                                   (begin + lane / kChunks) * gradient.row_stride + column);
    const long long step = 2 * kRowsAtOnce * gradient.row_stride;
#pragma unroll 4
    for (; left > 0; left -= kRowsAtOnce, to += step) __stcs(reinterpret_cast<uint4*>(to), uint4{0, 0, 0, 0});
  }

  /// The same of rows that begin at multiples of 16 bytes.
  __device__ __forceinline__ void clear_chunks(const RowsPart& part, int rows, int row_bytes) const {
    constexpr int kChunks = kKeys * kBiasElementBytes / geometry::kChunkBytes, kRowsAtOnce = 32 / kChunks;
    const int offset = lane % kChunks * geometry::kChunkBytes;
    if (offset >= row_bytes) return;
    char* to = part.row(lane / kChunks) + offset;
    const int left = row_bytes - offset;
#pragma unroll 4
    for (int r = lane / kChunks; r < rows; r += kRowsAtOnce, to += kRowsAtOnce * part.stride_bytes) {
      if (left >= geometry::kChunkBytes) {
        __stcs(reinterpret_cast<uint4*>(to), uint4{0, 0, 0, 0});
      } else {
        for (int byte = 0; byte < left; byte += 2) *reinterpret_cast<unsigned short*>(to + byte) = 0;
      }
    }
  }

  /// All rows of an item whose keys no query sees, the part of one warp of kClearingWarps: a dense bias of a jagged
  /// batch has many, and the consumers have nothing else to do there.
  __device__ __forceinline__ void clear_unseen(const Item& item, int warp) const {
    const AttentionCall& call = params.backward.call;
    if (item.work.sequence >= call.sequences) return;  // rows that belong to nobody have no R
    const int rows = rows_of(item);
    const int rows_of_warp = (rows + kClearingWarps - 1) / kClearingWarps;
    const int begin = warp * rows_of_warp, end = geometry::min_of(begin + rows_of_warp, rows);
    if (begin >= end) return;
#pragma unroll 1
    for (int head = 0; head < call.heads_per_key_head; ++head) {
      clear(item, item.work.head * call.heads_per_key_head + head, begin, end);
    }
  }
  __device__ __forceinline__ int rows_of(const Item& item) const {
    if constexpr (kGradientRows) return item.rows_of_bias;
    return static_cast<int>(params.backward.bias_gradient.num_rows);
  }

  __device__ __forceinline__ void clear(const Item& item) const {
    const AttentionCall& call = params.backward.call;
    const Work& work = item.work;
    if (work.sequence >= call.sequences) return;  // rows that belong to nobody have no R
    const int first = bias_row_of_query(params.backward.bias_gradient, work);
    const int rows = rows_of(item);
    const auto walk = Masking::walk(call, item);
    QueryTile tile = walk.next({-1, 0});
    if (tile.number < 0) return clear_unseen(item, 0);
#pragma unroll 1
    for (int head = 0; head < call.heads_per_key_head; ++head) {
      const int query_head = work.head * call.heads_per_key_head + head;
      int done = 0;
#pragma unroll 1
      for (; tile.number >= 0 && tile.head == head; tile = walk.next(tile)) {
        const int row = first + tile.number * kQueries;
        if (done < row) clear(item, query_head, done, geometry::min_of(row, rows));
        done = geometry::max_of(row + kQueries, done);
      }
      if (done < rows) clear(item, query_head, done, rows);
    }
  }

  __device__ __forceinline__ void run() const {
    for (ItemRing::Cursor at;; at.advance()) {
      shared.items.wait_full(at);
      const Item& item = shared.item(at.slot());
      if (item.is_end) break;
      clear(item);
      shared.items.release(at);
    }
  }
};

}  // namespace warploom
