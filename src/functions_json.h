// What the library makes of a caller's functions, as JSON: for the C ABI.
#pragma once

#include <string>

#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom {

/// Errors: those of parsing, with the place marked.
Result<std::string> describe_score(const warploom_function* function);
Result<std::string> describe_mask(const warploom_function* function);

/// A back end's plan with the call's functions beside it ("score_function", "mask_function").
std::string with_functions(const warploom_attention& call, const std::string& plan);

}  // namespace warploom
