// The key tiles of a work item of query rows, as one warp of a Hopper kernel finds them: in ascending order, each with
// what the consumers, 64 rows each, need to know of it.
#pragma once

#include "attention/visibility.h"
#include "attention/work.h"
#include "ptx/registers.h"

namespace warploom {

/// What the producer tells about a key tile, beside the tile itself: bit w of the flags says that consumer w sees some
/// of it, bit 4 + w that it needs the mask there.
inline constexpr int kNeedsMaskShift = 4;
inline constexpr int kLastKeyTile = 1 << 8;

inline constexpr int kConsumerRows = 64;

/// Rows of an item's tile that exist.
template <int Consumers>
__device__ __forceinline__ int rows_of_item(const Work& work) {
  const long long used = work.mask.seqlen_q - work.first_row;
  constexpr int kAll = Consumers * kConsumerRows;
  return used < 0 ? 0 : used < kAll ? static_cast<int>(used) : kAll;
}

/// Sequence masks: the columns that an item's rows see, the first run of tiles of them, and the columns that some and
/// that all of a consumer's rows see.
template <int Consumers>
struct SeenColumns {
  geometry::Ranges ranges;
  geometry::Interval first_run;
  geometry::Interval seen[Consumers], common[Consumers];

  /// All lanes of a warp; a barrier must follow.
  template <int Keys>
  __device__ __forceinline__ void prepare(const Work& work) {
    const int lane = ptx::lane_id();
    if (lane > Consumers) return;  // a lane for each consumer's rows, one for all of them
    const int first_row = static_cast<int>(work.first_row), rows = rows_of_item<Consumers>(work);
    const int first = lane < Consumers ? lane * kConsumerRows : 0;
    const int last = lane < Consumers ? first + kConsumerRows : rows;
    const geometry::Interval of_lane = {first_row + first, first_row + geometry::min_of(last, rows)};
    const geometry::Ranges of_rows = of_lane.empty() ? geometry::Ranges{} : visible_to_any(work.mask, of_lane);
    if (lane < Consumers) {
      seen[lane] = of_rows.hull();
      // Rows that do not exist see nothing, so a consumer with such rows needs the mask everywhere: what they hold must
      // not decide how its other rows are computed.
      const bool all_exist = of_lane.end - of_lane.begin == kConsumerRows;
      common[lane] = all_exist ? columns_of_all(work.mask, of_lane) : geometry::Interval{};
    } else {
      ranges = of_rows;
      first_run = of_rows.next_run(0, Keys);
    }
  }
};

/// The key tiles under a sequence mask: runs of neighbouring ones, found from the geometry.
template <int Consumers, int Keys>
class SequenceKeyWalk {
 public:
  __device__ __forceinline__ SequenceKeyWalk(const AttentionCall&, const Work&, const SeenColumns<Consumers>& columns,
                                             int lane)
      : ranges_(&columns.ranges) {
    seen_ = lane < Consumers ? columns.seen[lane] : geometry::Interval{};
    common_ = lane < Consumers ? columns.common[lane] : geometry::Interval{};
    start(columns.first_run);
  }
  /// Negative: there is none left.
  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ void advance() {
    if (++tile_ == run_end_) start(ranges_->next_run(tile_, Keys));
  }
  __device__ __forceinline__ int flags() const {
    const geometry::Interval columns = {tile_ * Keys, tile_ * Keys + Keys};
    const unsigned sees = __ballot_sync(kAllLanes, !intersect(seen_, columns).empty());
    const unsigned masked = __ballot_sync(kAllLanes, !common_.covers(columns));
    return static_cast<int>(sees | (masked & 0xf) << kNeedsMaskShift);
  }

 private:
  __device__ __forceinline__ void start(geometry::Interval run) {
    tile_ = run.empty() ? -1 : run.begin;
    run_end_ = run.end;
  }

  const geometry::Ranges* ranges_;
  int tile_, run_end_;
  geometry::Interval seen_, common_;  // lane w: of consumer w
};

/// The same under an interval mask. Each lane looks at every 32nd row, so that a lane's rows of one consumer are
/// together.
template <int Consumers, int Keys>
class IntervalKeyWalk {
 public:
  __device__ __forceinline__ IntervalKeyWalk(const AttentionCall& call, const Work& work, const SeenColumns<Consumers>&,
                                             int lane)
      : pairs_(call.intervals + work.head * call.interval_head_stride +
               (work.first_q + work.first_row) * 2 * call.num_intervals),
        count_(call.num_intervals),
        rows_(rows_of_item<Consumers>(work)),
        seqlen_k_(work.mask.seqlen_k),
        lane_(lane) {
    find(0);
  }
  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ void advance() { find((tile_ + 1) * Keys); }
  __device__ __forceinline__ int flags() const {
    const geometry::Interval columns = {tile_ * Keys, tile_ * Keys + Keys};
    int flags = 0;
    for (int consumer = 0; consumer < Consumers; ++consumer) {
      bool sees = false, all = (consumer + 1) * kConsumerRows <= rows_;
      const int end = geometry::min_of((consumer + 1) * kConsumerRows, rows_);
      for (int row = consumer * kConsumerRows + lane_; row < end; row += 32) {
        sees |= of_row(row).intersects(columns);
        all &= of_row(row).covers(columns);
      }
      if (__any_sync(kAllLanes, sees)) flags |= 1 << consumer;
      if (!__all_sync(kAllLanes, all)) flags |= 1 << (kNeedsMaskShift + consumer);
    }
    return flags;
  }

 private:
  __device__ __forceinline__ geometry::RowIntervals of_row(int row) const {
    return {pairs_ + 2ll * row * count_, count_, seqlen_k_};
  }
  __device__ __forceinline__ void find(int column) {
    int next = geometry::kUnbounded;
    for (int row = lane_; row < rows_; row += 32) next = geometry::min_of(next, of_row(row).next_column(column));
    next = __reduce_min_sync(kAllLanes, next);
    tile_ = next == geometry::kUnbounded ? -1 : next / Keys;
  }

  const int* pairs_;
  int count_, rows_, seqlen_k_, lane_;
  int tile_;
};

}  // namespace warploom
