// The plan of the forward kernel through mma.sync (kernels/attention/attention_forward_mma.cu): its tile table and
// arguments.
#pragma once

#include <vector>

#include "attention/attention_forward_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kMmaForward;

/// What a call asks of the kernel; tile sizes are left at their defaults.
AttentionForwardConfig forward_config_asked(const warploom_attention& call);

/// `asked` with the tile table's row for it on this device. Error: runtime_error when the shared memory is too small.
Result<AttentionForwardConfig> choose_config(const AttentionForwardConfig& asked, const DeviceInfo& device);

/// A configuration as a launch has it, and back. The kernel for short queries (split_plan.h) has the same ones.
ConfigKey key_of(const AttentionForwardConfig& config);
AttentionForwardConfig mma_forward_config(const ConfigKey& key);

/// The compiler's request for such a configuration of a kernel.
KernelRequest forward_request(const ConfigKey& key, const Architecture& architecture, const char* file,
                              const char* kernel);
KernelVariant forward_variant(const KernelFamily& family, const ConfigKey& key, const char* pass);

/// Score functions, biases, masks and types for one head dimension. `also_rare`: with biases and the softcap, but not
/// all of their combinations with each other and with float16. All of them for all dimensions would take an hour to
/// compile.
std::vector<AttentionForwardConfig> forward_configs_asked(int dim, bool also_rare);

/// Fills the plan of a served call whose max_seqlen_q is known. Errors: those of choose_config, and runtime_error for
/// more work than one launch takes.
Status plan_mma_forward(const warploom_attention& call, const DeviceInfo& device, GpuPlan& plan);

}  // namespace warploom::gpu
