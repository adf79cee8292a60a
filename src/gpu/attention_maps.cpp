#include "gpu/attention_maps.h"

#include "geometry/swizzle.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

constexpr int kElementBytes = 2;

TensorMapShape map_of(const warploom_attention& call, const std::array<int64_t, 4>& dims,
                      const std::array<int64_t, 4>& strides, int box_rows) {
  TensorMapShape shape;
  shape.element = call.dtype == WARPLOOM_BFLOAT16 ? TensorMapElement::bfloat16 : TensorMapElement::float16;
  shape.rank = 4;
  for (std::size_t i = 0; i < 4; ++i) {
    shape.dims[i] = static_cast<uint64_t>(dims[i]);
    // The stride of an axis of one entry is never used, and may be anything.
    constexpr uint64_t kAnyStride = 16;
    shape.strides[i] = dims[i] > 1 ? static_cast<uint64_t>(strides[i]) * kElementBytes : kAnyStride;
  }
  shape.box = {geometry::kPanelColumns, static_cast<uint32_t>(box_rows), 1, 1};
  shape.swizzle = TensorMapSwizzle::bytes_128;
  return shape;
}

TensorMapShape map_shape(const warploom_attention& call, const warploom_tensor& tensor, int64_t heads, int64_t rows,
                         int64_t columns, int box_rows) {
  const bool dense = is_dense(call);
  return map_of(call, {columns, rows, heads, dense ? call.batch : 1},
                {1, tensor.row_stride, tensor.head_stride, dense ? tensor.batch_stride : 1}, box_rows);
}

DevicePointer address_of(const warploom_tensor& tensor) {
  return reinterpret_cast<DevicePointer>(tensor.data);
}

}  // namespace

TensorMapShape query_map(const warploom_attention& call, const warploom_tensor& tensor, int64_t columns, int box_rows) {
  const int64_t rows = is_dense(call) ? call.max_seqlen_q : call.total_q;
  return map_shape(call, tensor, call.heads, rows, columns, box_rows);
}

TensorMapShape key_map(const warploom_attention& call, const warploom_tensor& tensor, int64_t columns, int box_rows) {
  const int64_t rows = is_dense(call) ? call.max_seqlen_k : call.total_k;
  return map_shape(call, tensor, call.key_heads, rows, columns, box_rows);
}

TensorMapShape bias_map(const warploom_attention& call, int box_rows) {
  const warploom_bias& bias = call.bias;
  return map_of(call, {bias.num_columns, bias.num_rows, bias.heads, bias.batch},
                {1, bias.row_stride, bias.head_stride, bias.batch_stride}, box_rows);
}

int64_t bias_gradient_columns(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  return (call.flags & WARPLOOM_BIAS_GRAD_PADDED) != 0 ? packed_pitch(bias.num_columns, bias.dtype) : bias.num_columns;
}

TensorMapShape bias_gradient_map(const warploom_attention& call, int box_rows) {
  const warploom_bias& bias = call.bias;
  return map_of(call, {bias_gradient_columns(call), bias.num_rows, bias.heads, bias.batch},
                {1, bias.grad_row_stride, bias.grad_head_stride, bias.grad_batch_stride}, box_rows);
}

warploom_tensor bias_tensor(const warploom_bias& bias) {
  warploom_tensor tensor{};
  tensor.data = const_cast<void*>(bias.values);
  return tensor;
}

warploom_tensor bias_gradient_tensor(const warploom_bias& bias) {
  warploom_tensor tensor{};
  tensor.data = bias.grad;
  return tensor;
}

bool is_mappable(const TensorMapShape& shape, const warploom_tensor& tensor) {
  constexpr uint64_t kMaxRows = 1ull << 31;
  return shape.dims[1] < kMaxRows && validate_tensor_map(shape, address_of(tensor)).ok();
}

Status encode_map(const Driver* cuda, const char* name, const TensorMapShape& shape, const warploom_tensor& tensor,
                  ptx::TensorMap& target) {
  if (cuda == nullptr) return {};
  Result<ptx::TensorMap> map = encode_tensor_map(*cuda, name, shape, address_of(tensor));
  if (map.ok()) target = *map;
  return map.status();
}

}  // namespace warploom::gpu
