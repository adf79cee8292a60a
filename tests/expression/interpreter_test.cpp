// The CPU back end's interpreter on every instruction set that this processor has, against double precision.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "expression/functions.h"
#include "random_expression.h"

namespace warploom::expression {
namespace {

const ScoreFunction& function_of(const std::string& text) {
  const double beta = 0.7;
  warploom_function source{};
  source.text = text.c_str();
  source.parameters = "beta";
  source.values = &beta;
  source.num_values = 1;
  const Result<const ScoreFunction*> found = find_score(source);
  EXPECT_TRUE(found.ok()) << found.status().message();
  return **found;
}

/// body(instruction set's kernels) for each.
template <typename Body>
void for_each_target(Body body) {
  const cpu::Kernels* targets[8];
  const int count = cpu::supported_targets(targets, 8);
  ASSERT_GT(count, 0);
  for (int n = 0; n < count; ++n) {
    SCOPED_TRACE(targets[n]->name);
    body(*targets[n]);
  }
}

std::vector<float> values_of(const cpu::Kernels& kernels, const ScoreFunction& function, const std::vector<float>& z) {
  const float beta[] = {0.7f, 0, 0, 0, 0, 0, 0, 0};
  std::vector<float> values(z.size());
  kernels.evaluate_score(function, beta, z.data(), static_cast<int64_t>(z.size()), values.data(), nullptr);
  return values;
}

/// The same text in double precision.
double exact(const std::string& text, double z) {
  Graph graph(Domain::real);
  const Result<std::vector<int>> parsed = parse("score", text, kBeta, graph);
  return value_at(graph, parsed->front(), z, {0.7f});
}

TEST(InterpreterTest, EveryFunctionIsAccurateOverItsRange) {
  struct Case {
    const char* text;
    double low, high, limit;  // relative
  };
  for (const Case& c :
       {Case{"exp(z)", -87, 88.7, 4e-7}, Case{"exp2(z)", -126, 127.9, 4e-7}, Case{"expm1(z)", -20, 88, 1e-6},
        Case{"expm1(z)", -1e-3, 1e-3, 1e-6}, Case{"log(z)", 1e-3, 1e6, 1e-6}, Case{"log(z)", 0.9, 1.1, 1e-6},
        Case{"log(z)", 1e-44, 1e-37, 1e-6}, Case{"log2(z)", 1e-3, 1e6, 1e-6}, Case{"log1p(z)", -0.99, 10, 1e-6},
        Case{"log1p(z)", -1e-4, 1e-4, 1e-6}, Case{"tanh(z)", -9, 9, 1e-6}, Case{"sigmoid(z)", -80, 30, 1e-6},
        Case{"softplus(z)", -80, 80, 1e-6}, Case{"sqrt(z)", 0, 100, 1e-7}, Case{"erf(z)", -4, 4, 1e-6},
        Case{"erfc(z)", -4, 9, 1e-6}, Case{"pow(z, 1.7)", 0.01, 50, 1e-6}, Case{"z / (1 + z * z)", -9, 9, 5e-7}}) {
    const ScoreFunction& function = function_of(c.text);
    std::vector<float> z;
    for (int n = 0; n <= 1000; ++n) z.push_back(static_cast<float>(c.low + (c.high - c.low) * n / 1000));
    for_each_target([&](const cpu::Kernels& kernels) {
      const std::vector<float> values = values_of(kernels, function, z);
      for (size_t n = 0; n < z.size(); ++n) {
        const double expected = exact(c.text, static_cast<double>(z[n]));
        ASSERT_NEAR(static_cast<double>(values[n]), expected, c.limit * std::fabs(expected) + 1e-45)
            << c.text << " at " << z[n];
      }
    });
  }
}

TEST(InterpreterTest, SpecialValuesAreThoseOfDoublePrecision) {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> z = {nan, inf, -inf, 0.0f, -0.0f, 1.0f, -1.0f, FLT_MAX, -FLT_MAX, 1e-45f};
  for (const char* text :
       {"exp(z)",      "exp2(z)",     "expm1(z)",    "log(z)",      "log2(z)", "log1p(z)",  "tanh(z)",
        "sigmoid(z)",  "softplus(z)", "sqrt(z)",     "erf(z)",      "erfc(z)", "abs(z)",    "sign(z)",
        "max(z, 0.5)", "max(0.5, z)", "min(z, 0.5)", "min(0.5, z)", "z < 0",   "z <= 0",    "z > 0",
        "z == 0",      "z != 0",      "!z",          "z && beta",   "z || 0",  "z ? 1 : 2", "z > 0 ? z : -z",
        "z - z",       "1 / z",       "pow(z, 1.5)"}) {
    const ScoreFunction& function = function_of(text);
    for_each_target([&](const cpu::Kernels& kernels) {
      const std::vector<float> values = values_of(kernels, function, z);
      for (size_t n = 0; n < z.size(); ++n) {
        const auto expected = static_cast<float>(exact(text, static_cast<double>(z[n])));
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(values[n])) << text << " at " << z[n] << " is " << values[n];
        } else if (std::isinf(expected) || std::fabs(expected) < FLT_MIN) {
          EXPECT_NEAR(values[n] == expected ? 0 : values[n] - expected, 0, FLT_MIN) << text << " at " << z[n];
        } else {
          EXPECT_NEAR(values[n] / expected, 1, 2e-6) << text << " at " << z[n];
        }
      }
    });
  }
}

TEST(InterpreterTest, RandomExpressionsAgreeWithDoublePrecision) {
  std::mt19937 random(6);
  std::vector<float> z;
  for (int n = 0; n < 83; ++n) z.push_back(-4.0f + 0.1f * static_cast<float>(n));
  for (int n = 0; n < 150; ++n) {
    const std::string text = random_expression(random, 1 + n % 3, true);
    const ScoreFunction& function = function_of(text);
    for_each_target([&](const cpu::Kernels& kernels) {
      const float beta[] = {0.7f, 0, 0, 0, 0, 0, 0, 0};
      std::vector<float> values(z.size()), slopes(z.size());
      kernels.evaluate_score(function, beta, z.data(), static_cast<int64_t>(z.size()), values.data(), slopes.data());
      for (size_t x = 0; x < z.size(); ++x) {
        const double at = static_cast<double>(z[x]);
        const double expected = exact(text, at), slope = exact(function.slope, at);
        // Products of up to three sums of moderate numbers.
        ASSERT_NEAR(static_cast<double>(values[x]), expected, 1e-4 * (1 + std::fabs(expected))) << text << " at " << at;
        ASSERT_NEAR(static_cast<double>(slopes[x]), slope, 1e-4 * (1 + std::fabs(slope))) << text << " at " << at;
      }
    });
  }
}

}  // namespace
}  // namespace warploom::expression
