// Requests as JSON text, for other languages: what the command does, without its printing.
#pragma once

#include <string>

#include "warploom/status.h"

namespace warploom::sim {

/// `request` is an object with "what" and what that needs (include/warploom/simulate.h lists it); the answer is JSON
/// text. Errors: invalid_value or invalid_type for a wrong request, runtime_error for a program that deadlocks.
Result<std::string> answer(const std::string& request);

}  // namespace warploom::sim
