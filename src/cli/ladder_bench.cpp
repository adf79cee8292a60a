#include "cli/ladder_bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "cli/devices.h"
#include "cli/terminal.h"
#include "gpu/reference_device.h"
#include "median.h"

namespace warploom::cli {

void LadderOptions::add_to(CLI::App& command) {
  command.add_option("rungs", rungs, "Only the rungs whose names contain one of these; default: all");
  add_device_option(command, device);
  command.add_option("--arch", architecture,
                     "Compile for this architecture and say what the machine code says; needs no GPU");
  add_round_options(command, rounds, round_ms);
  command.add_option("--python", python, "The Python that has torch with CUDA, for the peers");
  json.add_to(command);
}

Result<std::vector<Rung>> asked_rungs(const LadderOptions& options, const std::string& folder) {
  Result<std::vector<Rung>> all = read_ladder(folder);
  if (!all.ok()) return all.status();
  return choose_rungs(std::move(*all), options.rungs);
}

Result<gpu::DeviceInfo> device_to_compile_for(const LadderOptions& options) {
  const Result<gpu::Architecture> architecture =
      gpu::parse_architecture(options.architecture.empty() ? "sm_90a" : options.architecture);
  if (!architecture.ok()) return architecture.status();
  return gpu::reference_device(*architecture);
}

Result<Contestant> contestant_of(const LadderOptions& options, const std::string& name, GpuClock& clock,
                                 const std::function<Status()>& launch) {
  const Result<int> calls = clock.calls_in(launch, options.round_ms);
  if (!calls.ok()) return calls.status();
  return Contestant{name, [&clock, launch, calls = *calls] { return clock.time(launch, calls); }};
}

Result<std::vector<double>> take_turns(const std::vector<Contestant>& contestants, int rounds) {
  std::vector<std::vector<double>> times(contestants.size());
  // Under a power limit what ran before slows down what runs next, so neighbours change from round to round.
  std::vector<std::size_t> order(contestants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 random(0);
  Progress progress("measuring", static_cast<std::int64_t>(contestants.size()) * rounds);
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t who : order) {
      const Result<double> milliseconds = contestants[who].measure();
      if (!milliseconds.ok()) return milliseconds.status();
      times[who].push_back(*milliseconds);
      progress.advance();
    }
  }
  std::vector<double> medians;
  medians.reserve(times.size());
  for (std::vector<double>& each : times) medians.push_back(median_of(std::move(each)));
  return medians;
}

void add_peers(const LadderOptions& options, const Json& question, std::vector<Contestant>& contestants) {
  const auto leave_out = [](const Status& status) { std::fprintf(stderr, "left out: %s\n", status.message().c_str()); };
  Result<PeerScript> started = PeerScript::start("ladder_peers.py", options.python, {});
  if (!started.ok()) return leave_out(started.status());
  const auto script = std::make_shared<PeerScript>(std::move(*started));
  const Result<Json> prepared = script->ask(question);
  if (!prepared.ok()) return leave_out(prepared.status());
  for (const Json& implementation : prepared->at("implementations")) {
    const Json measure{{"measure", implementation}, {"round_ms", options.round_ms}};
    contestants.push_back({implementation, [script, measure]() -> Result<double> {
                             const Result<Json> answer = script->ask(measure);
                             if (!answer.ok()) return answer.status();
                             return answer->at("ms").get<double>();
                           }});
  }
}

int print_code(const LadderOptions& options, const std::vector<Rung>& rungs, const std::vector<RungCode>& codes) {
  Json records = Json::array();
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < rungs.size(); ++i) {
    const gpu::KernelResources& used = codes[i].cubin->resources;
    records.push_back(to_json(rungs[i], codes[i]));
    rows.push_back({rungs[i].name, rungs[i].idea, others_per_mma(codes[i]), std::to_string(used.registers),
                    std::to_string(used.spill_store_bytes + used.spill_load_bytes)});
  }
  if (options.json.prints_text())
    std::fputs(table({"rung", "idea", "other/mma", "registers", "spilled bytes"}, rows, 2).c_str(), stdout);
  return report_if_error(options.json.write(records));
}

}  // namespace warploom::cli
