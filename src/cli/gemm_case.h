// Names of matrix products on the command line: gemm-MxNxK-TYPE[-to-TYPE][-BATCHES][-bias][-silu][-residual], e.g.
// gemm-8192x8192x8192-bf16 or gemm-64x4096x4096-fp16-to-fp32-B8-bias-silu; TYPE fp8 is
// to bf16 unless said otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::cli {

struct GemmCase {
  std::int64_t rows = 0, columns = 0, depth = 0;
  std::int64_t batch = 1;
  std::uint32_t dtype = WARPLOOM_BFLOAT16, out_dtype = WARPLOOM_BFLOAT16;
  bool bias = false, silu = false, residual = false;

  double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth) *
           static_cast<double>(batch);
  }
};

/// Whether a case's name is one of a matrix product.
bool is_gemm_name(const std::string& name);

/// Error: invalid_value that says what a name looks like.
Result<GemmCase> parse_gemm_case(const std::string& name);

/// The product on contiguous matrices, rows padded to 16 bytes, whose memory is somewhere aligned.
warploom_gemm describe_case(const GemmCase& gemm);

/// Elements from a row to the next of a matrix of that many columns.
std::int64_t padded_columns(std::int64_t columns, std::uint32_t dtype);

}  // namespace warploom::cli
