// The edge cases that `warploom verify` runs.
#pragma once

#include <string>
#include <vector>

#include "cli/problem.h"

namespace warploom::cli {

struct VerifyCase {
  std::string name;
  ProblemConfig config;
  bool cpu_only = false;  ///< head dimensions that a GPU refuses by rule
};

/// The cases of one operator and type; every one of them is legal for both.
std::vector<VerifyCase> verify_cases(bool softmax, std::uint32_t dtype);

}  // namespace warploom::cli
