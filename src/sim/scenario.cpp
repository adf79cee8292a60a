#include "sim/scenario.h"

namespace warploom::sim {
namespace {

std::string title_of(const GemmScenario& s) {
  std::string text = std::string("gemm ") + to_string(s.scheme) + ", K " + std::to_string(s.k) + ", " +
                     std::to_string(s.tiles) + (s.tiles == 1 ? " tile" : " tiles");
  if (s.scheme == Scheme::specialized || s.scheme == Scheme::cp_async)
    text += ", " + std::to_string(s.stages) + " stages";
  if (s.scheme == Scheme::specialized)
    text += ", " + std::to_string(s.consumers) + (s.consumers == 1 ? " consumer" : " consumers") + ", " +
            to_string(s.producer);
  return text + ", " + s.machine.name;
}

std::string title_of(const AttentionScenario& s) {
  std::string text = std::string("attention ") + to_string(s.variant) + ", " + std::to_string(s.blocks) + " blocks";
  if (s.step == Step::hstu) text += ", hstu";
  if (s.pass != Pass::forward) text += std::string(", ") + to_string(s.pass);
  if (s.fp8) text += ", fp8";
  return text + ", " + s.machine.name;
}

}  // namespace

Status validate(const Scenario& scenario) {
  return std::visit([](const auto& s) { return validate(s); }, scenario);
}

Model model_of(const Scenario& scenario) {
  if (const auto* gemm = std::get_if<GemmScenario>(&scenario)) return gemm_model(*gemm);
  return attention_model(std::get<AttentionScenario>(scenario));
}

const Machine& machine_of(const Scenario& scenario) {
  return std::visit([](const auto& s) -> const Machine& { return s.machine; }, scenario);
}

Machine& machine_of(Scenario& scenario) {
  return std::visit([](auto& s) -> Machine& { return s.machine; }, scenario);
}

std::string title(const Scenario& scenario) {
  return std::visit([](const auto& s) { return title_of(s); }, scenario);
}

Result<Run> run_scenario(const Scenario& scenario, RunOptions options) {
  if (Status status = validate(scenario); !status.ok()) return status;
  Run run;
  run.title = title(scenario);
  run.machine = machine_of(scenario);
  run.model = model_of(scenario);
  Result<Timeline> timeline = simulate(run.model, options);
  if (!timeline.ok()) return timeline.status();
  run.timeline = std::move(*timeline);
  run.closed_form = std::visit([](const auto& s) { return closed_form(s); }, scenario);
  run.notes = std::visit([](const auto& s) { return notes(s); }, scenario);
  return run;
}

}  // namespace warploom::sim
