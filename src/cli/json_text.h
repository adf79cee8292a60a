// JSON as text for people: what `info` and `explain` print.
#pragma once

#include <string>

#include "cli/json.h"

namespace warploom::cli {

/// Objects become indented sections with aligned "name  value" lines, arrays of like objects tables, other arrays
/// lists.
std::string json_text(const Json& value);

}  // namespace warploom::cli
