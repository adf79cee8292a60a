// Tiles of 16-bit values in swizzled shared memory: filling them from global memory, reading fragments, writing results.
#pragma once

#include "geometry/fragment.h"
#include "geometry/swizzle.h"
#include "ptx/ldmatrix.h"
#include "ptx/shared_memory.h"

namespace warploom::tile {

using ptx::uint32;

/// A view of rows in global memory: row r, columns 0..columns-1 of 16-bit values, 16-byte aligned.
struct GlobalRows {
  const char* data;           ///< row 0
  long long row_stride_bytes;

  __device__ __forceinline__ GlobalRows from(int row) const { return {data + row * row_stride_bytes, row_stride_bytes}; }
};

/// Starts the copy of rows 0..Rows-1 into the tile, 16 bytes a thread: eight neighbouring threads move 128 bytes of a row.
/// Rows from `valid_rows` on and the columns that pad Columns to a multiple of 16 become zeros.
template <int Rows, int Columns, int Threads>
__device__ __forceinline__ void copy_rows_async(uint32 tile, GlobalRows from, int valid_rows) {
  constexpr int kChunks = Columns / geometry::kChunkValues;
  constexpr int kPaddedChunks = (Columns + 15) / 16 * 2;
  constexpr int kRowsAtOnce = Threads / geometry::kPanelChunks;
  static_assert(Rows % kRowsAtOnce == 0 || kRowsAtOnce > Rows);
  const int first_row = threadIdx.x / geometry::kPanelChunks;
  const int chunk = threadIdx.x % geometry::kPanelChunks;
  const char* source = from.data + first_row * from.row_stride_bytes + chunk * geometry::kChunkBytes;
  const uint32 target = tile + geometry::swizzled_offset(Rows, first_row, chunk);
  // The swizzle depends on row mod 8 only, and kRowsAtOnce is a multiple of 8: a thread's place in its rows is the same.
  static_assert(kRowsAtOnce % 8 == 0);
#pragma unroll
  for (int row = 0; row < Rows; row += kRowsAtOnce) {
    if (kRowsAtOnce > Rows && first_row >= Rows) break;
    const bool row_valid = first_row + row < valid_rows;
    const char* row_source = row_valid ? source + row * from.row_stride_bytes : from.data;
#pragma unroll
    for (int panel = 0; panel < geometry::panels_of(Columns); ++panel) {
      const int column_chunk = panel * geometry::kPanelChunks + chunk;
      if ((panel + 1) * geometry::kPanelChunks > kPaddedChunks && column_chunk >= kPaddedChunks) break;
      const bool valid = row_valid && column_chunk < kChunks;
      ptx::cp_async_16(target + panel * Rows * geometry::kPanelRowBytes + row * geometry::kPanelRowBytes,
                       valid ? row_source + panel * geometry::kPanelRowBytes : from.data, valid);
    }
  }
}

/// A lane's address for ldmatrix.x4 on the 16x16 blocks of a tile of Rows rows, whose base is a multiple of 128. From block
/// to block along a row only the chunk's place in its 128 bytes changes, by an exclusive or with a constant.
template <int Rows>
class BlockReader {
 public:
  /// first_row: a multiple of 8.
  __device__ __forceinline__ BlockReader(uint32 tile, int first_row) {
    const int lane = threadIdx.x % 32;
    address_ = tile + geometry::swizzled_offset(Rows, first_row + geometry::ldmatrix_row(lane), geometry::ldmatrix_chunk(lane));
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
