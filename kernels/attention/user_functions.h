// Calls with functions that a user writes: their parameters, which kernels read beside the rest of the call.
#pragma once

#include "attention/backward_config.h"
#include "attention/call.h"

namespace warploom {

/// Named numbers of a function.
inline constexpr int kMaxFunctionParameters = 8;

/// The arguments of kernels with a score function. They begin as those without do, whose code stays as it is.
struct UserScoreCall : AttentionCall {
  float score_parameters[kMaxFunctionParameters] = {};
};
struct UserBackwardParams : BackwardParams {
  float score_parameters[kMaxFunctionParameters] = {};
};

static_assert(sizeof(UserScoreCall) == sizeof(AttentionCall) + sizeof(float) * kMaxFunctionParameters);
static_assert(sizeof(UserBackwardParams) == sizeof(BackwardParams) + sizeof(float) * kMaxFunctionParameters);

template <bool UserScore>
using ForwardCallOf = Either<UserScore, UserScoreCall, AttentionCall>::Type;
template <bool UserScore>
using BackwardParamsOf = Either<UserScore, UserBackwardParams, BackwardParams>::Type;

/// The argument of mask_intervals.cu. The schedule's heads are those that the mask tells apart.
struct MaskIntervalsCall : AttentionCall {
  int* bounds = nullptr;  ///< (schedule.heads, total_q, intervals, 2)
  long long mask_parameters[kMaxFunctionParameters] = {};
};
inline constexpr int kMaskIntervalsThreads = 256;  ///< a row each

}  // namespace warploom
