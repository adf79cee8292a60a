// The mask in the Hopper forward kernel: what the scheduler prepares for an item, how the loader finds the key tiles
// that it needs, and what a consumer's thread knows of a row.
#pragma once

#include "attention/hopper_shared.h"
#include "attention/visibility.h"

namespace warploom {

/// Key tiles of items that the loader has not come to: while there are no more, the scheduler takes another item.
constexpr int kAheadTiles = 3;
/// So many items a CTA are the last ones, of which none is taken ahead.
constexpr int kLastItems = 2;

/// Rows of an item's tile that exist.
__device__ __forceinline__ int rows_of_item(const Work& work) {
  const long long used = work.mask.seqlen_q - work.first_row;
  return used < 0 ? 0 : used < kQueryRows ? static_cast<int>(used) : kQueryRows;
}

struct SequenceMasking {
  using Row = SequenceRow;

  /// What the loader needs. All lanes of a warp.
  static __device__ __forceinline__ void prepare_tiles(const Shared& shared, int slot, int lane) {
    Item& item = shared.item(slot);
    const geometry::SequenceMask mask = item.work.mask;
    const int first_row = static_cast<int>(item.work.first_row), rows = rows_of_item(item.work);
    if (lane <= kConfig.consumers) {  // a lane for each consumer's rows, one for all of them
      const int first = lane < kConfig.consumers ? lane * kWarpgroupRows : 0;
      const int last = lane < kConfig.consumers ? first + kWarpgroupRows : rows;
      const Interval of_lane = {first_row + first, first_row + geometry::min_of(last, rows)};
      if (mask.num_contexts == 0 && mask.num_targets == 0 && first_row + mask.offset() >= 0) {
        prepare_window(item, lane, of_lane);
        return;
      }
      const geometry::Ranges ranges = of_lane.empty() ? geometry::Ranges{} : visible_to_any(mask, of_lane);
      if (lane < kConfig.consumers) {
        item.seen[lane] = ranges.hull();
        item.common[lane] = columns_of_all(mask, of_lane);
      } else {
        item.ranges = ranges;
        item.tiles = ranges.hull().end / kKeys;
        item.first_run = ranges.next_run(0, kKeys);
      }
    }
  }

  /// What comes of it for rows that see nothing but their windows, in few instructions: an item's decoding is what a
  /// launch begins with.
  static __device__ __forceinline__ void prepare_window(Item& item, int lane, Interval rows) {
    const geometry::SequenceMask mask = item.work.mask;
    const Interval r = {rows.begin + mask.offset(), rows.end + mask.offset()};
    Interval seen = {geometry::kUnbounded, 0}, common = {0, mask.seqlen_k};
    if (!r.empty()) {
      const Interval any = intersect(common, {r.begin - mask.left, r.end + mask.right});
      if (!any.empty()) seen = any;
      common = intersect(common, {r.end - 1 - mask.left, r.begin + mask.right + 1});
    }
    if (lane < kConfig.consumers) {
      item.seen[lane] = seen;
      item.common[lane] = common;
    } else {
      item.ranges = {{seen}};
      item.tiles = seen.end / kKeys;
      item.first_run = seen.empty() ? Interval{} : Interval{seen.begin / kKeys, (seen.end + kKeys - 1) / kKeys};
    }
  }

  /// What the consumers need. All lanes of a warp.
  static __device__ __forceinline__ void prepare_rows(const Shared& shared, int slot, int lane) {
    const Work& work = shared.item(slot).work;
    const geometry::SequenceMask mask = work.mask;
    const int first_row = static_cast<int>(work.first_row), rows = rows_of_item(work);
    for (int row = lane; row < kQueryRows; row += 32) {
      shared.row(slot, row) =
          row < rows ? visible_columns(mask, first_row + row + mask.offset()) : geometry::VisibleColumns{};
    }
  }

  /// The key tiles of an item, in ascending order: runs of neighbouring ones, found from the geometry.
  struct Tiles {
    const geometry::Ranges* ranges;
    int tile, run_end;
    Interval seen, common;  // lane w: of consumer w

    __device__ __forceinline__ Tiles(const AttentionCall&, const Item& item, int lane) : ranges(&item.ranges) {
      seen = lane < kConfig.consumers ? item.seen[lane] : Interval{};
      common = lane < kConfig.consumers ? item.common[lane] : Interval{};
      start(item.first_run);
    }
    __device__ __forceinline__ void advance() {
      if (++tile == run_end) start(ranges->next_run(tile, kKeys));
    }
    /// In lane w: what the tile is to consumer w.
    __device__ __forceinline__ int kind() const {
      const Interval columns = {tile * kKeys, tile * kKeys + kKeys};
      return intersect(seen, columns).empty() ? kUnseenTile : common.covers(columns) ? kPlainTile : kMaskedTile;
    }
    /// Of a plain tile: how many of them follow each other, but for the run's last one, which may be the item's.
    __device__ __forceinline__ int plain_tiles() const {
      constexpr int kMost = 0xffff;
      const int tiles = geometry::min_of(run_end - 1, common.end / kKeys) - tile;
      return geometry::max_of(1, geometry::min_of(tiles, kMost));
    }

   private:
    __device__ __forceinline__ void start(Interval run) {
      tile = run.empty() ? -1 : run.begin;
      run_end = run.end;
    }
  };

  static __device__ __forceinline__ Row row(const AttentionCall&, const Shared& shared, int slot, int row_of_tile) {
    return {shared.row(slot, row_of_tile)};
  }
};

struct IntervalMasking {
  using Row = IntervalRow;

  static __device__ __forceinline__ void prepare_tiles(const Shared& shared, int slot, int lane) {
    if (lane == 0) shared.item(slot).tiles = kAheadTiles + 1;
  }
  static __device__ __forceinline__ void prepare_rows(const Shared&, int, int) {}

  /// Each lane looks at every 32nd row, so that a lane's rows of one consumer are together.
  struct Tiles {
    const int* pairs;
    int count, rows, seqlen_k, lane;
    int tile;

    __device__ __forceinline__ Tiles(const AttentionCall& call, const Item& item, int my_lane)
        : pairs(pairs_of(call, item.work, 0)),
          count(call.num_intervals),
          rows(rows_of_item(item.work)),
          seqlen_k(item.work.mask.seqlen_k),
          lane(my_lane) {
      find(0);
    }
    __device__ __forceinline__ void advance() { find((tile + 1) * kKeys); }
    __device__ __forceinline__ int kind() const {
      const Interval columns = {tile * kKeys, tile * kKeys + kKeys};
      int kind = kPlainTile;
      for (int consumer = 0; consumer < kConfig.consumers; ++consumer) {
        bool sees = false, all = true;
        const int end = geometry::min_of((consumer + 1) * kWarpgroupRows, rows);
        for (int row = consumer * kWarpgroupRows + lane; row < end; row += 32) {
          sees |= of_row(row).intersects(columns);
          all &= of_row(row).covers(columns);
        }
        const bool any_sees = __any_sync(kAllLanes, sees), all_see = __all_sync(kAllLanes, all);
        if (lane == consumer) kind = !any_sees ? kUnseenTile : all_see ? kPlainTile : kMaskedTile;
      }
      return kind;
    }
    __device__ __forceinline__ int plain_tiles() const { return 1; }

   private:
    __device__ __forceinline__ geometry::RowIntervals of_row(int row) const {
      return {pairs + 2ll * row * count, count, seqlen_k};
    }
    __device__ __forceinline__ void find(int column) {
      int next = geometry::kUnbounded;
      for (int row = lane; row < rows; row += 32) next = geometry::min_of(next, of_row(row).next_column(column));
      next = __reduce_min_sync(kAllLanes, next);
      tile = next == geometry::kUnbounded ? -1 : next / kKeys;
    }
  };

  static __device__ __forceinline__ Row row(const AttentionCall& call, const Shared& shared, int slot,
                                            int row_of_tile) {
    const Work& work = shared.item(slot).work;
    const int count = row_of_tile < rows_of_item(work) ? call.num_intervals : 0;
    return {{pairs_of(call, work, row_of_tile), count, work.mask.seqlen_k}};
  }

 private:
  static __device__ __forceinline__ const int* pairs_of(const AttentionCall& call, const Work& work, int row_of_tile) {
    return call.intervals + work.head * call.interval_head_stride +
           (work.first_q + work.first_row + row_of_tile) * 2 * call.num_intervals;
  }
};

using Masking = Either<kConfig.interval_mask, IntervalMasking, SequenceMasking>::Type;

}  // namespace warploom
