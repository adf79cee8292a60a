#include "problem/mask_rows.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "expression/graph.h"

namespace warploom {
namespace {

struct Batch {
  std::vector<int64_t> cumulative_q = {0, 3, 3, 103}, cumulative_k = {0, 5, 7, 157};
  std::vector<int32_t> contexts = {1, 0, 4}, targets = {2, 1, 30};
  warploom_attention call;

  Batch() {
    warploom_attention_init(&call);
    call.batch = 3;
    call.heads = call.key_heads = 2;
    call.total_q = 110;
    call.total_k = 157;
    call.cu_seqlens_q = cumulative_q.data();
    call.cu_seqlens_k = cumulative_k.data();
    call.cu_seqlens_q_dtype = call.cu_seqlens_k_dtype = WARPLOOM_INT64;
    call.num_contexts = contexts.data();
    call.num_targets = targets.data();
  }
};

TEST(MaskRowsTest, RowsSeeWhatTheTextSays) {
  Batch batch;
  const double window = 7;
  batch.call.mask_function = {"g = (r - h) / 4 * 4 + h; [0, nc), [r >= h ? g : max(nc, r - w * (head + 1)), r + 1)",
                              nullptr, "w", &window, 1};
  std::vector<int32_t> memory;
  const warploom_attention expanded = with_intervals(batch.call, memory);
  EXPECT_EQ(expanded.interval_heads, 2);
  EXPECT_EQ(expanded.num_intervals, 2);
  EXPECT_EQ(expanded.num_contexts, nullptr);
  ASSERT_EQ(memory.size(), 2u * 110 * 2 * 2);
  for (int head = 0; head < 2; ++head) {
    for (size_t b = 0; b < 3; ++b) {
      const auto lq = static_cast<int>(batch.cumulative_q[b + 1] - batch.cumulative_q[b]);
      const auto lk = static_cast<int>(batch.cumulative_k[b + 1] - batch.cumulative_k[b]);
      const int nc = batch.contexts[b], h = lk - batch.targets[b];
      for (int i = 0; i < lq; ++i) {
        const int r = i + lk - lq;
        const int begin = r >= h ? h + (r - h) / 4 * 4 : std::max(nc, r - 7 * (head + 1));
        const int32_t* found = memory.data() + ((head * 110 + batch.cumulative_q[b] + i) * 2) * 2;
        EXPECT_EQ(found[0], 0);
        EXPECT_EQ(found[1], nc);
        EXPECT_EQ(found[2], begin) << "b " << b << " i " << i;
        EXPECT_EQ(found[3], r + 1);
      }
    }
  }
}

TEST(MaskRowsTest, BoundsAreClippedToTheSequence) {
  Batch batch;
  batch.call.mask_function = {"[-1000000 * 1000000, i * 100000 * 100000)", nullptr, nullptr, nullptr, 0};
  std::vector<int32_t> memory;
  static_cast<void>(with_intervals(batch.call, memory));
  EXPECT_EQ(memory[0], 0);
  EXPECT_EQ(memory[1], 0);
  EXPECT_EQ(memory[3], 5);
}

TEST(MaskRowsTest, WholeNumbersNeverTrap) {
  using expression::evaluate;
  using expression::Op;
  constexpr int64_t low = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(evaluate(Op::divide, int64_t{7}, int64_t{0}, int64_t{0}), 0);
  EXPECT_EQ(evaluate(Op::remainder, int64_t{7}, int64_t{0}, int64_t{0}), 0);
  EXPECT_EQ(evaluate(Op::divide, low, int64_t{-1}, int64_t{0}), low);
  EXPECT_EQ(evaluate(Op::remainder, low, int64_t{-1}, int64_t{0}), 0);
  EXPECT_EQ(evaluate(Op::divide, int64_t{-7}, int64_t{2}, int64_t{0}), -4);
  EXPECT_EQ(evaluate(Op::remainder, int64_t{-7}, int64_t{2}, int64_t{0}), 1);
  EXPECT_EQ(evaluate(Op::remainder, int64_t{7}, int64_t{-2}, int64_t{0}), -1);
  EXPECT_EQ(evaluate(Op::absolute, low, int64_t{0}, int64_t{0}), low);
}

}  // namespace
}  // namespace warploom
