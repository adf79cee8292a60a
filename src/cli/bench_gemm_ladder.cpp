#include "cli/bench_gemm_ladder.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/devices.h"
#include "cli/gemm_memory.h"
#include "cli/gemm_rung.h"
#include "cli/gpu_clock.h"
#include "cli/ladder_bench.h"
#include "cli/terminal.h"
#include "gpu/gemm_plan.h"
#include "gpu/launch_plan.h"
#include "gpu/reference_device.h"
#include "sim/scenario.h"

namespace warploom::cli {
namespace {

constexpr const char* folder = "gemm_ladder";

struct Options : LadderOptions {
  std::string name = "gemm-8192x8192x8192-bf16";
  std::string machine = "h200";
};

using Launch = std::function<Status()>;

Result<gpu::KernelRequest> request_of(const Rung& rung, const warploom_gemm& call, const gpu::DeviceInfo& device) {
  const gpu::Architecture architecture = gpu::compile_architecture(device);
  if (!rung.is_product()) return gemm_rung_request(rung, architecture);
  const Result<gpu::GemmCandidate> candidate = candidate_of(rung, call, device);
  if (!candidate.ok()) return candidate.status();
  const auto plan = std::make_unique<gpu::GpuPlan>();
  if (Status status = gpu::plan_gemm(call, device, *candidate, *plan); !status.ok()) return status;
  return plan->launches[0].family->request(plan->launches[0].config, architecture);
}

/// A launch of one of the first rungs.
Result<Launch> rung_launch(const gpu::Driver& driver, const Rung& rung, const RungCode& code,
                           const warploom_gemm& product, int device) {
  const gemm_ladder::Rung sizes = sizes_of(rung);
  const Result<const gpu::LoadedKernel*> kernel = gpu::load_kernel(code.cubin, device, sizes.shared_bytes());
  if (!kernel.ok()) return kernel.status();
  const auto call = std::make_shared<gemm_ladder::Call>();
  if (Status status = fill_call(driver, product, *call); !status.ok()) return status;
  gpu::LaunchShape shape;
  shape.grid_x = static_cast<std::uint32_t>(call->schedule.tiles());
  shape.block_x = static_cast<std::uint32_t>(sizes.warpgroups * 128);
  return Launch([kernel = *kernel, call, shape] {
    void* arguments[] = {call.get()};
    return gpu::launch(*kernel, shape, nullptr, arguments);
  });
}

/// A launch of the product's kernel in one configuration.
Result<Launch> product_launch(const gpu::Driver& driver, const Rung& rung, const warploom_gemm& call,
                              const gpu::DeviceInfo& device) {
  const Result<gpu::GemmCandidate> candidate = candidate_of(rung, call, device);
  if (!candidate.ok()) return candidate.status();
  const auto plan = std::make_shared<gpu::GpuPlan>();
  if (Status status = gpu::plan_gemm(call, device, *candidate, *plan); !status.ok()) return status;
  gpu::PlannedLaunch& planned = plan->launches[0];
  if (Status status = gpu::encode_gemm_maps(call, driver, planned); !status.ok()) return status;
  const Result<const gpu::LoadedKernel*> kernel = gpu::loaded_kernel(planned, plan->architecture, device.ordinal);
  if (!kernel.ok()) return kernel.status();
  return Launch([kernel = *kernel, plan] { return gpu::launch(*kernel, plan->launches[0], nullptr); });
}

/// Milliseconds by the simulator's model: an SM computes its share of the tiles one after the other.
Result<double> model_ms(const Options& options, const Rung& rung, const GemmCase& gemm) {
  const Result<sim::Machine> machine = sim::find_machine(options.machine);
  if (!machine.ok()) return machine.status();
  sim::GemmScenario scenario;
  scenario.machine = *machine;
  scenario.scheme = scheme_of(rung);
  scenario.k = gemm.depth;
  const bool wide = rung.is_product() && rung.row.at("ping_pong") == 0;
  scenario.tile_n = wide ? 256 : 128;
  scenario.stages = wide ? 3 : rung.is_product() ? 5 : sizes_of(rung).stages;
  scenario.consumers = rung.is_product() && !wide ? 2 : 1;
  const std::int64_t tiles = rung_tiles(gemm.rows) * ((gemm.columns + scenario.tile_n - 1) / scenario.tile_n);
  scenario.tiles = (tiles + machine->sms - 1) / machine->sms;
  const Result<sim::Run> run = sim::run_scenario(scenario);
  if (!run.ok()) return run.status();
  return sim::microseconds(*machine, run->timeline.makespan) * 1e-3;
}

int print_times(const Options& options, const GemmCase& gemm, const std::vector<Rung>& rungs,
                const std::vector<RungCode>& codes, const std::vector<Contestant>& contestants,
                const std::vector<double>& medians) {
  const double peer = contestants.back().name == "cublas" ? medians.back() : 0;
  Json records = Json::array();
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    const bool ours = i < rungs.size();
    Json record = ours ? to_json(rungs[i], codes[i]) : Json{{"rung", contestants[i].name}};
    record["median_ms"] = medians[i];
    record["tflops"] = gemm.flops() / medians[i] * 1e-9;
    if (peer > 0) record["share_of_cublas"] = peer / medians[i];
    std::string model;
    if (ours) {
      const Result<double> predicted = model_ms(options, rungs[i], gemm);
      if (!predicted.ok()) return report(predicted.status());
      record["model_tflops"] = gemm.flops() / *predicted * 1e-9;
      model = format("%.0f", gemm.flops() / *predicted * 1e-9);
    }
    rows.push_back({contestants[i].name, ours ? rungs[i].idea : "torch.mm", format("%.4f", medians[i]),
                    format("%.0f", gemm.flops() / medians[i] * 1e-9), model,
                    i > 0 && ours ? format("%.2f", medians[i - 1] / medians[i]) : "",
                    peer > 0 ? format("%.3f", peer / medians[i]) : "-",
                    ours ? std::to_string(codes[i].cubin->resources.registers) : ""});
    records.push_back(std::move(record));
  }
  if (options.json.prints_text()) {
    std::printf("%s; model: `warploom simulate gemm` on %s\n\n", options.name.c_str(), options.machine.c_str());
    std::fputs(table({"rung", "idea", "ms", "TFLOP/s", "model", "step", "of cublas", "registers"}, rows, 2).c_str(),
               stdout);
  }
  return report_if_error(options.json.write(records));
}

int measure(const Options& options, const GemmCase& gemm, const Device& device, const std::vector<Rung>& rungs,
            const std::vector<RungCode>& codes, const gpu::DeviceInfo& info) {
  const gpu::Driver& driver = **gpu::driver();
  const Result<gpu::ContextScope> context = gpu::ContextScope::enter(device.ordinal);
  if (!context.ok()) return report(context.status());
  GemmMemory memory(driver);
  if (Status status = memory.fill(gemm, device.ordinal); !status.ok()) return report(status);
  GpuClock clock(driver);
  std::vector<Contestant> contestants;
  for (std::size_t i = 0; i < rungs.size(); ++i) {
    const Result<Launch> launch = rungs[i].is_product()
                                      ? product_launch(driver, rungs[i], memory.call(), info)
                                      : rung_launch(driver, rungs[i], codes[i], memory.call(), device.ordinal);
    if (!launch.ok()) return report(launch.status());
    const Result<Contestant> contestant = contestant_of(options, rungs[i].name, clock, *launch);
    if (!contestant.ok()) return report(contestant.status());
    contestants.push_back(*contestant);
  }
  add_peers(options, {{"prepare", "gemm"}, {"rows", gemm.rows}, {"columns", gemm.columns}, {"depth", gemm.depth}},
            contestants);
  const Result<std::vector<double>> medians = take_turns(contestants, options.rounds);
  if (!medians.ok()) return report(medians.status());
  return print_times(options, gemm, rungs, codes, contestants, *medians);
}

int bench_gemm_ladder(const Options& options) {
  const Result<GemmCase> gemm = parse_gemm_case(options.name);
  if (!gemm.ok()) return report(gemm.status());
  const bool plain = gemm->dtype == WARPLOOM_BFLOAT16 && gemm->out_dtype == WARPLOOM_BFLOAT16 && gemm->batch == 1 &&
                     !gemm->bias && !gemm->silu && !gemm->residual;
  if (!plain || gemm->depth < 8 || gemm->depth % 8 != 0 || gemm->columns % 8 != 0) {
    return report(Status::invalid_value("--case " + options.name +
                                        ": the ladder multiplies plain bf16 matrices whose columns and depth are "
                                        "multiples of 8, e.g. gemm-4096x4096x4096-bf16"));
  }
  if (const Status status = sim::find_machine(options.machine).status(); !status.ok()) return report(status);
  const Result<std::vector<Rung>> rungs = asked_rungs(options, folder);
  if (!rungs.ok()) return report(rungs.status());
  const Result<Device> device = choose_device(options.device);
  if (!device.ok()) return report(device.status());
  const bool runs = device->cuda && options.architecture.empty();
  const Result<gpu::DeviceInfo> info = runs ? gpu::device_info(device->ordinal) : device_to_compile_for(options);
  if (!info.ok()) return report(info.status());
  if (info->major != 9) {
    return report(Status::invalid_value(info->name + " has no wgmma; the GEMM ladder needs Hopper (--arch sm_90a)"));
  }
  const warploom_gemm described = describe_case(*gemm);
  std::vector<gpu::KernelRequest> requests;
  for (const Rung& rung : *rungs) {
    const Result<gpu::KernelRequest> request = request_of(rung, described, *info);
    if (!request.ok()) return report(request.status());
    requests.push_back(*request);
  }
  const Result<std::vector<RungCode>> codes = compile_rungs(requests);
  if (!codes.ok()) return report(codes.status());
  return runs ? measure(options, *gemm, *device, *rungs, *codes, *info) : print_code(options, *rungs, *codes);
}

}  // namespace

void add_bench_gemm_ladder_command(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      add_command(bench, "gemm-ladder", "The GEMM ladder: each pipeline of the simulator as a kernel, beside its model",
                  "  warploom bench gemm-ladder\n"
                  "  warploom bench gemm-ladder cp-async specialized --case gemm-4096x4096x4096-bf16\n"
                  "  warploom bench gemm-ladder --arch sm_90a     what the machine code says, no GPU\n");
  options->add_to(*command);
  command->add_option("--case", options->name, "The product, gemm-MxNxK-bf16")->capture_default_str();
  command->add_option("--machine", options->machine, "The model's machine: a name or a machine file (calibrate)")
      ->capture_default_str();
  on_run(*command, [options] { return bench_gemm_ladder(*options); });
}

}  // namespace warploom::cli
