// Dense and packed biases for the backward pass, whose scores stand with keys along their rows (bias.h has the
// interface for the other way round), and where their gradients go.
#pragma once

#include "attention/bias_rows.h"
#include "ptx/registers.h"

namespace warploom {

/// R of a warp's keys and its part of each query tile. A warp copies for itself, as in the forward pass, and reads
/// transposed. The same shared memory holds dR on its way out: a lane may stage it once the warp has read R.
template <typename Element, bool Float32, int Queries, int Keys>
class KeyRowsBias {
 public:
  using Tile = RowsTile<Element, Float32, Queries, Keys>;
  static constexpr int kBytes = Tile::kBytes;  ///< of shared memory, a warp, aligned to 16

  /// Starts the copy of a part (Queries query rows, Keys keys), without closing its group.
  static __device__ __forceinline__ void start(uint32 tile, const RowsPart& part) {
    __syncwarp();  // every lane has read the tile before
    Tile::start(tile, part, ptx::lane_id());
  }

  /// function(m, n, e, r) for every element e of the blocks (16 keys m, 8 queries n); whether one of the r may be -inf.
  template <typename Function>
  static __device__ __forceinline__ bool for_each(uint32 tile, const RowsPart& part, Function function) {
    const int lane = ptx::lane_id();
    float least = 0;
    if (Float32 || !part.aligned) {
#pragma unroll
      for (int n = 0; n < Queries / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int query = 8 * n + lane % 4 * 2 + e;
          const uint32 first = tile + query * Tile::kPitch + part.shift(query) + lane / 4 * Tile::kElementBytes;
#pragma unroll
          for (int key8 = 0; key8 < Keys / 8; ++key8) {
            const float r = Tile::element(first, 8 * key8);
            least = fminf(least, r);
            function(key8 / 2, n, key8 % 2 * 2 + e, r);
          }
        }
      }
    } else {
      uint32 least_pair = 0;
      const uint32 first =
          tile + geometry::ldmatrix_row(lane) * Tile::kPitch + geometry::ldmatrix_chunk(lane) * geometry::kChunkBytes;
#pragma unroll
      for (int n = 0; n < Queries / 8; n += 2) {
#pragma unroll
        for (int m = 0; m < Keys / 16; ++m) {
          uint32 block[4];  // transposed: queries n and n + 1 of keys 0..7, then of keys 8..15
          ptx::ldmatrix_x4_trans(block, first + n * 8 * Tile::kPitch + m * 2 * geometry::kChunkBytes);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 r = ptx::unpack<Element>(block[i]);
            least_pair = ptx::min_pair<Element>(least_pair, block[i]);
            function(m, n + i % 2, i / 2 * 2, r.x);
            function(m, n + i % 2, i / 2 * 2 + 1, r.y);
          }
        }
      }
      const float2 both = ptx::unpack<Element>(least_pair);
      least = fminf(both.x, both.y);
    }
    return __any_sync(0xffffffffu, least == ptx::minus_infinity());
  }

  /// Writes dR = factor * ds to `part`, the gradient's. What R was copied to serves as the way out.
  template <int M, int N>
  static __device__ __forceinline__ void write(uint32 tile, const RowsPart& part, const float (&ds)[M][N][4],
                                               float factor) {
    static_assert(M * 16 == Keys && N * 8 == Queries);
    if (Float32 || !part.aligned) {
      write_elements(part, ds, factor);
      return;
    }
    const int lane = ptx::lane_id();
    __syncwarp();  // every lane has read R
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32 first = tile + (8 * n + lane % 4 * 2 + e) * Tile::kPitch + lane / 4 * Tile::kElementBytes;
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const uint32 pair = ptx::pack<Element>(ds[m][n][e] * factor, ds[m][n][2 + e] * factor);  // 8 keys apart
          ptx::store_shared_2(first + 32 * m, static_cast<unsigned short>(pair));
          ptx::store_shared_2(first + 32 * m + 16, static_cast<unsigned short>(pair >> 16));
        }
      }
    }
    __syncwarp();
    Tile::store(tile, part, lane);
  }

 private:
  /// Straight from the registers: eight lanes hold neighbouring keys of a row, in float32 a whole sector of memory.
  template <int M, int N>
  static __device__ __forceinline__ void write_elements(const RowsPart& part, const float (&ds)[M][N][4],
                                                        float factor) {
    const int lane = ptx::lane_id();
    const int keys = part.columns - lane / 4;
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int query = 8 * n + lane % 4 * 2 + e;
        if (!part.rows.contains(query)) continue;
        char* const row = part.row(query) + lane / 4 * Tile::kElementBytes;
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const float low = ds[m][n][e] * factor, high = ds[m][n][2 + e] * factor;
          if constexpr (Float32) {
            if (16 * m < keys) *reinterpret_cast<float*>(row + 64 * m) = low;
            if (16 * m + 8 < keys) *reinterpret_cast<float*>(row + 64 * m + 32) = high;
          } else {
            const uint32 pair = ptx::pack<Element>(low, high);
            if (16 * m < keys) *reinterpret_cast<unsigned short*>(row + 32 * m) = static_cast<unsigned short>(pair);
            if (16 * m + 8 < keys) {
              *reinterpret_cast<unsigned short*>(row + 32 * m + 16) = static_cast<unsigned short>(pair >> 16);
            }
          }
        }
      }
    }
  }
};

/// The 16 bytes at `chunk` of row r become 0, as far as they are of the row: chunks are counted from the multiple of 16
/// at or before its first byte.
__device__ __forceinline__ void clear_chunk(const RowsPart& part, int r, int chunk, int row_bytes) {
  const int offset = chunk * geometry::kChunkBytes - part.shift(r);
  char* const to = part.row(r) + offset;
  if (offset >= 0 && offset + geometry::kChunkBytes <= row_bytes) {
    *reinterpret_cast<uint4*>(to) = uint4{0, 0, 0, 0};
    return;
  }
  for (int byte = 0; byte < geometry::kChunkBytes; byte += 2) {
    if (offset + byte >= 0 && offset + byte < row_bytes) *reinterpret_cast<unsigned short*>(to + byte) = 0;
  }
}

}  // namespace warploom
