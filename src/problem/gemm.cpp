#include "problem/gemm.h"

#include <limits>

#include "problem/message.h"
#include "problem/sequence.h"
#include "problem/validate.h"

namespace warploom {
namespace {

/// Coordinates of copies and tiles are 32-bit numbers.
constexpr int64_t max_size = std::numeric_limits<int32_t>::max() - 4096;
constexpr int input_alignment = 16;  // of a TMA copy

Status check_size(const char* name, int64_t value, int64_t least) {
  if (value >= least && value <= max_size) return {};
  return Status::invalid_value(message(name, " = ", value, " is not ", least, " to ", max_size));
}

/// `alignment` in bytes, of the address and of the strides that are used.
Status check_matrix(const char* name, const warploom_matrix& matrix, const warploom_gemm& call, int64_t rows,
                    int64_t columns, int value_bytes, int alignment, const char* remedy) {
  if (matrix.data == nullptr) return Status::invalid_value(message(name, ".data is null; pass the matrix's address"));
  if (reinterpret_cast<uintptr_t>(matrix.data) % static_cast<unsigned>(alignment) != 0) {
    return Status::invalid_value(message(name, ".data is not aligned to ", alignment, " bytes; ", remedy));
  }
  const auto check_stride = [&](const char* which, int64_t stride) -> Status {
    if (stride * value_bytes % alignment == 0) return {};
    return Status::invalid_value(message(name, ".", which, " = ", stride, " elements are ", stride * value_bytes,
                                         " bytes, not a multiple of ", alignment, "; ", remedy));
  };
  if (rows > 1) {
    if (matrix.row_stride < columns) {
      return Status::invalid_value(message(name, ".row_stride = ", matrix.row_stride, " is less than its ", columns,
                                           " columns; rows are contiguous and do not overlap"));
    }
    if (Status status = check_stride("row_stride", matrix.row_stride); !status.ok()) return status;
  }
  if (call.batch > 1) {
    if (matrix.batch_stride < 0) {
      return Status::invalid_value(message(name, ".batch_stride = ", matrix.batch_stride, " is negative"));
    }
    return check_stride("batch_stride", matrix.batch_stride);
  }
  return {};
}

}  // namespace

void init_gemm(warploom_gemm& call) {
  call = {};
  call.abi_version = WARPLOOM_ABI_VERSION;
  call.struct_bytes = sizeof(warploom_gemm);
  call.device = WARPLOOM_CUDA;
  call.batch = 1;
  call.alpha = 1;
}

int gemm_value_bytes(uint32_t dtype) {
  return dtype_bytes(dtype);
}

uint32_t gemm_bias_dtype(const warploom_gemm& call) {
  if (call.dtype != WARPLOOM_FLOAT8_E4M3) return call.dtype;
  return call.out_dtype == WARPLOOM_FLOAT32 ? uint32_t{WARPLOOM_BFLOAT16} : call.out_dtype;
}

Status validate_gemm(const warploom_gemm& call) {
  if (call.abi_version != WARPLOOM_ABI_VERSION || call.struct_bytes != sizeof(warploom_gemm)) {
    return Status::invalid_value(message("abi_version = ", call.abi_version, ", struct_bytes = ", call.struct_bytes,
                                         "; this library has ", WARPLOOM_ABI_VERSION, " and ", sizeof(warploom_gemm),
                                         ": use warploom_gemm_init and the library's own header"));
  }
  if (call.device > WARPLOOM_CUDA) {
    return Status::invalid_value(message("device = ", call.device, " is unknown; use WARPLOOM_CPU or WARPLOOM_CUDA"));
  }
  if (Status status = validate_num_threads(call.num_threads); !status.ok()) return status;
  const bool eight_bits = call.dtype == WARPLOOM_FLOAT8_E4M3;
  if (call.dtype != WARPLOOM_FLOAT16 && call.dtype != WARPLOOM_BFLOAT16 && !eight_bits) {
    return Status::invalid_type(message("dtype = ", call.dtype, " is not FLOAT16, BFLOAT16 or FLOAT8_E4M3"));
  }
  if (call.out_dtype > WARPLOOM_BFLOAT16) {
    return Status::invalid_type(message("out_dtype = ", call.out_dtype, " is not FLOAT16, BFLOAT16 or FLOAT32"));
  }
  if (call.activation > WARPLOOM_SILU) {
    return Status::invalid_value(message("activation = ", call.activation, " is not NO_ACTIVATION or SILU"));
  }
  for (const auto& [name, value] : {std::pair{"batch", call.batch}, std::pair{"rows", call.rows},
                                    std::pair{"columns", call.columns}, std::pair{"depth", call.depth}}) {
    if (Status status = check_size(name, value, 0); !status.ok()) return status;
  }
  if (call.batch == 0 || call.rows == 0 || call.columns == 0) return {};

  if (!eight_bits && (call.scale_a != nullptr || call.scale_b != nullptr)) {
    return Status::invalid_value("scale_a or scale_b without dtype FLOAT8_E4M3; use alpha");
  }
  for (const auto& [name, scale] : {std::pair{"scale_a", call.scale_a}, std::pair{"scale_b", call.scale_b}}) {
    if (reinterpret_cast<uintptr_t>(scale) % sizeof(float) != 0) {
      return Status::invalid_value(message(name, " is not aligned to 4 bytes; pass the address of a float"));
    }
  }

  constexpr const char* pad = "pad the rows, or copy the matrix to aligned memory";
  if (call.depth > 0) {
    const int value_bytes = gemm_value_bytes(call.dtype);
    Status status = check_matrix("a", call.a, call, call.rows, call.depth, value_bytes, input_alignment, pad);
    if (!status.ok()) return status;
    status = check_matrix("b", call.b, call, call.columns, call.depth, value_bytes, input_alignment, pad);
    if (!status.ok()) return status;
  }
  const int out_bytes = gemm_value_bytes(call.out_dtype);
  if (Status status = check_matrix("out", call.out, call, call.rows, call.columns, out_bytes, 2 * out_bytes, pad);
      !status.ok()) {
    return status;
  }
  if (call.batch > 1 && call.out.batch_stride == 0) {
    return Status::invalid_value("out.batch_stride = 0: results would overwrite each other");
  }
  if (call.c.data != nullptr) {
    if (Status status = check_matrix("c", call.c, call, call.rows, call.columns, out_bytes, 2 * out_bytes, pad);
        !status.ok()) {
      return status;
    }
  } else if (call.beta != 0) {
    return Status::invalid_value(message("beta = ", call.beta, " without c; pass c or beta = 0"));
  }
  if (reinterpret_cast<uintptr_t>(call.bias) % input_alignment != 0) {
    return Status::invalid_value("bias is not aligned to 16 bytes; copy it to aligned memory");
  }
  return {};
}

}  // namespace warploom
