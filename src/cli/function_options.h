// Options of commands that plan a problem with functions of the user's (docs/score-functions.md).
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/problem.h"

namespace warploom::cli {

struct FunctionOptions {
  std::string score, slope, mask_function;

  void add_to(CLI::App& command) {
    command.add_option("--score", score, "A score function instead of silu, see docs/score-functions.md");
    command.add_option("--slope", slope, "Its slope; left out, it is derived")->needs("--score");
    command.add_option("--mask-function", mask_function, "A mask function instead of the problem's mask");
  }

  void apply_to(ProblemConfig& config) const {
    config.score = score;
    config.slope = slope;
    config.mask_function = mask_function;
    if (mask_function.empty()) return;
    config.left.reset();
    config.right.reset();
  }
};

}  // namespace warploom::cli
