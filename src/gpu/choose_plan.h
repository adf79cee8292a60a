// Which kernels serve a call on a device, and the one list of all kernels.
#pragma once

#include <vector>

#include "gpu/plan.h"

namespace warploom::gpu {

/// Fills `plan` for a validated call whose max_seqlen_q is known. Without a driver it can be compiled and described,
/// not run. Errors: runtime_error for a device that is too old or too small, for a WARPLOOM_KERNELS that is not known,
/// and for more work than one launch takes.
Status choose_plan(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda, GpuPlan& plan);

/// Every configuration of every kernel that `device` can run (KernelFamily::variants).
std::vector<KernelVariant> kernel_variants(const DeviceInfo& device, bool whole_table);

}  // namespace warploom::gpu
