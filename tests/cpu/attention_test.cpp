// Random problems of every kind against the float64 reference, on every instruction set that this processor has.
#include "cpu/kernels.h"
#include "random_problem.h"

namespace test {
namespace {

using warploom::cpu::Kernels;

struct Family {
  uint32_t dtype;
  int problems, longest;
  uint32_t first_seed;
};

void agrees(Family family) {
  const Kernels* targets[8];
  const int count = warploom::cpu::supported_targets(targets, 8);
  for (int n = 0; n < family.problems; ++n) {
    const uint32_t seed = family.first_seed + static_cast<uint32_t>(n);
    RandomProblem random(seed, family.dtype, family.longest);
    random.make();
    Problem& p = random.problem;
    const int threads = 1 + n % 3;
    reference::Result expected;
    Storage out;
    std::vector<float> lse;
    for (int target = 0; target < count; ++target) {
      SCOPED_TRACE("seed " + std::to_string(seed) + random.text + " on " + targets[target]->name);
      warploom::cpu::use_target(targets[target]);
      p.run(false, threads);
      if (target == 0) {
        p.call.pass = WARPLOOM_BACKWARD;
        expected = reference::run(p.call);
        out.bytes = p.out.bytes;
        lse = p.lse;
      } else {
        check(p, false, expected);
        // Softmax backward starts from them, so all targets get the same.
        std::memcpy(p.out.bytes.data(), out.bytes.data(), out.bytes.size());
        std::copy(lse.begin(), lse.end(), p.lse.begin());
      }
      p.run_pass(WARPLOOM_BACKWARD, threads);
      check(p, true, expected);
      warploom::cpu::use_target(nullptr);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(AttentionTest, SmallProblemsAgreeWithTheReference) {
  agrees({WARPLOOM_FLOAT32, 500, 40, 0});
}
TEST(AttentionTest, LongerProblemsAgreeWithTheReference) {
  agrees({WARPLOOM_FLOAT32, 25, 300, 10000});
}
TEST(AttentionTest, BFloat16AgreesWithTheReference) {
  agrees({WARPLOOM_BFLOAT16, 40, 100, 20000});
}
TEST(AttentionTest, Float16AgreesWithTheReference) {
  agrees({WARPLOOM_FLOAT16, 40, 100, 30000});
}

}  // namespace
}  // namespace test
