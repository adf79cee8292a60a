#include "functions_json.h"

#include <nlohmann/json.hpp>

#include "expression/functions.h"
#include "problem/sequence.h"

namespace warploom {
namespace {

using nlohmann::json;

json to_json(const expression::ScoreFunction& function) {
  return {{"score", function.text},
          {"slope", function.slope},
          {"derived", function.derived},
          {"parameters", function.parameters}};
}

json to_json(const expression::MaskFunction& function) {
  return {{"mask", function.text},
          {"intervals", function.intervals},
          {"by_head", function.by_head},
          {"parameters", function.parameters}};
}

/// Bytes that are no UTF-8 show as replacements: a caller's text is any bytes that parse.
std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

template <typename Function>
Result<std::string> describe(const warploom_function* source,
                             Result<const Function*> (*find)(const warploom_function& function)) {
  if (source == nullptr) return Status::invalid_value("function is null; pass a warploom_function");
  const Result<const Function*> found = find(*source);
  if (!found.ok()) return found.status();
  return text_of(to_json(**found));
}

}  // namespace

Result<std::string> describe_score(const warploom_function* function) {
  return describe<expression::ScoreFunction>(function, expression::find_score);
}

Result<std::string> describe_mask(const warploom_function* function) {
  return describe<expression::MaskFunction>(function, expression::find_mask);
}

std::string with_functions(const warploom_attention& call, const std::string& plan) {
  if (!has_score_function(call) && !has_mask_function(call)) return plan;
  json result = json::parse(plan);
  if (has_score_function(call)) result["score_function"] = to_json(**expression::find_score(call.score));
  if (has_mask_function(call)) result["mask_function"] = to_json(**expression::find_mask(call.mask_function));
  return text_of(result);
}

}  // namespace warploom
