// From a user's text to nodes.
//
//   text      := { name = value ; } result [ ; ]
//   result    := value                                    of a score
//              | [ value , value ) { , [ value , value ) }    of a mask: half-open intervals
//   value     := C++'s operators ?: || && == != < <= > >= + - * / % ! and functions of values
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expression/graph.h"
#include "warploom/status.h"

namespace warploom::expression {

inline constexpr std::size_t kMaxText = 4096;
inline constexpr int kMaxParameters = 8;
inline constexpr int kMaxIntervals = 16;

/// A mask's symbols, in the order of their numbers (docs/attention.md, section 4); a score has z alone.
enum MaskSymbol : int { query_row, key_row, length_q, length_k, contexts, targets, history_end, sequence, head };
std::span<const std::string_view> symbols(Domain domain);
/// A function's name in the language; null for an operator and what has no name.
const char* function_name(Op op);

/// "alpha, beta" as names. Errors: invalid_value for one that is no name, is taken or stands twice, or too many.
Result<std::vector<std::string>> parse_names(std::string_view what, Domain domain, std::string_view names);

/// The result's nodes: one, or two for each interval. `what`: the argument's name for messages; `slope`: whether it is
/// a score's. Errors: invalid_value
/// with the place marked.
Result<std::vector<int>> parse(std::string_view what, std::string_view text, std::span<const std::string> parameters,
                               Graph& graph, bool slope = false);

}  // namespace warploom::expression
