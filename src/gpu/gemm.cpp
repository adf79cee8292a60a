#include "gpu/gemm.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "gpu/gemm_plan.h"
#include "gpu/launch_plan.h"
#include "gpu/reference_device.h"

namespace warploom::gpu {

Status with_plan(const warploom_gemm& call, const std::function<Status(GpuPlan&, const Driver&)>& body) {
  return with_plan(call, nullptr, body);
}

Status with_plan(const warploom_gemm& call, const std::function<bool(const GemmCandidate&)>& wanted,
                 const std::function<Status(GpuPlan&, const Driver&)>& body) {
  const Result<const Driver*> cuda = driver();
  if (!cuda.ok()) return cuda.status();
  const Result<ContextScope> context = ContextScope::enter(call.device_index);
  if (!context.ok()) return context.status();
  const Result<DeviceInfo> device = device_info(call.device_index);
  if (!device.ok()) return device.status();
  GpuPlan plan;
  if (wanted == nullptr) {
    if (Status status = plan_gemm(call, *device, plan); !status.ok()) return status;
  } else {
    const std::vector<GemmCandidate> candidates = gemm_candidates(call, *device);
    const auto chosen = std::find_if(candidates.begin(), candidates.end(), wanted);
    if (chosen == candidates.end()) return Status::runtime_error("the tile does not serve this product");
    if (Status status = plan_gemm(call, *device, *chosen, plan); !status.ok()) return status;
  }
  PlannedLaunch& planned = plan.launches[0];
  if (planned.ctas == 0) return {};
  if (Status status = encode_gemm_maps(call, **cuda, planned); !status.ok()) return status;
  return body(plan, **cuda);
}

Status run(const warploom_gemm& call) {
  return with_plan(call, [&call](GpuPlan& plan, const Driver&) -> Status {
    PlannedLaunch& planned = plan.launches[0];
    const Result<const LoadedKernel*> kernel = loaded_kernel(planned, plan.architecture, call.device_index);
    if (!kernel.ok()) return kernel.status();
    return launch(**kernel, planned, static_cast<StreamHandle>(call.stream));
  });
}

Result<std::string> explain(const warploom_gemm& call) {
  Result<DeviceInfo> device = device_info(call.device_index);
  if (!device.ok()) device = reference_device({9, 0, true});
  if (!device.ok()) return device.status();
  const auto plan = std::make_unique<GpuPlan>();
  if (Status status = plan_gemm(call, *device, *plan); !status.ok()) return status;
  return describe_gemm(call, *device, *plan);
}

}  // namespace warploom::gpu
