// Expressions that users write (docs/score-functions.md) as a graph: parsed once, differentiated, interpreted by the
// CPU back end, printed into kernels for the GPU.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace warploom::expression {

/// real: a score function of z, float32 when it is computed. integer: a mask function of a row, int64 without overflow
/// traps, division rounds down and by 0 gives 0.
enum class Domain { real, integer };

enum class Op : std::uint8_t {
  constant,
  symbol,     ///< number `index` of the domain's symbols
  parameter,  ///< number `index` of the caller's names
  negate,
  is_zero,  ///< 1 or 0
  absolute,
  sign,  ///< -1, 0, 1
  exp,
  exp2,
  expm1,
  log,
  log2,
  log1p,
  tanh,
  sigmoid,
  softplus,
  sqrt,
  erf,
  erfc,
  add,
  subtract,
  multiply,
  divide,
  remainder,  ///< integer; the sign of the divisor
  power,
  minimum,  ///< NaN when either is
  maximum,
  less,  ///< comparisons give 1 or 0
  less_equal,
  equal,
  not_equal,
  logical_and,
  logical_or,
  select,  ///< a != 0 ? b : c
};
inline constexpr int kOps = static_cast<int>(Op::select) + 1;

int arity(Op op);

struct Node {
  Op op = Op::constant;
  int a = -1, b = -1, c = -1;  ///< nodes before this one
  int index = 0;               ///< of a symbol or parameter
  double value = 0;            ///< of a constant
};

/// Where a node comes from: a line of the user's score (or mask), or of the slope written beside it.
struct Origin {
  bool slope = false;
  int line = 1;
};

/// Nodes in an order in which operands come first. Equal nodes are one node, so what is written or derived twice is
/// computed once.
class Graph {
 public:
  explicit Graph(Domain domain) : domain_(domain) {}

  Domain domain() const { return domain_; }
  const Node& operator[](int node) const { return nodes_[static_cast<std::size_t>(node)]; }
  int size() const { return static_cast<int>(nodes_.size()); }

  int constant(double value);
  int symbol(int index) { return intern({Op::symbol, -1, -1, -1, index, 0}); }
  int parameter(int index) { return intern({Op::parameter, -1, -1, -1, index, 0}); }
  /// Real operations on constants are done here, in double precision.
  int make(Op op, int a, int b = -1, int c = -1);

  /// Of the nodes that are made from here on.
  void set_origin(Origin origin) { origin_ = origin; }
  Origin origin(int node) const { return origins_[static_cast<std::size_t>(node)]; }

  bool is_constant(int node) const { return (*this)[node].op == Op::constant; }
  bool is_constant(int node, double value) const { return is_constant(node) && (*this)[node].value == value; }

 private:
  int intern(const Node& node);

  Domain domain_;
  Origin origin_;
  std::vector<Node> nodes_;
  std::vector<Origin> origins_;
  std::map<std::tuple<Op, int, int, int, int, std::uint64_t>, int> known_;
};

/// One real operation in double precision: what the interpreters are tested by.
double evaluate(Op op, double a, double b, double c);
/// One integer operation; what leaves int64 wraps.
std::int64_t evaluate(Op op, std::int64_t a, std::int64_t b, std::int64_t c);

}  // namespace warploom::expression
