// R where no tensor map describes it, in the one-pass Hopper backward kernel: the loader copies the rows of a tile as
// they lie, each from the multiple of 16 bytes at or before its first key on, and a warp reads its keys from where each
// row begins.
#pragma once

#include "attention/bias_rows.h"
#include "attention/hopper_backward_shared.h"
#include "attention/visibility.h"

namespace warploom {

/// Starts the copy of a tile's rows into a stage; rows that do not exist become 0. One warp, whose lanes' copies end
/// apart. A copy may begin up to 14 bytes before the row, in the 16 bytes that hold its first value.
__device__ __forceinline__ void copy_bias_rows(const Shared& shared, int stage, const RowsPart& part, int lane) {
  constexpr int kChunkBytes = geometry::kChunkBytes, kChunks = kKeys * kBiasElementBytes / kChunkBytes;
  constexpr int kRowsAtOnce = 32 / kChunks;
  static_assert(!kConfig.bias_rows ||
                (kMap.bias_row_bytes == (kChunks + 1) * kChunkBytes && kRowsAtOnce * kChunks == 32));
  const auto copy = [&](int row, const char* begin, int chunk, int left) __attribute__((always_inline)) {
    const int shift = static_cast<int>(reinterpret_cast<unsigned long long>(begin) % kChunkBytes);
    const int bytes = geometry::max_of(0, geometry::min_of(left + shift, kChunkBytes));
    ptx::cp_async_16_part(shared.bias(stage) + row * kMap.bias_row_bytes + chunk * kChunkBytes,
                          begin - shift + chunk * kChunkBytes, part.rows.contains(row) ? bytes : 0);
  };
  const int own_bytes = geometry::min_of(part.columns, kKeys) * kBiasElementBytes;
  const int chunk = lane % kChunks;
  const char* begin = part.row(lane / kChunks);
#pragma unroll(kConfig.bias_float32 ? 1 : 4)  // more would take registers
  for (int row = lane / kChunks; row < kQueries; row += kRowsAtOnce) {
    copy(row, begin, chunk, own_bytes - chunk * kChunkBytes);
    begin += kRowsAtOnce * part.stride_bytes;
  }
  // What lies past the last whole chunk.
#pragma unroll 1
  for (int row = lane; row < kQueries; row += 32) copy(row, part.row(row), kChunks, own_bytes - kChunks * kChunkBytes);
  if (lane == 0) {
    shared.bias_shift(stage) = static_cast<int>(reinterpret_cast<unsigned long long>(part.row(0)) % kChunkBytes);
  }
}

}  // namespace warploom
