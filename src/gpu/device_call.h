// From the description of a call to what the kernels take.
#pragma once

#include "attention/call.h"
#include "attention/kinds.h"
#include "gpu/driver.h"
#include "warploom/warploom.h"

namespace warploom::gpu {

/// The form of the call's bias as kernels tell them apart.
BiasKind bias_kind(const warploom_attention& call);
/// Its name in kinds.h.
const char* bias_name(BiasKind bias);

/// Fills everything but the schedule of a value-initialised `target`. The call's max_seqlen_q is known.
void fill_device_call(const warploom_attention& call, AttentionCall& target);

/// The same for where the gradient of a dense or packed bias goes.
void fill_bias_gradient_call(const warploom_attention& call, BiasCall& target);

/// The order of tiles of `tile_rows` rows: of query rows up to `longest`, the longest sequence. `ctas_of_sm`: how many
/// CTAs run on an SM at a time.
geometry::Schedule schedule_of(const warploom_attention& call, std::int64_t longest, int tile_rows, int ctas_of_sm,
                               const DeviceInfo& device);

}  // namespace warploom::gpu
