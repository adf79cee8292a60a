#include "cli/gemm_judge.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "cli/numbers.h"
#include "cli/terminal.h"

namespace warploom::cli {
namespace {

/// What silu's instructions may be wrong by. With 16-bit results silu(z) is h + h tanh(h), h = z / 2, and tanh.approx
/// has a relative error of 2^-11 (PTX ISA); with float32 it is z / (1 + 2^(-z log2 e)) by ex2.approx and rcp.approx,
/// whose argument is rounded too.
double silu_limit(double z, double silu, std::uint32_t out_dtype) {
  constexpr double subnormal = 1e-15;
  if (out_dtype == WARPLOOM_FLOAT32) return std::fabs(silu) * 0x1p-18 + subnormal;
  return std::fabs(z / 2 * std::tanh(z / 2)) * 0x1p-11 + subnormal;
}

/// The first value that is wrong, or "".
std::string compare(const GemmProblem& made, const GemmProblem& problem, Judgement& result) {
  const GuardedMatrices& out = problem.out;
  double error = 0, norm = 0;
  std::string wrong;
  for (std::int64_t b = 0; b < out.batch; ++b) {
    for (std::int64_t row = 0; row < out.rows; ++row) {
      for (std::int64_t column = 0; column < out.columns; ++column) {
        const GemmExpected expected = expected_product(made, b, row, column);
        const double found = out.at(b, row, column), difference = std::fabs(found - expected.value);
        error += difference * difference;
        norm += expected.value * expected.value;
        if (expected.limit > 0) result.worst_row = std::max(result.worst_row, difference / expected.limit);
        const bool right = expected.limit > 0 ? difference <= expected.limit
                                              : found == round_to(made.config.out_dtype, expected.value);
        if (!right && wrong.empty()) {
          wrong = format("product %ld, row %ld, column %ld is %.9g, not %.9g", static_cast<long>(b),
                         static_cast<long>(row), static_cast<long>(column), found, expected.value);
        }
      }
    }
  }
  result.error = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  return wrong;
}

/// Whether everything but the values is still the NaN it was made as.
bool surroundings_untouched(GuardedMatrices out) {
  for (std::int64_t b = 0; b < out.batch; ++b) {
    for (std::int64_t row = 0; row < out.rows; ++row) {
      auto* start = out.memory.data() + out.index(b, row, 0) * bytes_per_element(out.dtype);
      std::fill_n(start, out.columns * bytes_per_element(out.dtype), 0xFF);
    }
  }
  return std::all_of(out.memory.begin(), out.memory.end(), [](unsigned char byte) { return byte == 0xFF; });
}

}  // namespace

GemmExpected expected_product(const GemmProblem& problem, std::int64_t b, std::int64_t row, std::int64_t column) {
  const GemmProblemConfig& config = problem.config;
  const std::int64_t b_of_b = config.one_b ? 0 : b, b_of_c = config.one_c ? 0 : b;
  double sum = 0;
  for (std::int64_t k = 0; k < config.depth; ++k) sum += problem.a.at(b, row, k) * problem.b.at(b_of_b, column, k);
  double z = config.alpha * sum;
  if (config.scale_a) z *= problem.scale_a.at(0, 0, 0);
  if (config.scale_b) z *= problem.scale_b.at(0, 0, 0);
  if (config.bias) z += problem.bias.at(0, 0, column);
  GemmExpected result{.value = config.silu ? z / (1 + std::exp(-z)) : z};
  const double silu = result.value;
  if (config.beta != 0) result.value += config.beta * problem.c.at(b_of_c, row, column);
  if (config.silu) {
    const double before_rounding = silu_limit(z, silu, config.out_dtype);
    result.limit = before_rounding + unit_roundoff(config.out_dtype) * (std::fabs(result.value) + before_rounding);
  }
  return result;
}

Judgement judge_product(const GemmProblem& made, const GemmProblem& problem) {
  Judgement result{.tensor = "out", .limit = unit_roundoff(made.config.out_dtype)};
  if (made.config.silu) result.limit += 0x1p-11;
  result.reason = compare(made, problem, result);
  const auto changed = [&](const char* name, GuardedMatrices GemmProblem::* member) {
    if (result.reason.empty() && (made.*member).memory != (problem.*member).memory)
      result.reason = std::string("memory of ") + name + " was written";
  };
  changed("a", &GemmProblem::a);
  changed("b", &GemmProblem::b);
  changed("c", &GemmProblem::c);
  changed("bias", &GemmProblem::bias);
  changed("scale_a", &GemmProblem::scale_a);
  changed("scale_b", &GemmProblem::scale_b);
  if (result.reason.empty() && !surroundings_untouched(problem.out))
    result.reason = "memory around the result was written";
  result.ok = result.reason.empty();
  return result;
}

}  // namespace warploom::cli
