// Bits depend on the sequence alone: not on threads, on who else is in the batch, or on longer maxima.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "random_problem.h"

namespace test {
namespace {

std::vector<char> all_results(const Problem& p) {
  std::vector<char> bytes;
  for (const Storage* s : {&p.out, &p.dq, &p.dk, &p.dv, &p.bias_grad})
    bytes.insert(bytes.end(), s->bytes.begin(), s->bytes.end());
  for (const auto* s : {&p.lse, &p.position_grad, &p.time_grad}) {
    const char* data = reinterpret_cast<const char*>(s->data());
    bytes.insert(bytes.end(), data, data + s->size() * sizeof(float));
  }
  return bytes;
}

TEST(DeterminismTest, ResultsDoNotDependOnTheNumberOfThreads) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    RandomProblem random(seed, seed % 3 == 0 ? WARPLOOM_BFLOAT16 : WARPLOOM_FLOAT32, 500);
    random.make();
    SCOPED_TRACE("seed " + std::to_string(seed) + random.text);
    random.problem.run(true, 1);
    const std::vector<char> alone = all_results(random.problem);
    for (const int threads : {2, 3, 7}) {
      random.problem.run(true, threads);
      ASSERT_EQ(all_results(random.problem), alone) << threads << " threads";
    }
  }
}

/// One sequence of a batch, as rows of `tensor` of every head.
std::vector<double> rows_of(const Problem& p, const Storage& storage, const warploom_tensor& tensor, int64_t first,
                            int64_t count, int64_t heads, int64_t dim) {
  std::vector<double> values;
  for (int64_t i = first; i < first + count; ++i) {
    for (int64_t n = 0; n < heads; ++n) {
      for (int64_t x = 0; x < dim; ++x) values.push_back(storage.get(p.index(tensor, i, n, x)));
    }
  }
  return values;
}

TEST(DeterminismTest, ASequenceDoesNotDependOnTheOthers) {
  for (const uint32_t op : {WARPLOOM_HSTU, WARPLOOM_SOFTMAX}) {
    std::mt19937 random(11);
    Problem batch;
    batch.call.op = op;
    batch.call.heads = batch.call.key_heads = 2;
    batch.call.head_dim = batch.call.value_dim = 24;
    batch.call.right = 0;
    if (op == WARPLOOM_HSTU) batch.call.flags |= WARPLOOM_HAS_DIVISOR, batch.call.divisor = 40;
    Problem alone = batch;
    batch.lengths_q = {300, 40, 177, 5};
    alone.lengths_q = {177};
    batch.call.max_seqlen_q = batch.call.max_seqlen_k = 900;
    batch.allocate(random);
    alone.allocate(random);
    const std::pair<Storage*, Storage*> inputs[] = {
        {&batch.q, &alone.q}, {&batch.k, &alone.k}, {&batch.v, &alone.v}, {&batch.dout, &alone.dout}};
    for (const auto& [from, to] : inputs) {
      for (int64_t x = 0; x < 177 * 48; ++x) to->set(x, from->get(340 * 48 + x));
    }
    batch.run(true, 2);
    alone.run(true, 1);
    const auto same = [&](const Storage& x, const warploom_tensor& at_x, const Storage& y,
                          const warploom_tensor& at_y) {
      EXPECT_EQ(rows_of(batch, x, at_x, 340, 177, 2, 24), rows_of(alone, y, at_y, 0, 177, 2, 24));
    };
    same(batch.out, batch.call.out, alone.out, alone.call.out);
    same(batch.dq, batch.call.dq, alone.dq, alone.call.dq);
    same(batch.dk, batch.call.dk, alone.dk, alone.call.dk);
    same(batch.dv, batch.call.dv, alone.dv, alone.call.dv);
  }
}

TEST(DeterminismTest, SeveralThreadsMayCallAtOnce) {
  RandomProblem random(5, WARPLOOM_FLOAT32, 400);
  random.make();
  random.problem.run(true, 1);
  const std::vector<char> expected = all_results(random.problem);
  std::vector<std::unique_ptr<RandomProblem>> problems;
  for (int n = 0; n < 4; ++n) {
    problems.push_back(std::make_unique<RandomProblem>(5, WARPLOOM_FLOAT32, 400));
    problems.back()->make();
  }
  std::vector<std::thread> callers;
  for (auto& problem : problems) {
    callers.emplace_back([&problem] {
      for (int n = 0; n < 5; ++n) problem->problem.run(true, 3);
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (auto& problem : problems) EXPECT_EQ(all_results(problem->problem), expected);
}

#if !defined(__SANITIZE_THREAD__)  // TSan does not follow a child of a process with threads
TEST(DeterminismTest, AForkedChildComputesToo) {
  RandomProblem random(5, WARPLOOM_FLOAT32, 400);
  random.make();
  random.problem.run(true, 4);
  const std::vector<char> expected = all_results(random.problem);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a hang would be a failure
    random.problem.run(true, 4);
    _exit(all_results(random.problem) == expected ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

}  // namespace
}  // namespace test
