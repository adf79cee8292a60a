// Bucketed biases: R from a table by position and a table by time, which no memory holds (bias.h has the interface).
#pragma once

#include "attention/bias_rows.h"
#include "attention/bias_times.h"
#include "attention/work.h"
#include "ptx/math.h"
#include "ptx/shared_memory.h"

namespace warploom {

/// One element of a bucketed bias, i and j of the sequence: small and obvious.
__device__ __forceinline__ float bucketed_bias(const BiasCall& bias, const Work& work, int i, int j) {
  const int r = i + work.mask.offset();
  float value = 0;
  if (bias.position != nullptr) {
    const int index = geometry::min_of(geometry::max_of(r - j, 0), bias.num_positions - 1);
    value = bias.position[work.head * bias.position_head_stride + index];
  }
  if (bias.time != nullptr && r >= 0) {
    const long long* times = bias.timestamps + work.first_k;
    const int bucket = TimeBuckets::of(bias).bucket(TimeBuckets::distance(times[r], times[j]));
    value += bias.time[work.head * bias.time_head_stride + bucket];
  }
  return value;
}

/// What a warp keeps in shared memory for a bucketed bias.
template <int TileColumns, int WarpRows>
struct alignas(16) BucketedWarp {
  static constexpr int kDiagonals = WarpRows + TileColumns;

  long long column_times[TileColumns];
  long long row_times[WarpRows];
  float window[kDiagonals];  // of the position table: window[x] belongs to the elements whose column lies x - (WarpRows
                             // - 1) behind their row, both counted from the first one's
};

/// Bucketed: R is computed from the tables, a warp at a time. Positions run along diagonals, of which a lane's elements
/// have few. Buckets of time widen with distance, so most warps' parts of a tile lie in one bucket or two, whose
/// thresholds every element is compared with; only near the diagonal each element searches.
///
/// KeyRows: keys stand along the rows of the scores and queries along their columns, as in the backward pass. Sharing:
/// so many neighbouring warps have the same rows. AllStaged: no table of times is larger than StagedTimes holds.
template <int TileColumns, int WarpRows, bool KeyRows = false, int Sharing = 1, bool AllStaged = false>
class BucketedBias {
 public:
  using Warp = BucketedWarp<TileColumns, WarpRows>;

  /// work: in shared memory. shared: a StagedTimes that has been filled, then a Warp for each warp.
  __device__ __forceinline__ BucketedBias(const AttentionCall& call, const Work& work, const BiasRows&,
                                          unsigned char* shared)
      : bias_(call.bias),
        work_(work),
        staged_(*reinterpret_cast<const StagedTimes*>(shared)),
        warp_(reinterpret_cast<Warp*>(shared + sizeof(StagedTimes))[threadIdx.x / 32]) {
    const int lane = threadIdx.x % 32;
    if (bias_.position == nullptr) {
      for (int x = lane; x < Warp::kDiagonals; x += 32) warp_.window[x] = 0;
    }
    if (bias_.time != nullptr && lane < WarpRows) warp_.row_times[lane] = times()[clipped(first_row() + lane)];
    __syncwarp();
  }

  /// first_column: of the warp, a key, or with KeyRows a query in key coordinates.
  __device__ __forceinline__ void start(int first_column) { start(first_column, work_.head); }
  /// Of a query head that may be another one than the tile's before.
  __device__ __forceinline__ void start(int first_column, int head) {
    __syncwarp();  // every lane has read the tile before
    const int lane = threadIdx.x % 32;
    if constexpr (KeyRows) head_ = head;
    if (bias_.position != nullptr) {
      const float* table = bias_.position + head * bias_.position_head_stride;
      // r - j falls along the columns where they are keys, and grows where they are queries.
      const int row_minus_column = first_row() + WarpRows - 1 - first_column, last = bias_.num_positions - 1;
#pragma unroll
      for (int x = 0; x < Warp::kDiagonals; x += 32) {
        if (Warp::kDiagonals % 32 != 0 && x + lane >= Warp::kDiagonals) break;
        const int behind = row_minus_column - x - lane;
        const int index = geometry::min_of(geometry::max_of(KeyRows ? -behind : behind, 0), last);
        ptx::cp_async_small<4>(ptx::shared_address(&warp_.window[x + lane]), table + index);
      }
    }
    if (bias_.time != nullptr) {
#pragma unroll
      for (int x = 0; x < TileColumns; x += 32) {
        if (TileColumns % 32 != 0 && x + lane >= TileColumns) break;
        ptx::cp_async_small<8>(ptx::shared_address(&warp_.column_times[x + lane]),
                               times() + clipped(first_column + x + lane));
      }
    }
    ptx::cp_async_commit_group();
  }

  template <int Newer>
  __device__ __forceinline__ void wait() const {
    ptx::cp_async_wait_group<Newer>();
    __syncwarp();
  }

  template <int Blocks, typename Function>
  __device__ __forceinline__ bool for_each(Function function) const {
    return for_each_of<Blocks>(times_seen(), function);
  }

 protected:
  static constexpr unsigned kAll = 0xffffffffu;
  static constexpr int kMostCompared = 2;

  /// The buckets that the differences of a warp's part of a tile lie in, both ends included.
  struct Range {
    int low, high;
  };
  /// What a warp's part of a tile has to do with times.
  struct TimesSeen {
    Range range;
    bool small;  // relative to the warp's first row's they fit an int
  };

  template <int Blocks, typename Function>
  __device__ __forceinline__ bool for_each_of(const TimesSeen& seen, Function function) const {
    bool masks = false;
#pragma unroll
    for (int x = 0; x < Warp::kDiagonals; x += 32) {
      const int at = x + threadIdx.x % 32;
      if (Warp::kDiagonals % 32 == 0 || at < Warp::kDiagonals) masks |= warp_.window[at] == ptx::minus_infinity();
    }
    masks = __any_sync(kAll, masks);
    const auto [range, small] = seen;
    const TimeBuckets buckets = buckets_of_times();
    const float* const table = table_of_times();
    if (bias_.time != nullptr) {
      for (int k = range.low; k <= range.high; ++k) masks |= table[k] == ptx::minus_infinity();
    }
    if (range.low == range.high) {
      visit<Blocks>(function, bias_.time != nullptr ? table[range.low] : 0.0f);
    } else if (large()) {
      visit_times<Blocks, long long>(function, SearchEach{{buckets, range}, table});
    } else if (small && range.high - range.low <= kMostCompared) {
      compare_times<Blocks>(function, range);
    } else {
      const SearchStaged search{{staged_, range}};
      if (small) {
        visit_times<Blocks, int>(function, search);
      } else {
        visit_times<Blocks, long long>(function, search);
      }
    }
    return masks;
  }

  static __device__ __forceinline__ int least(int x) { return __reduce_min_sync(kAll, x); }
  static __device__ __forceinline__ long long least(long long x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = min(x, __shfl_xor_sync(kAll, x, step));
    return x;
  }
  static __device__ __forceinline__ unsigned difference(int a, int b) { return static_cast<unsigned>(abs(a - b)); }
  static __device__ __forceinline__ unsigned long long difference(long long a, long long b) {
    return TimeBuckets::distance(a, b);
  }

  __device__ __forceinline__ const long long* times() const { return bias_.timestamps + work_.first_k; }
  /// The warp's first row in key coordinates.
  __device__ __forceinline__ int first_row() const {
    return static_cast<int>(work_.first_row) + threadIdx.x / 32 / Sharing * WarpRows +
           (KeyRows ? 0 : work_.mask.offset());
  }
  __device__ __forceinline__ int clipped(int n) const {
    return geometry::max_of(0, geometry::min_of(n, work_.mask.seqlen_k - 1));
  }

  /// Whether the table of times is too large to be staged.
  __device__ __forceinline__ bool large() const { return !AllStaged && bias_.num_times > StagedTimes::kMost + 1; }
  __device__ __forceinline__ TimeBuckets buckets_of_times() const {
    if (large()) return TimeBuckets::of(bias_);
    return {staged_.thresholds, StagedTimes::kMost, false};
  }
  __device__ __forceinline__ const float* table_of_times() const {
    if (large()) return bias_.time + (KeyRows ? head_ : work_.head) * bias_.time_head_stride;
    return staged_.table;
  }
  __device__ __forceinline__ TimesSeen times_seen() const {
    if (bias_.time == nullptr) return {{0, 0}, true};
    const bool small = times_fit_int();
    const TimeBuckets buckets = buckets_of_times();
    return {small ? range_of<int>(buckets) : range_of<long long>(buckets), small};
  }

  /// Time values of some differences at once. This one compares with the few thresholds of its range.
  struct Compare {
    float nearest;
    unsigned thresholds[kMostCompared];
    float values[kMostCompared];

    template <int Count>
    __device__ __forceinline__ void operator()(const unsigned (&d)[Count], float (&value)[Count]) const {
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        value[i] = nearest;
#pragma unroll
        for (int k = 0; k < kMostCompared; ++k) value[i] = d[i] >= thresholds[k] ? values[k] : value[i];
      }
    }
  };
  /// Buckets of some differences, searched in step, so that the look-ups of different elements overlap.
  struct StagedBuckets {
    const StagedTimes& staged;
    Range range;

    __device__ __forceinline__ bool reached(int n, unsigned d) const { return staged.small[n] <= d; }
    __device__ __forceinline__ bool reached(int n, unsigned long long d) const { return staged.thresholds[n] <= d; }

    template <typename Difference, int Count>
    __device__ __forceinline__ void operator()(const Difference (&d)[Count], int (&bucket)[Count]) const {
#pragma unroll
      for (int& b : bucket) b = range.low;
      // From the largest power of two in the range's size down.
#pragma unroll 1
      for (int step = 1 << (31 - __clz(range.high - range.low)); step > 0; step /= 2) {
#pragma unroll
        for (int i = 0; i < Count; ++i) {
          const int next = geometry::min_of(bucket[i] + step, range.high);
          if (reached(next - 1, d[i])) bucket[i] = next;
        }
      }
    }
  };
  struct SearchStaged : StagedBuckets {
    template <typename Difference, int Count>
    __device__ __forceinline__ void operator()(const Difference (&d)[Count], float (&value)[Count]) const {
      int bucket[Count];
      StagedBuckets::operator()(d, bucket);
#pragma unroll
      for (int i = 0; i < Count; ++i) value[i] = this->staged.table[bucket[i]];
    }
  };
  /// One after the other, in tables of any size and for differences of any size.
  struct EachBucket {
    const TimeBuckets& buckets;
    Range range;

    template <int Count>
    __device__ __forceinline__ void operator()(const unsigned long long (&d)[Count], int (&bucket)[Count]) const {
#pragma unroll
      for (int i = 0; i < Count; ++i) bucket[i] = buckets.bucket(d[i], range.low, range.high);
    }
  };
  struct SearchEach : EachBucket {
    const float* table;

    template <int Count>
    __device__ __forceinline__ void operator()(const unsigned long long (&d)[Count], float (&value)[Count]) const {
      int bucket[Count];
      EachBucket::operator()(d, bucket);
#pragma unroll
      for (int i = 0; i < Count; ++i) value[i] = table[bucket[i]];
    }
  };

  /// Whether times relative to the warp's first row's fit an int with room to subtract two of them.
  __device__ __forceinline__ bool times_fit_int() const {
    constexpr unsigned long long kSmall = 1ull << 30;
    const long long origin = warp_.row_times[0];
    bool small = TimeBuckets::distance(warp_.row_times[threadIdx.x % WarpRows], origin) < kSmall;
#pragma unroll
    for (int x = 0; x < TileColumns; x += 32) {
      small &= TimeBuckets::distance(warp_.column_times[(x + threadIdx.x % 32) % TileColumns], origin) < kSmall;
    }
    return __all_sync(kAll, small);
  }

  /// A time as a Time: itself, or relative to the warp's first row's.
  template <typename Time>
  __device__ __forceinline__ Time relative(long long time) const {
    if constexpr (sizeof(Time) == sizeof(long long)) return time;
    return static_cast<Time>(time - warp_.row_times[0]);
  }

  template <typename Time>
  __device__ __forceinline__ Range range_of(const TimeBuckets& buckets) const {
    const int lane = threadIdx.x % 32;
    const auto row = relative<Time>(warp_.row_times[lane % WarpRows]);
    auto lowest = relative<Time>(warp_.column_times[lane % TileColumns]);
    Time highest = lowest;
#pragma unroll
    for (int x = 32; x < TileColumns; x += 32) {
      const auto column = relative<Time>(warp_.column_times[x + lane]);
      lowest = min(lowest, column);
      highest = max(highest, column);
    }
    lowest = least(lowest);
    highest = -least(-highest);
    const Time lowest_row = least(row), highest_row = -least(-row);
    // a - b where that is positive, else 0: differences of 64-bit times may pass 63 bits, but not 64.
    const auto between = [](Time a, Time b) -> unsigned long long {
      return a > b ? static_cast<unsigned long long>(a) - static_cast<unsigned long long>(b) : 0;
    };
    const unsigned long long nearest = between(lowest_row, highest) | between(lowest, highest_row);
    const unsigned long long farthest = max(between(highest_row, lowest), between(highest, lowest_row));
    Range range{0, 0};
    for (int n = 0; n < buckets.count; n += 32) {
      const unsigned long long threshold = n + lane < buckets.count ? buckets.at(n + lane) : ~0ull;
      const unsigned far = __ballot_sync(kAll, threshold <= farthest);
      range.low += __popc(__ballot_sync(kAll, threshold <= nearest));
      range.high += __popc(far);
      if (far != kAll) break;
    }
    return range;
  }

  /// function(m, n, e, position's value + value).
  template <int Blocks, typename Function>
  __device__ __forceinline__ void visit(Function function, float value) const {
    const float* first = first_diagonal();
#pragma unroll
    for (int n = 0; n < TileColumns / 8; ++n) {
#pragma unroll
      for (int m = 0; m < Blocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) function(m, n, i, first[8 * (n - 2 * m - i / 2) + i % 2] + value);
      }
    }
  }

  /// Element (m, n, half, e) of the lane lies on diagonal first[8 * (n - 2 m - half) + e].
  __device__ __forceinline__ const float* first_diagonal() const {
    const int lane = threadIdx.x % 32;
    return warp_.window + (WarpRows - 1) - lane / 4 + lane % 4 * 2;
  }

  template <int Rows, typename Time>
  __device__ __forceinline__ void times_of_rows(Time (&rows)[Rows]) const {
#pragma unroll
    for (int r = 0; r < Rows; ++r) rows[r] = relative<Time>(warp_.row_times[8 * r + threadIdx.x % 32 / 4]);
  }
  /// |time of row - time of column| for the elements of block column n.
  template <int Rows, typename Time, typename Difference>
  __device__ __forceinline__ void differences(const Time (&rows)[Rows], int n, Difference (&d)[2 * Rows]) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const auto column = relative<Time>(warp_.column_times[8 * n + threadIdx.x % 32 % 4 * 2 + e]);
#pragma unroll
      for (int r = 0; r < Rows; ++r) d[2 * r + e] = difference(rows[r], column);
    }
  }

  /// function(i, n, value): element i % 4 of block (i / 4, n), and what values_of makes of its difference.
  template <int Blocks, typename Time, typename Value, typename Function, typename Values>
  __device__ __forceinline__ void visit_differences(Function function, const Values& values_of) const {
    Time rows[2 * Blocks];
    times_of_rows(rows);
#pragma unroll
    for (int n = 0; n < TileColumns / 8; ++n) {
      decltype(difference(Time(), Time())) d[4 * Blocks];
      Value values[4 * Blocks];
      differences(rows, n, d);
      values_of(d, values);
#pragma unroll
      for (int i = 0; i < 4 * Blocks; ++i) function(i, n, values[i]);
    }
  }

  /// function(m, n, e, position's value + that of the difference).
  template <int Blocks, typename Time, typename Function, typename Values>
  __device__ __forceinline__ void visit_times(Function function, const Values& values_of) const {
    const float* first = first_diagonal();
    visit_differences<Blocks, Time, float>(
        [&](int i, int n, float value) { function(i / 4, n, i % 4, first[8 * (n - i / 2) + i % 2] + value); },
        values_of);
  }

  /// The same by comparing with the few thresholds between the ends of the range.
  template <int Blocks, typename Function>
  __device__ __forceinline__ void compare_times(Function function, Range range) const {
    Compare compare;
    compare.nearest = staged_.table[range.low];
#pragma unroll
    for (int k = 0; k < kMostCompared; ++k) {
      const int bucket = geometry::min_of(range.low + k, range.high - 1);
      compare.thresholds[k] = staged_.small[bucket];
      compare.values[k] = staged_.table[bucket + 1];
    }
    visit_times<Blocks, int>(function, compare);
  }

  const BiasCall& bias_;
  const Work& work_;
  const StagedTimes& staged_;
  Warp& warp_;
  int head_ = 0;  // of the tile, with KeyRows
};

}  // namespace warploom
