// Random problems of every kind against the float64 reference.
#include "random_problem.h"

namespace test {
namespace {

void agrees(uint32_t dtype, int problems, int longest, uint32_t first_seed, bool backward) {
  for (int n = 0; n < problems; ++n) {
    RandomProblem random(first_seed + static_cast<uint32_t>(n), dtype, longest);
    random.make();
    SCOPED_TRACE("seed " + std::to_string(first_seed + static_cast<uint32_t>(n)) + random.text);
    random.problem.run(backward, 1 + n % 3);
    if (testing::Test::HasFatalFailure()) return;
    check(random.problem, backward);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(ForwardTest, SmallProblemsAgreeWithTheReference) {
  agrees(WARPLOOM_FLOAT32, 2000, 40, 0, false);
}
TEST(ForwardTest, LongerProblemsAgreeWithTheReference) {
  agrees(WARPLOOM_FLOAT32, 40, 300, 1000, false);
}
TEST(ForwardTest, BFloat16AgreesWithTheReference) {
  agrees(WARPLOOM_BFLOAT16, 60, 100, 2000, false);
}
TEST(ForwardTest, Float16AgreesWithTheReference) {
  agrees(WARPLOOM_FLOAT16, 60, 100, 3000, false);
}

TEST(BackwardTest, SmallProblemsAgreeWithTheReference) {
  agrees(WARPLOOM_FLOAT32, 2000, 40, 10000, true);
}
TEST(BackwardTest, LongerProblemsAgreeWithTheReference) {
  agrees(WARPLOOM_FLOAT32, 40, 300, 11000, true);
}
TEST(BackwardTest, BFloat16AgreesWithTheReference) {
  agrees(WARPLOOM_BFLOAT16, 60, 100, 12000, true);
}
TEST(BackwardTest, Float16AgreesWithTheReference) {
  agrees(WARPLOOM_FLOAT16, 60, 100, 13000, true);
}

}  // namespace
}  // namespace test
