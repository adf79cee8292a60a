#include "cli/trace_rung.h"

#include <map>
#include <memory>
#include <vector>

#include "cli/gemm_rung.h"
#include "gpu/reference_device.h"

namespace warploom::cli {
namespace {

/// A rung with a file of its own, as a launch: what is read of its family are the hooks.
int strips(const gpu::ConfigKey& key) {
  return key[1];
}
void attach(gpu::PlannedLaunch& launch, trace::Level level, const trace::Sheet& sheet) {
  launch.config[0] = static_cast<int>(level);
  launch.params_as<gemm_ladder::Call>().sheet = sheet;
}
constexpr gpu::TraceHooks kHooks = {"rung", strips, attach};
const gpu::KernelFamily kGemmRung = {
    "rung of the GEMM ladder", "examples/gemm_ladder", nullptr, nullptr, nullptr, &kHooks};

Result<trace::TracedRun> trace_own_rung(const Rung& rung, const warploom_gemm& call, const gpu::DeviceInfo& device,
                                        const trace::TraceOptions& options) {
  const gpu::Driver& driver = **gpu::driver();
  const gemm_ladder::Rung sizes = sizes_of(rung);
  const auto plan = std::make_unique<gpu::GpuPlan>();
  plan->architecture = gpu::compile_architecture(device);
  gpu::PlannedLaunch& launch = plan->add_launch(kGemmRung, {0, sizes.warpgroups});
  launch.threads = sizes.warpgroups * 128;
  launch.shared_bytes = sizes.shared_bytes();
  gemm_ladder::Call& argument = launch.start_params<gemm_ladder::Call>();
  if (Status status = fill_call(driver, call, argument); !status.ok()) return status;
  launch.ctas = argument.schedule.tiles();
  trace::KernelsElsewhere kernels;
  std::map<int, const gpu::LoadedKernel*> loaded;  // by the level of their marks
  kernels.load = [&](const gpu::PlannedLaunch& planned) -> Result<const gpu::LoadedKernel*> {
    const gpu::LoadedKernel*& known = loaded[planned.config[0]];
    if (known != nullptr) return known;
    const Result<std::vector<RungCode>> code =
        compile_rungs({gemm_rung_request(rung, plan->architecture, trace::Level{planned.config[0]})});
    if (!code.ok()) return code.status();
    const Result<const gpu::LoadedKernel*> kernel =
        gpu::load_kernel(code->front().cubin, device.ordinal, planned.shared_bytes);
    if (kernel.ok()) known = *kernel;
    return kernel;
  };
  kernels.subject = trace::subject_of(scheme_of(rung), sizes.stages, gemm_ladder::kTile, gemm_ladder::kStep,
                                      options.machine, argument.steps);
  kernels.subject.title = "ladder, " + rung.name + ": " + rung.idea;
  return trace::traced_run(*plan, driver, device.ordinal, kernels, options);
}

}  // namespace

Result<Rung> find_rung(const std::string& name) {
  const Result<std::vector<Rung>> all = read_ladder("gemm_ladder");
  if (!all.ok()) return all.status();
  const Result<std::vector<Rung>> rungs = choose_rungs(*all, {name});
  if (!rungs.ok()) return rungs.status();
  if (rungs->size() == 1) return rungs->front();
  return Status::invalid_value("--rung " + name + " fits " + (*rungs)[0].name + " and " + (*rungs)[1].name);
}

Result<trace::TracedRun> trace_rung(const Rung& rung, const warploom_gemm& call, const trace::TraceOptions& options) {
  if (rung.is_product())
    return trace::traced_run(call, [&](const gpu::GemmCandidate& each) { return is_rung(each, rung); }, options);
  const bool plain = call.dtype == WARPLOOM_BFLOAT16 && call.out_dtype == WARPLOOM_BFLOAT16 && call.batch == 1 &&
                     call.bias == nullptr && call.activation == WARPLOOM_NO_ACTIVATION && call.c.data == nullptr;
  if (!plain || call.depth < 8 || call.depth % 8 != 0 || call.columns % 8 != 0) {
    return Status::invalid_value(
        "--rung " + rung.name +
        ": the ladder multiplies plain bf16 matrices whose columns and depth are multiples of 8, e.g. "
        "gemm-4096x4096x4096-bf16");
  }
  const Result<gpu::DeviceInfo> device = gpu::device_info(call.device_index);
  if (!device.ok()) return device.status();
  return trace_own_rung(rung, call, *device, options);
}

}  // namespace warploom::cli
