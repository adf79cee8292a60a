// Expressions as device functions, put before a kernel's text.
#pragma once

#include <string>
#include <vector>

#include "expression/graph.h"

namespace warploom::expression {

/// Names of the users' texts in a compiler's messages.
inline constexpr const char* kScoreFile = "score";
inline constexpr const char* kSlopeFile = "slope";
inline constexpr const char* kMaskFile = "mask";

/// struct ScoreExpression of kernels/attention/user_score.h.
std::string score_device_text(const Graph& graph, int value, int slope);
/// struct MaskExpression of kernels/attention/mask_intervals.cu. bounds: two nodes for each interval.
std::string mask_device_text(const Graph& graph, const std::vector<int>& bounds);

}  // namespace warploom::expression
