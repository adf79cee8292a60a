#include "sim/share.h"

#include <cmath>

namespace warploom::sim {

double total_bandwidth(const Machine& machine, const SharedMemorySystem& system) {
  return system.total_bandwidth > 0 ? system.total_bandwidth : machine.dram_tb_per_s * 1e3 / machine.clock_ghz;
}

Status validate(const GemmScenario& scenario, const SharedMemorySystem& system) {
  if (Status status = validate(scenario); !status.ok()) return status;
  if (system.sms < 1 || system.sms > 1024)
    return Status::invalid_value("sms = " + std::to_string(system.sms) + " must lie in [1, 1024]");
  if (!(system.total_bandwidth >= 0) || !std::isfinite(system.total_bandwidth))
    return Status::invalid_value("total_bandwidth = " + std::to_string(system.total_bandwidth) +
                                 " must be 0 (the machine's DRAM) or more bytes per cycle");
  if (!(system.l2_hit >= 0 && system.l2_hit <= 1))
    return Status::invalid_value("l2_hit = " + std::to_string(system.l2_hit) + " must lie in [0, 1]");
  const GemmCosts c = costs(scenario);
  // A step is at most 7 operations of the SM and 2 of the relay.
  if (static_cast<double>(system.sms) * static_cast<double>(c.steps) * static_cast<double>(scenario.tiles) * 9 >
      static_cast<double>(kMostOperations))
    return Status::invalid_value("sms = " + std::to_string(system.sms) + " with k = " + std::to_string(scenario.k) +
                                 " and tiles = " + std::to_string(scenario.tiles) +
                                 " makes more than 2^24 operations; model fewer steps or SMs");
  return {};
}

Model shared_model(const GemmScenario& scenario, const SharedMemorySystem& system) {
  const Model one = gemm_model(scenario);
  const double rate = scenario.machine.bandwidth * (1 - system.l2_hit) / total_bandwidth(scenario.machine, system);
  const auto resources = static_cast<Resource>(one.resources.size());
  Model all;
  all.legend = one.legend;
  all.legend.push_back({'d', "load from DRAM"});
  for (std::int64_t sm = 0; sm < system.sms; ++sm)
    for (const std::string& name : one.resources) all.add_resource(numbered(name, sm));
  const Resource dram = all.add_resource("DRAM");
  for (std::int64_t sm = 0; sm < system.sms; ++sm) {
    const auto first_resource = static_cast<Resource>(sm * resources);
    const auto first_barrier = static_cast<Barrier>(all.barriers.size());
    for (const std::string& name : one.barriers) all.add_barrier(numbered("sm", sm) + "." + name);
    for (const Executor& executor : one.executors) {
      const Barrier passed = all.add_barrier(numbered("sm", sm) + ".dram");
      Executor copy{numbered("sm", sm) + "." + executor.name, {}};
      Executor relay{numbered("sm", sm) + ".relay", {}};
      Cycles loads = 0;
      for (Operation op : executor.program) {
        op.resource = static_cast<Resource>(op.resource + first_resource);
        op.barrier += first_barrier;
        if (op.kind == OperationKind::async) {
          relay.wait(passed, ++loads);
          relay.program.push_back(op);
          copy.async(dram, cycles_for(static_cast<double>(op.cycles) * rate, 1), 'd', 0, passed);
        } else {
          copy.program.push_back(op);
        }
      }
      all.add_executor(std::move(copy));
      if (loads > 0) all.add_executor(std::move(relay));
    }
  }
  return all;
}

Result<Run> run_shared(const GemmScenario& scenario, const SharedMemorySystem& system, RunOptions options) {
  if (Status status = validate(scenario, system); !status.ok()) return status;
  Run run;
  run.title = std::to_string(system.sms) + " SMs, " + title(scenario);
  run.machine = scenario.machine;
  run.model = shared_model(scenario, system);
  Result<Timeline> timeline = simulate(run.model, options);
  if (!timeline.ok()) return timeline.status();
  run.timeline = std::move(*timeline);
  run.notes = notes(scenario);
  run.notes.push_back("this goes beyond the published model: rules in docs/simulator.md");
  return run;
}

}  // namespace warploom::sim
