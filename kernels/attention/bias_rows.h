// Dense and packed biases: where their rows lie, and the provider that hands them out (bias.h has the interface).
#pragma once

#include "attention/work.h"
#include "ptx/ldmatrix.h"
#include "ptx/math.h"
#include "ptx/shared_memory.h"
#include "ptx/types.h"

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

}  // namespace warploom
