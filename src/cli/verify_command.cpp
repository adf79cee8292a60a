#include "cli/verify_command.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cli/command.h"
#include "cli/devices.h"
#include "cli/gemm_judge.h"
#include "cli/gemm_runner.h"
#include "cli/judge.h"
#include "cli/numbers.h"
#include "cli/runner.h"
#include "cli/terminal.h"
#include "cli/verify_cases.h"
#include "cli/verify_gemm_cases.h"
#include "warploom/attention.h"
#include "warploom/gemm.h"

namespace warploom::cli {
namespace {

struct Options {
  std::string device = "auto";
  std::string only;
  bool list = false;
  JsonOption json;
};

struct Planned {
  std::string name;
  std::string group;  ///< the row of the summary
  std::variant<ProblemConfig, GemmProblemConfig> config;
};

std::string_view pass_name(bool backward) {
  return backward ? "backward" : "forward";
}

/// One pass of one case.
struct Outcome {
  std::string name, group;
  std::string_view pass = "forward";
  std::vector<Judgement> judgements;
  std::string refused;  ///< why the device does not serve it

  bool ok() const {
    return std::all_of(judgements.begin(), judgements.end(), [](const Judgement& one) { return one.ok; });
  }
};

std::vector<Planned> plan(const Options& options, const Device& device) {
  std::vector<Planned> planned;
  const auto add = [&](const std::string& group, const std::string& name, auto config) {
    Planned one{group + ": " + name, group, std::move(config)};
    if (one.name.find(options.only) != std::string::npos) planned.push_back(std::move(one));
  };
  for (const bool softmax : {false, true}) {
    for (const std::uint32_t dtype : {WARPLOOM_FLOAT32, WARPLOOM_BFLOAT16, WARPLOOM_FLOAT16}) {
      if (device.cuda && dtype == WARPLOOM_FLOAT32) continue;  // float32 runs on the CPU only
      const std::string group = std::string(softmax ? "softmax " : "hstu ") + type_name(dtype);
      for (VerifyCase& one : verify_cases(softmax, dtype))
        if (!device.cuda || !one.cpu_only) add(group, one.name, std::move(one.config));
    }
  }
  for (const std::uint32_t dtype :
       {std::uint32_t{WARPLOOM_BFLOAT16}, std::uint32_t{WARPLOOM_FLOAT16}, std::uint32_t{WARPLOOM_FLOAT8_E4M3}}) {
    for (GemmVerifyCase& one : gemm_verify_cases(dtype))
      if (device.cuda || !one.config.tile)  // a tile is of the GPU's kernel
        add(std::string("gemm ") + type_name(dtype), one.name, std::move(one.config));
  }
  return planned;
}

/// What the call of a case that the device serves came to; a kernel that does not run is no case left out.
std::vector<Judgement> failure(const Status& status) {
  Judgement result{.tensor = "out"};
  result.ok = false;
  result.reason = status.message();
  return {result};
}

/// Runs forward, then backward; a pass that the device does not serve is noted with the library's reason.
void run_attention(const Planned& planned, const ProblemConfig& config, const Device& device,
                   std::vector<Outcome>& outcomes) {
  Problem problem = make_problem(config, true);
  const auto refuse = [&](bool backward, const Status& status) {
    outcomes.push_back({planned.name, planned.group, pass_name(backward), {}, status.message()});
  };
  Result<Runner> runner = Runner::make(problem, device, true);
  if (!runner.ok()) return refuse(false, runner.status());
  for (const bool backward : {false, true}) {
    if (const Result<std::string> plan = explain(runner->device_call(backward)); !plan.ok())
      return refuse(backward, plan.status());
    Status status = runner->run(backward).status();
    if (status.ok()) status = runner->fetch();
    outcomes.push_back({planned.name, planned.group, pass_name(backward),
                        status.ok() ? judge(problem, runner->host_call(backward)) : failure(status), ""});
    if (!status.ok()) return;
  }
}

void run_case(const Planned& planned, const Device& device, std::vector<Outcome>& outcomes) {
  if (const auto* config = std::get_if<ProblemConfig>(&planned.config))
    return run_attention(planned, *config, device, outcomes);
  const GemmProblem made = make_gemm_problem(std::get<GemmProblemConfig>(planned.config));
  GemmProblem problem = made;
  Outcome outcome{planned.name, planned.group, "product", {}, ""};
  if (const Result<std::string> plan = explain(gemm_call(problem, device.cuda, device.ordinal)); !plan.ok()) {
    outcome.refused = plan.status().message();
  } else if (const Status status = run_product(problem, device); !status.ok()) {
    outcome.judgements = failure(status);
  } else {
    outcome.judgements = {judge_product(made, problem)};
  }
  outcomes.push_back(std::move(outcome));
}

Json to_json(const std::vector<Outcome>& outcomes, const Device& device, bool ok) {
  Json checks = Json::array(), refused = Json::array();
  for (const Outcome& outcome : outcomes) {
    if (!outcome.refused.empty())
      refused.push_back({{"case", outcome.name}, {"pass", outcome.pass}, {"reason", outcome.refused}});
    for (const Judgement& one : outcome.judgements) {
      Json check = {{"case", outcome.name}, {"pass", outcome.pass}, {"tensor", one.tensor},      {"ok", one.ok},
                    {"error", one.error},   {"limit", one.limit},   {"worst_row", one.worst_row}};
      if (!one.ok) check["reason"] = one.reason;
      checks.push_back(std::move(check));
    }
  }
  return {{"device", device.name}, {"ok", ok}, {"checks", checks}, {"not_served", refused}};
}

void print(const std::vector<Outcome>& outcomes) {
  struct Row {
    int passed = 0, failed = 0, refused = 0;
    double worst = 0;
  };
  std::vector<std::string> order;
  std::map<std::string, Row> rows;
  for (const Outcome& outcome : outcomes) {
    const std::string group = outcome.group + " " + std::string(outcome.pass);
    if (!rows.contains(group)) order.push_back(group);
    Row& row = rows[group];
    if (!outcome.refused.empty()) {
      ++row.refused;
      continue;
    }
    ++(outcome.ok() ? row.passed : row.failed);
    for (const Judgement& one : outcome.judgements)
      row.worst = std::max({row.worst, one.worst_row, one.limit > 0 ? one.error / one.limit : 0});
  }
  std::vector<std::vector<std::string>> cells;
  for (const std::string& group : order) {
    const Row& row = rows[group];
    const std::string verdict = row.failed > 0   ? paint(Colour::red, "FAILED")
                                : row.passed > 0 ? paint(Colour::green, "ok")
                                                 : paint(Colour::yellow, "not served");
    cells.push_back({group, verdict, std::to_string(row.passed), std::to_string(row.failed),
                     std::to_string(row.refused), format("%.0f %%", 100 * row.worst)});
  }
  std::fputs(table({"operator", "", "passed", "failed", "not served", "worst error, of its limit"}, cells, 2).c_str(),
             stdout);

  std::map<std::string, int> reasons;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.refused.empty()) ++reasons[outcome.refused];
    for (const Judgement& one : outcome.judgements) {
      if (one.ok) continue;
      std::printf("%s %s, %s, %s: %s\n", paint(Colour::red, "failed").c_str(), outcome.name.c_str(),
                  std::string(outcome.pass).c_str(), one.tensor.c_str(), one.reason.c_str());
    }
  }
  for (const auto& [reason, count] : reasons)
    std::printf("%s (%d) %s\n", paint(Colour::yellow, "not served").c_str(), count, reason.c_str());
}

int verify(const Options& options) {
  const Result<Device> device = choose_device(options.device);
  if (!device.ok()) return report(device.status());
  const std::vector<Planned> planned = plan(options, *device);
  if (planned.empty())
    return report(Status::invalid_value("--only " + options.only +
                                        ": no case has that in its name; `warploom verify --list` shows them"));
  if (options.list) {
    for (const Planned& one : planned) std::printf("%s\n", one.name.c_str());
    return exit_success;
  }

  std::vector<Outcome> outcomes;
  {
    Progress progress("verifying", static_cast<std::int64_t>(planned.size()));
    for (const Planned& one : planned) {
      run_case(one, *device, outcomes);
      progress.advance();
    }
  }
  const auto served =
      std::count_if(outcomes.begin(), outcomes.end(), [](const Outcome& one) { return one.refused.empty(); });
  const bool failed = std::any_of(outcomes.begin(), outcomes.end(), [](const Outcome& one) { return !one.ok(); });
  // The CPU serves everything; a GPU that serves nothing is no success either.
  const bool whole = device->cuda || served == std::ssize(outcomes);
  const bool ok = !failed && served > 0 && whole;
  if (options.json.prints_text()) {
    std::printf("%s against float64\n\n", device->name.c_str());
    print(outcomes);
  }
  if (const Status status = options.json.write(to_json(outcomes, *device, ok)); !status.ok()) return report(status);
  return ok ? exit_success : exit_check_failed;
}

}  // namespace

void add_verify_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(
      app, "verify", "Every operator and the matrix products against a float64 reference on edge cases",
      "  warploom verify                       on this machine's best device; exit code 1 when a check fails\n"
      "  warploom verify --device cpu --only \"softmax bf16\"\n"
      "  warploom verify --only gemm           matrix products, on the CPU or a Hopper GPU\n"
      "  warploom verify --json checks.json\n");
  add_device_option(*command, options->device);
  command->add_option("--only", options->only, "Only cases with this text in their name");
  command->add_flag("--list", options->list, "Print the cases' names and stop");
  options->json.add_to(*command);
  on_run(*command, [options] { return verify(*options); });
}

}  // namespace warploom::cli
