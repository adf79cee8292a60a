// Matrix products on a GPU: the front door.
#pragma once

#include <string>

#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::gpu {

/// Compiles or finds the kernel of a validated product and queues it on the call's stream. Errors: runtime_error for a
/// device without wgmma, and for driver or compiler failures.
Status run(const warploom_gemm& call);

/// What `run` does, as a JSON object; for an H200 when the machine has no such device.
Result<std::string> explain(const warploom_gemm& call);

}  // namespace warploom::gpu
