// The plan of the backward pass on Hopper: softmax's row terms; dK, dV and sums for dQ by one kernel
// (kernels/attention/attention_backward_hopper.cu); dQ from its sums.
#pragma once

#include "attention/hopper_backward_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kHopperBackward;

/// Heads up to here are differentiated in one pass.
inline constexpr int kMaxOnePassDim = 128;

/// `wanted` (dimensions, type, score, mask) with the tile table's row for it.
HopperBackwardConfig choose_hopper_backward_config(const HopperBackwardConfig& wanted);

/// The configuration of a launch, and the key of a configuration.
HopperBackwardConfig hopper_backward_config(const ConfigKey& key);
ConfigKey hopper_backward_key(const HopperBackwardConfig& config);
/// The request of a kernel whose configuration is a HopperBackwardConfig.
KernelRequest hopper_backward_request(const char* file, const char* kernel, const HopperBackwardConfig& config,
                                      const Architecture& architecture);

/// Whether a deterministic call adds to dQ's sums in one pass, in order: bfloat16, narrow heads, no lists of intervals,
/// no bias. The others take two kernels.
bool orders_sums(const warploom_attention& call);

/// The call's configuration without a tile.
HopperBackwardConfig hopper_backward_config_of(const warploom_attention& call);

/// Fills a main kernel's argument but for the schedule and scratch memory: maps with boxes of these rows. Without a
/// driver, all but the maps. Errors: the driver's.
Status start_hopper_backward(const warploom_attention& call, const Driver* cuda, const BackwardParams& common,
                             int query_rows, int key_rows, PlannedLaunch& launch);

/// The order of items of key_rows keys: groups of (sequence, key head) pairs whose Q, dO and dQ stay in L2, and in one
/// the first key tile first, which is the longest under a causal mask.
geometry::Schedule key_schedule(const warploom_attention& call, int key_rows, const DeviceInfo& device);

/// What these plans need scratch memory for.
struct ScratchUse {
  int query_rows = 0;      ///< of a tile of dQ's sums; 0: no sums
  bool clears = false;     ///< the main kernel clears them
  bool converts = false;   ///< and makes dQ of them
  std::size_t totals = 0;  ///< bytes of the sums of a bias's tables, cleared before
};
/// Scratch memory of all these plans, once their launches are there: the main kernels' counters and what tells how far
/// the sums are, both cleared; sums for dQ, cleared unless the kernel does it; row terms.
void place_scratch(const warploom_attention& call, const ScratchUse& use, GpuPlan& plan);

/// Whether the kernels take the call: a backward call on a Hopper GPU whose q, k, v and dout a tensor map can describe,
/// and its bias, where it has one, if shared memory and registers suffice. Everything else is for the mma.sync kernels.
/// Without a driver the GPU's is taken to be new enough.
bool hopper_backward_serves(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda);

/// Fills the plan of a call that is served and whose lengths are known; without a driver, all but the tensor maps.
/// Errors: the driver's; runtime_error for more work than one launch takes.
Status plan_hopper_backward(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda,
                            GpuPlan& plan);

}  // namespace warploom::gpu
