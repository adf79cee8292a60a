#include "cli/gemm_judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "cli/verify_gemm_cases.h"
#include "gpu/gemm_plan.h"
#include "gpu/reference_device.h"
#include "problem/gemm.h"

namespace warploom::cli {
namespace {

const std::vector<std::uint32_t> dtypes = {WARPLOOM_BFLOAT16, WARPLOOM_FLOAT16, WARPLOOM_FLOAT8_E4M3};

/// As a kernel without errors would leave it.
GemmProblem solved(const GemmProblem& made) {
  GemmProblem problem = made;
  for (std::int64_t b = 0; b < problem.out.batch; ++b)
    for (std::int64_t row = 0; row < problem.out.rows; ++row)
      for (std::int64_t column = 0; column < problem.out.columns; ++column)
        problem.out.set(b, row, column, expected_product(made, b, row, column).value);
  return problem;
}

GemmProblem example() {
  GemmProblemConfig config;
  config.rows = 3;
  config.columns = 5;
  config.depth = 4;
  config.batch = 2;
  config.alpha = 0.25;
  config.bias = config.c = true;
  config.beta = 2;
  return make_gemm_problem(config);
}

TEST(GemmJudge, ExpectsWhatTheFormulaSays) {
  GemmProblem problem = example();
  for (std::int64_t k = 0; k < 4; ++k) {
    problem.a.set(1, 2, k, static_cast<double>(k + 1));
    problem.b.set(1, 3, k, 2);
  }
  problem.bias.set(0, 0, 3, -1);
  problem.c.set(1, 2, 3, 3);
  EXPECT_EQ(expected_product(problem, 1, 2, 3).value, 0.25 * 20 - 1 + 2 * 3);
  EXPECT_EQ(expected_product(problem, 1, 2, 3).limit, 0);
  problem.config.silu = true;
  const GemmExpected expected = expected_product(problem, 1, 2, 3);
  EXPECT_NEAR(expected.value, 4 / (1 + std::exp(-4.0)) + 6, 1e-12);
  EXPECT_GT(expected.limit, 0);
  EXPECT_LT(expected.limit, 0.05);
}

TEST(GemmJudge, FindsEveryKindOfMistake) {
  const GemmProblem made = example(), right = solved(made);
  EXPECT_TRUE(judge_product(made, right).ok);
  EXPECT_FALSE(judge_product(made, made).ok) << "a result that was not written";

  const auto reason_after = [&](auto change) {
    GemmProblem problem = right;
    change(problem);
    const Judgement result = judge_product(made, problem);
    EXPECT_FALSE(result.ok);
    return result.reason;
  };
  const double value = right.out.at(1, 2, 4);
  EXPECT_NE(reason_after([&](GemmProblem& p) { p.out.set(1, 2, 4, value + 0.25); }).find("product 1, row 2, column 4"),
            std::string::npos);
  EXPECT_NE(reason_after([](GemmProblem& p) { p.out.set(0, 2, 5, 0); }).find("around the result"), std::string::npos);
  EXPECT_NE(reason_after([](GemmProblem& p) { p.out.memory.front() = 0; }).find("around"), std::string::npos);
  EXPECT_NE(reason_after([](GemmProblem& p) { p.out.memory.back() = 0; }).find("around"), std::string::npos);
  EXPECT_NE(reason_after([](GemmProblem& p) { p.b.set(0, 0, 0, 7); }).find("of b"), std::string::npos);
  EXPECT_NE(reason_after([](GemmProblem& p) { p.c.memory.back() = 0; }).find("of c"), std::string::npos);
}

TEST(GemmVerifyCases, AreValidProductsWithNamesOfTheirOwn) {
  for (const std::uint32_t dtype : dtypes) {
    std::set<std::string> names;
    for (const GemmVerifyCase& one : gemm_verify_cases(dtype)) {
      EXPECT_TRUE(names.insert(one.name).second) << one.name;
      GemmProblem problem = make_gemm_problem(one.config);
      warploom_gemm call = gemm_call(problem, true, 0);
      // The host's memory has no alignment: the device's starts at a multiple of 256 bytes.
      const auto moved = [](auto*& data, const GuardedMatrices& matrices) {
        if (data == nullptr) return;
        const auto offset = reinterpret_cast<const unsigned char*>(data) - matrices.memory.data();
        data = reinterpret_cast<std::remove_reference_t<decltype(data)>>(std::uintptr_t{4096} +
                                                                         static_cast<std::size_t>(offset));
      };
      if (one.config.c) moved(call.c.data, one.config.out_is_c ? problem.out : problem.c);
      moved(call.a.data, problem.a);
      moved(call.b.data, problem.b);
      moved(call.out.data, problem.out);
      moved(call.bias, problem.bias);
      const Status status = validate_gemm(call);
      EXPECT_TRUE(status.ok()) << one.name << ": " << status.message();
    }
  }
}

/// Sums that leave float32's whole numbers would make the exact comparison wrong.
TEST(GemmVerifyCases, ReachEveryTileAndStayExact) {
  const Result<gpu::DeviceInfo> hopper = gpu::reference_device({9, 0, true});
  ASSERT_TRUE(hopper.ok());
  std::size_t tiles = 0;
  for (const std::uint32_t dtype : dtypes) {
    std::set<std::string> named;
    for (const GemmVerifyCase& one : gemm_verify_cases(dtype)) {
      EXPECT_LT(9 * one.config.depth, 1 << 24);
      if (one.config.tile) named.insert(one.name.substr(0, one.name.find(',')));
    }
    tiles += named.size();
  }
  EXPECT_EQ(tiles, 11u + 11u + 5u) << "rows of kTable in src/gpu/gemm_plan.cpp, of each type";
}

}  // namespace
}  // namespace warploom::cli
