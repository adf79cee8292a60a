// The plan of the backward pass on Hopper for wide heads: softmax's row terms; dK, dV and sums for dQ by one kernel of
// two CTAs a work item (kernels/attention/attention_backward_pair_hopper.cu); dQ from its sums.
#pragma once

#include "attention/hopper_backward_pair_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kHopperBackwardPair;

/// The configuration of a launch.
HopperBackwardPairConfig hopper_pair_config(const ConfigKey& key);

/// Of the calls that hopper_backward_serves, those that take this plan: heads over 128 wide in bfloat16 without a
/// softcap or a bias, unless the call asks to be deterministic.
bool pair_serves(const warploom_attention& call);

/// Fills the plan of a call that is served and whose lengths are known; without a driver, all but the tensor maps.
/// Errors: the driver's; runtime_error for more work than one launch takes.
Status plan_hopper_pair(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda, GpuPlan& plan);

}  // namespace warploom::gpu
