// The slope of an expression.
#pragma once

#include "expression/graph.h"

namespace warploom::expression {

/// d node / d symbol 0, in the same graph. At a kink (abs, min, max) it is the slope to one side: relu's at 0 is 0, and
/// min and max of equal values have the slope of the second one. Comparisons and sign have slope 0.
int differentiate(Graph& graph, int node);

}  // namespace warploom::expression
