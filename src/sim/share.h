// Several SMs that share the GPU's memory (ours, docs/simulator.md).
#pragma once

#include "sim/scenario.h"

namespace warploom::sim {

/// `sms` copies of one SM's model whose loads first pass a resource "DRAM" that all share.
struct SharedMemorySystem {
  std::int64_t sms = 132;
  double total_bandwidth = 0;  ///< bytes per cycle for all SMs; 0: the machine's DRAM rate over its clock
  double l2_hit = 0;           ///< share of the loaded bytes that the L2 serves; they cost DRAM nothing
};

Status validate(const GemmScenario& scenario, const SharedMemorySystem& system);

/// bytes per cycle for all SMs, with the default filled in.
double total_bandwidth(const Machine& machine, const SharedMemorySystem& system);

/// Resources: TC[s], MEM[s], SFU[s], FMA[s] for each SM s, then DRAM. A load of X cycles on an SM's MEM asks DRAM for
/// ceil(X * bandwidth * (1 - l2_hit) / total_bandwidth) cycles first, in order of request over all SMs; then a relay,
/// one a loading executor, queues it on the SM's own MEM. Epilogues drain at the SM's own rate, as in the one-SM model.
/// Call validate() first.
Model shared_model(const GemmScenario& scenario, const SharedMemorySystem& system);

/// Validates, builds and runs.
Result<Run> run_shared(const GemmScenario& scenario, const SharedMemorySystem& system, RunOptions options = {});

}  // namespace warploom::sim
