// A call's score and mask functions, looked up by their text: parsed once a process, whoever asks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expression/graph.h"
#include "expression/program.h"
#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::expression {

/// What P is made of instead of silu, and its slope. Neither moves nor changes: `number` stands for it in the keys of
/// compiled kernels (never in a cache's, which hold the text).
struct ScoreFunction {
  int number = 0;  ///< from 1
  std::string text, slope_text;
  std::string slope;     ///< as it is computed, derived or given
  bool derived = false;  ///< the slope
  std::vector<std::string> parameters;
  Program value_program;     ///< one result
  Program gradient_program;  ///< value, slope
  std::string device_text;
};

/// What a row sees: half-open intervals.
struct MaskFunction {
  int number = 0;
  std::string text;
  std::vector<std::string> parameters;
  int intervals = 0;
  bool by_head = false;  ///< the heads differ
  Program program;       ///< begin and end of each interval
  std::string device_text;
};

/// Errors: invalid_value with the place in the text marked; parameters' values are checked too. Thread safe.
Result<const ScoreFunction*> find_score(const warploom_function& function);
Result<const MaskFunction*> find_mask(const warploom_function& function);
/// One that was found before.
const ScoreFunction& score_of_number(int number);
const MaskFunction& mask_of_number(int number);

/// The compiler's message about a kernel with that function, with the lines of the user's text that it names.
std::string with_score_lines(int number, const std::string& message);
std::string with_mask_lines(int number, const std::string& message);

}  // namespace warploom::expression
