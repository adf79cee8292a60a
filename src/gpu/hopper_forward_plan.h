// The plan of the forward kernel for Hopper (kernels/attention/attention_forward_hopper.cu): its tile table, tensor
// maps and arguments.
#pragma once

#include "attention/hopper_forward_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kHopperForward;

/// `wanted` with the tile table's row for its dimensions filled in. Error: runtime_error when the device's shared
/// memory is too small for it.
Result<HopperForwardConfig> choose_hopper_config(const HopperForwardConfig& wanted, const DeviceInfo& device);

/// The configuration of a launch of this family.
HopperForwardConfig hopper_forward_config(const ConfigKey& key);

/// HSTU: whether an operand in bfloat16 can be multiplied by alpha / 2 without rounding.
bool bfloat16_carries_half_alpha(const warploom_attention& call);

/// The order of items of query_rows queries. All (sequence, head) pairs go side by side, longest tiles first, unless
/// their K and V would not stay in L2 from one tile of a sequence to the next: then in groups as large as L2 bears, but
/// large enough for the SMs to meet in the same K and V.
geometry::Schedule hopper_query_schedule(const warploom_attention& call, int query_rows, const DeviceInfo& device);

/// Whether the kernel takes the call: a forward call on a Hopper GPU, whose bias the kernel adds and whose q, k and v a
/// tensor map can describe. Everything else is for the mma.sync kernels. Without a driver the GPU's is taken to be new
/// enough.
bool hopper_forward_serves(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda);

/// Fills the plan of a call that is served and whose max_seqlen_q is known; without a driver, all but the tensor maps.
/// Errors: the driver's.
Status plan_hopper_forward(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda, GpuPlan& plan);

}  // namespace warploom::gpu
