#include "cli/check_command.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "check/plant.h"
#include "check/timeline.h"
#include "cli/command.h"
#include "cli/terminal.h"

namespace warploom::cli {
namespace {

struct Options {
  std::vector<std::string> pipelines;
  std::string stages = "1-4", steps = "0-9", consumers = "1-3", tiles = "0-4";
  std::string producer_exit = "both", tile_lengths = "both";
  std::string plant;
  std::size_t max_states = check::Limits{}.states;
  bool exhaustive = false, list = false;
  JsonOption json;
};

Result<int> parse_number(const std::string& argument, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return Status::invalid_value("--" + argument + ": '" + text + "' is not a number from " + std::to_string(least) +
                                 " to " + std::to_string(most) + "; pass one, a range 1-4, or a list 1,2,4");
  }
  return value;
}

/// "2", "1-4" or "1,3-5".
Result<std::vector<int>> parse_numbers(const std::string& argument, const std::string& text, int least, int most) {
  std::vector<int> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t dash = part.find('-');
    const auto first = parse_number(argument, part.substr(0, dash), least, most);
    if (!first.ok()) return first.status();
    const auto last = dash == std::string::npos ? first : parse_number(argument, part.substr(dash + 1), least, most);
    if (!last.ok()) return last.status();
    if (*last < *first) {
      return Status::invalid_value("--" + argument + ": the range '" + part + "' runs backwards; pass " +
                                   std::to_string(*last) + "-" + std::to_string(*first));
    }
    for (int n = *first; n <= *last; ++n) numbers.push_back(n);
    begin = end + 1;
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

Result<check::Grid> parse_grid(const Options& options) {
  check::Grid grid;
  const struct {
    const char* argument;
    const std::string& text;
    int least, most;
    std::vector<int>& numbers;
  } rows[] = {{"stages", options.stages, 1, 32, grid.stages},
              {"steps", options.steps, 0, 256, grid.steps},
              {"consumers", options.consumers, 1, pipeline::kMaxRoles - 1, grid.consumers},
              {"tiles", options.tiles, 0, 256, grid.tiles}};
  for (const auto& row : rows) {
    auto numbers = parse_numbers(row.argument, row.text, row.least, row.most);
    if (!numbers.ok()) return numbers.status();
    row.numbers = *numbers;
  }
  if (options.producer_exit != "both") grid.producer_exits_early = {options.producer_exit == "early"};
  if (options.tile_lengths != "both") grid.uneven_tiles = {options.tile_lengths == "uneven"};
  return grid;
}

/// The largest sizes must fit the tables of a protocol; a size that does not is the caller's mistake, not a fault.
Status check_capacity(const pipeline::Pipeline& shipped, const check::Grid& grid) {
  const check::Sizes largest{
      grid.stages.back(), grid.steps.back(), grid.consumers.back(), grid.tiles.back(), false, false};
  if (!shipped.describe(largest).overflow) return {};
  return Status::invalid_value(std::string(shipped.name) + " with " + check::describe(largest) +
                               " does not fit the tables of kernels/pipeline/protocol.h (" +
                               std::to_string(pipeline::kMaxOps) + " operations a role, " +
                               std::to_string(pipeline::kMaxMbarriers) + " mbarriers, " +
                               std::to_string(pipeline::kMaxSlots) + " slots); pass smaller sizes");
}

Result<std::vector<const pipeline::Pipeline*>> choose_pipelines(const Options& options, const check::Plant* plant) {
  std::vector<const pipeline::Pipeline*> chosen;
  std::vector<std::string> names = options.pipelines;
  if (names.empty() && plant != nullptr) names = {plant->pipeline};
  if (names.empty()) {
    for (const auto& shipped : pipeline::kShippedPipelines) chosen.push_back(&shipped);
  }
  for (const std::string& name : names) {
    const auto* shipped = check::find_pipeline(name);
    if (shipped == nullptr) {
      std::string known;
      for (const auto& each : pipeline::kShippedPipelines)
        known += (known.empty() ? "" : ", ") + std::string(each.name);
      return Status::invalid_value("PIPELINE '" + name + "' is not one of the shipped ones; pass " + known);
    }
    chosen.push_back(shipped);
  }
  return chosen;
}

Json to_json(const check::Sizes& sizes) {
  return {{"stages", sizes.stages},
          {"steps", sizes.steps},
          {"consumers", sizes.consumers},
          {"tiles", sizes.tiles},
          {"producer_exits_early", sizes.producer_exits_early},
          {"uneven_tiles", sizes.uneven_tiles}};
}

Json to_json(const check::SizedFinding& found, const check::Timeline& picture) {
  Json steps = Json::array();
  for (const auto& step : picture.steps) steps.push_back({{"who", step.who}, {"does", step.does}});
  return {{"kind", check::name_of(found.finding.fault.kind)},
          {"message", found.finding.fault.message},
          {"sizes", to_json(found.sizes)},
          {"interleaving", steps},
          {"state", picture.state}};
}

Json to_json(const check::Report& report, const check::Describe& describe) {
  Json faults = Json::array();
  for (const auto& found : report.findings) {
    faults.push_back(to_json(found, check::timeline(describe(found.sizes), found.finding)));
  }
  return {{"pipeline", report.pipeline},
          {"ok", report.ok()},
          {"sizes", report.sizes},
          {"faulty_sizes", report.faulty_sizes},
          {"steps", report.steps},
          {"explored_states", report.explored_states},
          {"unfinished", report.unfinished},
          {"unexplained", report.unexplained},
          {"milliseconds", report.milliseconds},
          {"faults", faults}};
}

std::vector<std::string> table_row(const check::Report& report) {
  std::string verdict = "no fault";
  if (report.faulty_sizes > 0) {
    verdict = "faulty at " + with_commas(report.faulty_sizes);
  } else if (report.unfinished > 0) {
    verdict = with_commas(report.unfinished) + " unfinished";
  }
  return {report.pipeline,
          paint(report.ok() ? Colour::green : Colour::red, verdict),
          with_commas(report.sizes),
          with_commas(report.steps),
          with_commas(report.explored_states),
          duration(report.milliseconds)};
}

void print_finding(const check::SizedFinding& found, const check::Timeline& picture) {
  std::printf("\n%s: %s\n", paint(Colour::red, check::name_of(found.finding.fault.kind)).c_str(),
              found.finding.fault.message.c_str());
  std::printf("  shortest with %s\n", check::describe(found.sizes).c_str());
  if (found.finding.fault.kind == check::FaultKind::malformed) return;
  std::printf("\n%s", check::draw(picture).c_str());
  std::printf(
      "  %s\n",
      paint(Colour::dim, "#n counts phases and fillings from 0; ░ waits, │ reads or lands, · could go on").c_str());
  std::printf("\n  when it shows:\n");
  for (const std::string& line : picture.state) std::printf("    %s\n", line.c_str());
}

int list_everything() {
  std::vector<std::vector<std::string>> rows;
  for (const auto& shipped : pipeline::kShippedPipelines) rows.push_back({shipped.name, shipped.summary});
  std::printf("%s\n", table({"pipeline", "what it is"}, rows, 2).c_str());
  rows.clear();
  for (const auto& plant : check::plants()) rows.push_back({plant.name, plant.pipeline, plant.story});
  std::printf("%s", table({"--plant", "in", "the mistake"}, rows, 3).c_str());
  return exit_success;
}

int run_check(const Options& options) {
  if (options.list) return list_everything();
  const check::Plant* plant = nullptr;
  if (!options.plant.empty()) {
    plant = check::find_plant(options.plant);
    if (plant == nullptr) {
      return report(Status::invalid_value("--plant '" + options.plant + "' is not known; see warploom check --list"));
    }
  }
  const auto chosen = choose_pipelines(options, plant);
  if (!chosen.ok()) return report(chosen.status());
  const auto grid = parse_grid(options);
  if (!grid.ok()) return report(grid.status());
  for (const auto* shipped : *chosen) {
    if (const Status status = check_capacity(*shipped, *grid); !status.ok()) return report(status);
  }
  check::Limits limits;
  limits.states = options.max_states;
  limits.exhaustive = options.exhaustive;

  std::vector<check::Report> reports;
  std::vector<check::Describe> describes;
  Json json = Json::array();
  Progress progress("checking", static_cast<std::int64_t>(chosen->size()));
  for (const auto* shipped : *chosen) {
    describes.push_back(plant != nullptr ? check::planted(*plant, *shipped) : check::Describe(shipped->describe));
    reports.push_back(check::check(shipped->name, describes.back(), *grid, limits));
    json.push_back(to_json(reports.back(), describes.back()));
    progress.advance();
  }
  if (options.json.prints_text()) {
    std::vector<std::vector<std::string>> rows;
    for (const auto& result : reports) rows.push_back(table_row(result));
    if (plant != nullptr) std::printf("planted: %s\n\n", plant->story);
    std::printf("%s",
                table({"pipeline", "verdict", "sizes", "steps proved", "states explored", "time"}, rows, 2).c_str());
    for (std::size_t i = 0; i < reports.size(); ++i) {
      for (const auto& found : reports[i].findings) {
        print_finding(found, check::timeline(describes[i](found.sizes), found.finding));
      }
      if (!reports[i].unexplained.empty()) {
        std::printf("\n%s cannot be proved: %s; raise --max-states to see an interleaving\n",
                    reports[i].pipeline.c_str(), reports[i].unexplained.c_str());
      }
    }
  }
  if (const Status status = options.json.write(json); !status.ok()) return report(status);
  const bool ok = std::all_of(reports.begin(), reports.end(), [](const auto& result) { return result.ok(); });
  return ok ? exit_success : exit_check_failed;
}

}  // namespace

void add_check_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(app, "check", "Proves the barrier protocols of the pipelines, or shows what is wrong",
                                  "  warploom check\n"
                                  "  warploom check ping-pong --stages 2 --steps 3 --json\n"
                                  "  warploom check --plant early-release\n");
  command->add_option("pipeline", options->pipelines, "Which pipelines (default: all; see --list)")
      ->type_name("PIPELINE");
  const auto sizes = [&](const char* flag, std::string& text, const char* help) {
    command->add_option(flag, text, help)->type_name("N|A-B|LIST")->capture_default_str();
  };
  sizes("--stages", options->stages, "Slots of a ring");
  sizes("--steps", options->steps, "Steps of a work item");
  sizes("--consumers", options->consumers, "Consumer warpgroups");
  sizes("--tiles", options->tiles, "Work items");
  command->add_option("--producer-exit", options->producer_exit, "Does the producer return before its loads are used?")
      ->check(CLI::IsMember({"early", "late", "both"}))
      ->capture_default_str();
  command->add_option("--tile-lengths", options->tile_lengths, "Are the work items of one length?")
      ->check(CLI::IsMember({"even", "uneven", "both"}))
      ->capture_default_str();
  command->add_option("--plant", options->plant, "Plant this mistake first, to see how it shows (see --list)");
  command->add_flag("--exhaustive", options->exhaustive,
                    "Explore every interleaving, also where the proof covers them: small sizes only");
  not_negative(
      command->add_option("--max-states", options->max_states, "Give up an exploration beyond this many states"))
      ->capture_default_str();
  command->add_flag("--list", options->list, "List pipelines and mistakes to plant");
  options->json.add_to(*command);
  on_run(*command, [options] { return run_check(*options); });
}

}  // namespace warploom::cli
