// Tiles of 16-bit values in swizzled shared memory: filling them from global memory, reading fragments, writing
// results.
#pragma once

#include "geometry/fragment.h"
#include "geometry/swizzle.h"
#include "ptx/ldmatrix.h"
#include "ptx/shared_memory.h"

namespace warploom::tile {

using ptx::uint32;

/// A view of rows in global memory: row r, columns 0..columns-1 of 16-bit values, 16-byte aligned.
struct GlobalRows {
  char* data;  ///< row 0
  long long row_stride_bytes;

  __device__ __forceinline__ GlobalRows from(int row) const {
    return {data + row * row_stride_bytes, row_stride_bytes};
  }
};

/// Starts the copy of rows 0..Rows-1 into the tile, 16 bytes a thread: eight neighbouring threads move 128 bytes of a
/// row. Rows from `valid_rows` on and before first_valid become zeros.
template <int Rows, int Columns, int Threads>
__device__ __forceinline__ void copy_rows_async(uint32 tile, GlobalRows from, int valid_rows, int first_valid = 0) {
  constexpr int kChunks = Columns / geometry::kChunkValues;
  constexpr int kRowsAtOnce = Threads / geometry::kPanelChunks;
  static_assert(kRowsAtOnce % 8 == 0 && Rows % kRowsAtOnce == 0);
  const auto [first_row, chunk] = geometry::copy_place(threadIdx.x);
  const uint32 target = tile + geometry::swizzled_offset(Rows, first_row, chunk);
#pragma unroll
  for (int panel = 0; panel < geometry::panels_of(Columns); ++panel) {
    const bool whole_panel = (panel + 1) * geometry::kPanelChunks <= kChunks;
    if (!whole_panel && panel * geometry::kPanelChunks + chunk >= kChunks) break;
    const char* source = from.data + first_row * from.row_stride_bytes + chunk * geometry::kChunkBytes;
#pragma unroll
    for (int row = 0; row < Rows; row += kRowsAtOnce) {
      // Where nothing is valid the address may lie outside the tensor; it is not read.
      ptx::cp_async_16(target + (panel * Rows + row) * geometry::kPanelRowBytes,
                       source + panel * geometry::kPanelRowBytes,
                       first_row + row >= first_valid && first_row + row < valid_rows);
      source += kRowsAtOnce * from.row_stride_bytes;
    }
  }
}

/// Zeros the columns that pad an odd number of chunks to the 16 columns that an mma reads. No copy touches them, so
/// once for the life of the tile is enough; a barrier must follow before they are read.
template <int Rows, int Columns, int Threads>
__device__ __forceinline__ void zero_padding(uint32 tile) {
  constexpr int kChunks = Columns / geometry::kChunkValues;
  if constexpr (kChunks % 2 != 0) {
    for (int row = threadIdx.x; row < Rows; row += Threads) {
      ptx::store_shared_16(tile + geometry::swizzled_offset(Rows, row, kChunks), uint4{0, 0, 0, 0});
    }
  }
}

/// A lane's address for ldmatrix.x4 on the 16x16 blocks of a tile of Rows rows, whose base is a multiple of 128. From
/// block to block along a row only the chunk's place in its 128 bytes changes, by an exclusive or with a constant.
template <int Rows, geometry::BlockOrder Order = geometry::BlockOrder::a>
class BlockReader {
 public:
  /// first_row: a multiple of 8. first_column_block: blocks are counted from it; 0, or such that no block asked for
  /// carries past it: first_column_block & column_block == 0.
  __device__ __forceinline__ BlockReader(uint32 tile, int first_row, int first_column_block = 0) {
    const int lane = threadIdx.x % 32;
    address_ = tile + geometry::swizzled_offset(Rows, first_row + geometry::ldmatrix_row(lane, Order),
                                                2 * first_column_block + geometry::ldmatrix_chunk(lane, Order));
  }

  /// The same blocks `bytes` (a multiple of 128) further on.
  __device__ __forceinline__ BlockReader moved(uint32 bytes) const {
    BlockReader other = *this;
    other.address_ += bytes;
    return other;
  }

  /// The lane's address of the block at rows 16 * row_block, columns 16 * column_block.
  __device__ __forceinline__ uint32 at(int row_block, int column_block) const {
    constexpr int kBlockBytes = 2 * geometry::kChunkBytes;
    return (address_ ^ (column_block % 4 * kBlockBytes)) +
           (column_block / 4 * Rows + row_block * 16) * geometry::kPanelRowBytes;
  }

 private:
  uint32 address_;
};

}  // namespace warploom::tile
