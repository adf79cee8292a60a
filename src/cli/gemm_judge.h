// Matrix products in float64, written from docs/gemm.md one value at a time, and what a kernel's may differ by.
#pragma once

#include "cli/gemm_problem.h"
#include "cli/judge.h"

namespace warploom::cli {

/// What act(alpha scale_a scale_b A B^T + bias) + beta C must come to at one place, and how far off it may be.
struct GemmExpected {
  double value = 0;
  double limit = 0;  ///< 0: the value is that of one rounding, exactly
};

/// Of the problem as it was made: where the result replaces C, that is read from `c`.
GemmExpected expected_product(const GemmProblem& problem, std::int64_t b, std::int64_t row, std::int64_t column);

/// Compares `problem`, after a run, with what it was made as. A sum of products of whole numbers is exact in float32,
/// so the result is the exact one rounded once; a silu may add the error of its instructions. Operands must be as they
/// were, and so must everything around the result.
Judgement judge_product(const GemmProblem& made, const GemmProblem& problem);

}  // namespace warploom::cli
