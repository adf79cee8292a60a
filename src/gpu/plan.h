// Which kernel serves a call, with which tile, schedule and arguments. `launch` runs this plan and `explain` prints it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "attention/hstu_forward_config.h"
#include "gpu/compiler.h"
#include "gpu/driver.h"
#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::gpu {

/// A configuration's members in order: what two of them are compared and hashed by.
inline std::array<int, 9> members(const HstuForwardConfig& c) {
  return {c.head_dim,    c.value_dim, c.bfloat16, c.interval_mask, c.query_rows,
          c.key_columns, c.stages,    c.warps,    c.min_blocks};
}

/// Everything a launch needs besides the compiled kernel.
struct HstuForwardPlan {
  HstuForwardConfig config;
  Architecture architecture;
  HstuForwardParams params;
  int shared_bytes = 0;
  int threads = 0;
  long long ctas = 0;
};

/// Whether a validated description is served on a GPU. Error: runtime_error that says what is not.
Status check_served(const warploom_attention& call);

/// The architecture that kernels for this device are compiled for.
Architecture compile_architecture(const DeviceInfo& device);

/// The tile table's row for these dimensions on this device. Error: runtime_error when its shared memory is too small.
Result<HstuForwardConfig> choose_config(int head_dim, int value_dim, bool bfloat16, bool interval_mask,
                                        const DeviceInfo& device);

/// The plan of a served call whose max_seqlen_q is known. Error: runtime_error for more work than one launch takes.
Result<HstuForwardPlan> plan_hstu_forward(const warploom_attention& call, const DeviceInfo& device);

/// The compiler's request for a configuration.
KernelRequest kernel_request(const HstuForwardConfig& config, const Architecture& architecture);

/// What the plan does and why, as a JSON object.
std::string describe(const HstuForwardPlan& plan, const warploom_attention& call, const DeviceInfo& device);

/// A device of this architecture as its vendor describes it, for planning and compiling without one.
/// Error: invalid_value for an architecture that is not known.
Result<DeviceInfo> reference_device(const Architecture& architecture);

/// Every configuration that `architecture`'s devices choose (dtypes, masks, head_dim = value_dim, every multiple of 8),
/// and with `whole_table` those of the tile table's other rows too.
std::vector<HstuForwardConfig> configurations(const DeviceInfo& device, bool whole_table);

}  // namespace warploom::gpu
