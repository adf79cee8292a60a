// An expression as text of the users' language.
#pragma once

#include <string>
#include <vector>

#include "expression/graph.h"

namespace warploom::expression {

/// One value, or the values of half-open intervals, two each. What is used more than once gets a name of its own
/// (t1 = ...; ...). parse() gives the same nodes again.
std::string print(const Graph& graph, const std::vector<int>& results, const std::vector<std::string>& parameters);

}  // namespace warploom::expression
