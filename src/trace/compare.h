// The simulator's run beside the measured one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/scenario.h"

namespace warploom::trace {

/// What one side did of something, for each warp that did it.
struct Activity {
  double count = 0;  ///< times
  double mean = 0;   ///< cycles each
  double share = 0;  ///< percent of the makespan; above 100 when several are under way at once, as loads are
};

struct ComparedRow {
  std::string tag;   ///< as in the pictures; empty for waits
  std::string what;  ///< "load", "waits: full"
  Activity model, measured;
};

struct Comparison {
  sim::Cycles model_makespan = 0, measured_makespan = 0;
  double model_tensor = 0, measured_tensor = 0;  ///< percent of the makespan in which a product is under way
  std::vector<ComparedRow> rows;                 ///< those that differ most in share first
  std::string verdict;                           ///< one sentence: where the two differ most
};

/// Both runs need traces. Tags that only the model tells apart are joined: drain to epilogue, other elementwise work to
/// exp or tanh. A load lasts from when it was asked for to when it had landed; a product as long as its lane shows it.
Comparison compare(const sim::Run& model, const sim::Run& measured);

}  // namespace warploom::trace
