// Where a 16-byte chunk of a tile stands in shared memory.
//
// A tile of 16-bit values is cut into panels of 64 columns; a row of a panel is 128 bytes, all 32 banks. The eight rows
// that one ldmatrix phase reads at the same column would meet in the same four banks, so chunk c of row r stands at
// place c ^ (r mod 8): eight rows, eight different places (the 128-byte swizzle of PTX ISA, "Shared memory layouts").
#pragma once

#include "geometry/host_device.h"

namespace warploom::geometry {

inline constexpr int kChunkBytes = 16;
inline constexpr int kChunkValues = 8;
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kPanelChunks = kPanelRowBytes / kChunkBytes;

/// The place of chunk `chunk` (0..7) in row `row` of a panel.
WARPLOOM_HD constexpr int swizzled_chunk(int row, int chunk) {
  return chunk ^ (row % kPanelChunks);
}

/// Byte offset of chunk `chunk` (of the whole row: column / 8) of row `row` in a tile of `rows` rows.
WARPLOOM_HD constexpr int swizzled_offset(int rows, int row, int chunk) {
  const int panel = chunk / kPanelChunks;
  return (panel * rows + row) * kPanelRowBytes + swizzled_chunk(row, chunk % kPanelChunks) * kChunkBytes;
}

/// Where a thread's first chunk of a copy lies in a panel: eight neighbours take a row. Its next ones are a multiple of
/// eight rows further on, where the swizzle is the same.
struct CopyPlace {
  int row = 0, chunk = 0;
};
WARPLOOM_HD constexpr CopyPlace copy_place(unsigned thread) {
  return {static_cast<int>(thread / kPanelChunks), static_cast<int>(thread % kPanelChunks)};
}

WARPLOOM_HD constexpr int panels_of(int columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns;
}

/// Bytes of a tile of `rows` x `columns` 16-bit values.
WARPLOOM_HD constexpr int tile_bytes(int rows, int columns) {
  return panels_of(columns) * rows * kPanelRowBytes;
}

}  // namespace warploom::geometry
