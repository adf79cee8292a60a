// The GPU back end's front door.
#pragma once

#include <functional>
#include <string>

#include "gpu/plan.h"
#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::gpu {

/// Validates the parts of a call that live on the device (lengths and counts with WARPLOOM_CHECK_INPUTS), compiles or
/// finds the kernel and queues it on the call's stream. Errors: what is not served yet, and driver or compiler
/// failures.
Status run(const warploom_attention& call);

/// Plans the call with its device current and hands the plan to `body`.
Status with_plan(const warploom_attention& call, const std::function<Status(GpuPlan&, const Driver&)>& body);

/// Compiles and loads what the call needs without running it.
Status warmup(const warploom_attention& call);

/// The plan that `run` follows for this call, as a JSON object.
Result<std::string> explain(const warploom_attention& call);

}  // namespace warploom::gpu
