// One sequence of a call: where its rows are, how long it is, what its rows see.
#pragma once

#include <cstdint>

#include "geometry/mask.h"
#include "warploom/warploom.h"

namespace warploom {

/// One sequence of the batch. Rows are counted over the whole tensor (dense batches flattened: b * max_seqlen + i).
struct Sequence {
  int64_t first_q = 0;  ///< the slot's first row in q, out, LSE, divisor_rows and intervals
  int64_t first_k = 0;  ///< the slot's first row in k, v and timestamps
  int64_t slot_q = 0;   ///< rows of the slot, used or not
  int64_t slot_k = 0;
  geometry::SequenceMask mask;  ///< lengths (used rows) and visibility

  int seqlen_q() const { return mask.seqlen_q; }
  int seqlen_k() const { return mask.seqlen_k; }
};

inline bool is_dense(const warploom_attention& call) {
  return call.cu_seqlens_q == nullptr;
}
/// Whether the mask is a list of intervals for each row.
inline bool has_interval_mask(const warploom_attention& call) {
  return call.interval_heads != 0;
}

/// Whether its intervals are computed from a row's place (expression/functions.h).
inline bool has_mask_function(const warploom_attention& call) {
  return call.mask_function.text != nullptr;
}
/// Whether P is a user's function of the scores instead of silu.
inline bool has_score_function(const warploom_attention& call) {
  return call.score.text != nullptr;
}

/// Entry b of cu_seqlens_q or cu_seqlens_k. Host-readable memory only, as everything below.
int64_t cumulative_length_q(const warploom_attention& call, int64_t b);
int64_t cumulative_length_k(const warploom_attention& call, int64_t b);

/// Sequence b. The call has been validated with its values.
Sequence sequence_at(const warploom_attention& call, int64_t b);

/// The longest slot, from cu_seqlens (jagged) or the shape (dense); 0 for an empty batch.
int64_t longest_slot_q(const warploom_attention& call);
int64_t longest_slot_k(const warploom_attention& call);

/// The tensor's element (sequence, row i, head n, 0), in elements from data.
inline int64_t row_offset(const warploom_attention& call, const warploom_tensor& tensor, int64_t b, int64_t first_row,
                          int64_t i, int64_t n) {
  const int64_t row =
      is_dense(call) ? b * tensor.batch_stride + i * tensor.row_stride : (first_row + i) * tensor.row_stride;
  return row + n * tensor.head_stride;
}

/// alpha as given, else 1/sqrt(head_dim).
double effective_alpha(const warploom_attention& call);
/// max_seqlen_q as given, else the longest slot.
int64_t effective_max_seqlen_q(const warploom_attention& call);
int64_t effective_max_seqlen_k(const warploom_attention& call);
/// The scalar divisor of an HSTU call without divisor_rows: as given, else max_seqlen_q (1 for an empty batch).
double effective_divisor(const warploom_attention& call);

/// Bytes of one element of a WARPLOOM_* dtype.
int dtype_bytes(uint32_t dtype);
const char* dtype_name(uint32_t dtype);

/// Elements from one row of a packed bias to the next: the slot's keys rounded up to 16 bytes of the bias's own dtype.
int64_t packed_pitch(int64_t slot_keys, uint32_t dtype);
/// WARPLOOM_ROWS_KEY or WARPLOOM_ROWS_QUERY, AUTO decided by the number of rows (KEY wins when both fit).
uint32_t effective_bias_rows(const warploom_attention& call);

}  // namespace warploom
