#include "sim/answer.h"

#include <algorithm>

#include "sim/fields.h"
#include "sim/json.h"
#include "sim/pictures.h"
#include "sim/program_json.h"
#include "sim/rows.h"
#include "sim/share.h"

namespace warploom::sim {
namespace {

Result<std::string> text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

struct RunFields {
  Window window;
  bool until_given = false, intervals = false, svg = false, perfetto = false, reverse_ties = false;
};

RunFields run_fields(Fields& fields) {
  RunFields wanted;
  wanted.until_given = fields.find("until") != nullptr;
  wanted.window = {fields.whole("until", 0), fields.whole("width", 72)};
  wanted.intervals = fields.flag("intervals");
  wanted.svg = fields.flag("svg");
  wanted.perfetto = fields.flag("perfetto");
  wanted.reverse_ties = fields.flag("reverse_ties");
  return wanted;
}

RunOptions options_of(const RunFields& wanted) {
  return {.reverse_ties = wanted.reverse_ties, .trace = wanted.svg || wanted.perfetto};
}

Result<std::string> answer_run(const Run& run, const RunFields& wanted, Json json = Json::object()) {
  if (wanted.until_given)
    if (Status status = validate_window(wanted.window.until, wanted.window.width); !status.ok()) return status;
  const Result<Window> window = resolve(wanted.window, run.timeline);
  if (!window.ok()) return window.status();
  json.update(run_json(run, *window));
  if (wanted.intervals) {
    json["intervals"] = intervals_json(run);
    json["executors"] = Json::array();
    for (std::size_t e = 0; e < run.model.executors.size(); ++e)
      json["executors"].push_back({{"name", run.model.executors[e].name}, {"end", run.timeline.ends[e]}});
  }
  if (wanted.svg) json["svg"] = timeline_svg(run, window->until);
  if (wanted.perfetto) json["perfetto"] = perfetto_json(run);
  return text_of(json);
}

template <typename S>
Result<std::string> answer_scenario(Fields fields) {
  S scenario;
  const Settings settings = fields.settings("parameters");
  const RunFields wanted = run_fields(fields);
  if (Status status = fields.status(); !status.ok()) return status;
  if (Status status = configure(scenario, settings); !status.ok()) return status;
  Result<Run> run = run_scenario(scenario, options_of(wanted));
  if (!run.ok()) return run.status();
  for (const std::string& name : without_effect(scenario, settings)) run->notes.push_back(name + " has no effect here");
  return answer_run(*run, wanted);
}

Result<std::string> answer_program(Fields fields) {
  const Json* program = fields.find("program");
  const std::string machine_name = fields.text("machine", "h100"), name = fields.text("title", "program");
  const RunFields wanted = run_fields(fields);
  if (Status status = fields.status(); !status.ok()) return status;
  if (program == nullptr) return Status::invalid_value("the request lacks 'program'");
  const Result<Machine> machine = find_machine(machine_name);
  if (!machine.ok()) return machine.status();
  Result<Run> run = run_program(program->dump(), *machine, name, options_of(wanted));
  if (!run.ok()) return run.status();
  return answer_run(*run, wanted);
}

Result<std::string> answer_experiment(Fields fields) {
  const std::string name = fields.text("name");
  RunFields wanted = run_fields(fields);
  if (Status status = fields.status(); !status.ok()) return status;
  const Result<Experiment> experiment = find_experiment(name);
  if (!experiment.ok()) return experiment.status();
  const Result<Outcome> outcome = run_experiment(*experiment, options_of(wanted));
  if (!outcome.ok()) return outcome.status();
  if (!wanted.until_given) wanted.window = {experiment->until, experiment->width};
  return answer_run(outcome->run, wanted, outcome_json(*outcome));
}

Result<std::vector<Outcome>> all_outcomes(RunOptions options) {
  std::vector<Outcome> outcomes;
  for (const Experiment& experiment : experiments()) {
    Result<Outcome> outcome = run_experiment(experiment, options);
    if (!outcome.ok()) return outcome.status();
    outcomes.push_back(std::move(*outcome));
  }
  return outcomes;
}

Result<std::string> answer_experiments(Fields fields) {
  if (Status status = fields.status(); !status.ok()) return status;
  const Result<std::vector<Outcome>> outcomes = all_outcomes({});
  if (!outcomes.ok()) return outcomes.status();
  return text_of(experiments_json(*outcomes));
}

Result<std::string> answer_report(Fields fields) {
  if (Status status = fields.status(); !status.ok()) return status;
  const Result<std::vector<Outcome>> outcomes = all_outcomes({.trace = true});
  if (!outcomes.ok()) return outcomes.status();
  return text_of({{"html", html_report(*outcomes)}});
}

Result<std::string> answer_sweep(Fields fields) {
  const Result<ScenarioKind> kind = parse_kind(fields.text("kind", "gemm"));
  const Result<Axis> x = parse_axis(fields.text("x"));
  const std::string y_text = fields.text("y");
  const Result<Axis> y = y_text.empty() ? Result<Axis>(Axis{}) : parse_axis(y_text);
  const Result<Metric> metric = parse_metric(fields.text("metric", "TC"));
  const Settings base = fields.settings("parameters");
  const std::int64_t threads = fields.whole("threads", 0);
  const bool svg = fields.flag("svg");
  for (const Status& status : {fields.status(), kind.status(), x.status(), y.status(), metric.status()})
    if (!status.ok()) return status;
  if (threads < 0 || threads > 1024)
    return Status::invalid_value("threads = " + std::to_string(threads) + " must lie in [0, 1024]");
  const Result<Sweep> result = sweep({*kind, base, *x, *y, *metric}, {.threads = static_cast<unsigned>(threads)});
  if (!result.ok()) return result.status();
  Json json = sweep_json(*result);
  if (svg) json["svg"] = heat_map_svg(*result);
  return text_of(json);
}

template <typename Space>
Result<std::string> answer_space(const Fields& fields, const Result<Machine>& machine, Space space) {
  for (const Status& status : {fields.status(), machine.status()})
    if (!status.ok()) return status;
  space.machine = *machine;
  const Result<std::vector<Design>> designs = search(space);
  if (!designs.ok()) return designs.status();
  return text_of(designs_json(*designs));
}

Result<std::string> answer_design(Fields fields) {
  const Result<ScenarioKind> kind = parse_kind(fields.text("kind", "gemm"));
  if (!kind.ok()) return kind.status();
  const Result<Machine> machine = find_machine(fields.text("machine", "h100"));
  if (*kind == ScenarioKind::gemm) {
    GemmDesignSpace space;
    space.m = fields.whole("m", space.m);
    space.n = fields.whole("n", space.n);
    space.k = fields.whole("k", space.k);
    space.element_bytes = fields.whole("element_bytes", space.element_bytes);
    space.tile_m = fields.list("tile_m", space.tile_m);
    space.tile_n = fields.list("tile_n", space.tile_n);
    space.tile_k = fields.list("tile_k", space.tile_k);
    space.stages = fields.list("stages", space.stages);
    space.consumers = fields.list("consumers", space.consumers);
    return answer_space(fields, machine, space);
  }
  AttentionDesignSpace space;
  space.length = fields.whole("length", space.length);
  space.batch = fields.whole("batch", space.batch);
  space.heads = fields.whole("heads", space.heads);
  space.head_dim = fields.whole("head_dim", space.head_dim);
  space.keys = fields.list("keys", space.keys);
  space.kv_stages = fields.list("kv_stages", space.kv_stages);
  return answer_space(fields, machine, space);
}

Result<std::string> answer_work(Fields fields) {
  WorkProblem problem;
  problem.attention.variant = Variant::inter;
  const Settings settings = fields.settings("parameters");
  problem.length = fields.whole("length", problem.length);
  problem.batch = fields.whole("batch", problem.batch);
  problem.heads = fields.whole("heads", problem.heads);
  problem.causal = fields.flag("causal", problem.causal);
  problem.sms = fields.whole("sms", problem.sms);
  if (Status status = fields.status(); !status.ok()) return status;
  if (Status status = configure(problem.attention, settings); !status.ok()) return status;
  const Result<std::vector<Cycles>> costs = item_costs(problem);
  if (!costs.ok()) return costs.status();
  return text_of(work_json(problem, *costs));
}

Result<std::string> answer_shared(Fields fields) {
  GemmScenario scenario;
  SharedMemorySystem system;
  const Settings settings = fields.settings("parameters");
  system.sms = fields.whole("sms", system.sms);
  system.total_bandwidth = fields.number("total_bandwidth", 0);
  system.l2_hit = fields.number("l2_hit", 0);
  const RunFields wanted = run_fields(fields);
  if (Status status = fields.status(); !status.ok()) return status;
  if (Status status = configure(scenario, settings); !status.ok()) return status;
  const Result<Run> run = run_shared(scenario, system, options_of(wanted));
  if (!run.ok()) return run.status();
  return answer_run(*run, wanted);
}

Result<std::string> answer_parameters(Fields fields) {
  const Result<ScenarioKind> kind = parse_kind(fields.text("kind", "gemm"));
  for (const Status& status : {fields.status(), kind.status()})
    if (!status.ok()) return status;
  Json list = Json::array();
  const auto add = [&](const auto& table) {
    for (const auto& parameter : table)
      list.push_back({{"name", parameter.name}, {"value", parameter.value}, {"help", parameter.help}});
  };
  if (*kind == ScenarioKind::gemm)
    add(parameters(GemmScenario{}));
  else
    add(parameters(AttentionScenario{}));
  return text_of(list);
}

Result<std::string> answer_axis(Fields fields) {
  const Result<Axis> axis = parse_axis(fields.text("x"));
  for (const Status& status : {fields.status(), axis.status()})
    if (!status.ok()) return status;
  return text_of({{"name", axis->name}, {"values", axis->values}});
}

Result<std::string> answer_machine(Fields fields) {
  const Result<Machine> machine = find_machine(fields.text("name"));
  for (const Status& status : {fields.status(), machine.status()})
    if (!status.ok()) return status;
  return machine_to_json(*machine);
}

}  // namespace

Result<std::string> answer(const std::string& request) {
  const Json json = Json::parse(request, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Status::invalid_value("the request is not a JSON object");
  const auto what = json.find("what");
  if (what == json.end() || !what->is_string()) return Status::invalid_value("the request lacks 'what', a word");
  constexpr std::pair<const char*, Result<std::string> (*)(Fields)> kAnswers[] = {
      {"gemm", answer_scenario<GemmScenario>},
      {"attention", answer_scenario<AttentionScenario>},
      {"program", answer_program},
      {"experiment", answer_experiment},
      {"experiments", answer_experiments},
      {"report", answer_report},
      {"sweep", answer_sweep},
      {"design", answer_design},
      {"work", answer_work},
      {"shared", answer_shared},
      {"parameters", answer_parameters},
      {"axis", answer_axis},
      {"machine", answer_machine},
  };
  std::string known;
  for (const auto& [name, function] : kAnswers) {
    if (*what == name) return function(Fields(json));
    known += (known.empty() ? "" : "|") + std::string(name);
  }
  return Status::invalid_value("what = " + what->dump() + " must be one of " + known);
}

}  // namespace warploom::sim
