#include "expression/print.h"

#include <array>
#include <charconv>
#include <cmath>

#include "expression/parse.h"
#include "expression/program.h"

namespace warploom::expression {
namespace {

/// How tightly operators bind, as in C++.
enum Binding : int { ternary, disjunction, conjunction, comparison, additive, multiplicative, unary, whole };

struct Operator {
  const char* text;
  Binding binding;
};

Operator operator_of(Op op) {
  switch (op) {
    case Op::add:
      return {" + ", additive};
    case Op::subtract:
      return {" - ", additive};
    case Op::multiply:
      return {" * ", multiplicative};
    case Op::divide:
      return {" / ", multiplicative};
    case Op::remainder:
      return {" % ", multiplicative};
    case Op::less:
      return {" < ", comparison};
    case Op::less_equal:
      return {" <= ", comparison};
    case Op::equal:
      return {" == ", comparison};
    case Op::not_equal:
      return {" != ", comparison};
    case Op::logical_and:
      return {" && ", conjunction};
    case Op::logical_or:
      return {" || ", disjunction};
    default:
      return {nullptr, whole};
  }
}

std::string number(double value) {
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), std::fabs(value)).ptr;
  return {digits.data(), end};
}

struct Text {
  std::string text;
  Binding binding = whole;
};

class Printer {
 public:
  Printer(const Graph& graph, const std::vector<int>& results, const std::vector<std::string>& parameters)
      : graph_(graph), results_(results), parameters_(parameters), texts_(static_cast<std::size_t>(graph.size())) {}

  std::string print() {
    const std::vector<bool> used = needed(graph_, results_);
    std::vector<int> uses(texts_.size(), 0);
    for (int n = 0; n < graph_.size(); ++n) {
      if (!used[static_cast<std::size_t>(n)]) continue;
      for (const int operand : {graph_[n].a, graph_[n].b, graph_[n].c}) {
        if (operand >= 0) ++uses[static_cast<std::size_t>(operand)];
      }
    }
    for (const int node : results_) ++uses[static_cast<std::size_t>(node)];
    std::string all;
    int named = 0;
    for (int n = 0; n < graph_.size(); ++n) {
      if (!used[static_cast<std::size_t>(n)]) continue;
      Text& own = texts_[static_cast<std::size_t>(n)];
      own = of(n);
      if (arity(graph_[n].op) == 0 || uses[static_cast<std::size_t>(n)] < 2) continue;
      std::string name;
      do name = "t" + std::to_string(++named);
      while (is_taken(name));
      all += name + " = " + own.text + "; ";
      own = {name, whole};
    }
    if (results_.size() == 1) return all + texts_[static_cast<std::size_t>(results_[0])].text;
    for (std::size_t n = 0; n + 1 < results_.size(); n += 2) {
      all += (n == 0 ? "[" : ", [") + at_least(results_[n], ternary) + ", " + at_least(results_[n + 1], ternary) + ")";
    }
    return all;
  }

 private:
  bool is_taken(const std::string& name) const {
    for (const std::string& parameter : parameters_) {
      if (parameter == name) return true;
    }
    return false;
  }

  std::string at_least(int node, Binding binding) const {
    const Text& text = texts_[static_cast<std::size_t>(node)];
    return text.binding >= binding ? text.text : "(" + text.text + ")";
  }

  Text of(int n) const {
    const Node& node = graph_[n];
    switch (node.op) {
      case Op::constant:
        // Infinities and NaN come from constants such as 1 / 0, which is folded.
        if (std::isnan(node.value)) return {"0 / 0", multiplicative};
        if (std::isinf(node.value)) return {node.value > 0 ? "1 / 0" : "-1 / 0", multiplicative};
        return std::signbit(node.value) ? Text{"-" + number(node.value), unary} : Text{number(node.value), whole};
      case Op::symbol:
        return {std::string(symbols(graph_.domain())[static_cast<std::size_t>(node.index)]), whole};
      case Op::parameter:
        return {parameters_[static_cast<std::size_t>(node.index)], whole};
      case Op::negate:
        return {"-" + at_least(node.a, unary), unary};
      case Op::is_zero:
        return {"!" + at_least(node.a, unary), unary};
      case Op::select:
        return {at_least(node.a, disjunction) + " ? " + at_least(node.b, ternary) + " : " + at_least(node.c, ternary),
                ternary};
      default:
        break;
    }
    if (const Operator binary = operator_of(node.op); binary.text != nullptr) {
      // Of two equals the left one is taken first; comparisons do not stand in a chain.
      const auto tighter = static_cast<Binding>(binary.binding + 1);
      const Binding left = binary.binding == comparison ? tighter : binary.binding;
      return {at_least(node.a, left) + binary.text + at_least(node.b, tighter), binary.binding};
    }
    std::string text = std::string(function_name(node.op)) + "(" + at_least(node.a, ternary);
    if (node.b >= 0) text += ", " + at_least(node.b, ternary);
    return {text + ")", whole};
  }

  const Graph& graph_;
  const std::vector<int>& results_;
  const std::vector<std::string>& parameters_;
  std::vector<Text> texts_;
};

}  // namespace

std::string print(const Graph& graph, const std::vector<int>& results, const std::vector<std::string>& parameters) {
  return Printer(graph, results, parameters).print();
}

}  // namespace warploom::expression
