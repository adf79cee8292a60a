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
#include "ptx/math.h"
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
///
/// A row in shared memory has one 16-byte chunk more than the tile. That makes the number of chunks odd, so that the
/// eight rows of an ldmatrix phase meet in no bank, and it holds the whole chunks of a row that starts between two of
/// them: such a row is copied as it lies and shifted when it is read.
template <typename Element, bool Float32, int TileRows, int TileColumns, int WarpRows>
class RowsBias {
 public:
  static constexpr int kElementBytes = Float32 ? 4 : 2;
  static constexpr int kChunks = TileColumns * kElementBytes / geometry::kChunkBytes;
  static constexpr int kPitch = (kChunks + 1) * geometry::kChunkBytes;
  /// Of shared memory, aligned to 16.
  static constexpr int kBytes = TileRows * kPitch;
  static_assert(kChunks % 2 == 0);

  /// work, rows: in shared memory. tile: kBytes of shared memory.
  __device__ __forceinline__ RowsBias(const AttentionCall&, const Work& work, const BiasRows& rows, unsigned char* tile)
      : work_(work), rows_(rows), tile_(ptx::shared_address(tile)) {}

  __device__ __forceinline__ void start(int first_column) {
    __syncwarp();  // every lane has read the tile before
    first_column_ = first_column;
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * WarpRows;
    if (rows_.aligned) {
      constexpr int kRowsAtOnce = 32 / kChunks;
      const int chunk = lane % kChunks;
      const int bytes = bytes_left(first_column, chunk * geometry::kChunkBytes);
#pragma unroll
      for (int row = 0; row < WarpRows; row += kRowsAtOnce) {
        const int r = warp_row + row + lane / kChunks;
        ptx::cp_async_16_part(tile_ + r * kPitch + chunk * geometry::kChunkBytes,
                              element(r, first_column) + chunk * geometry::kChunkBytes, exists(r) ? bytes : 0);
      }
    } else {
#pragma unroll 1
      for (int i = lane; i < WarpRows * (kChunks + 1); i += 32) {
        const int r = warp_row + i / (kChunks + 1), chunk = i % (kChunks + 1);
        start_shifted_chunk(r, chunk, first_column);
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
    float least = 0;
    if (Float32 || !rows_.aligned) {
      for_each_shifted<Blocks>(least, function);
    } else {
      uint32 least_pair = 0;
      const int lane = threadIdx.x % 32;
      const uint32 first = tile_ + (threadIdx.x / 32 * WarpRows + geometry::ldmatrix_row(lane)) * kPitch +
                           geometry::ldmatrix_chunk(lane) * geometry::kChunkBytes;
#pragma unroll
      for (int pair = 0; pair < TileColumns / 16; ++pair) {
#pragma unroll
        for (int m = 0; m < Blocks; ++m) {
          uint32 block[4];  // A's order, which is that of two accumulators' halves
          ptx::ldmatrix_x4(block, first + m * 16 * kPitch + pair * 2 * geometry::kChunkBytes);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 r = ptx::unpack<Element>(block[i]);
            least_pair = ptx::min_pair<Element>(least_pair, block[i]);
            function(m, 2 * pair + i / 2, i % 2 * 2, r.x);
            function(m, 2 * pair + i / 2, i % 2 * 2 + 1, r.y);
          }
        }
      }
      const float2 both = ptx::unpack<Element>(least_pair);
      least = fminf(both.x, both.y);
    }
    return __any_sync(0xffffffffu, least == ptx::minus_infinity());
  }

 private:
  __device__ __forceinline__ bool exists(int r) const {
    const int row = static_cast<int>(work_.first_row) + r;
    return rows_.first_row <= row && row < rows_.end_row;
  }
  __device__ __forceinline__ const char* element(int r, int column) const {
    return rows_.data + (work_.first_row + r) * rows_.stride_bytes + static_cast<long long>(column) * kElementBytes;
  }
  /// Bytes of a row from `offset` bytes after first_column on, at most 16 and at least 0.
  __device__ __forceinline__ int bytes_left(int first_column, int offset) const {
    const int bytes = (rows_.columns - first_column) * kElementBytes - offset;
    return geometry::max_of(0, geometry::min_of(bytes, geometry::kChunkBytes));
  }
  /// How many bytes after a multiple of 16 row r's tile begins.
  __device__ __forceinline__ int shift(int r, int first_column) const {
    return static_cast<int>(reinterpret_cast<unsigned long long>(element(r, first_column))) & 15;
  }

  /// Copies what row r has of the 16 bytes at `chunk`, counted from the multiple of 16 at or before its first byte.
  /// Only the row's own bytes are read: a chunk that begins before the row goes element by element.
  __device__ __forceinline__ void start_shifted_chunk(int r, int chunk, int first_column) const {
    const uint32 to = tile_ + r * kPitch + chunk * geometry::kChunkBytes;
    const int offset = chunk * geometry::kChunkBytes - shift(r, first_column);
    const char* from = element(r, first_column) + offset;
    if (offset >= 0 || first_column > 0) {
      const int bytes = (rows_.columns - first_column) * kElementBytes - offset;
      ptx::cp_async_16_part(to, from,
                            exists(r) ? geometry::max_of(0, geometry::min_of(bytes, geometry::kChunkBytes)) : 0);
      return;
    }
    for (int byte = 0; byte < geometry::kChunkBytes; byte += kElementBytes) {
      const bool read = exists(r) && offset + byte >= 0 && offset + byte < rows_.columns * kElementBytes;
      if constexpr (Float32) {
        ptx::store_shared_4(to + byte, read ? *reinterpret_cast<const uint32*>(from + byte) : 0);
      } else {
        ptx::store_shared_2(to + byte, read ? *reinterpret_cast<const unsigned short*>(from + byte) : 0);
      }
    }
  }

  /// Element by element, each row from where it begins.
  template <int Blocks, typename Function>
  __device__ __forceinline__ void for_each_shifted(float& least, Function function) const {
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * WarpRows;
    uint32 first[2 * Blocks];
#pragma unroll
    for (int rows8 = 0; rows8 < 2 * Blocks; ++rows8) {
      const int r = warp_row + rows8 * 8 + lane / 4;
      first[rows8] = tile_ + r * kPitch + (rows_.aligned ? 0 : shift(r, first_column_)) + lane % 4 * 2 * kElementBytes;
    }
#pragma unroll
    for (int n = 0; n < TileColumns / 8; ++n) {
#pragma unroll
      for (int rows8 = 0; rows8 < 2 * Blocks; ++rows8) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const uint32 from = first[rows8] + (8 * n + e) * kElementBytes;
          float r;
          if constexpr (Float32) {
            r = __uint_as_float(ptx::load_shared_4(from));
          } else {
            r = ptx::unpack<Element>(ptx::load_shared_2(from)).x;
          }
          least = fminf(least, r);
          function(rows8 / 2, n, rows8 % 2 * 2 + e, r);
        }
      }
    }
  }

  const Work& work_;
  const BiasRows& rows_;
  uint32 tile_;
  int first_column_ = 0;
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

/// Tables of a bucketed bias in shared memory, for all warps: the thresholds and the head's time table, as far as they
/// fit.
struct alignas(16) StagedTimes {
  static constexpr int kMost = 128;  // a multiple of 32

  unsigned long long thresholds[kMost];  // the largest number there is after the last one
  unsigned small[kMost];                 // the same, what does not fit as the largest one that does
  float table[kMost + 1];

  /// By all threads of the CTA; a barrier must follow.
  __device__ __forceinline__ void fill(const AttentionCall& call, const Work& work) {
    const BiasCall& bias = call.bias;
    if (bias.time == nullptr) return;
    const TimeBuckets buckets = TimeBuckets::of(bias);
    for (int n = threadIdx.x; n <= kMost; n += blockDim.x) {
      if (n < kMost) {
        thresholds[n] = n < buckets.count ? buckets.at(n) : ~0ull;
        small[n] = static_cast<unsigned>(min(thresholds[n], 0xffffffffull));
      }
      if (n <= buckets.count) table[n] = bias.time[work.head * bias.time_head_stride + n];
    }
  }
};

/// What a warp keeps in shared memory for a bucketed bias.
template <int TileColumns, int WarpRows>
struct alignas(16) BucketedWarp {
  static constexpr int kDiagonals = WarpRows + TileColumns;

  long long column_times[TileColumns];  // of the key tile
  long long row_times[WarpRows];
  float window[kDiagonals];  // of the position table: window[x] belongs to r - j = that of the first element + WarpRows
                             // - 1 - x
};

/// Bucketed: R is computed from the tables, a warp at a time. Positions run along diagonals, of which a lane's elements
/// have few. Buckets of time widen with distance, so most warps' parts of a tile lie in one bucket or two, whose
/// thresholds every element is compared with; only near the diagonal each element searches.
template <int TileColumns, int WarpRows>
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

  __device__ __forceinline__ void start(int first_column) {
    __syncwarp();  // every lane has read the tile before
    const int lane = threadIdx.x % 32;
    if (bias_.position != nullptr) {
      const float* table = bias_.position + work_.head * bias_.position_head_stride;
      const int farthest = first_row() - first_column + WarpRows - 1, last = bias_.num_positions - 1;
#pragma unroll
      for (int x = 0; x < Warp::kDiagonals; x += 32) {
        if (Warp::kDiagonals % 32 != 0 && x + lane >= Warp::kDiagonals) break;
        const int index = geometry::min_of(geometry::max_of(farthest - x - lane, 0), last);
        ptx::cp_async_small<4>(ptx::shared_address(&warp_.window[x + lane]), table + index);
      }
    }
    if (bias_.time != nullptr) {
#pragma unroll
      for (int x = 0; x < TileColumns; x += 32) {
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
    bool masks = false;
#pragma unroll
    for (int x = 0; x < Warp::kDiagonals; x += 32) {
      const int at = x + threadIdx.x % 32;
      if (Warp::kDiagonals % 32 == 0 || at < Warp::kDiagonals) masks |= warp_.window[at] == ptx::minus_infinity();
    }
    masks = __any_sync(kAll, masks);
    TimeBuckets buckets{staged_.thresholds, StagedTimes::kMost, false};
    const float* table = staged_.table;
    Range range{0, 0};
    bool small = true;
    if (bias_.time != nullptr) {
      small = times_fit_int();
      if (bias_.num_times > StagedTimes::kMost + 1) {  // too large to be staged
        buckets = TimeBuckets::of(bias_);
        table = bias_.time + work_.head * bias_.time_head_stride;
      }
      range = small ? range_of<int>(buckets) : range_of<long long>(buckets);
      for (int k = range.low; k <= range.high; ++k) masks |= table[k] == ptx::minus_infinity();
    }
    if (range.low == range.high) {
      visit<Blocks>(function, bias_.time != nullptr ? table[range.low] : 0.0f);
    } else if (table != staged_.table) {
      visit_times<Blocks, long long>(function, SearchEach{buckets, table, range});
    } else if (small && range.high - range.low <= kMostCompared) {
      compare_times<Blocks>(function, range);
    } else {
      const SearchStaged search{staged_, range, 1 << (31 - __clz(range.high - range.low))};
      if (small) {
        visit_times<Blocks, int>(function, search);
      } else {
        visit_times<Blocks, long long>(function, search);
      }
    }
    return masks;
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;
  static constexpr int kMostCompared = 2;

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
    return static_cast<int>(work_.first_row) + threadIdx.x / 32 * WarpRows + work_.mask.offset();
  }
  __device__ __forceinline__ int clipped(int n) const {
    return geometry::max_of(0, geometry::min_of(n, work_.mask.seqlen_k - 1));
  }

  /// The buckets that the differences of a warp's part of a tile lie in, both ends included.
  struct Range {
    int low, high;
  };

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
  /// Searches in step, so that the look-ups of different elements overlap. first_step: the largest power of two in the
  /// range's size.
  struct SearchStaged {
    const StagedTimes& staged;
    Range range;
    int first_step;

    __device__ __forceinline__ bool reached(int n, unsigned d) const { return staged.small[n] <= d; }
    __device__ __forceinline__ bool reached(int n, unsigned long long d) const { return staged.thresholds[n] <= d; }

    template <typename Difference, int Count>
    __device__ __forceinline__ void operator()(const Difference (&d)[Count], float (&value)[Count]) const {
      int bucket[Count];
#pragma unroll
      for (int& b : bucket) b = range.low;
#pragma unroll 1
      for (int step = first_step; step > 0; step /= 2) {
#pragma unroll
        for (int i = 0; i < Count; ++i) {
          const int next = geometry::min_of(bucket[i] + step, range.high);
          if (reached(next - 1, d[i])) bucket[i] = next;
        }
      }
#pragma unroll
      for (int i = 0; i < Count; ++i) value[i] = staged.table[bucket[i]];
    }
  };
  /// One after the other, in tables of any size and for differences of any size.
  struct SearchEach {
    const TimeBuckets& buckets;
    const float* table;
    Range range;

    template <int Count>
    __device__ __forceinline__ void operator()(const unsigned long long (&d)[Count], float (&value)[Count]) const {
#pragma unroll
      for (int i = 0; i < Count; ++i) value[i] = table[buckets.bucket(d[i], range.low, range.high)];
    }
  };

  /// Whether times relative to the warp's first row's fit an int with room to subtract two of them.
  __device__ __forceinline__ bool times_fit_int() const {
    constexpr unsigned long long kSmall = 1ull << 30;
    const long long origin = warp_.row_times[0];
    bool small = TimeBuckets::distance(warp_.row_times[threadIdx.x % WarpRows], origin) < kSmall;
#pragma unroll
    for (int x = 0; x < TileColumns; x += 32) {
      small &= TimeBuckets::distance(warp_.column_times[x + threadIdx.x % 32], origin) < kSmall;
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
    auto lowest = relative<Time>(warp_.column_times[lane]);
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

  /// The same with the time value of every element's difference.
  template <int Blocks, typename Time, typename Function, typename Values>
  __device__ __forceinline__ void visit_times(Function function, const Values& values_of) const {
    constexpr int kRows = 2 * Blocks;
    const int lane = threadIdx.x % 32;
    const float* first = first_diagonal();
    Time rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r] = relative<Time>(warp_.row_times[8 * r + lane / 4]);
#pragma unroll
    for (int n = 0; n < TileColumns / 8; ++n) {
      decltype(difference(Time(), Time())) d[2 * kRows];
      float values[2 * kRows];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto column = relative<Time>(warp_.column_times[8 * n + lane % 4 * 2 + e]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) d[2 * r + e] = difference(rows[r], column);
      }
      values_of(d, values);
#pragma unroll
      for (int i = 0; i < 2 * kRows; ++i) {
        function(i / 4, n, i % 4, first[8 * (n - i / 2) + i % 2] + values[i]);
      }
    }
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
};

}  // namespace warploom
