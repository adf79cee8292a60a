// Every rule of a call that can be checked, with messages that name the argument, its value, the rule and the remedy.
#pragma once

#include <cstdint>

#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom {

/// The most threads that a caller may ask for.
inline constexpr std::int32_t kMaxThreads = 4096;

Status validate_num_threads(std::int32_t count);

/// Rules on the description itself: versions, shapes, dtypes, strides, options. Reads no tensor.
Status validate_description(const warploom_attention& call);

/// Rules on the values of cu_seqlens, seqused, num_contexts and num_targets, which must be host-readable here.
/// The description has been validated.
Status validate_values(const warploom_attention& call);

}  // namespace warploom
