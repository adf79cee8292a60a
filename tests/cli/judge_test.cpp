// The judge must accept results that a correct kernel gives and refuse those that are wrong in any way it names.
#include "cli/judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "cli/numbers.h"

namespace warploom::cli {
namespace {

ProblemConfig config_in(std::uint32_t dtype, bool softmax) {
  ProblemConfig config;
  config.softmax = softmax;
  config.dtype = dtype;
  config.lengths_q = {20, 0, 9};
  config.used_q = config.used_k = {18, 0, 9};
  config.heads = 2;
  config.head_dim = 16;
  config.right = 0;
  config.gap = 8;
  return config;
}

/// Writes what the reference says, as a kernel that draws its own roundings would.
void write_results(Problem& problem, const warploom_attention& call) {
  const Reference result = call.dtype == WARPLOOM_FLOAT32 ? reference(call) : reference(call, Rounding{7});
  const auto write = [&](const OwnedTensor& tensor, const ReferenceTensor& from) {
    const std::int64_t width = tensor.view.heads * tensor.view.dim;
    for (std::size_t index = 0; index < from.value.size(); ++index) {
      const auto place = static_cast<std::int64_t>(index);
      store(tensor.view.data, call.dtype, place / width * tensor.view.row_stride + place % width, from.value[index]);
    }
  };
  write(problem.out, result.out);
  for (std::size_t index = 0; index < problem.lse.size(); ++index)
    problem.lse[index] = static_cast<float>(result.lse.value[index]);
  if (call.pass == WARPLOOM_FORWARD) return;
  write(problem.dq, result.dq);
  write(problem.dk, result.dk);
  write(problem.dv, result.dv);
}

bool accepted(const std::vector<Judgement>& judgements) {
  for (const Judgement& one : judgements)
    if (!one.ok) return false;
  return true;
}

class JudgeTest : public ::testing::TestWithParam<std::tuple<std::uint32_t, bool>> {
 protected:
  Problem problem_ = make_problem(config_in(std::get<0>(GetParam()), std::get<1>(GetParam())), true);
};

TEST_P(JudgeTest, AcceptsCorrectRoundings) {
  for (const bool backward : {false, true}) {
    const warploom_attention call = backward ? *backward_call(problem_) : *forward_call(problem_);
    write_results(problem_, call);
    for (const Judgement& one : judge(problem_, call)) EXPECT_TRUE(one.ok) << one.tensor << ": " << one.reason;
  }
}

TEST_P(JudgeTest, RefusesWhatIsWrong) {
  const warploom_attention call = *forward_call(problem_);
  const TensorView& out = problem_.out.view;
  const auto change = [&](std::int64_t row, std::int64_t d, double factor, double offset) {
    const std::int64_t place = row * out.row_stride + d;
    store(out.data, call.dtype, place, load(out.data, call.dtype, place) * factor + offset);
  };
  write_results(problem_, call);
  ASSERT_TRUE(accepted(judge(problem_, call)));
  change(5, 3, 1, 1);  // one wrong element
  EXPECT_FALSE(accepted(judge(problem_, call)));
  write_results(problem_, call);
  for (std::int64_t d = 0; d < 16; ++d) change(0, d, 1.05, 0);  // one row 5 % off
  EXPECT_FALSE(accepted(judge(problem_, call)));
  write_results(problem_, call);
  change(19, 0, 0, 1e-6);  // a row beyond the used ones
  EXPECT_FALSE(accepted(judge(problem_, call)));
  write_results(problem_, call);
  change(2, 0, NAN, 0);
  EXPECT_FALSE(accepted(judge(problem_, call)));
  write_results(problem_, call);
  store(out.data, call.dtype, 3 * out.row_stride + 2 * 16, 0);  // the gap behind a row
  EXPECT_FALSE(accepted(judge(problem_, call)));
}

INSTANTIATE_TEST_SUITE_P(All, JudgeTest,
                         ::testing::Combine(::testing::Values(WARPLOOM_FLOAT32, WARPLOOM_BFLOAT16, WARPLOOM_FLOAT16),
                                            ::testing::Bool()));

}  // namespace
}  // namespace warploom::cli
