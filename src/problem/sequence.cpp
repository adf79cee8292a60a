#include "problem/sequence.h"

#include <algorithm>
#include <cmath>

#include "geometry/lengths.h"

namespace warploom {
namespace {

using geometry::per_sequence;

int64_t cumulative_length(const void* values, uint32_t dtype, int64_t b) {
  return geometry::cumulative<int64_t>(values, dtype == WARPLOOM_INT64, b);
}

int clamp_window(int64_t side) {
  return static_cast<int>(std::min<int64_t>(side, geometry::kUnbounded));
}

template <typename Slot>
int64_t longest(const warploom_attention& call, int64_t dense_length, Slot cumulative) {
  if (is_dense(call)) return call.batch > 0 ? dense_length : 0;
  int64_t result = 0;
  for (int64_t b = 0; b < call.batch; ++b) result = std::max(result, cumulative(call, b + 1) - cumulative(call, b));
  return result;
}

}  // namespace

int64_t cumulative_length_q(const warploom_attention& call, int64_t b) {
  if (is_dense(call)) return b * call.max_seqlen_q;
  return cumulative_length(call.cu_seqlens_q, call.cu_seqlens_q_dtype, b);
}

int64_t cumulative_length_k(const warploom_attention& call, int64_t b) {
  if (is_dense(call)) return b * call.max_seqlen_k;
  if (call.cu_seqlens_k == nullptr) return cumulative_length_q(call, b);
  return cumulative_length(call.cu_seqlens_k, call.cu_seqlens_k_dtype, b);
}

Sequence sequence_at(const warploom_attention& call, int64_t b) {
  Sequence s;
  s.first_q = cumulative_length_q(call, b);
  s.first_k = cumulative_length_k(call, b);
  s.slot_q = cumulative_length_q(call, b + 1) - s.first_q;
  s.slot_k = cumulative_length_k(call, b + 1) - s.first_k;
  const int slot_q = static_cast<int>(s.slot_q), slot_k = static_cast<int>(s.slot_k);
  s.mask.seqlen_q = per_sequence(call.seqused_q, call.seqused_q_all, b, slot_q, slot_q);
  s.mask.seqlen_k = per_sequence(call.seqused_k, call.seqused_k_all, b, slot_k, slot_k);
  s.mask.left = clamp_window(call.left);
  s.mask.right = clamp_window(call.right);
  s.mask.num_contexts = per_sequence(call.num_contexts, call.num_contexts_all, b, s.mask.seqlen_k, 0);
  s.mask.num_targets = per_sequence(call.num_targets, call.num_targets_all, b, s.mask.seqlen_k, 0);
  s.mask.target_group_size = clamp_window(call.target_group_size);
  s.mask.target_window_from_history_end = (call.flags & WARPLOOM_WINDOW_FROM_HISTORY_END) != 0;
  return s;
}

int64_t longest_slot_q(const warploom_attention& call) {
  return longest(call, call.max_seqlen_q, cumulative_length_q);
}
int64_t longest_slot_k(const warploom_attention& call) {
  return longest(call, call.max_seqlen_k, cumulative_length_k);
}

double effective_alpha(const warploom_attention& call) {
  return (call.flags & WARPLOOM_HAS_ALPHA) != 0 ? call.alpha : 1.0 / std::sqrt(static_cast<double>(call.head_dim));
}

int64_t effective_max_seqlen_q(const warploom_attention& call) {
  return call.max_seqlen_q != WARPLOOM_FROM_CU_SEQLENS ? call.max_seqlen_q : longest_slot_q(call);
}

int64_t effective_max_seqlen_k(const warploom_attention& call) {
  if (call.max_seqlen_k != WARPLOOM_FROM_CU_SEQLENS) return call.max_seqlen_k;
  if (call.cu_seqlens_k == nullptr) return effective_max_seqlen_q(call);
  return longest_slot_k(call);
}

double effective_divisor(const warploom_attention& call) {
  if ((call.flags & WARPLOOM_HAS_DIVISOR) != 0) return call.divisor;
  return static_cast<double>(std::max<int64_t>(1, effective_max_seqlen_q(call)));
}

int dtype_bytes(uint32_t dtype) {
  return dtype == WARPLOOM_FLOAT32 ? 4 : dtype == WARPLOOM_FLOAT8_E4M3 ? 1 : 2;
}

const char* dtype_name(uint32_t dtype) {
  switch (dtype) {
    case WARPLOOM_FLOAT32:
      return "float32";
    case WARPLOOM_FLOAT16:
      return "float16";
    case WARPLOOM_BFLOAT16:
      return "bfloat16";
    default:
      return "an unknown dtype";
  }
}

int64_t packed_pitch(int64_t slot_keys, uint32_t dtype) {
  const int64_t elements = 16 / dtype_bytes(dtype);
  return (slot_keys + elements - 1) / elements * elements;
}

uint32_t effective_bias_rows(const warploom_attention& call) {
  if (call.bias.rows != WARPLOOM_ROWS_AUTO) return call.bias.rows;
  return call.bias.num_rows == effective_max_seqlen_k(call) ? WARPLOOM_ROWS_KEY : WARPLOOM_ROWS_QUERY;
}

}  // namespace warploom
