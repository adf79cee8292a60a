// Bias providers: R for the scores that a warp holds as mma accumulators (docs/attention.md, section 5).
//
// A provider is made for one tile of query rows, moves from key tile to key tile, and hands out R element by element:
//
//   start(first_column)          begins to fetch the warp's part of a key tile
//   wait<Newer>()                that part is there; Newer: groups of cp.async begun after it that may still be in
//   flight for_each<Blocks>(f)          f(m, n, e, r) for every accumulator element e of the blocks (m16 m, n8 n), in
//   registers
//
// Nothing is read outside the bias's own memory, and where R is absent (a row before the first key, or beyond a dense
// bias that is too small) it is 0.
#pragma once

#include "attention/kinds.h"
#include "attention/work.h"
#include "geometry/time_buckets.h"
#include "ptx/ldmatrix.h"
#include "ptx/shared_memory.h"
#include "ptx/types.h"
#include "tile/shared_tile.h"

namespace warploom {

using ptx::uint32;

/// Where the rows of a dense or packed bias lie for one sequence and head. Row i counts query rows.
struct BiasRows {
  const char* data;        // element 0 of row 0
  long long stride_bytes;  // from row to row
  int first_row, end_row;  // the rows of it that query rows have
  int columns;             // elements of a row that there are
  bool aligned;            // every row starts at a multiple of 16 bytes
};

/// A packed bias: the elements of the sequences before `sequence` whose number mod `threads` is `thread`; the sum over
/// all threads is where the sequence begins.
__device__ __forceinline__ long long packed_elements_before(const AttentionCall& call, int sequence, int element_bytes,
                                                            int thread, int threads) {
  long long sum = 0;
  for (int b = thread; b < sequence; b += threads) {
    const auto slot = [&](const void* lengths, bool wide, int dense) -> long long {
      if (call.cu_seqlens_q == nullptr) return dense;
      return geometry::cumulative<long long>(lengths, wide, b + 1) - geometry::cumulative<long long>(lengths, wide, b);
    };
    const long long keys = slot(call.cu_seqlens_k, call.cu_seqlens_k_64, call.seqlen_k);
    const long long queries = slot(call.cu_seqlens_q, call.cu_seqlens_q_64, call.seqlen_q);
    const int chunk = 16 / element_bytes;
    sum += (call.bias.query_rows ? queries : keys) * ((keys + chunk - 1) / chunk * chunk);
  }
  return sum;
}

/// packed_first: where the sequence begins in a packed bias, in elements.
__device__ __forceinline__ BiasRows bias_rows(const AttentionCall& call, const Work& work, long long packed_first,
                                              int element_bytes) {
  const BiasCall& bias = call.bias;
  long long first = work.head * bias.head_stride, stride, rows;
  BiasRows result;
  result.aligned = bias.aligned;
  if (bias.packed) {
    const int chunk = 16 / element_bytes;
    stride = (work.slot_k + chunk - 1) / chunk * chunk;
    rows = bias.query_rows ? work.slot_q : work.slot_k;
    if (stride > 0) rows = min(rows, (bias.num_columns - packed_first) / stride);
    first += packed_first;
    result.columns = static_cast<int>(work.slot_k);
  } else {
    first += work.sequence * bias.batch_stride;
    stride = bias.row_stride;
    rows = bias.num_rows;
    result.columns = static_cast<int>(bias.num_columns);
  }
  const int shift = bias.query_rows ? 0 : work.mask.offset();
  result.data = static_cast<const char*>(bias.values) + (first + shift * stride) * element_bytes;
  result.stride_bytes = stride * element_bytes;
  result.first_row = geometry::max_of(0, -shift);
  result.end_row = geometry::min_of(static_cast<int>(rows < 0 ? 0 : rows) - shift, work.mask.seqlen_q);
  return result;
}

/// Dense and packed: each warp copies the rows of its own scores to its own part of shared memory, so that only the
/// warp itself has to wait for them.
template <typename Element, bool Float32, int TileRows, int TileColumns, int WarpRows>
class RowsBias {
 public:
  static constexpr int kElementBytes = Float32 ? 4 : 2;
  static constexpr int kWidth = TileColumns * kElementBytes / 2;  // of the tile, in 16-bit values
  /// Of shared memory, aligned to 1024.
  static constexpr int kBytes = geometry::tile_bytes(TileRows, kWidth);

  /// work, rows: in shared memory. tile: kBytes of shared memory.
  __device__ __forceinline__ RowsBias(const AttentionCall&, const Work& work, const BiasRows& rows, unsigned char* tile)
      : work_(work), rows_(rows), tile_(ptx::shared_address(tile)) {}

  __device__ __forceinline__ void start(int first_column) {
    __syncwarp();  // every lane has read the tile before
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * WarpRows;
    const int columns = rows_.columns - first_column;
    if (rows_.aligned) {
      constexpr int kChunks = TileColumns * kElementBytes / geometry::kChunkBytes;
      constexpr int kRowsAtOnce = 32 / kChunks;
      const int chunk = lane % kChunks;
      int bytes = (columns - chunk * (geometry::kChunkBytes / kElementBytes)) * kElementBytes;
      bytes = bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
#pragma unroll
      for (int row = 0; row < WarpRows; row += kRowsAtOnce) {
        const int r = warp_row + row + lane / kChunks;
        ptx::cp_async_16_part(tile_ + geometry::swizzled_offset(TileRows, r, chunk),
                              element(r, first_column) + chunk * geometry::kChunkBytes, exists(r) ? bytes : 0);
      }
    } else {
      for (int r = warp_row; r < warp_row + WarpRows; ++r) {
        const bool there = exists(r);
#pragma unroll
        for (int c = 0; c < TileColumns; c += 32) {
          const int column = c + lane;
          const char* from = element(r, first_column) + column * kElementBytes;
          const bool read = there && column < columns;
          const uint32 to =
              tile_ + geometry::swizzled_offset(TileRows, r, column * kElementBytes / 16) + column * kElementBytes % 16;
          if constexpr (Float32) {
            ptx::store_shared_4(to, read ? *reinterpret_cast<const uint32*>(from) : 0);
          } else {
            ptx::store_shared_2(to, read ? *reinterpret_cast<const unsigned short*>(from) : 0);
          }
        }
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
  __device__ __forceinline__ void for_each(Function function) const {
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * WarpRows;
    if constexpr (Float32) {
#pragma unroll
      for (int n = 0; n < TileColumns / 8; ++n) {
#pragma unroll
        for (int m = 0; m < Blocks; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = warp_row + m * 16 + half * 8 + lane / 4;
            const float2 r = ptx::load_shared_float2(
                tile_ + geometry::swizzled_offset(TileRows, row, 2 * n + lane % 4 / 2) + lane % 2 * 8);
            function(m, n, 2 * half, r.x);
            function(m, n, 2 * half + 1, r.y);
          }
        }
      }
    } else {
      const tile::BlockReader<TileRows> reader(tile_, warp_row);
#pragma unroll
      for (int pair = 0; pair < TileColumns / 16; ++pair) {
#pragma unroll
        for (int m = 0; m < Blocks; ++m) {
          uint32 block[4];  // A's order, which is that of two accumulators' halves
          ptx::ldmatrix_x4(block, reader.at(m, pair));
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 r = ptx::unpack<Element>(block[i]);
            function(m, 2 * pair + i / 2, i % 2 * 2, r.x);
            function(m, 2 * pair + i / 2, i % 2 * 2 + 1, r.y);
          }
        }
      }
    }
  }

 private:
  __device__ __forceinline__ bool exists(int r) const {
    const int row = static_cast<int>(work_.first_row) + r;
    return rows_.first_row <= row && row < rows_.end_row;
  }
  __device__ __forceinline__ const char* element(int r, int column) const {
    return rows_.data + (work_.first_row + r) * rows_.stride_bytes + static_cast<long long>(column) * kElementBytes;
  }

  const Work& work_;
  const BiasRows& rows_;
  uint32 tile_;
};

/// Buckets of differences of timestamps: how many thresholds are <= |d|.
struct TimeBuckets {
  const unsigned long long* thresholds;  // increasing; a user's that is negative counts as 0
  int count;
  bool given;  // by the user

  __device__ __forceinline__ static TimeBuckets of(const BiasCall& bias) {
    if (bias.thresholds != nullptr) {
      return {reinterpret_cast<const unsigned long long*>(bias.thresholds), bias.num_times - 1, true};
    }
    return {geometry::kTimeThresholds.values, geometry::min_of(bias.num_times - 1, geometry::kDefaultTimeThresholds),
            false};
  }

  __device__ __forceinline__ unsigned long long at(int n) const {
    const unsigned long long value = thresholds[n];
    return given && static_cast<long long>(value) < 0 ? 0 : value;
  }

  static __device__ __forceinline__ unsigned long long distance(long long a, long long b) {
    const auto x = static_cast<unsigned long long>(a), y = static_cast<unsigned long long>(b);
    return a > b ? x - y : y - x;
  }

  /// The bucket of d, which is at least `low` and at most `high`.
  __device__ __forceinline__ int bucket(unsigned long long d, int low, int high) const {
    while (low < high) {
      const int middle = (low + high) / 2;
      if (at(middle) <= d) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  __device__ __forceinline__ int bucket(unsigned long long d) const { return bucket(d, 0, count); }
};

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

/// Bucketed: R is computed from the tables, a warp at a time. Positions run along diagonals, of which a lane's elements
/// have few. Buckets of time widen with distance, so most warps' parts of a tile lie in one bucket or two; only near
/// the diagonal each element searches.
template <int TileColumns, int WarpRows>
class BucketedBias {
 public:
  static constexpr int kDiagonals = WarpRows + TileColumns;
  /// Of shared memory, for a warp.
  static constexpr int kWarpBytes = kDiagonals * static_cast<int>(sizeof(float));

  /// windows: kWarpBytes of shared memory for each warp.
  __device__ __forceinline__ BucketedBias(const AttentionCall& call, const Work& work, const BiasRows&,
                                          unsigned char* windows)
      : bias_(call.bias),
        work_(work),
        window_(reinterpret_cast<float*>(windows + threadIdx.x / 32 * kWarpBytes)),
        first_row_(static_cast<int>(work.first_row) + threadIdx.x / 32 * WarpRows) {}

  __device__ __forceinline__ void start(int first_column) { first_column_ = first_column; }

  template <int Newer>
  __device__ __forceinline__ void wait() const {}

  template <int Blocks, typename Function>
  __device__ __forceinline__ void for_each(Function function) {
    const int r0 = first_row_ + work_.mask.offset();
    const int lane = threadIdx.x % 32;
    const bool positioned = bias_.position != nullptr;
    __syncwarp();
    if (positioned) {
      // window[x] belongs to r - j = r0 - first_column + (WarpRows - 1) - x.
      const float* table = bias_.position + work_.head * bias_.position_head_stride;
      const int farthest = r0 - first_column_ + WarpRows - 1;
#pragma unroll
      for (int x = lane; x < kDiagonals; x += 32) {
        const int index = farthest - x;
        window_[x] = table[index < 0 ? 0 : index < bias_.num_positions ? index : bias_.num_positions - 1];
      }
    } else {
#pragma unroll
      for (int x = lane; x < kDiagonals; x += 32) window_[x] = 0;
    }
    __syncwarp();
    if (bias_.time == nullptr) {
      visit<Blocks>(function, [](int, int, int) { return 0.0f; });
      return;
    }
    const float* table = bias_.time + work_.head * bias_.time_head_stride;
    const long long* times = bias_.timestamps + work_.first_k;
    const int last = work_.mask.seqlen_k - 1;
    const auto clipped = [last](int n) { return n < 0 ? 0 : n < last ? n : last; };
    const TimeBuckets buckets = TimeBuckets::of(bias_);

    // The range of differences of the warp's part of the tile, and whether they fit an int.
    const long long origin = times[clipped(first_column_)];
    const long long row_time = times[clipped(r0 + lane % WarpRows)];
    long long column_times[TileColumns / 32];
    constexpr unsigned long long kSmall = 1ull << 30;
    bool small = TimeBuckets::distance(row_time, origin) < kSmall;
#pragma unroll
    for (int x = 0; x < TileColumns / 32; ++x) {
      column_times[x] = times[clipped(first_column_ + 32 * x + lane)];
      small &= TimeBuckets::distance(column_times[x], origin) < kSmall;
    }
    if (!__all_sync(kAll, small)) {
      visit<Blocks>(function, [&](int row, int column, int) {
        const unsigned long long d =
            TimeBuckets::distance(times[clipped(r0 + row)], times[clipped(first_column_ + column)]);
        return table[buckets.bucket(d)];
      });
      return;
    }
    const int row = static_cast<int>(row_time - origin);
    int columns[TileColumns / 32];
    int lowest = 1 << 30, highest = -(1 << 30);
#pragma unroll
    for (int x = 0; x < TileColumns / 32; ++x) {
      columns[x] = static_cast<int>(column_times[x] - origin);
      lowest = geometry::min_of(lowest, columns[x]);
      highest = geometry::max_of(highest, columns[x]);
    }
    lowest = __reduce_min_sync(kAll, lowest);
    highest = __reduce_max_sync(kAll, highest);
    const int lowest_row = __reduce_min_sync(kAll, row), highest_row = __reduce_max_sync(kAll, row);
    const int nearest = geometry::max_of(0, geometry::max_of(lowest_row - highest, lowest - highest_row));
    const int farthest = geometry::max_of(highest_row - lowest, highest - lowest_row);
    int low = 0, high = 0;
    for (int n = lane;; n += 32) {
      const unsigned long long threshold = n < buckets.count ? buckets.at(n) : ~0ull;
      const unsigned near = __ballot_sync(kAll, threshold <= static_cast<unsigned>(nearest));
      const unsigned far = __ballot_sync(kAll, threshold <= static_cast<unsigned>(farthest));
      low += __popc(near);
      high += __popc(far);
      if (far != kAll) break;
    }
    if (low == high) {
      const float value = table[low];
      visit<Blocks>(function, [value](int, int, int) { return value; });
      return;
    }
    // The lane's rows and columns, from the lanes that have read them.
    int row_times[2 * Blocks];
#pragma unroll
    for (int n = 0; n < 2 * Blocks; ++n) row_times[n] = __shfl_sync(kAll, row, n * 8 + lane / 4);
    if (high - low == 1) {
      const float nearer = table[low], farther = table[high];
      const unsigned threshold = static_cast<unsigned>(buckets.at(low));
      visit_times<Blocks>(function, row_times, columns, [=](unsigned d) { return d >= threshold ? farther : nearer; });
    } else {
      visit_times<Blocks>(function, row_times, columns,
                          [&](unsigned d) { return table[buckets.bucket(d, low, high)]; });
    }
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  /// function(m, n, e, position + time_value(row of the warp, column of the tile, row / 8)).
  template <int Blocks, typename Function, typename TimeValue>
  __device__ __forceinline__ void visit(Function function, TimeValue time_value) const {
    const int lane = threadIdx.x % 32;
    // Element (m, n, half, e) lies on diagonal 8 (n - 2 m - half) + e of the lane's first one.
    const float* first = window_ + (WarpRows - 1) - lane / 4 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < TileColumns / 8; ++n) {
#pragma unroll
      for (int m = 0; m < Blocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int rows8 = 2 * m + i / 2;
          function(
              m, n, i,
              first[8 * (n - rows8) + i % 2] + time_value(rows8 * 8 + lane / 4, n * 8 + lane % 4 * 2 + i % 2, rows8));
        }
      }
    }
  }

  /// The same with value(|difference of times|).
  template <int Blocks, typename Function, typename Value>
  __device__ __forceinline__ void visit_times(Function function, const int (&row_times)[2 * Blocks],
                                              const int (&columns)[TileColumns / 32], Value value) const {
    const int lane = threadIdx.x % 32;
    const float* first = window_ + (WarpRows - 1) - lane / 4 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < TileColumns / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = __shfl_sync(kAll, columns[n / 4], n % 4 * 8 + lane % 4 * 2 + e);
#pragma unroll
        for (int rows8 = 0; rows8 < 2 * Blocks; ++rows8) {
          const int d = row_times[rows8] - column;
          function(rows8 / 2, n, rows8 % 2 * 2 + e,
                   first[8 * (n - rows8) + e] + value(static_cast<unsigned>(d < 0 ? -d : d)));
        }
      }
    }
  }

  const BiasCall& bias_;
  const Work& work_;
  float* window_;
  int first_row_, first_column_ = 0;
};

}  // namespace warploom
