// The plan of the forward kernel through mma.sync (kernels/attention/hstu_forward_mma.cu): its tile table and
// arguments.
#pragma once

#include "attention/hstu_forward_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kMmaForward;

/// The tile table's row for these dimensions on this device. Error: runtime_error when its shared memory is too small.
Result<HstuForwardConfig> choose_config(int head_dim, int value_dim, bool bfloat16, bool interval_mask,
                                        const DeviceInfo& device);

/// The configuration of a launch of this family.
HstuForwardConfig mma_forward_config(const ConfigKey& key);

/// Fills the plan of a served call whose max_seqlen_q is known. Errors: those of choose_config, and runtime_error for
/// more work than one launch takes.
Status plan_mma_forward(const warploom_attention& call, const DeviceInfo& device, GpuPlan& plan);

}  // namespace warploom::gpu
