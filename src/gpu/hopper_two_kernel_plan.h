// The plan of the backward pass on Hopper in two kernels, for wide heads and where it must be repeatable bit for bit:
// softmax's row terms; dK and dV (kernels/attention/attention_backward_keys_hopper.cu); dQ
// (kernels/attention/attention_backward_dq_hopper.cu).
#pragma once

#include "attention/hopper_backward_dq_config.h"
#include "attention/hopper_backward_keys_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kHopperBackwardKeys;
extern const KernelFamily kHopperBackwardDq;

/// `wanted` (dimensions, type, score, mask) with the tile table's row for it.
HopperBackwardKeysConfig choose_hopper_keys_config(const HopperBackwardKeysConfig& wanted);
HopperBackwardDqConfig choose_hopper_dq_config(const HopperBackwardDqConfig& wanted);

/// The configurations of a launch of these families.
HopperBackwardKeysConfig hopper_keys_config(const ConfigKey& key);
HopperBackwardDqConfig hopper_dq_config(const ConfigKey& key);

/// Whether these kernels can take a call that takes_two_kernels means for them; the mma.sync kernels take the others.
bool two_kernels_serve(const warploom_attention& call);

/// Whether a call that hopper_backward_serves takes is for these kernels: heads wider than kMaxOnePassDim, and
/// deterministic calls whose sums the one-pass kernel can not order (orders_sums).
bool takes_two_kernels(const warploom_attention& call);

/// Fills the plan of such a call whose lengths are known; without a driver, all but the tensor maps. Errors: the
/// driver's; runtime_error for more work than one launch takes.
Status plan_hopper_two_kernels(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda,
                               GpuPlan& plan);

}  // namespace warploom::gpu
