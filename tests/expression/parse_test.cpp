#include "expression/parse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "expression/print.h"
#include "expression/program.h"
#include "expression/tokens.h"
#include "random_expression.h"

namespace warploom::expression {
namespace {

double value_of(const std::string& text, double z, double beta = 1.5) {
  Graph graph(Domain::real);
  const Result<std::vector<int>> parsed = parse("score", text, kBeta, graph);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? value_at(graph, parsed->front(), z, {beta}) : NAN;
}

std::string error_of(const std::string& text, Domain domain = Domain::real) {
  Graph graph(domain);
  const Result<std::vector<int>> parsed = parse(domain == Domain::real ? "score" : "mask", text, kBeta, graph);
  EXPECT_FALSE(parsed.ok()) << text;
  EXPECT_EQ(parsed.status().code(), StatusCode::invalid_value);
  return parsed.status().message();
}

TEST(ParseTest, OperatorsBindAsInCpp) {
  EXPECT_EQ(value_of("1 + 2 * 3 - 4 / 8", 0), 6.5);
  EXPECT_EQ(value_of("-z * z", 3), -9);
  EXPECT_EQ(value_of("2 - 1 - 1", 0), 0);
  EXPECT_EQ(value_of("16 / 4 / 2", 0), 2);
  EXPECT_EQ(value_of("z < 1 ? 10 : z < 2 ? 20 : 30", 1.5), 20);
  EXPECT_EQ(value_of("1 + (z > 0)", 5), 2);
  EXPECT_EQ(value_of("z > 0 && z < 4 || z == -1", -1), 1);
  EXPECT_EQ(value_of("z > 0 && z < 4 || z == -1", 4), 0);
  EXPECT_EQ(value_of("!z + !!z", 7), 1);
  EXPECT_EQ(value_of("z >= 2 ? 1 : 0", 2) + value_of("z <= 2", 2) + value_of("z != 2", 2), 2);
  EXPECT_EQ(value_of(" - - z", 3), 3);
  EXPECT_EQ(value_of("1.5e1f + .5 + 2.", 0), 17.5);
}

TEST(ParseTest, FunctionsNamesAndParameters) {
  EXPECT_DOUBLE_EQ(value_of("z * sigmoid(beta * z)", 2, 0.7), 2 / (1 + std::exp(-1.4)));
  EXPECT_DOUBLE_EQ(value_of("silu(z)", -3), -3 / (1 + std::exp(3.0)));
  EXPECT_DOUBLE_EQ(value_of("gelu(z)", 1.3), 1.3 * 0.5 * (1 + std::erf(1.3 / std::sqrt(2.0))));
  EXPECT_DOUBLE_EQ(value_of("softplus(z)", 2), std::log1p(std::exp(2.0)));
  EXPECT_EQ(value_of("relu(z) + relu(-z)", -4), 4);
  EXPECT_EQ(value_of("clamp(z, -1, 1)", 8), 1);
  EXPECT_EQ(value_of("min(z, 3, beta)", 5, 4) + value_of("max(z, 3, beta)", 5, 4), 8);
  EXPECT_EQ(value_of("select(z, 1, 2)", 0), 2);
  EXPECT_EQ(value_of("pow(z, 2)", -3) + value_of("pow(z, 5)", 2) + value_of("pow(z, -1)", 4), 9 + 32 + 0.25);
  EXPECT_DOUBLE_EQ(value_of("pow(z, 0.5) + pow(z, 1.5)", 4), 10);
  EXPECT_EQ(value_of("rsqrt(z) + sqrt(z) + abs(-z) + sign(-z)", 4), 5.5);
  EXPECT_DOUBLE_EQ(value_of("t = tanh(z / beta);\n  s = t * t;\n beta * t + s;", 2, 4),
                   4 * std::tanh(0.5) + std::pow(std::tanh(0.5), 2));
  EXPECT_DOUBLE_EQ(value_of("pi * z", 1), std::acos(-1.0));
}

TEST(ParseTest, ThePlaceOfAnErrorIsMarked) {
  EXPECT_EQ(error_of("z * sigmod(beta * z)").substr(0, 55), "score: unknown function sigmod; did you mean sigmoid?; ");
  const std::string message = error_of("t = z * z;\n\tt * sigmod(t)");
  const std::string shown = "\n  line 2, column 6:   t * sigmod(t)\n" + std::string(26, ' ') + "^~~~~~";
  EXPECT_EQ(message.substr(message.size() - shown.size()), shown) << message;
}

TEST(ParseTest, TheMarkStandsUnderTheMarkedWordBehindLettersOfSeveralBytes) {
  const std::string message = error_of("z + \xc3\xa9 * z");
  EXPECT_NE(message.find("column 5:  z + \xc3\xa9 * z\n" + std::string(25, ' ') + "^"), std::string::npos) << message;
}

TEST(ParseTest, MessagesSayWhatWouldWork) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"z ^ 2", "pow(x, y)"},
      {"z ** 2", "pow(x, y)"},
      {"z * (1 + z", ") of a parenthesis"},
      {"z * ", "the text ends where a value"},
      {"", "the text ends where a value"},
      {"z z", "found z where an operator or the end"},
      {"gamma * z", "unknown name gamma; known are beta, pi, z"},
      {"bta * z", "did you mean beta?"},
      {"where(z > 0, z, 0)", "did you mean select?"},
      {"expf(z)", "did you mean exp?"},
      {"std::exp(z)", "unknown name std"},
      {"exp", "exp is a function: exp(...)"},
      {"exp(z, z)", "exp takes 1 argument, here it has 2"},
      {"max(z)", "max takes two or more arguments, here it has 1"},
      {"pow(z)", "pow takes 2 arguments, here it has 1"},
      {"z if z > 0 else 0", "condition ? x : y"},
      {"z > 0 and z < 1", "write &&"},
      {"0 < z < 1", "a < b && b < c"},
      {"z = 3; z", "z has a meaning already"},
      {"exp = 3; z", "exp has a meaning already"},
      {"t = 3 z", "; after the value of t"},
      {"z % 2", "% belongs to masks"},
      {"1e39 * z", "a number that float32 does not hold"},
      {"2z", "write * between them"},
      {"z # comment", "a character that no expression has"},
      {"z ? 1", ": of condition ? x : y"},
      {"[0, z)", "found [ where a value"},
  };
  for (const auto& [text, words] : cases) EXPECT_NE(error_of(text).find(words), std::string::npos) << error_of(text);
}

TEST(ParseTest, MasksHaveIntervalsAndWholeNumbers) {
  Graph graph(Domain::integer);
  const Result<std::vector<int>> parsed =
      parse("mask", "w = beta * 2; [0, nc), [max(r - w, 0), r + 1), [h, Lk / 2 % 3)", kBeta, graph);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->size(), 6u);
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"r - 7", "[ of an interval [begin, end)"},
      {"[0, r]", "half-open: [begin, end)"},
      {"[0)", "between begin and end"},
      {"[0, 1.5)", "whole numbers"},
      {"[0, 3000000000)", "whole numbers"},
      {"[0, sqrt(r))", "sqrt is not for masks"},
      {"[0, z)", "unknown name z"},
      {"[0, r // 2)", "rounds down"},
      {"[0, r),", "where [ of an interval"},
  };
  for (const auto& [text, words] : cases) {
    EXPECT_NE(error_of(text, Domain::integer).find(words), std::string::npos) << error_of(text, Domain::integer);
  }
}

TEST(ParseTest, NothingIsTooDeepOrTooLong) {
  EXPECT_NE(error_of(std::string(3000, '(')).find("nested too deeply"), std::string::npos);
  EXPECT_NE(error_of(std::string(3000, '-') + "z").find("nested too deeply"), std::string::npos);
  EXPECT_NE(error_of(std::string(5000, ' ')).find("4096 are served"), std::string::npos);
  std::string many = "z";
  for (int n = 0; n < 550; ++n) many += "+z*" + std::to_string(n);
  EXPECT_NE(error_of(many + "+").find("the text ends"), std::string::npos);
}

TEST(ParseTest, NamesOfParametersAreChecked) {
  const auto error = [](const char* names) {
    return parse_names("parameters", Domain::real, names).status().message();
  };
  EXPECT_EQ(*parse_names("parameters", Domain::real, " alpha ,beta_2"), (std::vector<std::string>{"alpha", "beta_2"}));
  EXPECT_TRUE(parse_names("parameters", Domain::real, "")->empty());
  EXPECT_NE(error("a, a").find("stands twice"), std::string::npos);
  EXPECT_NE(error("z").find("has a meaning already"), std::string::npos);
  EXPECT_NE(error("exp").find("has a meaning already"), std::string::npos);
  EXPECT_NE(error("a b").find("separated by commas"), std::string::npos);
  EXPECT_NE(error("2a").find("runs into a name"), std::string::npos);
  EXPECT_NE(error("a,b,c,d,e,f,g,i,j").find("more than 8"), std::string::npos);
}

TEST(ParseTest, RandomExpressionsSurvivePrinting) {
  std::mt19937 random(3);
  for (int n = 0; n < 500; ++n) {
    const std::string text = random_expression(random, 1 + n % 4, false);
    Graph graph(Domain::real), again(Domain::real);
    const Result<std::vector<int>> parsed = parse("score", text, kBeta, graph);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const std::string printed = print(graph, *parsed, kBeta);
    const Result<std::vector<int>> reparsed = parse("score", printed, kBeta, again);
    ASSERT_TRUE(reparsed.ok()) << reparsed.status().message();
    for (const double z : {-7.5, -1.0, 0.0, 0.3, 1.0, 12.0}) {
      const double expected = value_at(graph, parsed->front(), z, {0.7});
      const double found = value_at(again, reparsed->front(), z, {0.7});
      ASSERT_TRUE(expected == found || (std::isnan(expected) && std::isnan(found))) << text << "\n" << printed;
    }
  }
}

TEST(ParseTest, AnyBytesGiveAValueOrAMessage) {
  std::mt19937 random(4);
  const std::string alphabet = "z0123456789.eE+-*/%()[],;?:<>=!&|^ \n\tabcpowexptanhLkrinc\xc3\xa9\xff";
  for (int n = 0; n < 20000; ++n) {
    std::string text;
    for (unsigned length = random() % 40; length > 0; --length) text += alphabet[random() % alphabet.size()];
    for (const Domain domain : {Domain::real, Domain::integer}) {
      Graph graph(domain);
      const Result<std::vector<int>> parsed = parse("score", text, kBeta, graph);
      if (parsed.ok()) continue;
      ASSERT_NE(parsed.status().message().find("line "), std::string::npos) << text;
    }
  }
}

TEST(TokensTest, ACompilersMessagesShowTheUsersLines) {
  const std::string log =
      "score(2): error: identifier \"erfcf\" is undefined\nattention/score_math.h(7): note\nscore(2): error: again";
  EXPECT_EQ(with_user_lines(log, "score", "t = z;\nerfc(t)"), log + "\n  line 2 of score:  erfc(t)");
  EXPECT_EQ(with_user_lines("ptxas failed", "score", "z"), "ptxas failed");
}

TEST(ProgramTest, SlotsAreReusedAndInputsKept) {
  Graph graph(Domain::real);
  std::string text = "z";
  for (int n = 0; n < 80; ++n) text = "tanh(" + text + " + 1)";
  const Result<std::vector<int>> parsed =
      parse("score", "t = z; " + std::string("sigmoid(t) * exp(t) + tanh(t) * log(t) + t"), kBeta, graph);
  ASSERT_TRUE(parsed.ok());
  const Program program = program_of(graph, *parsed);
  EXPECT_LE(program.slots, 5);
  for (const Step& step : program.steps) {
    for (const Program::Input& input : program.symbols) EXPECT_NE(step.to, input.slot);
  }
}

}  // namespace
}  // namespace warploom::expression
