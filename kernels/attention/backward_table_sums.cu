// After the backward pass: the gradients of a bucketed bias's tables, from the sums of its block diagonals. A CTA an
// entry; the order of every sum is fixed.
//
// The text before this file defines warploom::kConfig, a BackwardTableSumsConfig.
#include "attention/backward_bias_config.h"
#include "attention/work.h"

namespace warploom {

constexpr int kTile = kConfig.tile;

/// A thread's share of an entry: of its records of one sequence, those whose number mod kTableSumsThreads is its own,
/// which it takes from all heads in [head, end_head).
struct Entry {
  bool time;
  int index;
  int head, end_head;
};

__device__ __forceinline__ float share_of(const BackwardParams& p, const Entry& entry) {
  const AttentionCall& call = p.call;
  const TableRecord layout = table_record(kTile, call.bias.num_times);
  const int heads = call.schedule.heads, last = call.bias.num_positions - 1;
  float total = 0;
  int turn = 0;
  for (int b = 0; b < call.sequences; ++b) {
    const Work work = work_of_sequence(call, b, 0);
    const int query_tiles = (work.mask.seqlen_q + kTile - 1) / kTile;
    const int key_tiles = (work.mask.seqlen_k + kTile - 1) / kTile;
    if (query_tiles == 0 || key_tiles == 0) continue;
    int first = 0, end = query_tiles + key_tiles - 1;
    // The block diagonals that an entry between the table's ends can lie in: nearest of block diagonal k is
    // (k + 2 - key_tiles) * kTile - 1 + offset, and x = nearest - index in [0, 2 kTile - 2].
    const bool inner = !entry.time && entry.index > 0 && entry.index < last;
    const int moved = entry.index - work.mask.offset() + 1 + (key_tiles - 2) * kTile;
    if (inner) {
      first = geometry::max_of(first, moved < 0 ? 0 : (moved + kTile - 1) / kTile);
      end = geometry::min_of(end, moved + 2 * kTile - 2 < 0 ? 0 : (moved + 2 * kTile - 2) / kTile + 1);
    }
    for (int diagonal = first; diagonal < end; ++diagonal) {
      const int all = (entry.end_head - entry.head) * kDiagonalParts;
      for (int n = 0; n < all; ++n, ++turn) {
        if (turn % kTableSumsThreads != static_cast<int>(threadIdx.x)) continue;
        const int part = n % kDiagonalParts, head = entry.head + n / kDiagonalParts;
        const float* record =
            p.bias_sums.records +
            layout.floats * table_record_index(work.first_q, work.first_k, b, diagonal, part, head, kTile, heads);
        const int at = entry.time         ? layout.times + entry.index
                       : entry.index == 0 ? layout.first
                       : inner            ? layout.diagonals + diagonal * kTile - moved
                                          : layout.last;
        total += record[at];
      }
    }
  }
  return total;
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kTableSumsThreads, 8)
    backward_table_sums(const __grid_constant__ warploom::BackwardParams params) {
  using namespace warploom;
  __shared__ float parts[kTableSumsThreads / 32];
  const BiasSums& sums = params.bias_sums;
  const int positions = sums.position_gradient == nullptr ? 0 : sums.position_heads * params.call.bias.num_positions;
  const int place = static_cast<int>(blockIdx.x);
  const bool time = place >= positions;
  const int entries = time ? params.call.bias.num_times : params.call.bias.num_positions;
  const int head = (time ? place - positions : place) / entries, index = (time ? place - positions : place) % entries;
  const bool shared_heads = (time ? sums.time_heads : sums.position_heads) == 1;
  const Entry entry{time, index, head, shared_heads ? params.call.schedule.heads : head + 1};
  float total = share_of(params, entry);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x != 0) return;
  total = 0;
  for (const float part : parts) total += part;
  float* const gradient = time ? sums.time_gradient : sums.position_gradient;
  gradient[static_cast<long long>(head) * entries + index] = total * params.bias_factor;
}
