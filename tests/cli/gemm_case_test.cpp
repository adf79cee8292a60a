#include "cli/gemm_case.h"

#include <gtest/gtest.h>

#include "problem/gemm.h"

namespace warploom::cli {
namespace {

TEST(GemmCaseName, HoldsEveryPart) {
  const Result<GemmCase> gemm = parse_gemm_case("gemm-64x4100x4096-fp16-to-fp32-B8-bias-silu-residual");
  ASSERT_TRUE(gemm.ok()) << gemm.status().message();
  EXPECT_EQ(gemm->rows, 64);
  EXPECT_EQ(gemm->columns, 4100);
  EXPECT_EQ(gemm->depth, 4096);
  EXPECT_EQ(gemm->batch, 8);
  EXPECT_EQ(gemm->dtype, static_cast<unsigned>(WARPLOOM_FLOAT16));
  EXPECT_EQ(gemm->out_dtype, static_cast<unsigned>(WARPLOOM_FLOAT32));
  EXPECT_TRUE(gemm->bias && gemm->silu && gemm->residual);
  EXPECT_DOUBLE_EQ(gemm->flops(), 2.0 * 64 * 4100 * 4096 * 8);
}

TEST(GemmCaseName, DescribesAValidProduct) {
  for (const char* name : {"gemm-1x1x1-bf16", "gemm-0x8x8-bf16", "gemm-8x8x0-fp16", "gemm-300x521x77-bf16-to-fp16-B3",
                           "gemm-8192x8192x8192-bf16-bias-silu-residual"}) {
    const Result<GemmCase> gemm = parse_gemm_case(name);
    ASSERT_TRUE(gemm.ok()) << gemm.status().message();
    const Status status = validate_gemm(describe_case(*gemm));
    EXPECT_TRUE(status.ok()) << name << ": " << status.message();
  }
}

TEST(GemmCaseName, ThatIsWrongIsRefusedWithTheForm) {
  for (const char* name :
       {"gemm", "gemm-", "gemm-8x8-bf16", "gemm-8x8x8", "gemm-8x8x8-fp32", "gemm-8x-8x8-bf16", "gemm-8x8x8-bf16-relu",
        "gemm-8x8x8-bf16-to", "gemm-8x8x8-bf16-to-int8", "gemm-8x8x8-bf16-Bx", "gemm-8x8x8-bf16-bias-silu-bias",
        "gemm-axbxc-bf16", "hstu-8x8x8-bf16"}) {
    const Result<GemmCase> gemm = parse_gemm_case(name);
    ASSERT_FALSE(gemm.ok()) << name;
    EXPECT_NE(gemm.status().message().find("gemm-MxNxK-TYPE"), std::string::npos);
    EXPECT_NE(gemm.status().message().find(name), std::string::npos);
  }
}

}  // namespace
}  // namespace warploom::cli
