// The descriptor by which wgmma finds an operand in shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared
// Memory Layout"), for tiles as geometry/swizzle.h lays them out: panels of 128-byte rows, 128-byte swizzle, the tile's
// base a multiple of 1024 bytes.
//
// A K-major operand (rows of M or N, 64 values of K each) steps along K inside its 128-byte rows, from panel to panel
// after 64 values. A transposed one (rows of K, 64 values of M or N each) steps along K by 16 rows, and along N from
// panel to panel by its leading bytes.
#pragma once

#include "geometry/host_device.h"
#include "geometry/swizzle.h"

namespace warploom::geometry {

/// 1024 bytes between groups of eight rows (bits 32-45), 128-byte swizzle (bits 62-63 = 1).
inline constexpr unsigned kDescriptorHigh = 0x40000040u;

/// The low word: start address (bits 0-13) and leading byte offset (bits 16-29), both in 16 bytes. leading_bytes: from
/// one panel to the next of a transposed operand; a K-major one ignores it.
WARPLOOM_HD constexpr unsigned descriptor_low(unsigned shared_address, int leading_bytes = kChunkBytes) {
  return (shared_address >> 4 & 0x3FFFu) | (static_cast<unsigned>(leading_bytes) >> 4 & 0x3FFFu) << 16;
}

/// What to add to the low word of a K-major operand of `rows` rows for column `k` (values of `value_bytes` bytes; 32
/// bytes a wgmma).
WARPLOOM_HD constexpr unsigned k_major_step(int rows, int k, int value_bytes = 2) {
  const int bytes = k * value_bytes;
  return static_cast<unsigned>(bytes / kPanelRowBytes * rows * kPanelRowBytes + bytes % kPanelRowBytes) / kChunkBytes;
}

/// What to add to the low word of a transposed 16-bit operand for row `k`, a multiple of 16.
WARPLOOM_HD constexpr unsigned transposed_step(int k) {
  return static_cast<unsigned>(k * kPanelRowBytes) / kChunkBytes;
}

}  // namespace warploom::geometry
