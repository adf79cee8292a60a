#include "cli/bench_command.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_gemm.h"
#include "cli/bench_gemm_ladder.h"
#include "cli/bench_ladder.h"
#include "cli/bench_record.h"
#include "cli/case_name.h"
#include "cli/command.h"
#include "cli/devices.h"
#include "cli/history_data.h"
#include "cli/machine_rates.h"
#include "cli/memory_use.h"
#include "cli/numbers.h"
#include "cli/peers.h"
#include "cli/runner.h"
#include "cli/terminal.h"
#include "gpu/driver.h"
#include "problem/sequence.h"

namespace warploom::cli {
namespace {

struct Options {
  std::vector<std::string> cases;
  std::string device = "auto";
  std::string pass = "both";
  int rounds = 3;
  double round_ms = 300;
  int threads = 0;
  bool peers = false;
  std::string python;
  OutputOption csv;
  JsonOption json;

  bool prints_text() const { return json.prints_text() && !csv.takes_standard_output(); }
};

const std::vector<std::string> cpu_cases = {
    "hstu-movielens-H4-D64-causal-fp32",
    "hstu-movielens-H4-D64-causal-rab-bucketed-fp32",
    "hstu-jagged-B16-L64..512-H4-D64-causal-ctx4-tgt64-bf16",
    "hstu-uniform-B4-L1024-H4-D64-full-fp32",
    "softmax-uniform-B4-L1024-H4-D64-full-fp32",
};
const std::vector<std::string> gpu_cases = {
    "hstu-uniform-B8-L4096-H4-D64-causal-bf16",
    "hstu-uniform-B8-L4096-H4-D128-causal-bf16",
    "hstu-uniform-B8-L4096-H4-D128-causal-ctx4-tgt64-bf16",
    "hstu-jagged-B64-L256..2048-H4-D128-causal-bf16",
};

/// Dense 16-bit operations a second: multiply-adds of the tensor cores times two, from NVIDIA's tables of throughput
/// for each architecture, at the device's highest clock. 0: not known.
double tensor_core_peak(const Device& device) {
  const Result<gpu::DeviceInfo> info = gpu::device_info(device.ordinal);
  if (!info.ok()) return 0;
  const int version = 10 * info->major + info->minor;
  const double each_clock = version == 80 ? 2048 : version == 86 || version == 89 ? 1024 : version == 90 ? 4096 : 0;
  return each_clock * info->sm_count * info->clock_khz * 1e3;
}

/// The least time the machine needs for the operations and the bytes.
struct Roofline {
  double flops_per_second = 0, bytes_per_second = 0;

  std::optional<double> share(double flops, double bytes, double milliseconds) const {
    if (flops_per_second <= 0 || milliseconds <= 0) return std::nullopt;
    const double arithmetic = flops / flops_per_second, memory = bytes_per_second > 0 ? bytes / bytes_per_second : 0;
    return std::max(arithmetic, memory) / (1e-3 * milliseconds);
  }
};

Roofline roofline_of(const Device& device) {
  if (device.cuda) return {tensor_core_peak(device), 0};
  const MachineRates rates = measure_rates(warploom_get_num_threads());
  return {rates.flops_per_second, rates.bytes_per_second};
}

/// Something that is measured: ours, or a peer's.
struct Contestant {
  std::string implementation;
  bool backward = false;
  bool gemm = false;  ///< the matrix product that the CPU's figures are compared with
  Timings timings;
  std::optional<std::int64_t> peak_memory;
};

constexpr double gemm_size = 2048;
const char* const gemm_peer = "torch-sgemm";

/// One case: ours and the peers take turns, round after round.
class CaseBench {
 public:
  CaseBench(const Options& options, std::string name, ProblemConfig config, const Device& device)
      : options_(options), name_(std::move(name)), config_(std::move(config)), device_(device) {}

  /// Bytes in use at most beyond inputs and outputs; measured in processes of their own, before this one has threads.
  void measure_memory() {
    if (device_.cuda) return;
    for (const bool backward : {false, true}) {
      if (!takes_part(backward)) continue;
      peak_memory_[backward ? 1 : 0] = in_child([&]() -> std::optional<std::int64_t> {
        Problem problem = make_problem(config_, backward);
        Result<Runner> runner = Runner::make(problem, device_, backward);
        if (!runner.ok()) return std::nullopt;
        const PeakMemory memory;
        if (!runner->run(backward).ok()) return std::nullopt;
        return memory.bytes();
      });
    }
  }

  Status run(Peers* peers, Progress& progress) {
    peers_ = peers;
    const bool backward = options_.pass != "forward";
    problem_ = make_problem(config_, backward);
    Result<Runner> made = Runner::make(problem_, device_, backward);
    if (!made.ok()) return made.status();
    runner_.emplace(std::move(*made));
    if (Status status = enter(); !status.ok()) return status;
    for (int round = 0; round < options_.rounds; ++round) {
      for (Contestant& one : contestants_) {
        one.timings.new_round();
        double spent = 0;
        // A peer that takes longer than a round is run once in it.
        do {
          const Result<double> time = measure(one);
          if (!time.ok()) return time.status();
          one.timings.add(*time);
          spent += *time;
        } while (spent < options_.round_ms);
      }
      progress.advance();
    }
    return {};
  }

  /// Gives the memory of the problem back.
  void release() {
    runner_.reset();
    problem_ = Problem();
  }

  void add_records(const Roofline& roofline, std::vector<Record>& records) const {
    for (const bool backward : {false, true}) {
      for (const Contestant& one : contestants_) {
        if (one.gemm || one.backward != backward) continue;
        const double operations = flops(config_, backward), milliseconds = one.timings.median();
        const std::int64_t moved = problem_.bytes(backward);
        Record record{name_,
                      backward,
                      one.implementation,
                      device_.name,
                      dtype_name(config_.dtype),
                      milliseconds,
                      one.timings.spread(),
                      milliseconds > 0 ? operations / milliseconds * 1e-9 : 0,
                      moved,
                      one.peak_memory,
                      {}};
        record.roofline_share = roofline.share(operations, static_cast<double>(moved), milliseconds);
        records.push_back(std::move(record));
      }
    }
  }

  /// The matrix product that ran between this case's rounds.
  void add_gemm_record(const Roofline& roofline, std::vector<Record>& records) const {
    for (const Contestant& one : contestants_) {
      if (!one.gemm) continue;
      const double operations = 2 * gemm_size * gemm_size * gemm_size, milliseconds = one.timings.median();
      constexpr double moved = 3 * 4 * gemm_size * gemm_size;
      Record record{"gemm-2048x2048x2048-fp32",
                    false,
                    "torch",
                    device_.name,
                    dtype_name(WARPLOOM_FLOAT32),
                    milliseconds,
                    one.timings.spread(),
                    operations / milliseconds * 1e-9,
                    static_cast<std::int64_t>(moved),
                    {},
                    {}};
      record.roofline_share = roofline.share(operations, moved, milliseconds);
      records.push_back(std::move(record));
    }
  }

 private:
  bool takes_part(bool backward) const { return options_.pass == "both" || (options_.pass == "backward") == backward; }

  /// Lists who takes part; the first run of each is not timed.
  Status enter() {
    for (const bool backward : {false, true}) {
      // Softmax backward reads what forward wrote, so forward runs all the same.
      if (!takes_part(backward) && (backward || !config_.softmax)) continue;
      const Result<double> first = runner_->run(backward);
      if (!first.ok()) {
        // A pass that a device does not serve yet is left out, and said.
        if (!device_.cuda) return first.status();
        std::fprintf(stderr, "%s: %s left out: %s\n", name_.c_str(), backward ? "backward" : "forward",
                     first.status().message().c_str());
        continue;
      }
      if (takes_part(backward))
        contestants_.push_back({"warploom", backward, false, {}, peak_memory_[backward ? 1 : 0]});
    }
    if (peers_ == nullptr) return {};
    const Result<std::vector<std::string>> names = peers_->prepare(name_, config_);
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      for (const bool backward : {false, true}) {
        if (takes_part(backward)) contestants_.push_back({name, backward, false, {}, {}});
      }
    }
    contestants_.push_back({gemm_peer, false, true, {}, {}});
    return {};
  }

  Result<double> measure(const Contestant& one) {
    return one.implementation == "warploom" ? runner_->run(one.backward)
                                            : peers_->measure(one.implementation, one.backward);
  }

  const Options& options_;
  std::string name_;
  ProblemConfig config_;
  const Device& device_;
  Peers* peers_ = nullptr;
  std::optional<std::int64_t> peak_memory_[2];  // forward, backward
  Problem problem_;
  std::optional<Runner> runner_;
  std::vector<Contestant> contestants_;
};

int bench_attention(const Options& options) {
  if (options.csv.takes_standard_output() && !options.json.prints_text()) {
    return report(Status::invalid_value("--csv and --json both write to standard output; name a FILE for one of them"));
  }
  const Result<Device> device = choose_device(options.device);
  if (!device.ok()) return report(device.status());
  if (options.peers && device->cuda) {
    return report(Status::invalid_value(
        "--peers runs peers on the CPU; pass --device cpu (peers on a GPU are measured by tools/gpu_check)"));
  }
  if (const Status status = detail::status_of(warploom_set_num_threads(options.threads)); !status.ok())
    return report(status);

  const HistoryShape movielens = movielens_shape();
  const std::vector<std::string>& names = !options.cases.empty() ? options.cases : device->cuda ? gpu_cases : cpu_cases;
  std::vector<std::pair<std::string, ProblemConfig>> cases;
  for (const std::string& name : names) {
    const Result<Case> problem = parse_case(name);
    if (!problem.ok()) return report(problem.status());
    Result<ProblemConfig> config = config_of(*problem, movielens);
    if (!config.ok() && options.cases.empty()) {
      std::fprintf(stderr, "%s\n", config.status().message().c_str());
      continue;
    }
    if (!config.ok()) return report(config.status());
    cases.emplace_back(case_name(*problem), std::move(*config));
  }
  const Roofline roofline = roofline_of(*device);
  std::vector<CaseBench> benches;
  for (const auto& [name, config] : cases) {
    benches.emplace_back(options, name, config, *device);
    benches.back().measure_memory();
  }
  std::optional<Peers> peers;
  if (options.peers) {
    Result<Peers> started = Peers::start(options.python, warploom_get_num_threads());
    if (!started.ok()) return report(started.status());
    peers.emplace(std::move(*started));
  }
  std::vector<Record> records;
  {
    Progress progress("measuring", static_cast<std::int64_t>(cases.size()) * options.rounds);
    for (std::size_t index = 0; index < benches.size(); ++index) {
      CaseBench& bench = benches[index];
      progress.label(cases[index].first);
      if (const Status status = bench.run(peers ? &*peers : nullptr, progress); !status.ok()) return report(status);
      bench.add_records(roofline, records);
      if (index + 1 == benches.size()) bench.add_gemm_record(roofline, records);
      bench.release();
    }
  }

  if (options.prints_text()) {
    std::fputs(to_text(records).c_str(), stdout);
    if (!device->cuda) {
      std::printf(
          "\n%d threads; roofline: %.0f GFLOP/s of float32 multiply-adds, %.1f GB/s of copies, measured in this run\n",
          warploom_get_num_threads(), roofline.flops_per_second * 1e-9, roofline.bytes_per_second * 1e-9);
    }
  }
  Json json = Json::array();
  for (const Record& record : records) json.push_back(to_json(record));
  if (const Status status = options.csv.write(to_csv(records)); !status.ok()) return report(status);
  return report_if_error(options.json.write(json));
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* bench = add_command(
      app, "bench", "Time, TFLOP/s, bytes, share of the roofline, peers where present",
      "  warploom bench attention\n  warploom bench gemm\n  warploom bench ladder\n  warploom bench gemm-ladder\n");
  bench->require_subcommand(1);
  add_bench_gemm_command(*bench);
  add_bench_ladder_command(*bench);
  add_bench_gemm_ladder_command(*bench);
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(
      *bench, "attention", "Attention, forward and backward",
      "  warploom bench attention\n"
      "  warploom bench attention hstu-movielens-H4-D64-causal-fp32 --peers --json figures.json\n"
      "  warploom bench attention softmax-uniform-B4-L1024-H8-D64-causal-bf16 --pass forward --threads 1\n");
  command->add_option("cases", options->cases, "Cases by name (docs/cli.md); default: a set that suits the device");
  add_device_option(*command, options->device);
  command->add_option("--pass", options->pass, "forward, backward or both")
      ->check(CLI::IsMember({"forward", "backward", "both"}))
      ->capture_default_str();
  add_round_options(*command, options->rounds, options->round_ms);
  command->add_option("--threads", options->threads, "CPU threads, 0: all")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_flag("--peers", options->peers, "Measure torch too (on the CPU), with the Python beside the command");
  command->add_option("--python", options->python, "The Python that has torch, for --peers");
  options->csv.add_to(*command, "--csv", "CSV");
  options->json.add_to(*command);
  on_run(*command, [options] { return bench_attention(*options); });
}

}  // namespace warploom::cli
