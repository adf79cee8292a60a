#include "expression/device_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "expression/parse.h"
#include "expression/program.h"
#include "problem/message.h"

namespace warploom::expression {
namespace {

std::string variable(int node) {
  return message("v", node);
}

std::string constant(const Graph& graph, double value) {
  if (graph.domain() == Domain::integer) return message(static_cast<long long>(value), "ll");
  if (std::isnan(value)) return "__int_as_float(0x7fffffff)";
  if (std::isinf(static_cast<float>(value))) return message(value < 0 ? "-" : "", "__int_as_float(0x7f800000)");
  std::array<char, 40> digits{};
  const char* end =
      std::to_chars(digits.data(), digits.data() + digits.size(), std::fabs(value), std::chars_format::hex).ptr;
  return message(std::signbit(value) ? "-0x" : "0x", std::string_view(digits.data(), end), "f");
}

const char* sign_of(Op op) {
  switch (op) {
    case Op::add:
      return " + ";
    case Op::subtract:
      return " - ";
    case Op::multiply:
      return " * ";
    case Op::less:
      return " < ";
    case Op::less_equal:
      return " <= ";
    case Op::equal:
      return " == ";
    case Op::not_equal:
      return " != ";
    default:
      return nullptr;
  }
}

/// A node from its operands' variables.
std::string computed(const Graph& graph, int n) {
  const Node& node = graph[n];
  const std::string a = variable(node.a), b = variable(node.b), c = variable(node.c);
  const bool real = graph.domain() == Domain::real;
  const char* space = real ? "score_math::" : "mask_math::";
  const auto truth = [&](const std::string& condition) {
    return message("(", condition, ") ? ", real ? "1.0f : 0.0f" : "1ll : 0ll");
  };
  switch (node.op) {
    case Op::constant:
      return constant(graph, node.value);
    case Op::symbol:
      return real ? "z" : message("symbols[", node.index, "]");
    case Op::parameter:
      return message("parameters[", node.index, "]");
    case Op::negate:
      return message("-", a);
    case Op::is_zero:
      return truth(message(a, " == 0"));
    case Op::logical_and:
      return truth(message(a, " != 0 && ", b, " != 0"));
    case Op::logical_or:
      return truth(message(a, " != 0 || ", b, " != 0"));
    case Op::select:
      return message(a, " != 0 ? ", b, " : ", c);
    case Op::divide:
      return message(space, "divide(", a, ", ", b, ")");
    case Op::remainder:
      return message(space, "remainder(", a, ", ", b, ")");
    case Op::less:
    case Op::less_equal:
    case Op::equal:
    case Op::not_equal:
      return truth(message(a, sign_of(node.op), b));
    default:
      break;
  }
  if (const char* sign = sign_of(node.op); sign != nullptr) return message(a, sign, b);
  return message(space, function_name(node.op), "(", a, node.b >= 0 ? ", " + b : "", ")");
}

/// Each under the line of the user's text that it comes from, which a compiler's messages then name.
std::string statements(const Graph& graph, const std::vector<int>& results) {
  const bool real = graph.domain() == Domain::real;
  const std::vector<bool> used = needed(graph, results);
  std::string text;
  for (int n = 0; n < graph.size(); ++n) {
    if (!used[static_cast<std::size_t>(n)]) continue;
    const Origin origin = graph.origin(n);
    text += message("#line ", origin.line, " \"", real ? origin.slope ? kSlopeFile : kScoreFile : kMaskFile,
                    "\"\n    const ", real ? "float " : "long long ", variable(n), " = ", computed(graph, n), ";\n");
  }
  return text;
}

}  // namespace

std::string score_device_text(const Graph& graph, int value, int slope) {
  return message(
      "#include \"attention/score_math.h\"\n"
      "namespace warploom {\n"
      "struct ScoreExpression {\n"
      "  static __device__ __forceinline__ float value(float z, const float* parameters) {\n",
      statements(graph, {value}), "    return ", variable(value),
      ";\n  }\n"
      "  static __device__ __forceinline__ void value_and_slope(float z, const float* parameters, float& value, float& "
      "slope) {\n",
      statements(graph, {value, slope}), "    value = ", variable(value), ";\n    slope = ", variable(slope),
      ";\n  }\n};\n}  // namespace warploom\n");
}

std::string mask_device_text(const Graph& graph, const std::vector<int>& bounds) {
  std::string stores;
  for (std::size_t n = 0; n < bounds.size(); ++n) {
    stores += message("    bounds[", n, "] = mask_math::bound(", variable(bounds[n]), ", length);\n");
  }
  return message(
      "#include \"attention/mask_math.h\"\n"
      "namespace warploom {\n"
      "struct MaskExpression {\n"
      "  static constexpr int kIntervals = ",
      bounds.size() / 2,
      ";\n"
      "  static __device__ __forceinline__ void intervals(const long long* symbols, const long long* parameters, int "
      "length, "
      "int* bounds) {\n",
      statements(graph, bounds), stores, "  }\n};\n}  // namespace warploom\n");
}

}  // namespace warploom::expression
