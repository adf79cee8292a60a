#include "problem/aliases.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "problem/gemm.h"
#include "valid_call.h"

namespace warploom {
namespace {

void expect_refused(const Status& status, const std::string& one, const std::string& other) {
  EXPECT_EQ(status.code(), StatusCode::invalid_value);
  EXPECT_NE(status.message().find(one), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(other), std::string::npos) << status.message();
}

TEST(Aliases, ArraysOfTheirOwnAreTaken) {
  for (const bool dense : {false, true}) {
    for (const bool softmax : {false, true}) {
      ValidCall valid;
      valid.make_backward();
      if (softmax) valid.make_softmax();
      if (dense) valid.make_dense();
      EXPECT_TRUE(check_aliases(valid.call).ok());
      valid.call.pass = WARPLOOM_FORWARD;
      EXPECT_TRUE(check_aliases(valid.call).ok());
    }
  }
}

TEST(Aliases, AResultInAnInputsMemoryIsRefused) {
  ValidCall valid;
  valid.call.out.data = valid.v.data();
  expect_refused(check_aliases(valid.call), "out is written", "with v");
  valid.call.out.data = valid.q.data() + 7;  // in the middle, within its size
  expect_refused(check_aliases(valid.call), "out is written", "with q");
  valid.make_softmax();
  valid.call.out.data = valid.out.data();
  valid.call.lse = valid.k.data() + valid.k.size() - 1;  // the last element alone
  expect_refused(check_aliases(valid.call), "lse is written", "with k");
}

TEST(Aliases, AGradientInAnothersMemoryIsRefused) {
  ValidCall valid;
  valid.make_backward();
  valid.call.dk.data = valid.dq.data();
  expect_refused(check_aliases(valid.call), "dq and dk", "both written");
  valid.call.dk.data = valid.dk.data();
  valid.call.dv.data = valid.dout.data();
  expect_refused(check_aliases(valid.call), "dv is written", "with dout");
  valid.call.dv.data = valid.dv.data();
  valid.make_dense_bias();
  valid.call.bias.grad = valid.bias.data();
  valid.call.bias.grad_head_stride = 25, valid.call.bias.grad_row_stride = 5;
  expect_refused(check_aliases(valid.call), "the gradient of bias is written", "with bias");
  valid.call.bias.grad = valid.bias.data() + 50;  // right behind it
  EXPECT_TRUE(check_aliases(valid.call).ok());
}

TEST(Aliases, PartsOfOnePackedTensorAreTaken) {
  ValidCall valid;
  valid.make_backward();
  constexpr int64_t kHeads = ValidCall::kHeads, kDim = ValidCall::kHeadDim, kRow = 3 * kHeads * kDim;
  std::vector<float> packed(ValidCall::kRows * kRow), gradients(packed.size());
  const auto part = [](std::vector<float>& all, int64_t which) {
    return warploom_tensor{all.data() + which * kHeads * kDim, 0, kRow, kDim};
  };
  valid.call.value_dim = kDim;
  valid.call.q = part(packed, 0), valid.call.k = part(packed, 1), valid.call.v = part(packed, 2);
  valid.call.dq = part(gradients, 0), valid.call.dk = part(gradients, 1), valid.call.dv = part(gradients, 2);
  EXPECT_TRUE(check_aliases(valid.call).ok());
  valid.call.dv = part(gradients, 1);
  expect_refused(check_aliases(valid.call), "dk and dv", "both written");
}

TEST(Aliases, EmptyArraysShareNothing) {
  ValidCall valid;
  valid.call.total_q = valid.call.total_k = 0;
  valid.call.out.data = valid.q.data();
  EXPECT_TRUE(check_aliases(valid.call).ok());
}

TEST(Aliases, AProductsOutMayBeItsCAndNothingElse) {
  std::vector<std::uint16_t> a(64 * 64), b(a), c(a), out(a);
  warploom_gemm call;
  init_gemm(call);
  call.dtype = call.out_dtype = WARPLOOM_BFLOAT16;
  call.rows = call.columns = call.depth = 64;
  call.a = {a.data(), 0, 64}, call.b = {b.data(), 0, 64}, call.c = {c.data(), 0, 64}, call.out = {out.data(), 0, 64};
  EXPECT_TRUE(check_aliases(call).ok());
  call.out = call.c;
  EXPECT_TRUE(check_aliases(call).ok());
  call.out.data = c.data() + 2;
  expect_refused(check_aliases(call), "out is written", "with c");
  call.out = call.a;
  expect_refused(check_aliases(call), "out is written", "with a");
  call.out = call.b;
  expect_refused(check_aliases(call), "out is written", "with b");
}

}  // namespace
}  // namespace warploom
