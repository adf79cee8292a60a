// The rules of a matrix product's description.
#pragma once

#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom {

void init_gemm(warploom_gemm& call);

/// Versions, dtypes, shapes, strides and alignment. Reads no matrix. Errors: invalid_value, invalid_type.
Status validate_gemm(const warploom_gemm& call);

/// Bytes of a value of `dtype`.
int gemm_value_bytes(uint32_t dtype);

/// The dtype of the product's bias.
uint32_t gemm_bias_dtype(const warploom_gemm& call);

}  // namespace warploom
