#include "cli/gemm_problem.h"

#include <random>

#include "cli/gemm_case.h"
#include "cli/numbers.h"
#include "problem/gemm.h"

namespace warploom::cli {
namespace {

constexpr std::int64_t guard_bytes = 256;

GuardedMatrices nan_matrices(std::uint32_t dtype, std::int64_t batch, std::int64_t rows, std::int64_t columns,
                             std::int64_t row_stride, bool pairs_aligned) {
  const std::int64_t guard = guard_bytes / bytes_per_element(dtype);
  GuardedMatrices result;
  result.dtype = dtype;
  result.batch = batch;
  result.rows = rows;
  result.columns = columns;
  result.row_stride = row_stride;
  result.batch_stride = (rows + 1) * row_stride;
  result.first = guard + (pairs_aligned ? 2 : 0);
  const std::int64_t elements = result.first + batch * result.batch_stride + guard;
  // All bits set are a NaN in every type.
  result.memory.assign(static_cast<std::size_t>(elements * bytes_per_element(dtype)), 0xFF);
  return result;
}

class Maker {
 public:
  explicit Maker(const GemmProblemConfig& config) : config_(config), random_(config.seed) {}

  GuardedMatrices operand(std::int64_t rows, std::int64_t columns, std::int64_t batch) {
    const std::uint32_t dtype = config_.dtype;
    GuardedMatrices result = nan_matrices(dtype, batch, rows, columns, padded(columns, dtype), false);
    fill(result);
    return result;
  }

  GuardedMatrices empty_result(std::int64_t batch) const {
    const std::int64_t stride = config_.pairs_aligned ? (config_.columns + 1) / 2 * 2 + (config_.gaps ? 2 : 0)
                                                      : padded(config_.columns, config_.out_dtype);
    return nan_matrices(config_.out_dtype, batch, config_.rows, config_.columns, stride, config_.pairs_aligned);
  }

  GuardedMatrices row(std::uint32_t dtype) {
    GuardedMatrices result = nan_matrices(dtype, 1, 1, config_.columns, config_.columns, false);
    fill(result);
    return result;
  }

  static GuardedMatrices one_value(double value) {
    GuardedMatrices result = nan_matrices(WARPLOOM_FLOAT32, 1, 1, 1, 1, false);
    result.set(0, 0, 0, value);
    return result;
  }

  /// -2 to 3: their sums are not centred on 0, so that they soon have more bits than a 16-bit type.
  void fill(GuardedMatrices& matrices) {
    for (std::int64_t b = 0; b < matrices.batch; ++b)
      for (std::int64_t row = 0; row < matrices.rows; ++row)
        for (std::int64_t column = 0; column < matrices.columns; ++column)
          matrices.set(b, row, column, static_cast<double>(random_() % 6) - 2);
  }

 private:
  std::int64_t padded(std::int64_t columns, std::uint32_t dtype) const {
    return padded_columns(columns, dtype) + (config_.gaps ? 16 / bytes_per_element(dtype) : 0);
  }

  const GemmProblemConfig& config_;
  std::mt19937 random_;
};

void* start_of(GuardedMatrices& matrices) {
  return matrices.memory.data() + matrices.first * bytes_per_element(matrices.dtype);
}

warploom_matrix view(GuardedMatrices& matrices) {
  return {start_of(matrices), matrices.batch == 1 ? 0 : matrices.batch_stride, matrices.row_stride};
}

}  // namespace

double GuardedMatrices::at(std::int64_t b, std::int64_t row, std::int64_t column) const {
  return load(memory.data(), dtype, index(b, row, column));
}

void GuardedMatrices::set(std::int64_t b, std::int64_t row, std::int64_t column, double value) {
  store(memory.data(), dtype, index(b, row, column), value);
}

GemmProblem make_gemm_problem(const GemmProblemConfig& config) {
  GemmProblem problem;
  problem.config = config;
  Maker maker(config);
  problem.a = maker.operand(config.rows, config.depth, config.batch);
  problem.b = maker.operand(config.columns, config.depth, config.one_b ? 1 : config.batch);
  problem.out = maker.empty_result(config.batch);
  if (config.c) problem.c = maker.empty_result(config.one_c ? 1 : config.batch);
  if (config.c && !config.c_of_nan) maker.fill(problem.c);
  if (config.out_is_c) problem.out = problem.c;
  warploom_gemm types{};
  types.dtype = config.dtype;
  types.out_dtype = config.out_dtype;
  if (config.bias) problem.bias = maker.row(gemm_bias_dtype(types));
  // Powers of two, so that sums stay exact.
  if (config.scale_a) problem.scale_a = Maker::one_value(0.5);
  if (config.scale_b) problem.scale_b = Maker::one_value(0.0625);
  return problem;
}

warploom_gemm gemm_call(GemmProblem& problem, bool cuda, int device) {
  const GemmProblemConfig& config = problem.config;
  warploom_gemm call;
  warploom_gemm_init(&call);
  call.device = cuda ? WARPLOOM_CUDA : WARPLOOM_CPU;
  call.device_index = device;
  call.dtype = config.dtype;
  call.out_dtype = config.out_dtype;
  call.activation = config.silu ? WARPLOOM_SILU : WARPLOOM_NO_ACTIVATION;
  call.batch = config.batch;
  call.rows = config.rows;
  call.columns = config.columns;
  call.depth = config.depth;
  call.a = view(problem.a);
  call.b = view(problem.b);
  call.out = view(problem.out);
  if (config.c) call.c = config.out_is_c ? call.out : view(problem.c);
  if (config.bias) call.bias = start_of(problem.bias);
  if (config.scale_a) call.scale_a = static_cast<const float*>(start_of(problem.scale_a));
  if (config.scale_b) call.scale_b = static_cast<const float*>(start_of(problem.scale_b));
  call.alpha = config.alpha;
  call.beta = config.beta;
  return call;
}

}  // namespace warploom::cli
