// The tensor maps of attention's kernels for Hopper: over (columns, rows, heads, sequences of a dense batch), in boxes
// of 64 columns x some rows with the 128-byte swizzle.
#pragma once

#include "gpu/tensor_map.h"
#include "warploom/warploom.h"

namespace warploom::gpu {

/// Of a tensor with q's rows (q, dout) and of one with k's (k, v).
TensorMapShape query_map(const warploom_attention& call, const warploom_tensor& tensor, int64_t columns, int box_rows);
TensorMapShape key_map(const warploom_attention& call, const warploom_tensor& tensor, int64_t columns, int box_rows);

/// Of a dense bias: (columns, rows, heads, batch). An axis of one entry has no stride. Then R, or its gradient, as a
/// tensor.
TensorMapShape bias_map(const warploom_attention& call, int box_rows);
TensorMapShape bias_gradient_map(const warploom_attention& call, int box_rows);
warploom_tensor bias_tensor(const warploom_bias& bias);
warploom_tensor bias_gradient_tensor(const warploom_bias& bias);

/// Columns of a dense bias's gradient that may be written.
int64_t bias_gradient_columns(const warploom_attention& call);

/// Whether the map exists. Without rows there is no tensor to map. Rows are numbered by 32-bit coordinates.
bool is_mappable(const TensorMapShape& shape, const warploom_tensor& tensor);

/// Makes the map; without a driver does nothing. `name`: what messages call the tensor. Errors: encode_tensor_map's.
Status encode_map(const Driver* cuda, const char* name, const TensorMapShape& shape, const warploom_tensor& tensor,
                  ptx::TensorMap& target);

}  // namespace warploom::gpu
