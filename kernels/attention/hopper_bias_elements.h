// A stored bias in the Hopper backward kernels of wide heads, whose tiles leave it no shared memory: a thread reads its
// elements of R from memory while the products run that they are added to.
#pragma once

#include "attention/backward_score.h"
#include "attention/bias_rows.h"
#include "attention/visibility.h"
#include "ptx/streaming_load.h"

namespace warploom {

/// Whether some R of the warp is -inf, `least` being a lane's smallest.
__device__ __forceinline__ bool hides_some(float least) {
  return __any_sync(kAllLanes, least == ptx::minus_infinity());
}

/// Brings a part of R to L2, long before threads read it, by a warp.
template <int Rows, int Columns>
__device__ __forceinline__ void prefetch_bias(const RowsPart& part, int lane) {
  constexpr int kBytes = 2;
  const int last = geometry::min_of(part.columns, Columns) - 1;
  if (last < 0) return;
#pragma unroll 1
  for (int row = lane; row < Rows; row += 32) {
    if (!part.rows.contains(row)) continue;
    ptx::prefetch_to_l2(part.row(row));
    ptx::prefetch_to_l2(part.row(row) + last * kBytes);
  }
}

/// R of half of a thread's scores with keys along their rows, of Blocks blocks of 8 queries: value 2 n + j is that of
/// query 8 n + 2 (lane mod 4) + j and one of the thread's two keys, lane / 4 and 8 further. (The second half's sectors
/// of memory are the first one's.)
template <typename Element, int Blocks>
struct TransposedBias {
  uint32 values[2 * Blocks];

  /// part: from the tile's first query and key on. thread: of the warpgroup.
  __device__ __forceinline__ void read(const RowsPart& part, int half, uint32 thread) {
    constexpr int kBytes = 2;
    const int key = static_cast<int>(thread / 32 * 16 + thread % 32 / 4) + 8 * half;
#pragma unroll
    for (int n = 0; n < Blocks; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int query = n * 8 + static_cast<int>(thread % 4) * 2 + j;
        const bool exists = part.rows.contains(query) && key < part.columns;
        values[2 * n + j] = ptx::load_constant_2(part.row(query) + key * kBytes, exists);
      }
    }
  }

  /// Adds it to those scores, of s[n][2 half + j]. Returns whether some R of the warp is -inf; then `hidden` gets their
  /// bits, 4 n + 2 half + j.
  __device__ __forceinline__ bool add_to(float (&s)[4 * Blocks], int half, BiasedScale scale, uint32& hidden) const {
    float least = 0;
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) {
      const float r = ptx::unpack<Element>(values[i]).x;
      float& score = s[i / 2 * 4 + 2 * half + i % 2];
      least = fminf(least, r);
      score = scale.of(score, r);
    }
    if (!hides_some(least)) return false;
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) {
      if (ptx::unpack<Element>(values[i]).x == ptx::minus_infinity()) hidden |= 1u << (i / 2 * 4 + 2 * half + i % 2);
    }
    return true;
  }
};

/// R of a thread's scores with query rows along their rows, of Blocks blocks of 8 keys: pair 2 n + half is that of row
/// lane / 4 + 8 half and keys 8 n + 2 (lane mod 4) and the next.
template <typename Element, int Blocks>
struct BiasPairs {
  uint32 values[2 * Blocks];

  /// part: from the item's first row and the sequence's first key on; aligned: pairs of neighbours that begin at even
  /// keys are four bytes. row: the thread's first one.
  __device__ __forceinline__ void read(const RowsPart& part, int row, int first_key) {
    constexpr int kBytes = 2;
    const int key = first_key + static_cast<int>(threadIdx.x) % 4 * 2, left = part.columns - key;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const char* const at = part.row(row + 8 * half) + key * kBytes;
      const int exist = part.rows.contains(row + 8 * half) ? left : 0;
      if (part.aligned) {
#pragma unroll
        for (int n = 0; n < Blocks; ++n)
          values[2 * n + half] = ptx::load_constant_4(at + 8 * n * kBytes, exist > 8 * n);
      } else {
#pragma unroll
        for (int n = 0; n < Blocks; ++n) {
          const uint32 low = ptx::load_constant_2(at + 8 * n * kBytes, exist > 8 * n);
          values[2 * n + half] = low | ptx::load_constant_2(at + (8 * n + 1) * kBytes, exist > 8 * n + 1) << 16;
        }
      }
    }
  }

  /// Adds it to `s`, the same scores; of_score: what these lack. Returns the bits of those whose R is -inf.
  __device__ __forceinline__ uint32 add_to(float (&s)[4 * Blocks], BiasedScale scale) const {
    uint32 least = 0;
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) {
      const float2 r = ptx::unpack<Element>(values[i]);
      least = ptx::min_pair<Element>(least, values[i]);
      s[2 * i] = scale.of(s[2 * i], r.x);
      s[2 * i + 1] = scale.of(s[2 * i + 1], r.y);
    }
    const float2 smallest = ptx::unpack<Element>(least);
    if (!hides_some(fminf(smallest.x, smallest.y))) return 0;
    uint32 hidden = 0;
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) {
      const float2 r = ptx::unpack<Element>(values[i]);
      if (r.x == ptx::minus_infinity()) hidden |= 1u << (2 * i);
      if (r.y == ptx::minus_infinity()) hidden |= 2u << (2 * i);
    }
    return hidden;
  }
};

}  // namespace warploom
