#include "gpu/device_call.h"

#include <algorithm>

#include "geometry/mask.h"
#include "problem/extents.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

/// CTAs of one group of heads, in times of what the GPU holds at once. Smaller groups keep K and V in L2 but leave a
/// part of the last wave idle; measured on an H200, 8 waves lose nothing to either.
constexpr int kWavesOfGroup = 8;

Tensor tensor_of(const warploom_attention& call, const warploom_tensor& tensor) {
  return {tensor.data, is_dense(call) ? tensor.batch_stride : 0, tensor.row_stride, tensor.head_stride};
}

int clamp_to_unbounded(int64_t side) {
  return static_cast<int>(std::min<int64_t>(side, geometry::kUnbounded));
}

void fill_bias(const warploom_attention& call, BiasCall& target) {
  static_assert(sizeof(long long) == sizeof(int64_t));
  const warploom_bias& bias = call.bias;
  target.scale = call.op == WARPLOOM_SOFTMAX || (call.flags & WARPLOOM_BIAS_NOT_SCALED) != 0
                     ? 1.0f
                     : static_cast<float>(effective_alpha(call));
  const auto aligned = [&](std::initializer_list<int64_t> strides) {
    const int64_t chunk = 16 / dtype_bytes(bias.dtype);  // elements
    return is_aligned(bias.values, 16) &&
           std::all_of(strides.begin(), strides.end(), [&](int64_t stride) { return stride % chunk == 0; });
  };
  // An axis of one entry is broadcast whatever its stride says.
  const auto stride = [](int64_t extent, int64_t given) { return extent > 1 ? given : 0; };
  switch (bias.kind) {
    case WARPLOOM_DENSE_BIAS:
      target.values = const_cast<void*>(bias.values);
      target.batch_stride = stride(bias.batch, bias.batch_stride);
      target.head_stride = stride(bias.heads, bias.head_stride);
      target.row_stride = bias.row_stride;
      target.aligned = aligned({target.batch_stride, target.head_stride, target.row_stride});
      target.num_rows = bias.num_rows;
      target.num_columns = bias.num_columns;
      // The last axis is max_seqlen_k, so which axis `auto` means is known without reading lengths.
      target.query_rows =
          bias.rows == WARPLOOM_ROWS_AUTO ? bias.num_rows != bias.num_columns : bias.rows == WARPLOOM_ROWS_QUERY;
      break;
    case WARPLOOM_PACKED_BIAS:
      target.values = const_cast<void*>(bias.values);
      target.packed = true;
      target.head_stride = stride(bias.heads, bias.head_stride);
      target.aligned = aligned({target.head_stride});
      target.num_columns = bias.num_columns;
      target.query_rows = bias.rows == WARPLOOM_ROWS_QUERY;
      break;
    case WARPLOOM_BUCKETED_BIAS:
      target.position = bias.position;
      target.position_head_stride = stride(bias.position_heads, bias.position_head_stride);
      target.num_positions = static_cast<int>(bias.num_positions);
      target.time = bias.time;
      target.time_head_stride = stride(bias.time_heads, bias.time_head_stride);
      target.num_times = static_cast<int>(bias.num_times);
      target.timestamps = reinterpret_cast<const long long*>(bias.timestamps);
      target.thresholds = reinterpret_cast<const long long*>(bias.time_bucket);
      break;
    default:
      break;
  }
}

}  // namespace

BiasKind bias_kind(const warploom_attention& call) {
  switch (call.bias.kind) {
    case WARPLOOM_NO_BIAS:
      return BiasKind::none;
    case WARPLOOM_BUCKETED_BIAS:
      return BiasKind::bucketed;
    default:
      return call.bias.dtype == WARPLOOM_FLOAT32 ? BiasKind::rows32 : BiasKind::rows16;
  }
}

const char* bias_name(BiasKind bias) {
  switch (bias) {
    case BiasKind::none:
      return "none";
    case BiasKind::rows16:
      return "rows16";
    case BiasKind::rows32:
      return "rows32";
    case BiasKind::bucketed:
      return "bucketed";
  }
  return "";
}

void fill_bias_gradient_call(const warploom_attention& call, BiasCall& target) {
  // It lies as a bias would with its address and strides.
  warploom_attention as_bias = call;
  warploom_bias& bias = as_bias.bias;
  bias.values = bias.grad;
  bias.batch_stride = bias.grad_batch_stride;
  bias.head_stride = bias.grad_head_stride;
  bias.row_stride = bias.grad_row_stride;
  fill_bias(as_bias, target);
}

void fill_device_call(const warploom_attention& call, AttentionCall& target) {
  AttentionCall& t = target;
  t.query = tensor_of(call, call.q);
  t.key = tensor_of(call, call.k);
  t.value = tensor_of(call, call.v);
  t.out = tensor_of(call, call.out);
  t.dout = tensor_of(call, call.dout);
  t.lse = call.lse;
  t.lse_batch_stride = is_dense(call) ? call.lse_batch_stride : 0;
  t.lse_head_stride = call.lse_head_stride;
  t.cu_seqlens_q = call.cu_seqlens_q;
  t.cu_seqlens_q_64 = call.cu_seqlens_q_dtype == WARPLOOM_INT64;
  t.cu_seqlens_k = call.cu_seqlens_k;
  t.cu_seqlens_k_64 = call.cu_seqlens_k_dtype == WARPLOOM_INT64;
  if (call.cu_seqlens_k == nullptr) {
    t.cu_seqlens_k = t.cu_seqlens_q;
    t.cu_seqlens_k_64 = t.cu_seqlens_q_64;
  }
  t.seqused_q = call.seqused_q;
  t.seqused_k = call.seqused_k;
  t.seqused_q_all = call.seqused_q_all;
  t.seqused_k_all = call.seqused_k_all;
  t.num_contexts = call.num_contexts;
  t.num_targets = call.num_targets;
  t.num_contexts_all = call.num_contexts_all;
  t.num_targets_all = call.num_targets_all;
  t.target_window_from_history_end = (call.flags & WARPLOOM_WINDOW_FROM_HISTORY_END) != 0;
  if (is_dense(call)) {
    t.seqlen_q = static_cast<int>(call.max_seqlen_q);
    t.seqlen_k = static_cast<int>(call.max_seqlen_k);
  }
  t.total_q = call.total_q;
  t.total_k = call.total_k;
  t.left = clamp_to_unbounded(call.left);
  t.right = clamp_to_unbounded(call.right);
  t.target_group_size = clamp_to_unbounded(call.target_group_size);
  t.intervals = call.intervals;
  t.num_intervals = static_cast<int>(call.num_intervals);
  t.interval_head_stride = call.interval_heads > 1 ? call.total_q * call.num_intervals * 2 : 0;
  t.sequences = static_cast<int>(call.batch);
  t.heads_per_key_head = static_cast<int>(call.heads / call.key_heads);
  t.alpha = static_cast<float>(effective_alpha(call));
  t.softcap = static_cast<float>(call.softcap);
  if (call.op == WARPLOOM_HSTU) {
    t.divisor_rows = call.divisor_rows;
    t.inverse_divisor = call.divisor_rows != nullptr ? 1.0f : static_cast<float>(1.0 / effective_divisor(call));
  }
  fill_bias(call, t.bias);
}

geometry::Schedule schedule_of(const warploom_attention& call, int64_t longest, int tile_rows, int ctas_of_sm,
                               const DeviceInfo& device) {
  geometry::Schedule schedule;
  // Even an empty batch gets one tile: rows after the last sequence are written as 0.
  schedule.query_tiles = static_cast<int>((std::max<int64_t>(1, longest) + tile_rows - 1) / tile_rows);
  // A jagged batch has one more sequence, the rows after the last one.
  schedule.sequences = static_cast<int>(call.batch) + (is_dense(call) ? 0 : 1);
  schedule.heads = static_cast<int>(call.heads);
  schedule.first_tile_is_long = call.num_contexts != nullptr || call.num_contexts_all > 0;
  const int64_t pairs = std::max<int64_t>(1, int64_t{schedule.sequences} * schedule.heads);
  const int64_t at_once = int64_t{device.sm_count} * ctas_of_sm;
  const int64_t in_group = (kWavesOfGroup * at_once + schedule.query_tiles - 1) / schedule.query_tiles;
  schedule.pairs_in_group = static_cast<int>(std::min(in_group, pairs));
  return schedule;
}

}  // namespace warploom::gpu
