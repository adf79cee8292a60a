#include "cli/bench_gemm.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/devices.h"
#include "cli/gemm_case.h"
#include "cli/gemm_memory.h"
#include "cli/gpu_clock.h"
#include "cli/numbers.h"
#include "cli/terminal.h"
#include "gpu/driver.h"
#include "median.h"
#include "warploom/attention.h"

namespace warploom::cli {
namespace {

struct Options {
  std::vector<std::string> cases;
  std::string device = "auto";
  int rounds = 3;
  double round_ms = 300;
  JsonOption json;
};

const std::vector<std::string> default_cases = {
    "gemm-4096x4096x4096-bf16", "gemm-8192x8192x8192-bf16",
    "gemm-65536x2048x512-bf16", "gemm-65536x4096x1024-bf16-bias-silu",
    "gemm-64x4096x4096-bf16",   "gemm-256x4096x4096-bf16",
};

/// The median over the rounds of a call's time; enough calls in a row to fill a round.
Result<double> measure(const Options& options, const gpu::Driver& driver, const warploom_gemm& call) {
  GpuClock clock(driver);
  const auto multiply = [&call] { return detail::status_of(warploom_gemm_run(&call)); };
  const Result<int> calls = clock.calls_in(multiply, options.round_ms);
  if (!calls.ok()) return calls.status();
  std::vector<double> rounds;
  for (int round = 0; round < options.rounds; ++round) {
    const Result<double> spent = clock.time(multiply, *calls);
    if (!spent.ok()) return spent;
    rounds.push_back(*spent);
  }
  return median_of(std::move(rounds));
}

Result<Json> bench_case(const Options& options, const std::string& name, const GemmCase& gemm, const Device& device) {
  const gpu::Driver& driver = **gpu::driver();
  const Result<gpu::ContextScope> context = gpu::ContextScope::enter(device.ordinal);
  if (!context.ok()) return context.status();
  GemmMemory memory(driver);
  if (Status status = memory.fill(gemm, device.ordinal); !status.ok()) return status;
  const Result<double> milliseconds = measure(options, driver, memory.call());
  if (!milliseconds.ok()) return milliseconds.status();
  return Json{{"case", name},
              {"device", device.name},
              {"median_ms", *milliseconds},
              {"tflops", gemm.flops() / *milliseconds * 1e-9},
              {"bytes", memory.bytes()},
              {"gigabytes_per_second", memory.bytes() / *milliseconds * 1e-6}};
}

int bench_gemm(const Options& options) {
  std::vector<std::pair<std::string, GemmCase>> cases;
  for (const std::string& name : options.cases.empty() ? default_cases : options.cases) {
    const Result<GemmCase> gemm = parse_gemm_case(name);
    if (!gemm.ok()) return report(gemm.status());
    cases.emplace_back(name, *gemm);
  }
  const Result<Device> device = choose_device(options.device);
  if (!device.ok()) return report(device.status());
  if (!device->cuda) {
    return report(Status::runtime_error(
        "what is measured here are the matrix products of a Hopper GPU; pass --device cuda where there is one"));
  }
  Json records = Json::array();
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, gemm] : cases) {
    const Result<Json> record = bench_case(options, name, gemm, *device);
    if (!record.ok()) return report(record.status());
    char cells[3][32];
    std::snprintf(cells[0], sizeof cells[0], "%.4f", (*record)["median_ms"].get<double>());
    std::snprintf(cells[1], sizeof cells[1], "%.0f", (*record)["tflops"].get<double>());
    std::snprintf(cells[2], sizeof cells[2], "%.0f", (*record)["gigabytes_per_second"].get<double>());
    rows.push_back({name, cells[0], cells[1], cells[2]});
    records.push_back(*record);
  }
  if (options.json.prints_text()) std::fputs(table({"case", "ms", "TFLOP/s", "GB/s"}, rows, 1).c_str(), stdout);
  return report_if_error(options.json.write(records));
}

}  // namespace

void add_bench_gemm_command(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      add_command(bench, "gemm", "Matrix products on a Hopper GPU",
                  "  warploom bench gemm\n"
                  "  warploom bench gemm gemm-16384x16384x16384-bf16 gemm-64x4096x4096-fp16-bias --json\n");
  command->add_option("cases", options->cases, "gemm-MxNxK-TYPE[-to-fp32][-B8][-bias][-silu][-residual]");
  add_device_option(*command, options->device);
  add_round_options(*command, options->rounds, options->round_ms);
  options->json.add_to(*command);
  on_run(*command, [options] { return bench_gemm(*options); });
}

}  // namespace warploom::cli
