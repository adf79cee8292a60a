// Every switch of a scenario by name, once: the command's options, requests of other languages and the axes of sweeps
// are made from these tables.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/attention.h"
#include "sim/gemm.h"

namespace warploom::sim {

template <typename Scenario>
struct Parameter {
  std::string name;   ///< as in the struct, "epilogue_scale"; the option is "--epilogue-scale"
  std::string value;  ///< what it takes: "N", "X" or the words
  std::string help;
  std::function<Status(Scenario&, const std::string&)> set;  ///< parses only; validate() knows the rules
};

const std::vector<Parameter<GemmScenario>>& parameters(const GemmScenario&);
const std::vector<Parameter<AttentionScenario>>& parameters(const AttentionScenario&);

/// (name, value as text), in any order.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// Applies the settings, the machine first since the others change it, and validates. An unknown name is an error that
/// lists the known ones.
template <typename Scenario>
Status configure(Scenario& scenario, const Settings& settings);

extern template Status configure(GemmScenario&, const Settings&);
extern template Status configure(AttentionScenario&, const Settings&);

/// Which of the settings the scheme does not look at ("stages" of the synchronous loop): they are accepted, and said to
/// be so.
std::vector<std::string> without_effect(const GemmScenario& scenario, const Settings& settings);
std::vector<std::string> without_effect(const AttentionScenario& scenario, const Settings& settings);

/// Whole numbers ("4096", "4096.0") and numbers; the error names the argument.
Result<std::int64_t> parse_whole(const std::string& name, const std::string& text);
Result<double> parse_number(const std::string& name, const std::string& text);

}  // namespace warploom::sim
