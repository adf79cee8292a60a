// JSON as the command writes and reads it. Who looks into a value includes <nlohmann/json.hpp>, which takes seconds to
// compile; this declares it.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace warploom::cli {

/// Insertion-ordered, so that files read in the order in which they were written.
using Json = nlohmann::ordered_json;

}  // namespace warploom::cli
