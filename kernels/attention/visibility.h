// The mask at the level of a kernel: which key tiles a CTA walks, and what each row of a warp sees of one.
//
// Lane l of a warp speaks for row l of the warp's rows. A tile that all rows see whole needs no masking, one that none
// sees is skipped; else each lane makes its row's bits and the lanes that hold the row's scores fetch them by shuffle.
#pragma once

#include "geometry/interval_mask.h"
#include "geometry/mask.h"

namespace warploom {

inline constexpr unsigned kAllLanes = 0xffffffffu;

/// Bits `begin` to 31; all of them from a negative place on, none from 32 on.
__device__ __forceinline__ unsigned bits_from(int begin) {
  // PTX shifts by 32 and more give 0, C++ does not say.
  unsigned bits;
  asm("shl.b32 %0, %1, %2;" : "=r"(bits) : "r"(kAllLanes), "r"(geometry::max_of(begin, 0)));
  return bits;
}

/// Bits [begin, end) of the 32 columns from `first` on.
__device__ __forceinline__ unsigned interval_bits(geometry::Interval interval, int first) {
  const int begin = geometry::max_of(interval.begin - first, 0);
  const int end = geometry::min_of(interval.end - first, 32);
  if (end <= begin) return 0;
  return (kAllLanes >> (32 - (end - begin))) << begin;
}

/// A thread of a row holds columns 8 n + j of every 8, j = 0 and 1, counted from its first one: how many of them lie
/// before `column`.
__device__ __forceinline__ int own_columns_before(int column) {
  const int x = geometry::max_of(column, 0);
  return x / 8 * 2 + geometry::min_of(x % 8, 2);
}

/// The thread's own columns that lie in the interval, as bits; first: its first column. 32 of them, so 128 columns.
__device__ __forceinline__ unsigned own_bits(geometry::Interval interval, int first) {
  return bits_from(own_columns_before(interval.begin - first)) & ~bits_from(own_columns_before(interval.end - first));
}

/// bits has bit n ? x : otherwise. Two instructions; of the same in C++ the compiler makes three.
__device__ __forceinline__ float select_by_bit(unsigned bits, int n, float x, float otherwise) {
  float y;
  asm("{\n.reg .pred p;\n.reg .b32 bit;\n"
      "and.b32 bit, %1, %2;\n"
      "setp.ne.u32 p, bit, 0;\n"
      "selp.f32 %0, %3, %4, p;\n}"
      : "=f"(y)
      : "r"(bits), "r"(1u << n), "f"(x), "f"(otherwise));
  return y;
}

/// A row under a sequence mask.
struct SequenceRow {
  geometry::VisibleColumns columns;

  __device__ __forceinline__ bool sees_all(geometry::Interval tile) const {
    return columns.first.covers(tile) || columns.second.covers(tile);
  }
  __device__ __forceinline__ bool sees_any(geometry::Interval tile) const {
    return !intersect(columns.first, tile).empty() || !intersect(columns.second, tile).empty();
  }
  __device__ __forceinline__ unsigned bits(int first) const {
    return interval_bits(columns.first, first) | interval_bits(columns.second, first);
  }
  /// own_bits() of what the row sees.
  __device__ __forceinline__ unsigned own_bits_from(int first) const {
    const unsigned bits = own_bits(columns.first, first);
    return columns.second.empty() ? bits : bits | own_bits(columns.second, first);
  }
};

/// A row under an interval mask.
struct IntervalRow {
  geometry::RowIntervals intervals;

  __device__ __forceinline__ bool sees_all(geometry::Interval tile) const { return intervals.covers(tile); }
  __device__ __forceinline__ bool sees_any(geometry::Interval tile) const { return intervals.intersects(tile); }
  __device__ __forceinline__ unsigned bits(int first) const {
    unsigned result = 0;
    for (int n = 0; n < intervals.count; ++n) result |= interval_bits(intervals.at(n), first);
    return result;
  }
  /// own_bits() of what the row sees.
  __device__ __forceinline__ unsigned own_bits_from(int first) const {
    unsigned result = 0;
    for (int n = 0; n < intervals.count; ++n) result |= own_bits(intervals.at(n), first);
    return result;
  }
};

/// Walks the key tiles that a CTA's rows see under a sequence mask: runs of neighbouring tiles, found from the
/// geometry. The ranges wait in shared memory, as they are needed only where a run ends. Every thread of the CTA makes
/// the same calls.
template <int TileColumns>
class SequenceWalk {
 public:
  /// `ranges`: shared memory. The walk begins at first_tile or after it.
  __device__ __forceinline__ SequenceWalk(const geometry::SequenceMask& mask, geometry::Interval rows,
                                          geometry::Ranges* ranges, int first_tile = 0)
      : ranges_(ranges) {
    if (threadIdx.x == 0) *ranges = visible_to_any(mask, rows);
    __syncthreads();
    find(first_tile);
  }

  /// The tile to visit; negative when there is none left.
  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ void advance() {
    if (++tile_ == run_end_) find(tile_);
  }

 private:
  __device__ __forceinline__ void find(int tile) {
    const geometry::Interval run = ranges_->next_run(tile, TileColumns);
    tile_ = run.empty() ? -1 : run.begin;
    run_end_ = run.end;
  }

  const geometry::Ranges* ranges_;
  int tile_, run_end_;
};

/// The same under an interval mask: each thread looks at its rows, and the CTA agrees on the nearest tile. Every thread
/// of the CTA makes the same calls. `scratch`: shared memory, one int a warp.
template <int TileColumns, int Threads>
class IntervalWalk {
 public:
  /// pairs: the first of the CTA's rows, `count` intervals each; rows: how many of them exist. The walk begins at
  /// first_tile or after it.
  __device__ __forceinline__ IntervalWalk(const int* pairs, int count, int rows, int seqlen_k, int* scratch,
                                          int first_tile = 0)
      : pairs_(pairs), count_(count), rows_(rows), seqlen_k_(seqlen_k), scratch_(scratch) {
    find(first_tile * TileColumns);
  }

  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ void advance() { find((tile_ + 1) * TileColumns); }

 private:
  __device__ __forceinline__ void find(int column) {
    int next = geometry::kUnbounded;
    for (int row = threadIdx.x; row < rows_; row += Threads) {
      const geometry::RowIntervals intervals{pairs_ + 2ll * row * count_, count_, seqlen_k_};
      next = geometry::min_of(next, intervals.next_column(column));
    }
    next = __reduce_min_sync(kAllLanes, next);
    __syncthreads();  // the scratch of the call before has been read
    if (threadIdx.x % 32 == 0) scratch_[threadIdx.x / 32] = next;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < Threads / 32; ++warp) next = geometry::min_of(next, scratch_[warp]);
    tile_ = next == geometry::kUnbounded ? -1 : next / TileColumns;
  }

  const int* pairs_;
  int count_, rows_, seqlen_k_;
  int* scratch_;
  int tile_ = -1;
};

}  // namespace warploom
