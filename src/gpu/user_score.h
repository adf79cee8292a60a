// A user's score function in the plans of kernels that take one: those through mma.sync.
#pragma once

#include <string>

#include "attention/user_functions.h"
#include "gpu/plan.h"

namespace warploom::gpu {

/// As `explain` shows it.
inline constexpr const char* kUserScoreName = "a user's function";

/// The number that kernels' configurations hold; 0: the call has no function.
int user_score_number(const warploom_attention& call);

/// Of a kernel's request: the member of its configuration, which says only whether there is a function, as the cache
/// goes by the text; and the text of the function behind it, empty for 0.
std::string user_score_member(int number);
std::string user_score_text(int number);
/// " user score" in a variant's name.
std::string user_score_name(int number);
std::string user_score_failure(int number, const std::string& message);

/// The functions that kernels are compiled for ahead where spills are looked for: one that is cheap, one that is not.
std::vector<int> sample_scores();

void fill_score_parameters(const warploom_attention& call, float (&parameters)[kMaxFunctionParameters]);

/// Starts the argument of a kernel with the call's function: a UserScoreCall or UserBackwardParams.
template <typename Params>
Params& start_user_params(const warploom_attention& call, PlannedLaunch& launch) {
  Params& params = launch.start_params<Params>();
  fill_score_parameters(call, params.score_parameters);
  return params;
}

}  // namespace warploom::gpu
