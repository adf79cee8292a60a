// The reference itself is checked: by hand on problems of a few numbers, and gradients by finite differences.
#include "cli/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "cli/numbers.h"
#include "cli/problem.h"

namespace warploom::cli {
namespace {

double silu(double z) {
  return z / (1 + std::exp(-z));
}

ProblemConfig small(bool softmax) {
  ProblemConfig config;
  config.softmax = softmax;
  config.lengths_q = {4, 0, 6};
  config.heads = 2;
  config.key_heads = 1;
  config.head_dim = 3;
  config.value_dim = 2;
  config.right = 0;
  config.seed = 5;
  return config;
}

TEST(Reference, TwoTokensByHand) {
  ProblemConfig config;
  config.lengths_q = {2};
  config.head_dim = config.value_dim = 1;
  config.right = 0;
  config.alpha = 0.5;
  config.divisor = 4;
  Problem problem = make_problem(config, false);
  const float q[] = {2, 3}, k[] = {1, -1}, v[] = {10, 20};
  for (int row = 0; row < 2; ++row) {
    store(problem.q.view.data, WARPLOOM_FLOAT32, row, static_cast<double>(q[row]));
    store(problem.k.view.data, WARPLOOM_FLOAT32, row, static_cast<double>(k[row]));
    store(problem.v.view.data, WARPLOOM_FLOAT32, row, static_cast<double>(v[row]));
  }
  const Reference result = reference(*forward_call(problem));
  EXPECT_NEAR(result.out.value[0], silu(1) * 10 / 4, 1e-12);
  EXPECT_NEAR(result.out.value[1], (silu(1.5) * 10 + silu(-1.5) * 20) / 4, 1e-12);
}

TEST(Reference, SoftmaxOfEqualScoresIsTheMean) {
  ProblemConfig config = small(true);
  config.alpha = 0.0;
  config.right.reset();
  Problem problem = make_problem(config, false);
  const Reference result = reference(*forward_call(problem));
  double mean = 0;
  for (std::int64_t j = 4; j < 10; ++j) mean += problem.v.at(j, 0, 1) / 6;
  for (std::int64_t i = 4; i < 10; ++i)
    EXPECT_NEAR(result.out.value[static_cast<std::size_t>((i * 2 + 1) * 2 + 1)], mean, 1e-12);
  EXPECT_NEAR(result.lse.value[4], std::log(6.0), 1e-12);
}

TEST(Reference, VisibilityOfContextsHistoryAndTargets) {
  ProblemConfig config = small(false);
  config.lengths_q = {7};  // two contexts, two of history, three targets in groups of two
  config.contexts = {2};
  config.targets = {3};
  config.target_group_size = 2;
  config.left = 1;
  Problem problem = make_problem(config, false);
  const warploom_attention call = *forward_call(problem);
  const char* const seen[] = {"1111...", "1111...", ".11....", "..11...", "...11..", "....11.", "......1"};
  for (std::int64_t i = 0; i < 7; ++i)
    for (std::int64_t j = -1; j <= 7; ++j)
      EXPECT_EQ(reference_visible(call, 0, 0, i, j), j >= 0 && j < 7 && seen[i][j] == '1') << i << ", " << j;
}

/// Central differences of sum(dout * out) along single inputs, against the gradient.
void check_gradients(const ProblemConfig& config) {
  Problem problem = make_problem(config, true);
  const auto loss = [&] {
    const Reference result = reference(*forward_call(problem));
    double sum = 0;
    const std::int64_t width = problem.out.view.heads * problem.out.view.dim;
    for (std::size_t index = 0; index < result.out.value.size(); ++index) {
      const auto place = static_cast<std::int64_t>(index);
      sum += result.out.value[index] * problem.dout.at(place / width, 0, place % width);
    }
    return sum;
  };
  const Reference gradients = reference(*backward_call(problem));
  const auto check = [&](const char* name, float* values, const ReferenceTensor& gradient) {
    for (std::size_t index = 0; index < gradient.value.size(); ++index) {
      const float kept = values[index], step = 0x1p-8f;
      values[index] = kept + step;
      const double above = loss();
      values[index] = kept - step;
      const double below = loss();
      values[index] = kept;
      EXPECT_NEAR((above - below) / static_cast<double>(2 * step), gradient.value[index],
                  2e-4 * (1 + gradient.magnitude[index]))
          << name << " " << index;
    }
  };
  check("dq", static_cast<float*>(problem.q.view.data), gradients.dq);
  check("dk", static_cast<float*>(problem.k.view.data), gradients.dk);
  check("dv", static_cast<float*>(problem.v.view.data), gradients.dv);
  if (problem.bias_elements > 0) check("bias", static_cast<float*>(problem.bias.data()), gradients.bias);
  check("position", problem.position.data(), gradients.position);
  check("time", problem.time.data(), gradients.time);
}

TEST(Reference, HstuGradientsAreTheSlopesOfForward) {
  check_gradients(small(false));
}

TEST(Reference, SoftmaxGradientsAreTheSlopesOfForward) {
  check_gradients(small(true));
}

TEST(Reference, SoftcapGradientsAreTheSlopesOfForward) {
  ProblemConfig config = small(true);
  config.softcap = 1.5;
  config.bias = BiasForm::dense;
  config.bias_heads = 1;
  check_gradients(config);
}

TEST(Reference, BiasGradientsAreTheSlopesOfForward) {
  for (const BiasForm form : {BiasForm::dense, BiasForm::packed, BiasForm::bucketed}) {
    ProblemConfig config = small(false);
    config.bias = form;
    config.positions = config.times = 4;
    config.bias_scaled_by_alpha = form != BiasForm::packed;
    config.divisor_for_each_row = form == BiasForm::packed;
    check_gradients(config);
  }
}

TEST(Reference, AMaskedBiasIsAsIfNotVisible) {
  for (const bool softmax : {false, true}) {
    ProblemConfig config = small(softmax);
    config.bias = BiasForm::dense;
    config.bias_masked = 1;
    Problem problem = make_problem(config, true);
    const Reference result = reference(*backward_call(problem));
    for (const double value : result.out.value) EXPECT_EQ(value, 0);
    for (const double value : result.dk.value) EXPECT_EQ(value, 0);
    for (const double value : result.lse.value) EXPECT_EQ(value, -INFINITY);
  }
}

TEST(Reference, DefaultTimeBucketsAreTheLogarithms) {
  ProblemConfig config;
  config.lengths_q = {2};
  config.head_dim = 8;
  config.right = 0;
  config.bias = BiasForm::bucketed;
  config.times = 64;
  for (const std::int64_t distance : {0, 1, 2, 3, 59, 60, 3600, 86400, 1000000000}) {
    config.timestamps = {0, distance};
    Problem problem = make_problem(config, true);
    const Reference result = reference(*backward_call(problem));
    const double logarithm = std::log(std::max<double>(1, static_cast<double>(distance)));
    const auto bucket = static_cast<std::size_t>(std::min(63.0, std::floor(logarithm / 0.301)));
    for (std::size_t n = 1; n < 64; ++n) EXPECT_EQ(result.time.value[n] != 0, n == bucket) << distance << " " << n;
  }
}

TEST(Reference, RoundedDrawsAreCloseButNotEqual) {
  ProblemConfig config = small(false);
  config.dtype = WARPLOOM_BFLOAT16;
  Problem problem = make_problem(config, true);
  const warploom_attention call = *backward_call(problem);
  const Reference exact = reference(call), first = reference(call, Rounding{0}), second = reference(call, Rounding{1});
  double difference = 0, bound = 0;
  for (std::size_t index = 0; index < exact.dq.value.size(); ++index) {
    difference += std::pow(first.dq.value[index] - exact.dq.value[index], 2);
    bound += exact.dq.bound_squared[index];
  }
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, bound);
  EXPECT_NE(first.dq.value, second.dq.value);
}

}  // namespace
}  // namespace warploom::cli
