// Texts of the library (JSON) as values.
#pragma once

#include <string>

#include "cli/json.h"
#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::cli {

/// What warploom_info or warploom_devices says.
Result<Json> library_json(int (*function)(char** text));

/// JSON text of the library as a value; an error when it is none.
Result<Json> parse_library_json(const std::string& text);

}  // namespace warploom::cli
