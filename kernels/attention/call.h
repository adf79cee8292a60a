// A call of attention as every GPU kernel sees it, forward and backward: what src/gpu/device_call.cpp fills in and
// kernels take as (a part of) their argument.
#pragma once

#include "geometry/schedule.h"

namespace warploom {

/// A (rows, heads, dim) tensor in device memory; null: absent. Strides in elements. An input is never written through.
struct Tensor {
  void* data = nullptr;
  long long batch_stride = 0;  ///< dense batches only, 0 in a jagged one
  long long row_stride = 0;
  long long head_stride = 0;
};

/// The relative attention bias R (docs/attention.md, section 5). Which of the fields hold is a matter of the kernel's
/// configuration. Strides in elements, 0 where R is broadcast.
struct BiasCall {
  /// Dense: (batch, heads, num_rows, num_columns); packed: (heads, num_columns). Of a gradient: written.
  void* values = nullptr;
  long long batch_stride = 0;  ///< dense
  long long head_stride = 0;
  long long row_stride = 0;   ///< dense
  long long num_rows = 0;     ///< dense
  long long num_columns = 0;  ///< dense: of a row; packed: of a head
  bool packed = false;
  bool query_rows = false;  ///< the row axis counts query rows (i), else rows in key coordinates (r)
  bool aligned = false;     ///< every row starts at a multiple of 16 bytes
  float scale = 1;          ///< what R is multiplied with when it is added to alpha Q K^T: alpha or 1

  const float* position = nullptr;  ///< bucketed; null: absent, as for time
  const float* time = nullptr;
  long long position_head_stride = 0;
  long long time_head_stride = 0;
  int num_positions = 0;
  int num_times = 0;
  const long long* timestamps = nullptr;  ///< one a row of k
  const long long* thresholds = nullptr;  ///< num_times - 1 of them; null: the default ones
};

struct AttentionCall {
  Tensor query, key, value, out;
  Tensor dout;           ///< backward
  float* lse = nullptr;  ///< softmax; null: not wanted
  long long lse_batch_stride = 0;
  long long lse_head_stride = 0;

  const void* cu_seqlens_q = nullptr;  ///< null: a dense batch of seqlen_q x seqlen_k
  const void* cu_seqlens_k = nullptr;
  const int* seqused_q = nullptr;
  const int* seqused_k = nullptr;
  const int* num_contexts = nullptr;
  const int* num_targets = nullptr;
  int seqused_q_all = -1;  ///< when the pointer is null; negative: not given
  int seqused_k_all = -1;
  int num_contexts_all = -1;
  int num_targets_all = -1;
  bool cu_seqlens_q_64 = false;  ///< int64, else int32
  bool cu_seqlens_k_64 = false;
  bool target_window_from_history_end = false;
  int seqlen_q = 0;
  int seqlen_k = 0;
  long long total_q = 0;  ///< rows of q; those after the last sequence belong to nobody: results there are 0
  long long total_k = 0;

  int left = 0;
  int right = 0;
  int target_group_size = 1;
  const int* intervals = nullptr;  ///< (heads or 1, total_q, num_intervals, 2)
  long long interval_head_stride = 0;
  int num_intervals = 0;

  int sequences = 0;
  int heads_per_key_head = 1;
  float alpha = 1;
  float softcap = 0;  ///< softmax; 0: off
  float inverse_divisor = 1;
  const float* divisor_rows = nullptr;  ///< (total_q); replaces inverse_divisor
  BiasCall bias;
  int queries_elsewhere = 0;    ///< sequences with at most so many query rows are another kernel's (split.h)
  geometry::Schedule schedule;  ///< of this launch; a jagged batch has one more sequence: the rows after the last one
};

}  // namespace warploom
