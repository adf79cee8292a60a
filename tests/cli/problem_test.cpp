#include "cli/problem.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cli/verify_cases.h"

namespace warploom::cli {
namespace {

TEST(Problem, EveryVerifyCaseIsALegalCall) {
  for (const bool softmax : {false, true}) {
    for (const std::uint32_t dtype : {WARPLOOM_FLOAT32, WARPLOOM_BFLOAT16}) {
      for (const VerifyCase& one : verify_cases(softmax, dtype)) {
        Problem problem = make_problem(one.config, true);
        for (const bool backward : {false, true}) {
          const Result<warploom_attention> call = backward ? backward_call(problem) : forward_call(problem);
          ASSERT_TRUE(call.ok()) << one.name << ": " << call.status().message();
          EXPECT_EQ(warploom_validate(&*call), WARPLOOM_OK) << one.name << ": " << warploom_last_error();
        }
      }
    }
  }
}

TEST(Problem, WhatNoSequenceOwnsIsPoisoned) {
  ProblemConfig config;
  config.lengths_q = {3, 2};
  config.used_q = config.used_k = {1, 2};
  config.rows_behind = 1;
  config.head_dim = 4;
  const Problem problem = make_problem(config, false);
  for (std::int64_t row = 0; row < 6; ++row) {
    const bool used = row == 0 || row == 3 || row == 4;
    EXPECT_EQ(std::isnan(problem.q.at(row, 0, 3)), !used) << row;
    EXPECT_TRUE(std::isnan(problem.out.at(row, 0, 0)));
  }
}

TEST(Problem, FlopsAreCountedAsPeersCountThem) {
  ProblemConfig config;
  config.lengths_q = {4096, 4096};
  config.heads = 4;
  config.head_dim = 128;
  EXPECT_DOUBLE_EQ(flops(config, false), 4.0 * 2 * 4096 * 4096 * 4 * 128);
  config.right = 0;
  EXPECT_DOUBLE_EQ(flops(config, false), 2.0 * 2 * 4096 * 4096 * 4 * 128);
  EXPECT_DOUBLE_EQ(flops(config, true), 2.5 * flops(config, false));
}

TEST(AttentionApi, SizesThatOnlySpansKnowAreChecked) {
  std::vector<float> q(10 * 2 * 8), out(q.size()), short_out(9 * 2 * 8), lse(19);
  const std::vector<std::int64_t> offsets = {0, 4, 10};
  const std::vector<std::int32_t> one_count = {1};
  const TensorView view_q = view(q, 2, 8);
  EXPECT_TRUE(hstu_forward_call(view_q, view_q, view_q, view(out, 2, 8), jagged(offsets)).ok());
  const auto message = [](const Status& status) { return status.message(); };
  EXPECT_NE(message(hstu_attention(view_q, view_q, view_q, view(short_out, 2, 8), jagged(offsets)))
                .find("out is (9, 2, 8); here it must be (10, 2, 8)"),
            std::string::npos);
  HstuOptions options;
  options.mask.num_targets = std::span<const std::int32_t>(one_count);
  EXPECT_NE(message(hstu_attention(view_q, view_q, view_q, view(out, 2, 8), jagged(offsets), options))
                .find("num_targets has 1 entries; it must have 2"),
            std::string::npos);
  EXPECT_NE(message(softmax_attention(view_q, view_q, view_q, view(out, 2, 8), lse, jagged(offsets)))
                .find("lse has 19 entries; it must have 20"),
            std::string::npos);
  const std::vector<BFloat16> other(q.size());
  const Status status = hstu_attention(view_q, view(other, 2, 8), view_q, view(out, 2, 8), jagged(offsets));
  EXPECT_EQ(status.code(), StatusCode::invalid_type);
  EXPECT_NE(message(status).find("k's type differs"), std::string::npos);
  EXPECT_THROW(throw_if_error(status), std::invalid_argument);
  EXPECT_NO_THROW(throw_if_error(Status()));
}

TEST(AttentionApi, DenseBatchesAndPackedQkvAreViews) {
  std::vector<float> qkv(3 * 4 * 3 * 2 * 8), out(3 * 4 * 2 * 8);
  const auto part = [&](std::int64_t which) { return view(qkv.data() + which * 16, 12, 2, 8, 48, 8); };
  const Result<warploom_attention> call = hstu_forward_call(part(0), part(1), part(2), view(out, 2, 8), dense(3));
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call->max_seqlen_q, 4);
  EXPECT_EQ(call->k.batch_stride, 4 * 48);
  EXPECT_EQ(warploom_validate(&*call), WARPLOOM_OK) << warploom_last_error();
  EXPECT_FALSE(hstu_forward_call(part(0), part(1), part(2), view(out, 2, 8), dense(5)).ok());
}

}  // namespace
}  // namespace warploom::cli
