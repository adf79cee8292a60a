#include "expression/graph.h"

#include <bit>
#include <cmath>
#include <limits>

namespace warploom::expression {

int arity(Op op) {
  if (op <= Op::parameter) return 0;
  if (op <= Op::erfc) return 1;
  return op < Op::select ? 2 : 3;
}

int Graph::constant(double value) {
  return intern({Op::constant, -1, -1, -1, 0, value});
}

int Graph::make(Op op, int a, int b, int c) {
  const int operands = arity(op);
  const bool folds =
      domain_ == Domain::real && is_constant(a) && (operands < 2 || is_constant(b)) && (operands < 3 || is_constant(c));
  if (!folds) return intern({op, a, b, c, 0, 0});
  const auto value = [&](int node) { return node < 0 ? 0.0 : (*this)[node].value; };
  return constant(evaluate(op, value(a), value(b), value(c)));
}

int Graph::intern(const Node& node) {
  const auto [place, added] = known_.try_emplace(
      {node.op, node.a, node.b, node.c, node.index, std::bit_cast<std::uint64_t>(node.value)}, size());
  if (added) {
    nodes_.push_back(node);
    origins_.push_back(origin_);
  }
  return place->second;
}

double evaluate(Op op, double a, double b, double c) {
  switch (op) {
    case Op::negate:
      return -a;
    case Op::is_zero:
      return a == 0;
    case Op::absolute:
      return std::fabs(a);
    case Op::sign:
      return a > 0 ? 1 : a < 0 ? -1 : a;
    case Op::exp:
      return std::exp(a);
    case Op::exp2:
      return std::exp2(a);
    case Op::expm1:
      return std::expm1(a);
    case Op::log:
      return std::log(a);
    case Op::log2:
      return std::log2(a);
    case Op::log1p:
      return std::log1p(a);
    case Op::tanh:
      return std::tanh(a);
    case Op::sigmoid:
      return a >= 0 ? 1 / (1 + std::exp(-a)) : std::exp(a) / (1 + std::exp(a));
    case Op::softplus:
      return (a > 0 ? a : 0) + std::log1p(std::exp(-std::fabs(a)));
    case Op::sqrt:
      return std::sqrt(a);
    case Op::erf:
      return std::erf(a);
    case Op::erfc:
      return std::erfc(a);
    case Op::add:
      return a + b;
    case Op::subtract:
      return a - b;
    case Op::multiply:
      return a * b;
    case Op::divide:
      return a / b;
    case Op::power:
      return std::pow(a, b);
    case Op::minimum:
      return std::isnan(a) || a < b ? a : b;
    case Op::maximum:
      return std::isnan(a) || a > b ? a : b;
    case Op::less:
      return a < b;
    case Op::less_equal:
      return a <= b;
    case Op::equal:
      return a == b;
    case Op::not_equal:
      return a != b;
    case Op::logical_and:
      return a != 0 && b != 0;
    case Op::logical_or:
      return a != 0 || b != 0;
    case Op::select:
      return a != 0 ? b : c;
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

namespace {

// Sums and products that wrap: signed overflow has no meaning in C++.
std::int64_t wrapped(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

/// The quotient rounded down; by 0: 0.
std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return wrapped(0 - static_cast<std::uint64_t>(a));
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

}  // namespace

std::int64_t evaluate(Op op, std::int64_t a, std::int64_t b, std::int64_t c) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  switch (op) {
    case Op::negate:
      return wrapped(0 - x);
    case Op::is_zero:
      return a == 0;
    case Op::absolute:
      return a < 0 ? wrapped(0 - x) : a;
    case Op::sign:
      return (a > 0) - (a < 0);
    case Op::add:
      return wrapped(x + y);
    case Op::subtract:
      return wrapped(x - y);
    case Op::multiply:
      return wrapped(x * y);
    case Op::divide:
      return quotient(a, b);
    case Op::remainder:
      return b == 0 ? 0 : wrapped(x - y * static_cast<std::uint64_t>(quotient(a, b)));
    case Op::minimum:
      return a < b ? a : b;
    case Op::maximum:
      return a > b ? a : b;
    case Op::less:
      return a < b;
    case Op::less_equal:
      return a <= b;
    case Op::equal:
      return a == b;
    case Op::not_equal:
      return a != b;
    case Op::logical_and:
      return a != 0 && b != 0;
    case Op::logical_or:
      return a != 0 || b != 0;
    case Op::select:
      return a != 0 ? b : c;
    default:
      return 0;
  }
}

}  // namespace warploom::expression
