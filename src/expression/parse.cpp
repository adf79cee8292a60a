#include "expression/parse.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <map>

#include "expression/tokens.h"
#include "problem/message.h"

namespace warploom::expression {
namespace {

constexpr std::array<std::string_view, 1> kScoreSymbols = {"z"};
constexpr std::array<std::string_view, 9> kMaskSymbols = {"i", "r", "Lq", "Lk", "nc", "nt", "h", "b", "head"};
constexpr double kPi = 3.14159265358979323846;
constexpr int kMaxDepth = 100;
constexpr int kMaxNodes = 2048;

/// Functions that are more than one operation are made of others.
struct Function {
  std::string_view name;
  int arguments;  ///< 0: two or more
  bool integer;   ///< a mask has it too
  int (*make)(Graph& graph, const std::vector<int>& x);
};

template <Op Operation>
int operation(Graph& graph, const std::vector<int>& x) {
  return graph.make(Operation, x[0], x.size() > 1 ? x[1] : -1, x.size() > 2 ? x[2] : -1);
}

template <Op Operation>
int chain(Graph& graph, const std::vector<int>& x) {
  int result = x[0];
  for (std::size_t n = 1; n < x.size(); ++n) result = graph.make(Operation, result, x[n]);
  return result;
}

int power(Graph& graph, const std::vector<int>& x) {
  constexpr int kMaxProduct = 16;  // beyond, the library's function is as fast
  const int base = x[0];
  if (!graph.is_constant(x[1])) return graph.make(Op::power, base, x[1]);
  const double exponent = graph[x[1]].value;
  if (exponent == 0.5) return graph.make(Op::sqrt, base);
  if (std::trunc(exponent) != exponent || std::fabs(exponent) > kMaxProduct || exponent == 0) {
    return graph.make(Op::power, base, x[1]);
  }
  int square = base, product = -1;
  for (int left = static_cast<int>(std::fabs(exponent)); left > 0; left /= 2) {
    if (left % 2 == 1) product = product < 0 ? square : graph.make(Op::multiply, product, square);
    if (left > 1) square = graph.make(Op::multiply, square, square);
  }
  return exponent > 0 ? product : graph.make(Op::divide, graph.constant(1), product);
}

int silu(Graph& graph, const std::vector<int>& x) {
  return graph.make(Op::multiply, x[0], graph.make(Op::sigmoid, x[0]));
}
int gelu(Graph& graph, const std::vector<int>& x) {
  const int tail = graph.make(Op::erfc, graph.make(Op::multiply, x[0], graph.constant(-std::sqrt(0.5))));
  return graph.make(Op::multiply, graph.make(Op::multiply, graph.constant(0.5), x[0]), tail);
}
int relu(Graph& graph, const std::vector<int>& x) {
  return graph.make(Op::maximum, x[0], graph.constant(0));
}
int rsqrt(Graph& graph, const std::vector<int>& x) {
  return graph.make(Op::divide, graph.constant(1), graph.make(Op::sqrt, x[0]));
}
int clamp(Graph& graph, const std::vector<int>& x) {
  return graph.make(Op::minimum, graph.make(Op::maximum, x[0], x[1]), x[2]);
}

constexpr std::array kFunctions = {
    Function{"abs", 1, true, operation<Op::absolute>},
    Function{"clamp", 3, true, clamp},
    Function{"erf", 1, false, operation<Op::erf>},
    Function{"erfc", 1, false, operation<Op::erfc>},
    Function{"exp", 1, false, operation<Op::exp>},
    Function{"exp2", 1, false, operation<Op::exp2>},
    Function{"expm1", 1, false, operation<Op::expm1>},
    Function{"gelu", 1, false, gelu},
    Function{"log", 1, false, operation<Op::log>},
    Function{"log1p", 1, false, operation<Op::log1p>},
    Function{"log2", 1, false, operation<Op::log2>},
    Function{"max", 0, true, chain<Op::maximum>},
    Function{"min", 0, true, chain<Op::minimum>},
    Function{"pow", 2, false, power},
    Function{"relu", 1, true, relu},
    Function{"rsqrt", 1, false, rsqrt},
    Function{"select", 3, true, operation<Op::select>},
    Function{"sigmoid", 1, false, operation<Op::sigmoid>},
    Function{"sign", 1, true, operation<Op::sign>},
    Function{"silu", 1, false, silu},
    Function{"softplus", 1, false, operation<Op::softplus>},
    Function{"sqrt", 1, false, operation<Op::sqrt>},
    Function{"tanh", 1, false, operation<Op::tanh>},
};

const Function* function_of(std::string_view name) {
  const auto* found =
      std::find_if(kFunctions.begin(), kFunctions.end(), [&](const Function& f) { return f.name == name; });
  return found == kFunctions.end() ? nullptr : found;
}

/// Letters to change, add or leave out between two words.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::string join(const std::vector<std::string_view>& words) {
  std::string result;
  for (const std::string_view word : words) result.append(result.empty() ? "" : ", ").append(word);
  return result;
}

class Parser {
 public:
  Parser(std::string_view what, std::string_view text, std::span<const std::string> parameters, Graph& graph,
         std::vector<Token> tokens, bool slope)
      : what_(what), text_(text), graph_(graph), tokens_(std::move(tokens)), slope_(slope) {
    for (std::size_t n = 0; n < symbols(graph.domain()).size(); ++n) {
      names_[std::string(symbols(graph.domain())[n])] = graph.symbol(static_cast<int>(n));
    }
    for (std::size_t n = 0; n < parameters.size(); ++n) names_[parameters[n]] = graph.parameter(static_cast<int>(n));
    if (!is_mask()) names_["pi"] = graph.constant(kPi);
  }

  Result<std::vector<int>> parse() {
    std::vector<int> results;
    while (failure_.ok() && at_binding()) bind();
    if (is_mask()) {
      do intervals(results);
      while (failure_.ok() && accept(","));
    } else if (failure_.ok()) {
      results.push_back(value());
    }
    accept(";");
    if (failure_.ok() && next().kind != Token::Kind::end) fail(next().place, unexpected("an operator or the end"));
    if (!failure_.ok()) return failure_;
    return results;
  }

 private:
  bool is_mask() const { return graph_.domain() == Domain::integer; }
  const Token& next() const { return tokens_[at_]; }
  bool is_next(std::string_view sign) const { return next().kind == Token::Kind::sign && next().text == sign; }
  bool accept(std::string_view sign) {
    if (!failure_.ok() || !is_next(sign)) return false;
    ++at_;
    return true;
  }

  int fail(Place place, const std::string& problem) {
    if (failure_.ok()) failure_ = error_at(what_, text_, place, problem);
    return graph_.constant(0);
  }
  bool expect(std::string_view sign, const std::string& after) {
    if (accept(sign)) return true;
    fail(next().place, unexpected(message(sign, " ", after)));
    return false;
  }

  /// What stands here instead of what may, and how the same is written in this language.
  std::string unexpected(const std::string& expected) const {
    const std::string_view text = next().text;
    static const std::map<std::string_view, const char*> kHints = {
        {"^", "a power is pow(x, y)"},
        {"**", "a power is pow(x, y)"},
        {"//", "write /, which rounds down in a mask"},
        {"=", "equality is =="},
        {"&", "write &&"},
        {"|", "write ||"},
        {"and", "write &&"},
        {"or", "write ||"},
        {"not", "write !"},
        {"if", "a choice is condition ? x : y"},
        {"else", "a choice is condition ? x : y"},
        {"::", "functions have no namespace"},
        {".", "functions have no namespace: sigmoid(z)"},
        {"]", "intervals are half-open: [begin, end)"},
    };
    const auto hint = kHints.find(text);
    std::string found = next().kind == Token::Kind::end ? "the text ends" : message("found ", text);
    return message(found, " where ", expected, " should be", hint == kHints.end() ? "" : "; ",
                   hint == kHints.end() ? "" : hint->second);
  }

  bool at_binding() const {
    return next().kind == Token::Kind::name && tokens_[at_ + 1].kind == Token::Kind::sign &&
           tokens_[at_ + 1].text == "=";
  }

  void bind() {
    const Token name = next();
    if (names_.contains(std::string(name.text)) || function_of(name.text) != nullptr) {
      fail(name.place, message(name.text, " has a meaning already; take another name"));
      return;
    }
    at_ += 2;
    const int node = value();
    if (expect(";", message("after the value of ", name.text))) names_[std::string(name.text)] = node;
  }

  void intervals(std::vector<int>& results) {
    const Place place = next().place;
    if (!expect("[", "of an interval [begin, end)")) return;
    results.push_back(value());
    if (!expect(",", "between begin and end")) return;
    results.push_back(value());
    if (!expect(")", "of an interval [begin, end)")) return;
    if (results.size() > 2u * kMaxIntervals) fail(place, message("more than ", kMaxIntervals, " intervals"));
  }

  int value() {
    if (++depth_ > kMaxDepth) return fail(next().place, "nested too deeply; name parts: t = ...; ...");
    const int condition = either();
    int result = condition;
    if (accept("?")) {
      const int yes = value();
      expect(":", "of condition ? x : y");
      const int no = value();
      result = graph_.make(Op::select, condition, yes, no);
    }
    --depth_;
    if (graph_.size() > kMaxNodes) fail(next().place, "too many operations up to here");
    return result;
  }

  int either() {
    int left = both();
    while (accept("||")) left = graph_.make(Op::logical_or, left, both());
    return left;
  }
  int both() {
    int left = comparison();
    while (accept("&&")) left = graph_.make(Op::logical_and, left, comparison());
    return left;
  }

  bool is_comparison() const {
    const std::string_view text = next().text;
    return next().kind == Token::Kind::sign &&
           (text == "<" || text == "<=" || text == ">" || text == ">=" || text == "==" || text == "!=");
  }
  int comparison() {
    const int left = sum();
    if (!failure_.ok() || !is_comparison()) return left;
    const std::string_view sign = tokens_[at_++].text;
    const int right = sum();
    if (is_comparison()) return fail(next().place, "comparisons in a chain; write a < b && b < c");
    if (sign == "<") return graph_.make(Op::less, left, right);
    if (sign == "<=") return graph_.make(Op::less_equal, left, right);
    if (sign == ">") return graph_.make(Op::less, right, left);
    if (sign == ">=") return graph_.make(Op::less_equal, right, left);
    return graph_.make(sign == "==" ? Op::equal : Op::not_equal, left, right);
  }

  int sum() {
    int left = product();
    while (failure_.ok()) {
      if (accept("+")) {
        left = graph_.make(Op::add, left, product());
      } else if (accept("-")) {
        left = graph_.make(Op::subtract, left, product());
      } else {
        break;
      }
    }
    return left;
  }

  int product() {
    int left = factor();
    while (failure_.ok()) {
      const Place place = next().place;
      if (accept("*")) {
        left = graph_.make(Op::multiply, left, factor());
      } else if (accept("/")) {
        left = graph_.make(Op::divide, left, factor());
      } else if (accept("%")) {
        if (!is_mask()) return fail(place, "% belongs to masks, which count in whole numbers");
        left = graph_.make(Op::remainder, left, factor());
      } else {
        break;
      }
    }
    return left;
  }

  int factor() {
    if (++depth_ > kMaxDepth) return fail(next().place, "nested too deeply; name parts: t = ...; ...");
    int result = 0;
    if (accept("-")) {
      result = graph_.make(Op::negate, factor());
    } else if (accept("+")) {
      result = factor();
    } else if (accept("!")) {
      result = graph_.make(Op::is_zero, factor());
    } else {
      result = primary();
    }
    --depth_;
    return result;
  }

  int primary() {
    if (!failure_.ok()) return graph_.constant(0);
    const Token token = next();
    const std::string_view before = text_.substr(0, token.place.begin);
    graph_.set_origin({slope_, 1 + static_cast<int>(std::count(before.begin(), before.end(), '\n'))});
    if (accept("(")) {
      const int inner = value();
      expect(")", "of a parenthesis");
      return inner;
    }
    if (token.kind == Token::Kind::number) {
      ++at_;
      if (is_mask() && (token.text.find_first_of(".eEfF") != std::string_view::npos || token.value > 0x7fffffff)) {
        return fail(token.place, "a mask counts in whole numbers up to 2147483647");
      }
      return graph_.constant(token.value);
    }
    if (token.kind == Token::Kind::name && token.text != "if" && token.text != "else" && token.text != "not" &&
        token.text != "and" && token.text != "or") {
      ++at_;
      return is_next("(") ? call(token) : named(token);
    }
    return fail(token.place, unexpected("a value"));
  }

  int named(const Token& token) {
    const auto found = names_.find(std::string(token.text));
    if (found != names_.end()) return found->second;
    if (function_of(token.text) != nullptr)
      return fail(token.place, message(token.text, " is a function: ", token.text, "(...)"));
    std::vector<std::string_view> known;
    for (const auto& [name, node] : names_) known.push_back(name);
    return fail(token.place, message("unknown name ", token.text, nearest(token.text, known), "; known are ",
                                     join(known), ", and parameters that are passed with their values"));
  }

  static std::string nearest(std::string_view word, const std::vector<std::string_view>& known) {
    static const std::map<std::string_view, std::string_view> kOtherWords = {
        {"where", "select"}, {"logistic", "sigmoid"}, {"swish", "silu"}, {"maximum", "max"}, {"minimum", "min"}};
    if (const auto other = kOtherWords.find(word); other != kOtherWords.end())
      return message("; did you mean ", other->second, "?");
    std::string_view best;
    for (const std::string_view candidate : known) {
      if (best.empty() || distance(word, candidate) < distance(word, best)) best = candidate;
    }
    return !best.empty() && word.size() > 1 && distance(word, best) <= 2 && distance(word, best) < best.size()
               ? message("; did you mean ", best, "?")
               : "";
  }

  int call(const Token& token) {
    const Function* function = function_of(token.text);
    std::vector<std::string_view> known;
    for (const Function& f : kFunctions) {
      if (f.integer || !is_mask()) known.push_back(f.name);
    }
    if (function == nullptr) {
      return fail(token.place,
                  message("unknown function ", token.text, nearest(token.text, known), "; known are ", join(known)));
    }
    if (is_mask() && !function->integer) {
      return fail(token.place,
                  message(token.text, " is not for masks, which count in whole numbers; they have ", join(known)));
    }
    ++at_;  // the parenthesis
    std::vector<int> arguments;
    if (!is_next(")")) {
      do arguments.push_back(value());
      while (accept(","));
    }
    if (!expect(")", message("after the arguments of ", token.text))) return graph_.constant(0);
    const auto count = static_cast<int>(arguments.size());
    if (function->arguments == 0 ? count < 2 : count != function->arguments) {
      return fail(token.place,
                  message(token.text, " takes ",
                          function->arguments == 0
                              ? "two or more arguments"
                              : message(function->arguments, function->arguments == 1 ? " argument" : " arguments"),
                          ", here it has ", count));
    }
    return function->make(graph_, arguments);
  }

  std::string_view what_, text_;
  Graph& graph_;
  std::vector<Token> tokens_;
  bool slope_;
  std::map<std::string, int, std::less<>> names_;
  std::size_t at_ = 0;
  int depth_ = 0;
  Status failure_;
};

}  // namespace

std::span<const std::string_view> symbols(Domain domain) {
  return domain == Domain::real ? std::span<const std::string_view>(kScoreSymbols)
                                : std::span<const std::string_view>(kMaskSymbols);
}

const char* function_name(Op op) {
  switch (op) {
    case Op::absolute:
      return "abs";
    case Op::sign:
      return "sign";
    case Op::exp:
      return "exp";
    case Op::exp2:
      return "exp2";
    case Op::expm1:
      return "expm1";
    case Op::log:
      return "log";
    case Op::log2:
      return "log2";
    case Op::log1p:
      return "log1p";
    case Op::tanh:
      return "tanh";
    case Op::sigmoid:
      return "sigmoid";
    case Op::softplus:
      return "softplus";
    case Op::sqrt:
      return "sqrt";
    case Op::erf:
      return "erf";
    case Op::erfc:
      return "erfc";
    case Op::power:
      return "pow";
    case Op::minimum:
      return "min";
    case Op::maximum:
      return "max";
    default:
      return nullptr;
  }
}

Result<std::vector<std::string>> parse_names(std::string_view what, Domain domain, std::string_view names) {
  std::vector<std::string> result;
  const Result<std::vector<Token>> tokens = tokens_of(what, names);
  if (!tokens.ok()) return tokens.status();
  for (std::size_t at = 0; (*tokens)[at].kind != Token::Kind::end; ++at) {
    const Token& token = (*tokens)[at];
    if (at % 2 == 1) {
      if (token.text != ",") return error_at(what, names, token.place, "names are separated by commas");
      continue;
    }
    const std::span<const std::string_view> taken = symbols(domain);
    if (token.kind != Token::Kind::name)
      return error_at(what, names, token.place, "a parameter's name is letters, digits and _");
    if (function_of(token.text) != nullptr || token.text == "pi" ||
        std::find(taken.begin(), taken.end(), token.text) != taken.end()) {
      return error_at(what, names, token.place, message(token.text, " has a meaning already; take another name"));
    }
    if (std::find(result.begin(), result.end(), token.text) != result.end())
      return error_at(what, names, token.place, "a name that stands twice");
    if (result.size() == kMaxParameters)
      return error_at(what, names, token.place, message("more than ", kMaxParameters, " parameters"));
    result.emplace_back(token.text);
  }
  return result;
}

Result<std::vector<int>> parse(std::string_view what, std::string_view text, std::span<const std::string> parameters,
                               Graph& graph, bool slope) {
  if (text.size() > kMaxText) {
    return Status::invalid_value(message(what, " has ", text.size(), " characters; ", kMaxText, " are served"));
  }
  Result<std::vector<Token>> tokens = tokens_of(what, text);
  if (!tokens.ok()) return tokens.status();
  return Parser(what, text, parameters, graph, std::move(*tokens), slope).parse();
}

}  // namespace warploom::expression
