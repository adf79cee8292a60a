#include "expression/functions.h"

#include <cfloat>
#include <cmath>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "expression/device_text.h"
#include "expression/differentiate.h"
#include "expression/parse.h"
#include "expression/print.h"
#include "expression/tokens.h"
#include "problem/message.h"

namespace warploom::expression {
namespace {

/// Functions of one kind by their text, for good, as the kernels that are loaded for them.
template <typename Function>
struct Known {
  std::mutex mutex;
  std::unordered_map<std::string, const Function*> by_text;
  std::deque<Function> all;
};

// Never destroyed: threads that run calls may outlive main.
template <typename Function>
Known<Function>& known() {
  static Known<Function>& held = *new Known<Function>;
  return held;
}

std::string_view text_of(const char* text) {
  return text == nullptr ? std::string_view() : text;
}

std::string key_of(const warploom_function& function) {
  std::string key(text_of(function.text));
  key.append(1, '\0').append(function.slope == nullptr ? "" : "=").append(text_of(function.slope));
  return key.append(1, '\0').append(text_of(function.parameters));
}

Status too_large(const char* what, const Program& program) {
  if (program.steps.size() <= kMaxSteps && program.slots <= kMaxSlots) return {};
  return Status::invalid_value(message(what, " is too large: ", program.steps.size(), " operations, ", program.slots,
                                       " values at once; ", kMaxSteps, " and ", kMaxSlots, " are served"));
}

Status make(const warploom_function& source, std::vector<std::string> names, ScoreFunction& function) {
  Graph graph(Domain::real);
  const Result<std::vector<int>> value = parse("score", source.text, names, graph);
  if (!value.ok()) return value.status();
  const int value_node = value->front();
  int slope_node = -1;
  function.derived = source.slope == nullptr;
  if (function.derived) {
    slope_node = differentiate(graph, value_node);
  } else {
    const Result<std::vector<int>> slope = parse("slope", source.slope, names, graph, /*slope=*/true);
    if (!slope.ok()) return slope.status();
    slope_node = slope->front();
  }
  function.text = source.text;
  function.slope_text = text_of(source.slope);
  function.slope = print(graph, {slope_node}, names);
  function.value_program = program_of(graph, {value_node});
  function.gradient_program = program_of(graph, {value_node, slope_node});
  function.device_text = score_device_text(graph, value_node, slope_node);
  function.parameters = std::move(names);
  return too_large("score", function.gradient_program);
}

Status make(const warploom_function& source, std::vector<std::string> names, MaskFunction& function) {
  if (source.slope != nullptr) return Status::invalid_value("slope is given with a mask function, which has none");
  Graph graph(Domain::integer);
  const Result<std::vector<int>> bounds = parse("mask", source.text, names, graph);
  if (!bounds.ok()) return bounds.status();
  function.text = source.text;
  function.intervals = static_cast<int>(bounds->size() / 2);
  function.program = program_of(graph, *bounds);
  for (const Program::Input& input : function.program.symbols) function.by_head |= input.index == MaskSymbol::head;
  function.device_text = mask_device_text(graph, *bounds);
  function.parameters = std::move(names);
  return too_large("mask", function.program);
}

template <typename Function>
Result<const Function*> find(const warploom_function& source, const char* what, Domain domain) {
  Known<Function>& all = known<Function>();
  const std::string key = key_of(source);
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.by_text.find(key); found != all.by_text.end()) return found->second;
  }
  if (source.text == nullptr) return Status::invalid_value(message(what, " has no text"));
  Result<std::vector<std::string>> names = parse_names("parameters", domain, text_of(source.parameters));
  if (!names.ok()) return names.status();
  Function function;
  if (Status status = make(source, std::move(*names), function); !status.ok()) return status;
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.by_text.find(key); found != all.by_text.end()) return found->second;
  function.number = static_cast<int>(all.all.size()) + 1;
  all.all.push_back(std::move(function));
  all.by_text.emplace(key, &all.all.back());
  return &all.all.back();
}

template <typename Function>
const Function& of_number(int number) {
  Known<Function>& all = known<Function>();
  const std::lock_guard lock(all.mutex);
  return all.all[static_cast<std::size_t>(number) - 1];
}

/// As many values as names, each one that the function can count with.
Status check_values(const warploom_function& source, const std::vector<std::string>& names, Domain domain) {
  if (source.num_values != static_cast<std::int64_t>(names.size()) || (source.values == nullptr && !names.empty())) {
    return Status::invalid_value(message("parameters has ", names.size(), " names and ",
                                         source.values == nullptr ? 0 : source.num_values,
                                         " values; pass one value for each"));
  }
  for (std::size_t n = 0; n < names.size(); ++n) {
    const double value = source.values[n];
    if (domain == Domain::real && !(std::fabs(value) <= FLT_MAX)) {
      return Status::invalid_value(message(names[n], " = ", value, " is not a finite float32"));
    }
    if (domain == Domain::integer && !(std::fabs(value) <= 0x7fffffff && std::trunc(value) == value)) {
      return Status::invalid_value(message(names[n], " = ", value, " is not an int32; a mask counts in whole numbers"));
    }
  }
  return {};
}

template <typename Function>
Result<const Function*> find_with_values(const warploom_function& source, const char* what, Domain domain) {
  const Result<const Function*> found = find<Function>(source, what, domain);
  if (!found.ok()) return found;
  if (Status status = check_values(source, (*found)->parameters, domain); !status.ok()) return status;
  return found;
}

}  // namespace

Result<const ScoreFunction*> find_score(const warploom_function& function) {
  return find_with_values<ScoreFunction>(function, "score", Domain::real);
}

Result<const MaskFunction*> find_mask(const warploom_function& function) {
  return find_with_values<MaskFunction>(function, "mask", Domain::integer);
}

const ScoreFunction& score_of_number(int number) {
  return of_number<ScoreFunction>(number);
}

const MaskFunction& mask_of_number(int number) {
  return of_number<MaskFunction>(number);
}

std::string with_score_lines(int number, const std::string& message) {
  const ScoreFunction& function = score_of_number(number);
  return with_user_lines(with_user_lines(message, kScoreFile, function.text), kSlopeFile, function.slope_text);
}

std::string with_mask_lines(int number, const std::string& message) {
  return with_user_lines(message, kMaskFile, mask_of_number(number).text);
}

}  // namespace warploom::expression
