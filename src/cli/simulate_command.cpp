#include "cli/simulate_command.h"

#include <cstdio>
#include <deque>
#include <fstream>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/terminal.h"
#include "sim/critical_path.h"
#include "sim/experiments.h"
#include "sim/json.h"
#include "sim/parameters.h"
#include "sim/pictures.h"
#include "sim/rows.h"

namespace warploom::cli {
namespace {

// Options made from a table of parameters; only those that were given become settings.
class ParameterOptions {
 public:
  template <typename Scenario>
  void add_to(CLI::App& command) {
    for (const sim::Parameter<Scenario>& parameter : sim::parameters(Scenario{})) {
      std::string flag = "--" + parameter.name;
      for (char& c : flag)
        if (c == '_') c = '-';
      std::string& text = texts_.emplace_back();
      options_.push_back(
          {parameter.name, command.add_option(flag, text, parameter.help)->type_name(parameter.value), &text});
    }
  }
  sim::Settings given() const {
    sim::Settings settings;
    for (const Entry& entry : options_)
      if (entry.option->count() > 0) settings.emplace_back(entry.name, *entry.text);
    return settings;
  }

 private:
  struct Entry {
    std::string name;
    CLI::Option* option;
    std::string* text;
  };
  std::deque<std::string> texts_;  // addresses must last
  std::vector<Entry> options_;
};

struct RunOptions {
  ParameterOptions parameters;
  std::optional<sim::Cycles> until;
  std::int64_t width = 72;
  bool reverse_ties = false;
  std::string svg, perfetto;
  JsonOption json;
};

// Writes what `text()` makes, if the option was given.
template <typename Text>
Status write_file(const std::string& option, const std::string& path, Text text) {
  if (path.empty()) return {};
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text() << std::flush;
  if (file) return {};
  return Status::runtime_error(option + " " + path + ": the file could not be written; check folder, rights and space");
}

void print_timeline(const sim::Run& run, const sim::Window& window) {
  std::printf("\n  %-4s 0%*s\n", "", static_cast<int>(window.width) - 1,
              (with_commas(window.until) + " cycles").c_str());
  for (sim::Resource r = 0; r < run.model.resources.size(); ++r)
    std::printf(
        "  %-4s %s\n", run.model.resources[r].c_str(),
        sim::drawn(sim::sample_row(run.timeline.intervals[r], window.until, static_cast<int>(window.width))).c_str());
  std::string legend;
  for (const auto& [tag, meaning] : run.model.legend) {
    bool shown = false;
    for (const auto& intervals : run.timeline.intervals)
      for (const sim::Interval& interval : intervals) shown = shown || interval.tag == tag;
    if (shown) legend += std::string(legend.empty() ? "" : ", ") + tag + " " + meaning;
  }
  std::printf("  %s\n", paint(Colour::dim, legend).c_str());
}

void print_run(const sim::Run& run, const sim::Window& window) {
  std::printf("%s\n", paint(Colour::bold, run.title).c_str());
  std::printf("  makespan %s cycles = %.1f us at %.2f GHz, %s events\n", with_commas(run.timeline.makespan).c_str(),
              sim::microseconds(run.machine, run.timeline.makespan), run.machine.clock_ghz,
              with_commas(run.timeline.events).c_str());
  if (run.closed_form)
    std::printf("  closed form %s = %s\n", run.closed_form->formula.c_str(),
                with_commas(run.closed_form->makespan).c_str());
  std::printf("  critical path: %s\n",
              sim::to_string(sim::shares(sim::critical_path(run.model, run.timeline))).c_str());
  for (sim::Resource r = 0; r < run.model.resources.size(); ++r) {
    const double percent = run.timeline.utilisation(r);
    std::printf("  %-4s %s %6.2f %%  %s cycles\n", run.model.resources[r].c_str(), bar(percent / 100, 30).c_str(),
                percent, with_commas(run.timeline.busy(r)).c_str());
  }
  print_timeline(run, window);
  for (const std::string& note : run.notes) std::printf("  note: %s\n", note.c_str());
  std::printf("  %s\n", paint(Colour::dim, sim::kOptimism).c_str());
}

template <typename Scenario>
int simulate_one(const RunOptions& options) {
  Scenario scenario;
  if (const Status status = sim::configure(scenario, options.parameters.given()); !status.ok()) return report(status);
  Result<sim::Run> run = sim::run_scenario(scenario, {.reverse_ties = options.reverse_ties, .trace = true});
  if (!run.ok()) return report(run.status());
  for (const std::string& name : sim::without_effect(scenario, options.parameters.given()))
    run->notes.push_back(name + " has no effect here");
  if (options.until)
    if (const Status status = sim::validate_window(*options.until, options.width); !status.ok()) return report(status);
  const Result<sim::Window> window = sim::resolve({options.until.value_or(0), options.width}, run->timeline);
  if (!window.ok()) return report(window.status());
  if (const Status status = write_file("--svg", options.svg, [&] { return sim::timeline_svg(*run, window->until); });
      !status.ok())
    return report(status);
  if (const Status status = write_file("--perfetto", options.perfetto, [&] { return sim::perfetto_json(*run); });
      !status.ok())
    return report(status);
  if (options.json.prints_text()) print_run(*run, *window);
  if (const Status status = options.json.write(sim::run_json(*run, *window)); !status.ok()) return report(status);
  return exit_success;
}

template <typename Scenario>
void add_scenario_command(CLI::App& parent, const char* name, const char* description, const char* examples) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = add_command(parent, name, description, examples);
  options->parameters.add_to<Scenario>(*command);
  command->add_option("--until", options->until, "End of the timeline in cycles (default: the makespan)")
      ->type_name("N");
  command->add_option("--width", options->width, "Characters of the timeline")->type_name("N")->capture_default_str();
  command->add_flag("--reverse-ties", options->reverse_ties, "Process simultaneous events in reverse order");
  command->add_option("--svg", options->svg, "Write the timeline as SVG")->type_name("FILE");
  command->add_option("--perfetto", options->perfetto, "Write a trace for ui.perfetto.dev")->type_name("FILE");
  options->json.add_to(*command);
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
  if (const Status status = write_file("--html", html, [&] { return sim::html_report(outcomes); }); !status.ok())
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
  command->add_option("--html", options->html, "Write a report with every timeline")->type_name("FILE");
  options->json.add_to(*command);
  add_scenario_command<sim::GemmScenario>(
      *command, "gemm", "One GEMM scheme",
      "  warploom simulate gemm --scheme specialized --stages 3 --latency 1500 --until 12000\n"
      "  warploom simulate gemm --tiles 8 --consumers 2 --k 256\n");
  add_scenario_command<sim::AttentionScenario>(
      *command, "attention", "One attention schedule",
      "  warploom simulate attention --variant inter --until 6000\n"
      "  warploom simulate attention --variant both --step hstu --bias-bytes 2\n");
  on_run(*command, [options] { return run_experiments(options->names, options->html, options->json); });
}

}  // namespace warploom::cli
