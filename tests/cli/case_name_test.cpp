#include "cli/case_name.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace warploom::cli {
namespace {

TEST(CaseName, EveryNameOfTheReportsIsReadAndWrittenAlike) {
  for (const char* name : {
           "hstu-uniform-B8-L4096-H4-D128-causal-bf16",
           "hstu-jagged-B64-L256..2048-H4-D128-causal-bf16",
           "hstu-uniform-B8-L4096-H4-D128-causal-ctx4-tgt64-bf16",
           "hstu-uniform-B8-L4096-H4-D128-causal-rab-bf16",
           "hstu-uniform-B8-L4096-H4-D128-causal-rab-drab-bf16",
           "hstu-jagged-B64-L256..2048-H4-D64-causal-rab-bucketed-fp16",
           "hstu-uniform-B8-L4096-H4-D64-causal-rab-packed-fp32",
           "softmax-uniform-B16-L1024-H8-D192-full-bf16",
           "softmax-uniform-B2-L8192-H64-Hkv8-D128-causal-bf16",
           "softmax-uniform-B2-L512-H8-D64-Dv32-causal-left128-ctx2-fp16",
           "hstu-movielens-H4-D64-causal-fp32",
       }) {
    const Result<Case> problem = parse_case(name);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    EXPECT_EQ(case_name(*problem), name);
  }
}

TEST(CaseName, WhatIsWrongIsNamed) {
  const auto message = [](const char* name) { return parse_case(name).status().message(); };
  EXPECT_NE(message("flash-uniform-B8-L4096-H4-D128-causal-bf16").find("expected hstu or softmax but \"flash\""),
            std::string::npos);
  EXPECT_NE(message("hstu-uniform-B8-L4096-H4-D128-causal").find("but it ends there"), std::string::npos);
  EXPECT_NE(message("hstu-uniform-B8-Lx-H4-D128-causal-bf16").find("expected L and the length but \"Lx\""),
            std::string::npos);
  EXPECT_NE(message("hstu-jagged-B8-L9..3-H4-D128-causal-bf16").find("L9..3"), std::string::npos);
  EXPECT_NE(message("hstu-uniform-B8-L4-H4-D128-full-ctx4-bf16").find("full-ctx4-bf16: ctx and tgt need a causal"),
            std::string::npos);
  EXPECT_NE(message("hstu-uniform-B8-L4-H4-D128-causal-bf16-more").find("end of the name"), std::string::npos);
  EXPECT_NE(message("").find("expected hstu or softmax"), std::string::npos);
  EXPECT_FALSE(parse_case("hstu-uniform-B99999999999999999999-L4-H4-D128-causal-bf16").ok());
  EXPECT_FALSE(parse_case("hstu-uniform-B-1-L4-H4-D128-causal-bf16").ok());
}

TEST(CaseName, TheConfigHasTheNamesLengthsAndCounts) {
  const Result<ProblemConfig> config =
      config_of(*parse_case("hstu-jagged-B64-L256..2048-H4-D128-causal-ctx4-tgt64-bf16"), {});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->lengths_q.size(), 64u);
  const auto [least, most] = std::minmax_element(config->lengths_q.begin(), config->lengths_q.end());
  EXPECT_GE(*least, 256);
  EXPECT_LE(*most, 2048);
  EXPECT_GT(*most, *least);
  EXPECT_LE(*std::max_element(config->targets.begin(), config->targets.end()), 64);
  EXPECT_EQ(*std::min_element(config->contexts.begin(), config->contexts.end()), 4);
}

TEST(CaseName, ShortSequencesGetOnlyTheContextsThatFit) {
  const Result<ProblemConfig> config = config_of(*parse_case("hstu-jagged-B200-L0..5-H1-D8-causal-ctx4-tgt8-fp32"), {});
  for (std::size_t b = 0; b < 200; ++b) EXPECT_LE(config->contexts[b] + config->targets[b], config->lengths_q[b]);
}

TEST(CaseName, MovieLensNeedsItsHistories) {
  const Case problem = *parse_case("hstu-movielens-H4-D64-causal-fp32");
  EXPECT_EQ(config_of(problem, {{3, 4}, {1, 2, 3, 1, 2, 3, 4}})->lengths_q, (std::vector<std::int64_t>{3, 4}));
  EXPECT_NE(config_of(problem, {}).status().message().find("make demo"), std::string::npos);
}

}  // namespace
}  // namespace warploom::cli
