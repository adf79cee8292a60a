// What one CTA works on: a tile of rows of one head of one sequence, found from the call and the CTA's number.
#pragma once

#include "attention/call.h"
#include "geometry/lengths.h"
#include "geometry/mask.h"
#include "geometry/schedule.h"
#include "tile/shared_tile.h"

namespace warploom {

/// It stays in shared memory: held in registers all through a main loop it would make them spill.
struct Work {
  geometry::SequenceMask mask;
  int sequence, head;
  long long first_row;         // of the tile, in the sequence
  long long slot_q, slot_k;    // rows of the sequence to write, used or not
  long long first_q, first_k;  // its first rows, counted over the whole batch (divisor, intervals, LSE; timestamps)
  long long tensor_q,
      tensor_k;  // its first rows in the tensors; 0 in a dense batch, whose sequences are a stride apart
};
inline constexpr int kWorkBytes = 96;
static_assert(sizeof(Work) == kWorkBytes);

/// The first tile of a head of sequence b; the sequence after the last one has the rows that belong to nobody.
__device__ __forceinline__ Work work_of_sequence(const AttentionCall& call, int b, int head) {
  using geometry::per_sequence;
  const auto cumulative = [](const void* values, bool wide, int n) {
    return geometry::cumulative<long long>(values, wide, n);
  };
  Work work{};
  work.sequence = b;
  work.head = head;
  // All loads before the first use: they are on the way together.
  if (call.cu_seqlens_q == nullptr) {
    work.slot_q = call.seqlen_q;
    work.slot_k = call.seqlen_k;
    work.first_q = b * work.slot_q;
    work.first_k = b * work.slot_k;
  } else {
    const int next = geometry::min_of(b + 1, call.sequences);
    const long long end_q = cumulative(call.cu_seqlens_q, call.cu_seqlens_q_64, next);
    const long long end_k = cumulative(call.cu_seqlens_k, call.cu_seqlens_k_64, next);
    work.first_q = work.tensor_q = cumulative(call.cu_seqlens_q, call.cu_seqlens_q_64, b);
    work.first_k = work.tensor_k = cumulative(call.cu_seqlens_k, call.cu_seqlens_k_64, b);
    if (b == call.sequences) {  // the rows that belong to nobody: of a sequence without used rows
      work.slot_q = call.total_q - work.first_q;
      work.slot_k = call.total_k - work.first_k;
      return work;
    }
    work.slot_q = end_q - work.first_q;
    work.slot_k = end_k - work.first_k;
  }
  const int slot_q = static_cast<int>(work.slot_q), slot_k = static_cast<int>(work.slot_k);
  geometry::SequenceMask& mask = work.mask;
  mask.seqlen_q = per_sequence(call.seqused_q, call.seqused_q_all, b, slot_q, slot_q);
  mask.seqlen_k = per_sequence(call.seqused_k, call.seqused_k_all, b, slot_k, slot_k);
  mask.left = call.left;
  mask.right = call.right;
  mask.num_contexts = per_sequence(call.num_contexts, call.num_contexts_all, b, mask.seqlen_k, 0);
  mask.num_targets = per_sequence(call.num_targets, call.num_targets_all, b, mask.seqlen_k, 0);
  mask.target_group_size = call.target_group_size;
  mask.target_window_from_history_end = call.target_window_from_history_end;
  return work;
}

/// Item `index` of the schedule, in tiles of tile_rows rows (of q or of k, as the kernel counts). A sequence that
/// another kernel computes has no rows here.
__device__ __forceinline__ Work work_of(const AttentionCall& call, long long index, int tile_rows) {
  const geometry::WorkItem item = call.schedule.item(index);
  Work work = work_of_sequence(call, item.sequence, item.head);
  work.first_row = static_cast<long long>(item.query_tile) * tile_rows;
  if (work.slot_q <= call.queries_elsewhere && item.sequence < call.sequences) work.slot_q = 0;
  return work;
}

/// The rows of a tensor of 16-bit values from one row and head of a sequence on.
__device__ __forceinline__ tile::GlobalRows rows_of(const Tensor& tensor, int sequence, long long row, int head) {
  constexpr int kElementBytes = 2;
  const long long offset = sequence * tensor.batch_stride + row * tensor.row_stride + head * tensor.head_stride;
  return {static_cast<char*>(tensor.data) + offset * kElementBytes, tensor.row_stride * kElementBytes};
}

}  // namespace warploom
