#include "cli/bench_ladder.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/bank_conflicts.h"
#include "cli/devices.h"
#include "cli/gpu_clock.h"
#include "cli/ladder_bench.h"
#include "cli/runner.h"
#include "cli/terminal.h"
#include "gpu/choose_plan.h"
#include "gpu/reference_device.h"
#include "ladder/call.h"

namespace warploom::cli {
namespace {

constexpr const char* folder = "ladder";
const std::vector<std::string> rung_fields = {"query_rows", "key_columns", "warps", "stages", "min_blocks"};

struct Options : LadderOptions {
  int sequences = 4, length = 4096, heads = 16;
  bool once = false;  ///< one launch a rung and nothing measured, for ncu to look at
};

ladder::Rung sizes_of(const Rung& rung) {
  const auto size = [&rung](std::size_t field) { return rung.row.at(rung_fields[field]).get<int>(); };
  return {size(0), size(1), size(2), size(3), size(4)};
}

ProblemConfig problem_of(const Options& options) {
  ProblemConfig config;
  config.softmax = true;
  config.dtype = WARPLOOM_BFLOAT16;
  config.lengths_q.assign(static_cast<std::size_t>(options.sequences), options.length);
  config.heads = options.heads;
  config.head_dim = ladder::kDim;
  return config;
}

/// The kernel that the library runs for the ladder's problem through mma.sync.
Result<gpu::KernelRequest> product_request(const Options& options, const gpu::DeviceInfo& device) {
  Problem problem = make_problem(problem_of(options), false, Contents::untouched);
  const Result<warploom_attention> call = forward_call(problem, {.cuda = true});
  if (!call.ok()) return call.status();
  const auto plan = std::make_unique<gpu::GpuPlan>();
  if (Status status = gpu::choose_plan(*call, device, /*cuda=*/nullptr, *plan); !status.ok()) return status;
  return plan->launches[0].family->request(plan->launches[0].config, plan->architecture);
}

Result<std::vector<RungCode>> compile(const Options& options, const std::vector<Rung>& rungs,
                                      const gpu::DeviceInfo& device) {
  std::vector<gpu::KernelRequest> requests;
  for (const Rung& rung : rungs) {
    const Result<gpu::KernelRequest> request =
        rung.is_product() ? product_request(options, device)
                          : rung_request(folder, rung, rung_fields, "attention", gpu::compile_architecture(device));
    if (!request.ok()) return request.status();
    requests.push_back(*request);
  }
  return compile_rungs(requests);
}

/// A launch of a rung on the tensors of the product's call.
Result<std::function<Status()>> launcher(const Options& options, const Rung& rung, const RungCode& code,
                                         const warploom_attention& product, int device) {
  const ladder::Rung sizes = sizes_of(rung);
  const Result<const gpu::LoadedKernel*> kernel = gpu::load_kernel(code.cubin, device, sizes.shared_bytes());
  if (!kernel.ok()) return kernel.status();
  ladder::Call call{
      product.q.data, product.k.data, product.v.data,    const_cast<void*>(product.out.data), options.length,
      options.length, options.heads,  options.sequences, static_cast<float>(product.alpha)};
  gpu::LaunchShape shape;
  const int tiles = (options.length + sizes.query_rows - 1) / sizes.query_rows;
  shape.grid_x = static_cast<std::uint32_t>(tiles * options.sequences * options.heads);
  shape.block_x = static_cast<std::uint32_t>(sizes.warps * 32);
  return std::function<Status()>([kernel = *kernel, call, shape]() mutable {
    void* arguments[] = {&call};
    return gpu::launch(*kernel, shape, nullptr, arguments);
  });
}

/// The rungs' figures beside their code, fastest of all peers last.
int print_times(const Options& options, const std::vector<Rung>& rungs, const std::vector<RungCode>& codes,
                const std::vector<Contestant>& contestants, const std::vector<double>& medians,
                const std::vector<double>& conflicts) {
  const double flops = cli::flops(problem_of(options), false);
  const auto fa2 = std::find_if(contestants.begin(), contestants.end(), [](const auto& c) { return c.name == "fa2"; });
  const double peer = fa2 == contestants.end() ? 0 : medians[static_cast<std::size_t>(fa2 - contestants.begin())];
  Json records = Json::array();
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    const bool ours = i < rungs.size();
    Json record = ours ? to_json(rungs[i], codes[i]) : Json{{"rung", contestants[i].name}};
    record["median_ms"] = medians[i];
    record["tflops"] = flops / medians[i] * 1e-9;
    if (peer > 0) record["share_of_fa2"] = peer / medians[i];
    const bool counted = ours && conflicts.size() == rungs.size() && conflicts[i] >= 0;
    if (counted) record["bank_conflict_share"] = conflicts[i];
    rows.push_back({contestants[i].name, ours ? rungs[i].idea : "torch's flash-attention 2", format("%.4f", medians[i]),
                    format("%.0f", flops / medians[i] * 1e-9), peer > 0 ? format("%.3f", peer / medians[i]) : "-",
                    ours ? others_per_mma(codes[i]) : "",
                    counted ? format("%.0f %%", 100 * conflicts[i])
                    : ours  ? "-"
                            : "",
                    ours ? std::to_string(codes[i].cubin->resources.registers) : ""});
    records.push_back(std::move(record));
  }
  if (options.json.prints_text()) {
    std::printf("softmax attention forward, full, %d x %d rows, %d heads of 128, bfloat16\n\n", options.sequences,
                options.length, options.heads);
    std::fputs(
        table({"rung", "idea", "ms", "TFLOP/s", "of fa2", "other/mma", "conflicts", "registers"}, rows, 2).c_str(),
        stdout);
  }
  return report_if_error(options.json.write(records));
}

/// Of each rung, by this command under ncu.
std::vector<double> conflicts_of(const Options& options, const std::vector<Rung>& rungs) {
  std::vector<std::string> arguments = {"bench", "ladder", "--once"};
  for (const Rung& rung : rungs) arguments.push_back(rung.name);
  for (const auto& [name, value] :
       {std::pair{"--sequences", options.sequences}, {"--length", options.length}, {"--heads", options.heads}}) {
    arguments.insert(arguments.end(), {name, std::to_string(value)});
  }
  return count_bank_conflicts(arguments);
}

int measure(const Options& options, const Device& device, const std::vector<Rung>& rungs,
            const std::vector<RungCode>& codes) {
  const gpu::Driver& driver = **gpu::driver();
  Problem problem = make_problem(problem_of(options), false);
  Result<Runner> runner = Runner::make(problem, device, false);
  if (!runner.ok()) return report(runner.status());
  const warploom_attention& product = runner->device_call(false);
  const Result<gpu::ContextScope> context = gpu::ContextScope::enter(device.ordinal);
  if (!context.ok()) return report(context.status());
  GpuClock clock(driver);
  std::vector<Contestant> contestants;
  for (std::size_t i = 0; i < rungs.size(); ++i) {
    const Result<std::function<Status()>> launch =
        rungs[i].is_product() ? std::function<Status()>([&] { return detail::status_of(warploom_run(&product)); })
                              : launcher(options, rungs[i], codes[i], product, device.ordinal);
    if (!launch.ok()) return report(launch.status());
    if (options.once) {
      if (Status status = (*launch)(); !status.ok()) return report(status);
      continue;
    }
    const Result<Contestant> contestant = contestant_of(options, rungs[i].name, clock, *launch);
    if (!contestant.ok()) return report(contestant.status());
    contestants.push_back(*contestant);
  }
  if (options.once) return report_if_error(gpu::driver_status(driver, driver.cuCtxSynchronize(), "running the rungs"));
  add_peers(options,
            {{"prepare", "attention"},
             {"sequences", options.sequences},
             {"length", options.length},
             {"heads", options.heads}},
            contestants);
  const Result<std::vector<double>> medians = take_turns(contestants, options.rounds);
  if (!medians.ok()) return report(medians.status());
  return print_times(options, rungs, codes, contestants, *medians, conflicts_of(options, rungs));
}

int bench_ladder(const Options& options) {
  // The ladder ends at the kernel through mma.sync, on every GPU.
  setenv("WARPLOOM_KERNELS", "mma.sync", 1);
  const Result<std::vector<Rung>> rungs = asked_rungs(options, folder);
  if (!rungs.ok()) return report(rungs.status());
  const Result<Device> device = choose_device(options.device);
  if (!device.ok()) return report(device.status());
  const bool runs = device->cuda && options.architecture.empty();
  const Result<gpu::DeviceInfo> info = runs ? gpu::device_info(device->ordinal) : device_to_compile_for(options);
  if (!info.ok()) return report(info.status());
  const Result<std::vector<RungCode>> codes = compile(options, *rungs, *info);
  if (!codes.ok()) return report(codes.status());
  return runs ? measure(options, *device, *rungs, *codes) : print_code(options, *rungs, *codes);
}

}  // namespace

void add_bench_ladder_command(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      add_command(bench, "ladder", "The flash-attention ladder, rung by rung, beside flash-attention 2",
                  "  warploom bench ladder\n"
                  "  warploom bench ladder ring product --length 16384 --sequences 1\n"
                  "  warploom bench ladder --arch sm_80           what the machine code says, no GPU\n");
  options->add_to(*command);
  command->add_option("--sequences", options->sequences, "Sequences")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--length", options->length, "Rows of each")->check(CLI::Range(1, 65536))->capture_default_str();
  command->add_option("--heads", options->heads, "Heads")->check(CLI::Range(1, 128))->capture_default_str();
  command->add_flag("--once", options->once, "One launch of each rung, measuring nothing: for a profiler");
  on_run(*command, [options] { return bench_ladder(*options); });
}

}  // namespace warploom::cli
