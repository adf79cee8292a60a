// Simulator.md section 7: every scenario as a named experiment, with the published figures beside ours.
#pragma once

#include <string>
#include <vector>

#include "sim/scenario.h"

namespace warploom::sim {

/// What a published figure is a figure of.
enum class Measure {
  tensor_percent,  ///< utilisation of TC
  memory_percent,  ///< utilisation of MEM
  makespan,
  stages_needed,  ///< the smallest S in 2..8 whose utilisation is less than 1 point below the best (section 7.2)
  tensor_row,     ///< run lengths of the TC row of the timeline
  memory_row,
};

/// A figure as it is printed: "39.2" asks for one decimal.
struct Claim {
  Measure measure = Measure::tensor_percent;
  std::string published;
};

struct Experiment {
  std::string name;     ///< the command's word
  std::string section;  ///< of simulator.md
  std::string about;    ///< one line
  Scenario scenario;
  std::vector<Claim> claims;
  Cycles until = 0;  ///< end of the timeline; 0: the makespan
  int width = 72;
};

const std::vector<Experiment>& experiments();

/// The experiment, or an error with the names that come closest.
Result<Experiment> find_experiment(const std::string& name);

struct CheckedClaim {
  Claim claim;
  std::string ours;  ///< to the published precision
  bool agrees = false;
};

struct Outcome {
  Experiment experiment;
  Run run;  ///< of the scenario; for stages_needed, with the stages that are needed
  std::vector<CheckedClaim> claims;
  bool agrees() const;
};

Result<Outcome> run_experiment(const Experiment& experiment, RunOptions options = {});

/// Section 7.2: the smallest S in 2..8, as above.
Result<std::int64_t> stages_needed(GemmScenario scenario);

/// The measured ablation of the FlashAttention-3 paper that section 7.4 wants beside the model.
struct Ablation {
  const char* what;
  int tflops;
};
inline constexpr Ablation kFlashAttention3[] = {
    {"everything", 661}, {"without GEMM-softmax pipelining", 582}, {"without warp specialization", 570}};
inline constexpr int kFlashAttention3Peak = 989;
inline constexpr const char* kFlashAttention3Setting =
    "FlashAttention-3 paper, measured: forward, FP16, batch 4, length 8448, 16 heads, head dim 128, non-causal";

/// A row of section 6's table, computed from the scenarios' parameters.
struct Formula {
  std::string what;
  std::string formula;
  std::string value;
};
std::vector<Formula> formulas(const Machine& machine);

/// "12.3": fixed decimals.
std::string fixed(double value, int decimals);

}  // namespace warploom::sim
