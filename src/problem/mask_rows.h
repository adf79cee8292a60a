// A mask function's intervals of every row, on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "expression/functions.h"
#include "warploom/warploom.h"

namespace warploom {

/// The call with the intervals of its mask function in `memory` instead of the function; other calls as they are. The
/// call has been validated with its values; `memory` is the result's for as long as that is used.
warploom_attention with_intervals(const warploom_attention& call, std::vector<std::int32_t>& memory);

/// The same without intervals that anyone may read: `intervals` is what the caller says.
warploom_attention with_interval_shape(const warploom_attention& call, const expression::MaskFunction& function,
                                       const std::int32_t* intervals);

}  // namespace warploom
