// Random expressions in the users' language, and their values straight from a graph in double precision.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "expression/graph.h"
#include "expression/parse.h"

namespace warploom::expression {

/// The value of a node at a point, node by node in double precision.
inline double value_at(const Graph& graph, int node, double z, const std::vector<double>& parameters = {}) {
  std::vector<double> values;
  for (int n = 0; n <= node; ++n) {
    const Node& x = graph[n];
    const auto of = [&](int operand) { return operand < 0 ? 0.0 : values[static_cast<size_t>(operand)]; };
    switch (x.op) {
      case Op::constant:
        values.push_back(x.value);
        break;
      case Op::symbol:
        values.push_back(z);
        break;
      case Op::parameter:
        values.push_back(parameters[static_cast<size_t>(x.index)]);
        break;
      default:
        values.push_back(evaluate(x.op, of(x.a), of(x.b), of(x.c)));
    }
  }
  return values.back();
}

/// Smooth: nothing but what has a slope everywhere, of moderate size.
inline std::string random_expression(std::mt19937& random, int depth, bool smooth) {
  const auto pick = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  const auto inner = [&] { return random_expression(random, depth - 1, smooth); };
  if (depth == 0) {
    const char* leaves[] = {"z", "z", "beta", "0.5", "2", "-1.25", "pi"};
    return leaves[pick(7)];
  }
  if (!smooth && pick(3) == 0) {
    switch (pick(7)) {
      case 0:
        return "(" + inner() + " < " + inner() + " ? " + inner() + " : " + inner() + ")";
      case 1:
        return "max(" + inner() + ", " + inner() + ")";
      case 2:
        return "min(" + inner() + ", " + inner() + ", z)";
      case 3:
        return "abs(" + inner() + ")";
      case 4:
        return "relu(" + inner() + ")";
      case 5:
        return "select(!" + inner() + " || z >= beta && z != 1, " + inner() + ", sign(" + inner() + "))";
      default:
        return "clamp(" + inner() + ", -2, 2)";
    }
  }
  switch (pick(16)) {
    case 0:
      return "(" + inner() + " + " + inner() + ")";
    case 1:
      return "(" + inner() + " - " + inner() + ")";
    case 2:
      return inner() + " * sigmoid(" + inner() + ")";
    case 3:
      return "(" + inner() + ") / (1 + exp(tanh(" + inner() + ")))";
    case 4:
      return "-(" + inner() + ")";
    case 5:
      return "tanh(" + inner() + ")";
    case 6:
      return "sigmoid(" + inner() + ")";
    case 7:
      return "softplus(" + inner() + ")";
    case 8:
      return "log1p(sigmoid(" + inner() + "))";
    case 9:
      return "log(1.5 + tanh(" + inner() + "))";
    case 10:
      return "sqrt(2 + tanh(" + inner() + "))";
    case 11:
      return "pow(1.5 + tanh(" + inner() + "), sigmoid(" + inner() + "))";
    case 12:
      return "erf(" + inner() + ") + erfc(" + inner() + ")";
    case 13:
      return "exp2(tanh(" + inner() + ")) - expm1(sigmoid(" + inner() + "))";
    case 14:
      return "log2(2 + sigmoid(" + inner() + ")) * pow(tanh(" + inner() + "), 3)";
    default:
      return "gelu(" + inner() + ") + silu(" + inner() + ") * rsqrt(1 + exp(tanh(z)))";
  }
}

inline const std::vector<std::string> kBeta = {"beta"};

}  // namespace warploom::expression
