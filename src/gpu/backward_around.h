// What the backward pass does before and after its main kernels, the same beside all of them: the common part of their
// arguments, softmax's row terms, and dQ from its sums in float32.
#pragma once

#include "attention/backward_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kBackwardRowTerms;
extern const KernelFamily kBackwardDqSums;

/// A configuration's members as text for a request, and the request of a backward kernel. text_after: what else stands
/// before the kernel's file.
const char* truth(bool value);
KernelRequest backward_request_for(const char* file, const char* kernel, const std::string& type,
                                   const std::string& members, const Architecture& architecture,
                                   const std::string& text_after = "",
                                   const char* header = "attention/backward_config.h");
/// "hstu", "softmax" or "softmax softcap".
std::string score_name(bool softmax, bool softcap);
/// A variant named `what` and its dimensions.
KernelVariant backward_variant_of(const KernelFamily& family, const ConfigKey& key, const std::string& what,
                                  int head_dim, int value_dim, bool bfloat16, bool interval_mask);

/// The argument of the call's kernels, without schedule and scratch memory.
BackwardParams backward_params(const warploom_attention& call);

/// The longest sequence of keys: without cumulative lengths of its own k has those of q.
int64_t longest_keys(const warploom_attention& call);

/// Scratch memory: first the sums for dQ, which are cleared (0 where a kernel computes dQ alone) ...
std::size_t dq_sums_bytes(const warploom_attention& call, int query_rows);
/// ... and softmax's row terms. Both in multiples of 256 bytes.
std::size_t row_terms_bytes(const warploom_attention& call);

/// Softmax: the launch that comes first. Error: runtime_error for more rows than one launch takes.
Status add_row_terms(const warploom_attention& call, const BackwardParams& params, GpuPlan& plan);

/// The launch that comes last where dQ was summed, in tiles of query_rows. Error: as above.
Status add_dq_sums(const warploom_attention& call, const BackwardParams& params, const DeviceInfo& device,
                   bool vector_reduction, int query_rows, GpuPlan& plan);

}  // namespace warploom::gpu
