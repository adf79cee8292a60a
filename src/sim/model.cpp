#include "sim/model.h"

namespace warploom::sim {

Model sm_model() {
  Model model;
  model.resources = {"TC", "MEM", "SFU", "FMA"};
  return model;
}

Status validate(const Model& model) {
  std::int64_t operations = 0;
  for (const Executor& executor : model.executors) {
    operations += static_cast<std::int64_t>(executor.program.size());
    for (std::size_t i = 0; i < executor.program.size(); ++i) {
      const Operation& op = executor.program[i];
      const auto refuse = [&](const std::string& what) {
        return Status::invalid_value("executor " + executor.name + ", operation " + std::to_string(i) + ": " + what);
      };
      const bool holds_resource = op.kind == OperationKind::use || op.kind == OperationKind::async;
      const bool names_barrier = op.kind != OperationKind::use && op.kind != OperationKind::busy;
      if (holds_resource && op.resource >= model.resources.size())
        return refuse("resource " + std::to_string(op.resource) + " does not exist; add it to the model first");
      if (names_barrier && op.barrier >= model.barriers.size())
        return refuse("barrier " + std::to_string(op.barrier) + " does not exist; add it to the model first");
      if (op.cycles < 0 || op.cycles > kLongestOperation)
        return refuse("cycles = " + std::to_string(op.cycles) + " must lie in [0, 2^36]");
      if (op.latency < 0 || op.latency > kLongestOperation)
        return refuse("latency = " + std::to_string(op.latency) + " must lie in [0, 2^36]");
    }
  }
  if (operations > kMostOperations)
    return Status::invalid_value("the programs hold " + std::to_string(operations) +
                                 " operations, more than 2^24; model fewer steps or tiles");
  return {};
}

std::string numbered(std::string name, std::int64_t index) {
  name += '[';
  name += std::to_string(index);
  name += ']';
  return name;
}

std::string tag_name(const Model& model, char tag) {
  for (const auto& [letter, name] : model.legend)
    if (letter == tag) return name;
  return {tag};
}

}  // namespace warploom::sim
