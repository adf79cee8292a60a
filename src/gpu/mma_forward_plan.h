// The plan of the forward kernel through mma.sync (kernels/attention/attention_forward_mma.cu): its tile table and
// arguments.
#pragma once

#include "attention/attention_forward_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kMmaForward;

/// What a call asks of the kernel; tile sizes are left at their defaults.
AttentionForwardConfig forward_config_asked(const warploom_attention& call);

/// `asked` with the tile table's row for it on this device. Error: runtime_error when the shared memory is too small.
Result<AttentionForwardConfig> choose_config(const AttentionForwardConfig& asked, const DeviceInfo& device);

/// The configuration of a launch of this family.
AttentionForwardConfig mma_forward_config(const ConfigKey& key);

/// Fills the plan of a served call whose max_seqlen_q is known. Errors: those of choose_config, and runtime_error for
/// more work than one launch takes.
Status plan_mma_forward(const warploom_attention& call, const DeviceInfo& device, GpuPlan& plan);

}  // namespace warploom::gpu
