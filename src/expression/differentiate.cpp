#include "expression/differentiate.h"

#include <cmath>
#include <vector>

namespace warploom::expression {
namespace {

/// Products and sums in which what is 0 or 1 by derivation leaves nothing behind. A user's own 0 * z stays.
class Derivation {
 public:
  explicit Derivation(Graph& graph) : graph_(graph), zero_(graph.constant(0)), one_(graph.constant(1)) {}

  int slope_of(int node) {
    std::vector<int> slopes(static_cast<std::size_t>(node) + 1, zero_);
    for (int n = 0; n <= node; ++n) {
      graph_.set_origin(graph_.origin(n));
      slopes[static_cast<std::size_t>(n)] = slope(n, slopes);
    }
    return slopes.back();
  }

 private:
  bool is_zero(int x) const { return graph_.is_constant(x, 0); }
  int add(int x, int y) { return is_zero(x) ? y : is_zero(y) ? x : graph_.make(Op::add, x, y); }
  int negate(int x) { return is_zero(x) ? x : graph_.make(Op::negate, x); }
  int subtract(int x, int y) { return is_zero(y) ? x : is_zero(x) ? negate(y) : graph_.make(Op::subtract, x, y); }
  int multiply(int x, int y) {
    if (is_zero(x) || is_zero(y)) return zero_;
    if (x == one_) return y;
    return y == one_ ? x : graph_.make(Op::multiply, x, y);
  }
  int divide(int x, int y) { return is_zero(x) ? x : graph_.make(Op::divide, x, y); }
  int select(int condition, int yes, int no) { return yes == no ? yes : graph_.make(Op::select, condition, yes, no); }
  int sigmoid(int x) { return graph_.make(Op::sigmoid, x); }
  int scaled(double factor, int x) { return graph_.make(Op::multiply, graph_.constant(factor), x); }

  int slope(int n, const std::vector<int>& slopes) {
    const Node node = graph_[n];
    const auto of = [&](int operand) { return operand < 0 ? zero_ : slopes[static_cast<std::size_t>(operand)]; };
    const int a = node.a, b = node.b, da = of(node.a), db = of(node.b), dc = of(node.c);
    switch (node.op) {
      case Op::symbol:
        return node.index == 0 ? one_ : zero_;
      case Op::negate:
        return negate(da);
      case Op::absolute:
        return is_zero(da) ? da : multiply(graph_.make(Op::sign, a), da);
      case Op::add:
        return add(da, db);
      case Op::subtract:
        return subtract(da, db);
      case Op::multiply:
        return add(multiply(da, b), multiply(a, db));
      case Op::divide:
        return divide(subtract(da, multiply(n, db)), b);
      case Op::power:
        return power(node, n, da, db);
      case Op::minimum:  // a NaN is on a's side, so that it stays one
        return select(graph_.make(Op::less_equal, b, a), db, da);
      case Op::maximum:
        return select(graph_.make(Op::less_equal, a, b), db, da);
      case Op::select:
        return select(a, db, dc);
      default:
        return is_zero(da) ? zero_ : multiply(da, outer_slope(node, n));
    }
  }

  /// Of functions of one value.
  int outer_slope(const Node& node, int n) {
    const int a = node.a;
    switch (node.op) {
      case Op::exp:
        return n;
      case Op::exp2:
        return scaled(std::log(2.0), n);
      case Op::expm1:
        return graph_.make(Op::exp, a);
      case Op::log:
        return divide(one_, a);
      case Op::log2:
        return divide(graph_.constant(1 / std::log(2.0)), a);
      case Op::log1p:
        return divide(one_, add(one_, a));
      // 1 - tanh^2 and 1 - sigmoid would cancel where they are small.
      case Op::tanh: {
        const int twice = scaled(2, a);
        return scaled(4, multiply(sigmoid(twice), sigmoid(negate(twice))));
      }
      case Op::sigmoid:
        return multiply(n, sigmoid(negate(a)));
      case Op::softplus:
        return sigmoid(a);
      case Op::sqrt:
        return divide(graph_.constant(0.5), n);
      case Op::erf:
      case Op::erfc: {
        const double factor = 2 / std::sqrt(3.14159265358979323846);
        const int bell = graph_.make(Op::exp, negate(graph_.make(Op::multiply, a, a)));
        return scaled(node.op == Op::erf ? factor : -factor, bell);
      }
      default:  // sign, comparisons
        return zero_;
    }
  }

  int power(const Node& node, int n, int da, int db) {
    const int a = node.a, b = node.b;
    int result = zero_;
    if (!is_zero(da)) {
      const int smaller = graph_.make(Op::power, a, graph_.make(Op::subtract, b, one_));
      result = multiply(multiply(b, smaller), da);
    }
    if (!is_zero(db)) result = add(result, multiply(multiply(n, graph_.make(Op::log, a)), db));
    return result;
  }

  Graph& graph_;
  int zero_, one_;
};

}  // namespace

int differentiate(Graph& graph, int node) {
  return Derivation(graph).slope_of(node);
}

}  // namespace warploom::expression
