// Matrix products that `verify` makes up: operands of small whole numbers, in memory of NaN.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gemm/gemm_config.h"
#include "warploom/warploom.h"

namespace warploom::cli {

struct GemmProblemConfig {
  std::int64_t rows = 65, columns = 72, depth = 80;
  std::int64_t batch = 1;
  std::uint32_t dtype = WARPLOOM_BFLOAT16, out_dtype = WARPLOOM_BFLOAT16;
  double alpha = 1, beta = 0;
  bool bias = false, silu = false;
  bool c = false;         ///< there is a C
  bool c_of_nan = false;  ///< that may not be read
  bool out_is_c = false;  ///< the result replaces C
  bool one_b = false;     ///< for the whole batch; likewise
  bool one_c = false;
  bool scale_a = false, scale_b = false;
  bool gaps = true;                ///< 16 bytes and more between rows
  bool pairs_aligned = false;      ///< of C and the result pairs of values only, not 16 bytes
  std::optional<GemmConfig> tile;  ///< the GPU kernel's; without it the plan's
  unsigned seed = 0;
};

/// Matrices in memory of NaN: in front of them, behind them, and between their rows.
struct GuardedMatrices {
  std::uint32_t dtype = 0;
  std::int64_t batch = 0, rows = 0, columns = 0;
  std::int64_t row_stride = 0, batch_stride = 0;  ///< in elements
  std::int64_t first = 0;                         ///< element
  std::vector<unsigned char> memory;

  std::int64_t index(std::int64_t b, std::int64_t row, std::int64_t column) const {
    return first + b * batch_stride + row * row_stride + column;
  }
  double at(std::int64_t b, std::int64_t row, std::int64_t column) const;
  void set(std::int64_t b, std::int64_t row, std::int64_t column, double value);
};

/// The product in the host's memory. One b or c of a batch has batch = 1 and batch_stride = 0; an absent c, bias or
/// scale has no memory. out starts as NaN, or as C.
struct GemmProblem {
  GemmProblemConfig config;
  GuardedMatrices a, b, c, out;
  GuardedMatrices bias;              ///< a row
  GuardedMatrices scale_a, scale_b;  ///< one value each
};

GemmProblem make_gemm_problem(const GemmProblemConfig& config);

/// The call on the problem's own memory, for a GPU or the CPU.
warploom_gemm gemm_call(GemmProblem& problem, bool cuda, int device);

}  // namespace warploom::cli
