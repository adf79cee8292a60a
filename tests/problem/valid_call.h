// A small valid call and the memory it points to, for tests to bend.
#pragma once

#include <cstdint>
#include <vector>

#include "warploom/warploom.h"

namespace warploom {

/// Two sequences of 3 and 5 rows, 2 heads of 16 and 8 columns, float32, causal HSTU forward, int32 cu_seqlens.
struct ValidCall {
  static constexpr int64_t kRows = 8, kHeads = 2, kHeadDim = 16, kValueDim = 8;

  warploom_attention call{};
  std::vector<float> q, k, v, out, dout, dq, dk, dv, lse;
  std::vector<int32_t> cu_seqlens = {0, 3, 8};
  std::vector<int64_t> cu_seqlens_64 = {0, 3, 8};
  std::vector<int32_t> per_sequence = {1, 1};  // seqused, num_contexts, num_targets
  std::vector<int32_t> intervals;
  std::vector<float> divisor_rows;
  std::vector<float> bias;
  std::vector<float> position, time;
  std::vector<int64_t> timestamps, time_bucket;

  ValidCall()
      : q(kRows * kHeads * kHeadDim),
        k(q),
        v(kRows * kHeads * kValueDim),
        out(v),
        dout(v),
        dq(q),
        dk(q),
        dv(v),
        lse(kRows * kHeads),
        intervals(kRows * 3 * 2),
        divisor_rows(kRows, 1.0f),
        bias(kHeads * 2 * 5 * 8),
        position(kHeads * 4),
        time(kHeads * 4),
        timestamps(kRows),
        time_bucket({1, 10, 100}) {
    call.abi_version = WARPLOOM_ABI_VERSION;
    call.struct_bytes = sizeof call;
    call.batch = 2;
    call.heads = call.key_heads = kHeads;
    call.head_dim = kHeadDim;
    call.value_dim = kValueDim;
    call.total_q = call.total_k = kRows;
    call.max_seqlen_q = call.max_seqlen_k = WARPLOOM_FROM_CU_SEQLENS;
    call.seqused_q_all = call.seqused_k_all = call.num_contexts_all = call.num_targets_all = -1;
    call.left = WARPLOOM_UNBOUNDED;
    call.right = 0;
    call.target_group_size = 1;
    call.cu_seqlens_q = cu_seqlens.data();
    const auto tensor = [](std::vector<float>& data, int64_t dim) {
      return warploom_tensor{data.data(), 0, kHeads * dim, dim};
    };
    call.q = tensor(q, kHeadDim), call.k = tensor(k, kHeadDim), call.v = tensor(v, kValueDim);
    call.out = tensor(out, kValueDim);
  }
  ValidCall(const ValidCall&) = delete;
  ValidCall& operator=(const ValidCall&) = delete;

  void make_backward() {
    call.pass = WARPLOOM_BACKWARD;
    const auto like = [](const warploom_tensor& tensor, std::vector<float>& data) {
      return warploom_tensor{data.data(), tensor.batch_stride, tensor.row_stride, tensor.head_stride};
    };
    call.dq = like(call.q, dq), call.dk = like(call.k, dk), call.dv = like(call.v, dv),
    call.dout = like(call.out, dout);
  }
  void make_softmax() {
    call.op = WARPLOOM_SOFTMAX;
    call.lse = lse.data();
    call.lse_head_stride = kRows;
  }
  /// Two sequences of 4 rows without cu_seqlens.
  void make_dense() {
    call.cu_seqlens_q = nullptr;
    call.max_seqlen_q = call.max_seqlen_k = 4;
    for (warploom_tensor* tensor : {&call.q, &call.k, &call.v, &call.out, &call.dout, &call.dq, &call.dk, &call.dv}) {
      tensor->batch_stride = 4 * tensor->row_stride;
    }
  }
  void make_interval_mask() {
    call.right = WARPLOOM_UNBOUNDED;
    call.intervals = intervals.data();
    call.interval_heads = 1;
    call.num_intervals = 3;
  }
  void make_dense_bias() {
    warploom_bias& b = call.bias;
    b.kind = WARPLOOM_DENSE_BIAS;
    b.values = bias.data();
    b.batch = 1, b.heads = kHeads, b.num_rows = b.num_columns = 5;
    b.head_stride = 25, b.row_stride = 5;
  }
  /// Rows of k: 3 rows of 4 and 5 rows of 8.
  void make_packed_bias() {
    warploom_bias& b = call.bias;
    b.kind = WARPLOOM_PACKED_BIAS;
    b.rows = WARPLOOM_ROWS_KEY;
    b.values = bias.data();
    b.heads = 1, b.num_columns = 3 * 4 + 5 * 8;
  }
  void make_bucketed_bias() {
    warploom_bias& b = call.bias;
    b.kind = WARPLOOM_BUCKETED_BIAS;
    b.position = position.data(), b.position_heads = kHeads, b.num_positions = 4, b.position_head_stride = 4;
    b.time = time.data(), b.time_heads = 1, b.num_times = 4;
    b.timestamps = timestamps.data();
    b.time_bucket = time_bucket.data();
  }
  /// Half precision on a GPU: what is checked there without reading the memory.
  void make_cuda() {
    call.device = WARPLOOM_CUDA;
    call.dtype = WARPLOOM_FLOAT16;
  }
};

}  // namespace warploom
