// Dense and packed biases: where their rows lie, and the provider that hands them out (bias.h has the interface).
#pragma once

#include "attention/work.h"
#include "ptx/ldmatrix.h"
#include "ptx/math.h"
#include "ptx/shared_memory.h"
#include "ptx/types.h"

namespace warploom {

using ptx::uint32;

/// Where the rows of a dense or packed bias, or of its gradient, lie for one sequence and head. Row i counts query
/// rows.
struct BiasRows {
  char* data;                   // element 0 of row 0
  long long stride_bytes;       // from row to row
  long long head_stride_bytes;  // to the same row of the next head
  int first_row, end_row;       // the rows of it that query rows have
  int columns;                  // elements of a row that there are
  bool aligned;                 // every row starts at a multiple of 16 bytes
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

/// Elements from row to row of a packed bias.
__device__ __forceinline__ long long packed_pitch(const Work& work, int element_bytes) {
  const int chunk = 16 / element_bytes;
  return (work.slot_k + chunk - 1) / chunk * chunk;
}
/// Rows of a dense or packed bias that the sequence has.
__device__ __forceinline__ int rows_of_bias(const BiasCall& bias, const Work& work, long long packed_first,
                                            int element_bytes) {
  long long rows = bias.num_rows;
  if (bias.packed) {
    rows = bias.query_rows ? work.slot_q : work.slot_k;
    const long long pitch = packed_pitch(work, element_bytes);
    if (pitch > 0) rows = min(rows, (bias.num_columns - packed_first) / pitch);
  }
  return rows < 0 ? 0 : static_cast<int>(rows);
}
/// The row of it that query row 0 has.
__device__ __forceinline__ int bias_row_of_query(const BiasCall& bias, const Work& work) {
  return bias.query_rows ? 0 : work.mask.offset();
}

/// packed_first: where the sequence begins in a packed bias, in elements. rows: rows_of_bias.
__device__ __forceinline__ BiasRows bias_rows(const BiasCall& bias, const Work& work, int head, long long packed_first,
                                              int rows, int element_bytes) {
  long long first = head * bias.head_stride, stride;
  BiasRows result;
  result.aligned = bias.aligned;
  if (bias.packed) {
    stride = packed_pitch(work, element_bytes);
    first += packed_first;
    result.columns = static_cast<int>(work.slot_k);
  } else {
    first += work.sequence * bias.batch_stride;
    stride = bias.row_stride;
    result.columns = static_cast<int>(bias.num_columns);
  }
  const int shift = bias_row_of_query(bias, work);
  result.data = static_cast<char*>(bias.values) + (first + shift * stride) * element_bytes;
  result.stride_bytes = stride * element_bytes;
  result.head_stride_bytes = bias.head_stride * element_bytes;
  result.first_row = geometry::max_of(0, -shift);
  result.end_row = geometry::min_of(rows - shift, work.mask.seqlen_q);
  return result;
}
__device__ __forceinline__ BiasRows bias_rows(const BiasCall& bias, const Work& work, int head, long long packed_first,
                                              int element_bytes) {
  const int rows = rows_of_bias(bias, work, packed_first, element_bytes);
  return bias_rows(bias, work, head, packed_first, rows, element_bytes);
}

/// A part of a dense or packed bias in memory, as a tile holds it.
struct RowsPart {
  char* data;               // its first row and column
  long long stride_bytes;   // from row to row
  geometry::Interval rows;  // those of it that exist
  int columns;              // that there are from its first one on
  bool starts_rows;         // its first column is the first of a row
  bool aligned;

  __device__ __forceinline__ static RowsPart of(const BiasRows& rows, int head, long long first_row, int first_column,
                                                int element_bytes) {
    const int first = static_cast<int>(first_row);
    return {rows.data + head * rows.head_stride_bytes + first_row * rows.stride_bytes +
                static_cast<long long>(first_column) * element_bytes,
            rows.stride_bytes,
            {rows.first_row - first, rows.end_row - first},
            rows.columns - first_column,
            first_column == 0,
            rows.aligned};
  }
  __device__ __forceinline__ char* row(int r) const { return data + r * stride_bytes; }
  /// How many bytes after a multiple of 16 row r begins.
  __device__ __forceinline__ int shift(int r) const {
    return aligned ? 0 : static_cast<int>(reinterpret_cast<unsigned long long>(row(r))) & 15;
  }
};

/// A warp's own tile of R in shared memory: Rows query rows of Columns keys. Nobody else has to wait for it.
///
/// A row in shared memory has one 16-byte chunk more than the tile. That makes the number of chunks odd, so that the
/// eight rows of an ldmatrix phase meet in no bank, and it holds the whole chunks of a row that starts between two of
/// them: such a row is copied as it lies and shifted when it is read.
template <typename Element, bool Float32, int Rows, int Columns>
struct RowsTile {
  static constexpr int kElementBytes = Float32 ? 4 : 2;
  static constexpr int kChunks = Columns * kElementBytes / geometry::kChunkBytes;
  static constexpr int kPitch = (kChunks + 1) * geometry::kChunkBytes;
  static constexpr int kBytes = Rows * kPitch;  ///< of shared memory, aligned to 16
  static_assert(kChunks % 2 == 0 && kChunks <= 32);

  /// Starts the copy of a part, by a warp. Its lanes must have read what the tile held.
  static __device__ __forceinline__ void start(uint32 tile, const RowsPart& part, int lane) {
    if (part.aligned) {
      constexpr int kRowsAtOnce = 32 / kChunks;
      static_assert(Rows % kRowsAtOnce == 0);
      const int chunk = lane % kChunks;
      const int left = part.columns * kElementBytes - chunk * geometry::kChunkBytes;
      const int bytes = geometry::max_of(0, geometry::min_of(left, geometry::kChunkBytes));
#pragma unroll
      for (int first = 0; first < Rows; first += kRowsAtOnce) {
        const int r = first + lane / kChunks;
        ptx::cp_async_16_part(tile + r * kPitch + chunk * geometry::kChunkBytes,
                              part.row(r) + chunk * geometry::kChunkBytes, part.rows.contains(r) ? bytes : 0);
      }
    } else if (!part.starts_rows) {
      start_chunks<true>(tile, part, lane);
    } else {
#pragma unroll 1
      for (int i = lane; i < Rows * (kChunks + 1); i += 32) {
        start_shifted_chunk(tile, part, i / (kChunks + 1), i % (kChunks + 1));
      }
    }
  }

  /// Starts the copy of whole chunks of memory around a part's rows, each row's by lanes of their own: up to the row's
  /// end, and from the multiple of 16 bytes at or before its first one. Shifted: rows may begin between two of those.
  template <bool Shifted>
  static __device__ __forceinline__ void start_chunks(uint32 tile, const RowsPart& part, int lane) {
    constexpr int kCopied = kChunks + (Shifted ? 1 : 0);
    constexpr int kLanes = kCopied <= 4 ? 4 : kCopied <= 8 ? 8 : kCopied <= 16 ? 16 : 32, kRowsAtOnce = 32 / kLanes;
    static_assert(Rows % kRowsAtOnce == 0);
    const int chunk = lane % kLanes;
    if (chunk >= kCopied) return;
    const char* row = part.row(lane / kLanes) + chunk * geometry::kChunkBytes;
    uint32 to = tile + lane / kLanes * kPitch + chunk * geometry::kChunkBytes;
    const int left = part.columns * kElementBytes - chunk * geometry::kChunkBytes;
#pragma unroll 2
    for (int r = lane / kLanes; r < Rows; r += kRowsAtOnce) {
      const int shift = Shifted ? static_cast<int>(reinterpret_cast<unsigned long long>(row)) & 15 : 0;
      const int bytes = geometry::max_of(0, geometry::min_of(left + shift, geometry::kChunkBytes));
      ptx::cp_async_16_part(to, row - shift, part.rows.contains(r) ? bytes : 0);
      row += kRowsAtOnce * part.stride_bytes;
      to += kRowsAtOnce * kPitch;
    }
  }

  /// Where rows begin: copies what row r has of the 16 bytes at `chunk`, counted from the multiple of 16 at or before
  /// its first byte. Only the row's own bytes are read: a chunk that begins before the row goes element by element.
  static __device__ __forceinline__ void start_shifted_chunk(uint32 tile, const RowsPart& part, int r, int chunk) {
    const uint32 to = tile + r * kPitch + chunk * geometry::kChunkBytes;
    const int offset = chunk * geometry::kChunkBytes - part.shift(r);
    const char* from = part.row(r) + offset;
    const bool exists = part.rows.contains(r);
    if (offset >= 0) {
      const int bytes = part.columns * kElementBytes - offset;
      ptx::cp_async_16_part(to, from, exists ? geometry::max_of(0, geometry::min_of(bytes, geometry::kChunkBytes)) : 0);
      return;
    }
    for (int byte = 0; byte < geometry::kChunkBytes; byte += kElementBytes) {
      const bool read = exists && offset + byte >= 0 && offset + byte < part.columns * kElementBytes;
      if constexpr (Float32) {
        ptx::store_shared_4(to + byte, read ? *reinterpret_cast<const uint32*>(from + byte) : 0);
      } else {
        ptx::store_shared_2(to + byte, read ? *reinterpret_cast<const unsigned short*>(from + byte) : 0);
      }
    }
  }

  /// One element as it was copied. first: where its row begins.
  static __device__ __forceinline__ float element(uint32 first, int column) {
    if constexpr (Float32) return __uint_as_float(ptx::load_shared_4(first + column * kElementBytes));
    return ptx::unpack<Element>(ptx::load_shared_2(first + column * kElementBytes)).x;
  }

  /// Rounds a value into the tile.
  static __device__ __forceinline__ void put(uint32 to, float value) {
    if constexpr (Float32) {
      ptx::store_shared_4(to, __float_as_uint(value));
    } else {
      ptx::store_shared_2(to, static_cast<unsigned short>(ptx::pack<Element>(value, 0.0f)));
    }
  }

  /// Writes a staged tile to memory, 16 bytes a lane but for the ends of rows between two multiples of 16 bytes.
  static __device__ __forceinline__ void store(uint32 tile, const RowsPart& part, int lane) {
    const int row_bytes = geometry::min_of(part.columns, Columns) * kElementBytes;
    if (part.aligned && part.columns >= Columns) {
#pragma unroll
      for (int i = 0; i < Rows * kChunks / 32; ++i) {
        const int r = (i * 32 + lane) / kChunks, offset = lane % kChunks * geometry::kChunkBytes;
        const uint4 values = ptx::load_shared_16(tile + r * kPitch + offset);
        if (part.rows.contains(r)) *reinterpret_cast<uint4*>(part.row(r) + offset) = values;
      }
    } else {
#pragma unroll 1
      for (int i = lane; i < Rows * (kChunks + 1); i += 32) {
        store_chunk(tile, part, i / (kChunks + 1), i % (kChunks + 1), row_bytes);
      }
    }
  }

  static __device__ __forceinline__ void store_chunk(uint32 tile, const RowsPart& part, int r, int chunk,
                                                     int row_bytes) {
    if (!part.rows.contains(r)) return;
    const uint32 from = tile + r * kPitch + chunk * geometry::kChunkBytes;
    const int offset = chunk * geometry::kChunkBytes - part.shift(r);  // in the row
    char* const to = part.row(r) + offset;
    if (offset >= 0 && offset + geometry::kChunkBytes <= row_bytes) {
      *reinterpret_cast<uint4*>(to) = ptx::load_shared_16(from);
      return;
    }
#pragma unroll
    for (int byte = 0; byte < geometry::kChunkBytes; byte += kElementBytes) {
      if (offset + byte < 0 || offset + byte >= row_bytes) continue;
      if constexpr (Float32) {
        *reinterpret_cast<uint32*>(to + byte) = ptx::load_shared_4(from + byte);
      } else {
        *reinterpret_cast<unsigned short*>(to + byte) = static_cast<unsigned short>(ptx::load_shared_2(from + byte));
      }
    }
  }
};

/// Dense and packed: each warp copies the rows of its own scores, so that only the warp itself has to wait for them.
template <typename Element, bool Float32, int TileRows, int TileColumns, int WarpRows>
class RowsBias {
 public:
  using Tile = RowsTile<Element, Float32, WarpRows, TileColumns>;
  /// Of shared memory, aligned to 16.
  static constexpr int kBytes = TileRows / WarpRows * Tile::kBytes;

  /// work, rows: in shared memory. tile: kBytes of shared memory.
  __device__ __forceinline__ RowsBias(const AttentionCall&, const Work& work, const BiasRows& rows, unsigned char* tile)
      : work_(work), rows_(rows), tile_(ptx::shared_address(tile)) {}

  __device__ __forceinline__ void start(int first_column) {
    __syncwarp();  // every lane has read the tile before
    first_column_ = first_column;
    Tile::start(own_tile(), part(), static_cast<int>(threadIdx.x % 32));
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
      const uint32 first = own_tile() + geometry::ldmatrix_row(lane) * Tile::kPitch +
                           geometry::ldmatrix_chunk(lane) * geometry::kChunkBytes;
#pragma unroll
      for (int pair = 0; pair < TileColumns / 16; ++pair) {
#pragma unroll
        for (int m = 0; m < Blocks; ++m) {
          uint32 block[4];  // A's order, which is that of two accumulators' halves
          ptx::ldmatrix_x4(block, first + m * 16 * Tile::kPitch + pair * 2 * geometry::kChunkBytes);
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
  __device__ __forceinline__ uint32 own_tile() const { return tile_ + threadIdx.x / 32 * Tile::kBytes; }
  __device__ __forceinline__ RowsPart part() const {
    return RowsPart::of(rows_, 0, work_.first_row + threadIdx.x / 32 * WarpRows, first_column_, Tile::kElementBytes);
  }

  /// Element by element, each row from where it begins.
  template <int Blocks, typename Function>
  __device__ __forceinline__ void for_each_shifted(float& least, Function function) const {
    const int lane = threadIdx.x % 32;
    uint32 first[2 * Blocks];
#pragma unroll
    for (int rows8 = 0; rows8 < 2 * Blocks; ++rows8) {
      const int r = rows8 * 8 + lane / 4;
      first[rows8] = own_tile() + r * Tile::kPitch + part().shift(r) + lane % 4 * 2 * Tile::kElementBytes;
    }
#pragma unroll
    for (int n = 0; n < TileColumns / 8; ++n) {
#pragma unroll
      for (int rows8 = 0; rows8 < 2 * Blocks; ++rows8) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float r = Tile::element(first[rows8], 8 * n + e);
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
