// The C ABI and the C++ call over it: what is wrong with a request is said before a GPU is looked for.
#include <gtest/gtest.h>

#include <string>

#include "warploom/gemm.h"
#include "warploom/trace.h"

namespace warploom {
namespace {

Result<warploom_gemm> product() {
  static char memory[16];
  const MatrixView matrix{memory, DType::bfloat16, 64, 64, 64};
  return gemm_call(matrix, matrix, matrix);
}

void expect_refused(const std::string& request, const std::string& words) {
  const Result<std::string> answer = trace_call(*product(), request);
  ASSERT_FALSE(answer.ok());
  EXPECT_NE(answer.status().message().find(words), std::string::npos) << answer.status().message();
}

TEST(TraceCall, NamesWhatIsWrongWithTheRequest) {
  expect_refused("[]", "not a JSON object");
  expect_refused("{", "not a JSON object");
  expect_refused(R"({"ctas": 1})", "'ctas' is not a field");
  expect_refused(R"({"cta": "first"})", "cta = \"first\" must be a whole number");
  expect_refused(R"({"capacity": 0})", "capacity = 0 must lie in");
  expect_refused(R"({"rounds": -3})", "rounds = -1 must lie in");
  expect_refused(R"({"detail": "all"})", "detail = 'all' must be rings or steps");
  expect_refused(R"({"machine": "abacus"})", "machine = 'abacus'");
}

TEST(TraceCall, NeedsACallOfAGpu) {
  char* text = nullptr;
  EXPECT_NE(warploom_trace_gemm(nullptr, "{}", &text), WARPLOOM_OK);
  EXPECT_EQ(text, nullptr);
  const warploom_gemm described = *product();
  EXPECT_NE(warploom_trace_gemm(&described, "{}", nullptr), WARPLOOM_OK);
  warploom_attention call;
  warploom_attention_init(&call);
  call.device = WARPLOOM_CPU;
  const Result<std::string> answer = trace_call(call);
  warploom_gemm product_of_cpu = described;
  product_of_cpu.device = WARPLOOM_CPU;
  for (const Result<std::string>& each : {answer, trace_call(product_of_cpu)}) {
    ASSERT_FALSE(each.ok());
    EXPECT_NE(each.status().message().find("device = cpu"), std::string::npos) << each.status().message();
  }
}

}  // namespace
}  // namespace warploom
