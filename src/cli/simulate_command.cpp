#include "cli/simulate_command.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/simulate_options.h"
#include "cli/terminal.h"
#include "sim/experiments.h"
#include "sim/pictures.h"

namespace warploom::cli {
namespace {

struct RunOptions {
  ParameterOptions parameters;
  bool reverse_ties = false;
  RunOutput output;
};

template <typename Scenario>
int simulate_one(const RunOptions& options) {
  Scenario scenario;
  if (const Status status = sim::configure(scenario, options.parameters.given()); !status.ok()) return report(status);
  Result<sim::Run> run = sim::run_scenario(scenario, {.reverse_ties = options.reverse_ties, .trace = true});
  if (!run.ok()) return report(run.status());
  for (const std::string& name : sim::without_effect(scenario, options.parameters.given()))
    run->notes.push_back(name + " has no effect here");
  return options.output.finish(*run);
}

template <typename Scenario>
void add_scenario_command(CLI::App& parent, const char* name, const char* description, const char* examples) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = add_command(parent, name, description, examples);
  options->parameters.add_to<Scenario>(*command);
  command->add_flag("--reverse-ties", options->reverse_ties, "Process simultaneous events in reverse order");
  options->output.add_to(*command);
  on_run(*command, [options] { return simulate_one<Scenario>(*options); });
}

void print_ablation() {
  std::printf("%s (peak %d TFLOP/s):\n", sim::kFlashAttention3Setting, sim::kFlashAttention3Peak);
  for (const sim::Ablation& row : sim::kFlashAttention3)
    std::printf("  %3d TFLOP/s = %2.0f %%  %s\n", row.tflops, 100.0 * row.tflops / sim::kFlashAttention3Peak, row.what);
}

void print_table(const std::vector<sim::Outcome>& outcomes) {
  std::vector<std::vector<std::string>> rows;
  for (const sim::Outcome& outcome : outcomes) {
    std::string published, ours;
    for (const sim::CheckedClaim& checked : outcome.claims) {
      if (checked.claim.measure == sim::Measure::makespan)
        continue;  // compared below with the others, shown in its own column
      const bool row =
          checked.claim.measure == sim::Measure::tensor_row || checked.claim.measure == sim::Measure::memory_row;
      const std::string unit = sim::to_string(checked.claim.measure);
      published += (published.empty() ? "" : ", ") + (row ? unit : checked.claim.published + " " + unit);
      ours += (ours.empty() ? "" : ", ") + (row ? std::string(checked.agrees ? "same" : "differs") : checked.ours);
    }
    if (published.empty()) published = "-";
    const std::string verdict = outcome.claims.empty() ? "" : outcome.agrees() ? "yes" : paint(Colour::red, "NO");
    rows.push_back({outcome.experiment.name, outcome.experiment.about, with_commas(outcome.run.timeline.makespan),
                    sim::fixed(outcome.run.timeline.utilisation(sim::TC), 2), published, ours, verdict});
  }
  std::printf("%s", table({"experiment", "what", "makespan", "TC %", "published", "ours", "agree"}, rows, 2).c_str());
}

int run_experiments(const std::vector<std::string>& names, const std::string& html, const JsonOption& json) {
  std::vector<sim::Experiment> chosen;
  for (const std::string& name : names) {
    const Result<sim::Experiment> found = sim::find_experiment(name);
    if (!found.ok()) return report(found.status());
    chosen.push_back(*found);
  }
  const bool all = chosen.empty();
  if (all) chosen = sim::experiments();
  std::vector<sim::Outcome> outcomes;
  bool agree = true;
  for (const sim::Experiment& experiment : chosen) {
    Result<sim::Outcome> outcome = sim::run_experiment(experiment, {.trace = true});
    if (!outcome.ok()) return report(outcome.status());
    agree = agree && outcome->agrees();
    outcomes.push_back(std::move(*outcome));
  }
  if (const Status status = write_if_given("--html", html, [&] { return sim::html_report(outcomes); }); !status.ok())
    return report(status);
  if (json.prints_text()) {
    if (!all)
      for (const sim::Outcome& outcome : outcomes) {
        const sim::Experiment& experiment = outcome.experiment;
        print_run(outcome.run,
                  {experiment.until > 0 ? experiment.until : outcome.run.timeline.makespan, experiment.width});
        std::printf("\n");
      }
    print_table(outcomes);
    if (all) {
      std::printf("\n%s", paint(Colour::bold, "closed forms (simulator.md section 6, H100)\n").c_str());
      std::vector<std::vector<std::string>> rows;
      for (const sim::Formula& row : sim::formulas(sim::Machine{})) rows.push_back({row.what, row.formula, row.value});
      std::printf("%s", table({"what", "formula", "value"}, rows, 3).c_str());
    }
    std::printf("\n%s\n", paint(Colour::yellow, sim::kOptimism).c_str());
    print_ablation();
  }
  const Status status = json.write(all                    ? sim::experiments_json(outcomes)
                                   : outcomes.size() == 1 ? sim::outcome_json(outcomes[0])
                                                          : [&] {
                                                              Json list = Json::array();
                                                              for (const sim::Outcome& outcome : outcomes)
                                                                list.push_back(sim::outcome_json(outcome));
                                                              return list;
                                                            }());
  if (!status.ok()) return report(status);
  return agree ? exit_success : exit_check_failed;
}

}  // namespace

void add_simulate_command(CLI::App& app) {
  struct Options {
    std::vector<std::string> names;
    std::string html;
    JsonOption json;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      add_command(app, "simulate", "The pipeline model of one SM: who waits for whom",
                  "  warploom simulate                          every experiment against the published figures\n"
                  "  warploom simulate timeline-attention       one of them\n"
                  "  warploom simulate gemm --scheme cp_async --stages 3\n"
                  "  warploom simulate attention --variant both --machine b200\n");
  command->add_option("experiment", options->names, "Named experiments (none: all)")->type_name("EXPERIMENT");
  is_written(command->add_option("--html", options->html, "Write a report with every timeline")->type_name("FILE"));
  options->json.add_to(*command);
  add_scenario_command<sim::GemmScenario>(
      *command, "gemm", "One GEMM scheme",
      "  warploom simulate gemm --scheme specialized --stages 3 --latency 1500 --until 12000\n"
      "  warploom simulate gemm --tiles 8 --consumers 2 --k 256\n");
  add_scenario_command<sim::AttentionScenario>(
      *command, "attention", "One attention schedule",
      "  warploom simulate attention --variant inter --until 6000\n"
      "  warploom simulate attention --variant both --step hstu --bias-bytes 2\n");
  add_simulate_explore_commands(*command);
  on_run(*command, [options] { return run_experiments(options->names, options->html, options->json); });
}

}  // namespace warploom::cli
