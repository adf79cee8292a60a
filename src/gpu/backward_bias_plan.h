// The gradient of a bias in a backward call's plan: what the main kernel writes itself, and the kernels that sum the
// rest.
#pragma once

#include "attention/backward_bias_config.h"
#include "gpu/backward_around.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kMmaBackwardBias;
extern const KernelFamily kBackwardTableSums;
extern const KernelFamily kBackwardTableTotals;

BackwardBiasConfig mma_backward_bias_config(const ConfigKey& key);

/// Heads as wide as the main kernel has registers for tables' gradients beside.
inline constexpr int kMostAddedDim = 128;

/// Who computes the gradient of the call's bias.
enum class BiasGradientBy {
  nobody,       ///< there is no bias, or none is wanted
  main_kernel,  ///< stored, and each pair has an element of its own
  sums,         ///< stored, shared by sequences or heads
  tables,       ///< bucketed, repeatable bit for bit, with many times, or of wide heads
  totals,       ///< bucketed, added up by the main kernel
};
BiasGradientBy bias_gradient_by(const warploom_attention& call);
/// For `explain`.
const char* bias_gradient_text(BiasGradientBy by);

/// What the kernels' dS lacks of dR.
float bias_gradient_factor(const warploom_attention& call, const BiasCall& bias);

/// Fills in what the kernels read of the gradient; scratch memory is asked for in bias_sums.record_bytes and, cleared,
/// table_totals_bytes. Error: runtime_error where no tile fits the device.
Status fill_bias_gradient(const warploom_attention& call, const DeviceInfo& device, BackwardParams& params);

/// In a multiple of 256.
std::size_t table_totals_bytes(const BackwardParams& params);

/// The launches that sum it. Error: runtime_error for more CTAs than one launch takes.
Status add_bias_sums(const warploom_attention& call, const DeviceInfo& device, const BackwardParams& params,
                     GpuPlan& plan);

}  // namespace warploom::gpu
