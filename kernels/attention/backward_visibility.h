// The mask as the backward kernel needs it: which query tiles see a tile of keys, and which queries of one see each
// key.
//
// Rows speak for themselves as in the forward pass (attention/visibility.h); their bits are transposed by ballots,
// since the kernel's scores stand with keys along their rows.
#pragma once

#include "attention/visibility.h"
#include "geometry/interval_mask.h"
#include "geometry/mask.h"

namespace warploom {

/// A tile of query rows of one of the query heads that share a key head. number < 0: there is none left.
struct QueryTile {
  int number, head;
};

/// Walks the query tiles that see a tile of keys under a sequence mask, for one query head after the other. A walk
/// keeps nothing in registers from tile to tile. Every thread of the CTA makes the same calls.
template <int TileRows>
struct SequenceQueryWalk {
  const geometry::Ranges* ranges;  ///< the rows that see a key, in shared memory
  int heads;

  /// The tile after `tile`; {-1, 0} stands before the first one.
  __device__ __forceinline__ QueryTile next(QueryTile tile) const {
    tile.number = ranges->next_tile(tile.number + 1, TileRows);
    if (tile.number == geometry::kUnbounded && ++tile.head < heads) tile.number = ranges->next_tile(0, TileRows);
    if (tile.number == geometry::kUnbounded) tile.number = -1;
    return tile;
  }
};

/// The same from each head's last tile to its first, but for the tiles of context rows, which come before all others.
template <int TileRows>
struct SequenceQueryWalkBack {
  const geometry::Ranges* ranges;
  int heads;
  const int* context_tiles;  ///< those in front, in shared memory

  __device__ __forceinline__ QueryTile next(QueryTile tile) const {
    tile.number = before(tile.number);
    if (tile.number < 0 && ++tile.head < heads) tile.number = before(-1);
    return tile;
  }

 private:
  /// number < 0: of a head's first tile. -1: there is none left.
  __device__ __forceinline__ int before(int number) const {
    constexpr int kPastAll = geometry::kUnbounded / TileRows;
    const int contexts = *context_tiles;
    if (number < contexts) {
      const int context = ranges->last_tile(number < 0 ? contexts : number, TileRows);
      if (context >= 0) return context;
      number = kPastAll;
    }
    const int other = ranges->last_tile(number, TileRows);
    return other < contexts ? -1 : other;
  }
};

/// The same under an interval mask: the threads (of a CTA, or of one warp) look at a row each, and agree on the nearest
/// one that sees a key.
template <int TileRows, int Threads>
struct IntervalQueryWalk {
  const int* pairs;  ///< the first row of the sequence and of the first query head, `count` intervals each row
  long long head_stride;
  int count, rows, seqlen_k;
  geometry::Interval keys;
  int heads;
  int* scratch;  ///< shared memory, one int a warp; of one warp: unused

  __device__ __forceinline__ QueryTile next(QueryTile tile) const {
    for (int row = (tile.number + 1) * TileRows; tile.head < heads; ++tile.head, row = 0) {
      for (; row < rows; row += Threads) {
        const int seeing = nearest(tile.head, row);
        if (seeing != geometry::kUnbounded) return {seeing / TileRows, tile.head};
      }
    }
    return {-1, 0};
  }

 private:
  /// The first of the Threads rows from `first` on that sees a key; kUnbounded when none does.
  __device__ __forceinline__ int nearest(int head, int first) const {
    const int row = first + static_cast<int>(threadIdx.x) % Threads;
    int seeing = geometry::kUnbounded;
    if (row < rows) {
      const geometry::RowIntervals intervals{pairs + head * head_stride + 2ll * row * count, count, seqlen_k};
      if (intervals.intersects(keys)) seeing = row;
    }
    seeing = __reduce_min_sync(kAllLanes, seeing);
    if constexpr (Threads > 32) {
      __syncthreads();  // the scratch of the call before has been read
      if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = seeing;
      __syncthreads();
#pragma unroll
      for (int warp = 0; warp < Threads / 32; ++warp) seeing = geometry::min_of(seeing, scratch[warp]);
    }
    return seeing;
  }
};

/// For a tile of QueryRows queries and KeyRows keys: visible[key * QueryRows / 32 + n] has bit b set where query
/// 32 n + b sees the key. whole[n]: those 32 queries see every key, and their words are not written. Rows from `rows`
/// on see nothing; unless MustExist they do not keep the others from being whole. row_of(query) gives a SequenceRow or
/// IntervalRow. A barrier must follow.
template <int QueryRows, int KeyRows, int Threads, bool MustExist, typename RowOf>
__device__ __forceinline__ void write_visibility(RowOf row_of, int rows, int first_key, unsigned* visible, int* whole) {
  constexpr int kQueryWords = QueryRows / 32;
  constexpr int kBlocks = kQueryWords * (KeyRows / 32);
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int block = threadIdx.x / 32; block < kBlocks; block += Threads / 32) {
    const int word = block % kQueryWords, key_block = block / kQueryWords;
    const int query = word * 32 + lane;
    const bool exists = query < rows;
    const auto row = row_of(exists ? query : 0);
    const bool all = __all_sync(kAllLanes, exists ? row.sees_all({first_key, first_key + KeyRows}) : !MustExist);
    if (key_block == 0 && lane == 0) whole[word] = all;
    if (all) continue;
    const unsigned mine = exists ? row.bits(first_key + key_block * 32) : 0;
    unsigned seeing = 0;  // of key `lane`
#pragma unroll 8
    for (int key = 0; key < 32; ++key) {
      const unsigned queries = __ballot_sync(kAllLanes, (mine >> key) & 1);
      if (key == lane) seeing = queries;
    }
    visible[(key_block * 32 + lane) * kQueryWords + word] = seeing;
  }
}

}  // namespace warploom
