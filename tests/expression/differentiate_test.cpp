#include "expression/differentiate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "expression/print.h"
#include "random_expression.h"

namespace warploom::expression {
namespace {

struct Derived {
  Graph graph{Domain::real};
  int value = 0, slope = 0;

  explicit Derived(const std::string& text) {
    const Result<std::vector<int>> parsed = parse("score", text, kBeta, graph);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    value = parsed->front();
    slope = differentiate(graph, value);
  }
  double at(double z, double beta = 0.7) const { return value_at(graph, value, z, {beta}); }
  double slope_at(double z, double beta = 0.7) const { return value_at(graph, slope, z, {beta}); }
};

/// Central differences, with the fourth-order error of Richardson's extrapolation.
double difference(const Derived& f, double z) {
  const auto central = [&](double h) { return (f.at(z + h) - f.at(z - h)) / (2 * h); };
  const double h = 1e-3 * (1 + std::fabs(z));
  return (4 * central(h / 2) - central(h)) / 3;
}

TEST(DifferentiateTest, EveryFunctionAgreesWithDifferences) {
  for (const char* text : {"z",
                           "beta",
                           "z * z * z",
                           "exp(z)",
                           "exp2(z)",
                           "expm1(z)",
                           "log(5 + z)",
                           "log2(5 + z)",
                           "log1p(4 + z)",
                           "tanh(z)",
                           "sigmoid(z)",
                           "softplus(z)",
                           "sqrt(5 + z)",
                           "rsqrt(5 + z)",
                           "erf(z)",
                           "erfc(z)",
                           "gelu(z)",
                           "silu(z)",
                           "abs(z)",
                           "relu(z)",
                           "max(z, 0.25)",
                           "min(z, 0.25)",
                           "clamp(z, -1, 1)",
                           "pow(5 + z, beta)",
                           "pow(beta, z)",
                           "pow(z, 3)",
                           "pow(5 + z, -2)",
                           "pow(5 + z, 0.5)",
                           "(z + 1) / (z * z + 2)",
                           "z > 0.3 ? z * z : 3 * z",
                           "sign(z) * z",
                           "!z + z",
                           "t = tanh(z / beta); beta * t * sigmoid(t)",
                           "-z * (z - 2)",
                           "z / beta",
                           "beta / (5 + z)"}) {
    const Derived f(text);
    for (const double z : {-3.3, -1.7, -0.4, 0.1, 0.8, 2.6}) {
      EXPECT_NEAR(f.slope_at(z), difference(f, z), 1e-8 * (1 + std::fabs(f.slope_at(z)))) << text << " at " << z;
    }
  }
}

TEST(DifferentiateTest, RandomSmoothExpressionsAgreeWithDifferences) {
  std::mt19937 random(5);
  for (int n = 0; n < 400; ++n) {
    const std::string text = random_expression(random, 1 + n % 4, true);
    const Derived f(text);
    for (const double z : {-2.1, -0.3, 0.4, 1.9}) {
      const double slope = f.slope_at(z), expected = difference(f, z);
      ASSERT_NEAR(slope, expected, 1e-6 * (1 + std::fabs(slope) + std::fabs(f.at(z)))) << text << " at " << z;
    }
  }
}

TEST(DifferentiateTest, TailsKeepTheirRelativeAccuracy) {
  const Derived silu("z * sigmoid(z)"), tanh("tanh(z)"), sigmoid("sigmoid(z)");
  for (const double z : {-60.0, -25.0, -8.0}) {
    const double e = std::exp(z);
    EXPECT_NEAR(silu.slope_at(z) / (e / (1 + e) * (1 + z / (1 + e))), 1, 1e-12) << z;
  }
  for (const double z : {-12.0, 12.0, 30.0}) {
    const double e = std::exp(-std::fabs(z));
    EXPECT_NEAR(sigmoid.slope_at(z) / (e / ((1 + e) * (1 + e))), 1, 1e-12) << z;
    EXPECT_NEAR(tanh.slope_at(z) / (4 * e * e / std::pow(1 + e * e, 2)), 1, 1e-12) << z;
  }
}

TEST(DifferentiateTest, KinksHaveTheSlopeOfOneSide) {
  EXPECT_EQ(Derived("relu(z)").slope_at(0), 0);
  EXPECT_EQ(Derived("abs(z)").slope_at(0), 0);
  EXPECT_EQ(Derived("relu(z) * relu(z)").slope_at(2), 4);
  EXPECT_EQ(Derived("softplus(z)").slope_at(0), 0.5);
  EXPECT_EQ(Derived("floor = 2; floor").slope_at(0), 0);
}

TEST(DifferentiateTest, NanStaysNan) {
  for (const char* text : {"relu(z)", "max(z, 1)", "min(1, z)", "abs(z)", "clamp(z, -1, 1)", "sign(z) * z"}) {
    EXPECT_TRUE(std::isnan(Derived(text).at(NAN))) << text;
  }
  EXPECT_FALSE(Derived("relu(z)").slope_at(NAN) == 0);
}

TEST(DifferentiateTest, WhatIsZeroByDerivationLeavesNothingBehind) {
  const auto slope = [](const char* text) {
    const Derived f(text);
    return print(f.graph, {f.slope}, kBeta);
  };
  EXPECT_EQ(slope("3 * z + beta"), "3");
  EXPECT_EQ(slope("exp(z)"), "exp(z)");
  EXPECT_EQ(slope("z * sigmoid(z)"), "t1 = sigmoid(z); t1 + z * (t1 * sigmoid(-z))");
  EXPECT_EQ(slope("relu(z)"), "z <= 0 ? 0 : 1");
}

}  // namespace
}  // namespace warploom::expression
