// A scenario of either kind, and one run of it with everything that is printed about it.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "sim/attention.h"
#include "sim/engine.h"
#include "sim/gemm.h"

namespace warploom::sim {

using Scenario = std::variant<GemmScenario, AttentionScenario>;

struct Run {
  std::string title;
  Machine machine;
  Model model;
  Timeline timeline;
  std::optional<ClosedForm> closed_form;
  std::vector<std::string> notes;
};

/// Said wherever a percentage is printed.
inline constexpr const char* kOptimism =
    "The model is optimistic on purpose: it says who waits for whom, not what a kernel reaches.";

Status validate(const Scenario& scenario);
Model model_of(const Scenario& scenario);
const Machine& machine_of(const Scenario& scenario);
Machine& machine_of(Scenario& scenario);

/// "specialized gemm, k 4096, 1 tile, ..."
std::string title(const Scenario& scenario);

/// Validates, builds and runs. A schedule of ours never deadlocks; a deadlock is returned as an error all the same.
Result<Run> run_scenario(const Scenario& scenario, RunOptions options = {});

}  // namespace warploom::sim
