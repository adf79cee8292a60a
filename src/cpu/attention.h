// The CPU back end's front door.
#pragma once

#include <cstdint>
#include <string>

#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::cpu {

/// Runs a validated call (description and values) and returns when its results are written.
/// Errors: runtime_error when scratch memory cannot be had.
Status run(const warploom_attention& call);

/// The plan that `run` follows for this call, as a JSON object.
std::string explain(const warploom_attention& call);

/// A score function's values and slopes (null: not wanted) at `count` points. Errors: those of expression::find_score.
Status evaluate_score(const warploom_function& function, const float* z, int64_t count, float* values, float* slopes);

/// The processor's name and the instruction set the kernels were dispatched to, e.g. "AVX3".
std::string processor_name();
std::string instruction_set();

/// Threads used when a call does not say: 0 = as many as the process may run on.
void set_num_threads(int count);
int num_threads();

}  // namespace warploom::cpu
