// The plan of the backward pass through mma.sync: softmax's row terms, dK and dV with sums for dQ, dQ from its sums;
// or, where it must be repeatable bit for bit, dK and dV, then dQ by a kernel of its own.
#pragma once

#include "attention/backward_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kMmaBackward;
extern const KernelFamily kMmaBackwardDq;

/// The configurations of a launch of these families.
BackwardConfig mma_backward_config(const ConfigKey& key);
BackwardDqConfig mma_backward_dq_config(const ConfigKey& key);

/// Fills the plan of a served call whose lengths are known. Errors: runtime_error for a device with too little shared
/// memory, and for more work than one launch takes.
Status plan_mma_backward(const warploom_attention& call, const DeviceInfo& device, GpuPlan& plan);

}  // namespace warploom::gpu
