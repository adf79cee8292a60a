// The geometry as a kernel sees it: bits of 32 columns, and rows of masks computed on the device.
#include "attention/visibility.h"

using warploom::geometry::SequenceMask;

/// Bits of [intervals[2i], intervals[2i + 1]) among the 32 columns from first[i] on.
extern "C" __global__ void interval_bits(const int* intervals, const int* first, unsigned* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = warploom::interval_bits({intervals[2 * i], intervals[2 * i + 1]}, first[i]);
}

/// Every row of a mask, as a byte for each column. numbers: the members of SequenceMask in their order.
extern "C" __global__ void mask_rows(const int* numbers, unsigned char* out) {
  const SequenceMask mask{numbers[0], numbers[1], numbers[2], numbers[3],
                          numbers[4], numbers[5], numbers[6], numbers[7] != 0};
  for (int i = blockIdx.x; i < mask.seqlen_q; i += gridDim.x) {
    const warploom::SequenceRow row{visible_columns(mask, i + mask.offset())};
    for (int first = 32 * threadIdx.x; first < mask.seqlen_k; first += 32 * blockDim.x) {
      const unsigned bits = row.bits(first);
      for (int j = first; j < first + 32 && j < mask.seqlen_k; ++j) {
        out[static_cast<long long>(i) * mask.seqlen_k + j] = bits >> (j - first) & 1;
      }
    }
  }
}

/// The key tiles of 64 columns that a CTA walks for rows [64 * block, + 64), in their order, then -1.
extern "C" __global__ void walked_tiles(const int* numbers, int* out, int most) {
  __shared__ warploom::geometry::Ranges ranges;
  const SequenceMask mask{numbers[0], numbers[1], numbers[2], numbers[3],
                          numbers[4], numbers[5], numbers[6], numbers[7] != 0};
  const int first_row = 64 * static_cast<int>(blockIdx.x);
  warploom::SequenceWalk<64> walk(mask, {first_row, first_row + 64}, &ranges);
  int n = 0;
  for (; walk.tile() >= 0 && n < most - 1; walk.advance()) {
    if (threadIdx.x == 0) out[blockIdx.x * most + n] = walk.tile();
    ++n;
  }
  if (threadIdx.x == 0) out[blockIdx.x * most + n] = -1;
}

/// The same for an interval mask of `count` intervals a row.
extern "C" __global__ void walked_interval_tiles(const int* pairs, int count, int rows, int seqlen_k, int* out,
                                                 int most) {
  __shared__ int scratch[4];
  const int first_row = 64 * static_cast<int>(blockIdx.x);
  const int here = rows - first_row < 64 ? rows - first_row : 64;
  warploom::IntervalWalk<64, 128> walk(pairs + 2ll * first_row * count, count, here, seqlen_k, scratch);
  int n = 0;
  for (; walk.tile() >= 0 && n < most - 1; walk.advance()) {
    if (threadIdx.x == 0) out[blockIdx.x * most + n] = walk.tile();
    ++n;
  }
  if (threadIdx.x == 0) out[blockIdx.x * most + n] = -1;
}
