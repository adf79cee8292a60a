// The matrix products that `warploom verify` runs.
#pragma once

#include <string>
#include <vector>

#include "cli/gemm_problem.h"

namespace warploom::cli {

struct GemmVerifyCase {
  std::string name;
  GemmProblemConfig config;
};

/// The cases of one operand type: the library's choice of a tile on edge cases, then every tile of the GPU's table.
std::vector<GemmVerifyCase> gemm_verify_cases(std::uint32_t dtype);

}  // namespace warploom::cli
