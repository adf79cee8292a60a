#include "cli/gemm_runner.h"

#include <optional>

#include "cli/device_memory.h"
#include "gpu/gemm.h"
#include "gpu/launch_plan.h"

namespace warploom::cli {
namespace {

bool same_tile(const GemmConfig& x, const GemmConfig& y) {
  return x.tile_rows == y.tile_rows && x.tile_columns == y.tile_columns && x.ping_pong == y.ping_pong &&
         x.multicast == y.multicast && x.split == y.split && x.shares_a == y.shares_a && x.few_rows == y.few_rows;
}

/// warploom_gemm_run with another candidate than the fastest.
Status run_tile(const warploom_gemm& call, const GemmConfig& tile) {
  return gpu::with_plan(
      call, [&](const gpu::GemmCandidate& each) { return same_tile(each.config, tile); },
      [&](gpu::GpuPlan& plan, const gpu::Driver&) -> Status {
        gpu::PlannedLaunch& planned = plan.launches[0];
        const Result<const gpu::LoadedKernel*> kernel =
            gpu::loaded_kernel(planned, plan.architecture, call.device_index);
        if (!kernel.ok()) return kernel.status();
        return gpu::launch(**kernel, planned, nullptr);
      });
}

}  // namespace

Status run_product(GemmProblem& problem, const Device& device) {
  warploom_gemm call = gemm_call(problem, device.cuda, device.ordinal);
  if (!device.cuda) return detail::status_of(warploom_gemm_run(&call));
  const Result<const gpu::Driver*> driver = gpu::driver();
  if (!driver.ok()) return driver.status();
  const Result<gpu::ContextScope> context = gpu::ContextScope::enter(call.device_index);
  if (!context.ok()) return context.status();
  DeviceMemory memory(**driver);
  GuardedMatrices* const all[] = {&problem.a,    &problem.b,       &problem.c,      &problem.out,
                                  &problem.bias, &problem.scale_a, &problem.scale_b};
  for (const GuardedMatrices* each : all) {
    if (Status status = memory.add(each->memory.data(), each->memory.size()); !status.ok()) return status;
  }
  for (warploom_matrix* matrix : {&call.a, &call.b, &call.c, &call.out}) memory.translate(matrix->data);
  memory.translate(call.bias);
  memory.translate(call.scale_a);
  memory.translate(call.scale_b);

  if (Status status = memory.make_events(); !status.ok()) return status;
  const std::optional<GemmConfig>& tile = problem.config.tile;
  const Result<double> time =
      memory.time(nullptr, [&] { return tile ? run_tile(call, *tile) : detail::status_of(warploom_gemm_run(&call)); });
  if (!time.ok()) return time.status();
  for (GuardedMatrices* each : all) {
    if (Status status = memory.fetch(each->memory.data()); !status.ok()) return status;
  }
  return {};
}

}  // namespace warploom::cli
