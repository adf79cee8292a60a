// Matrix products on a GPU: the front door.
#pragma once

#include <functional>
#include <string>

#include "gpu/gemm_plan.h"
#include "gpu/plan.h"
#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::gpu {

/// Compiles or finds the kernel of a validated product and queues it on the call's stream. Errors: runtime_error for a
/// device without wgmma, and for driver or compiler failures.
Status run(const warploom_gemm& call);

/// Plans the product with its device current and hands the plan, tensor maps and all, to `body`: not when there is
/// nothing to compute.
Status with_plan(const warploom_gemm& call, const std::function<Status(GpuPlan&, const Driver&)>& body);

/// The same with one of the product's candidates: the first that `wanted` takes. Error: runtime_error when none is.
Status with_plan(const warploom_gemm& call, const std::function<bool(const GemmCandidate&)>& wanted,
                 const std::function<Status(GpuPlan&, const Driver&)>& body);

/// What `run` does, as a JSON object; for an H200 when the machine has no such device.
Result<std::string> explain(const warploom_gemm& call);

}  // namespace warploom::gpu
