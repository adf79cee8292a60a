// `warploom trace`: what is wrong on the command line is said before a GPU is looked for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/commands.h"

namespace warploom::cli {
namespace {

struct Outcome {
  int code;
  std::string errors;
};

Outcome run(std::vector<std::string> arguments) {
  std::vector<const char*> argv = {"warploom", "trace"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  const int code = run_command(static_cast<int>(argv.size()), argv.data());
  testing::internal::GetCapturedStdout();
  return {code, testing::internal::GetCapturedStderr()};
}

void expect_refused(std::vector<std::string> arguments, const std::string& words, int code = 2) {
  const Outcome outcome = run(std::move(arguments));
  EXPECT_EQ(outcome.code, code) << words;
  EXPECT_NE(outcome.errors.find(words), std::string::npos) << outcome.errors;
}

TEST(TraceCommand, NamesWhatIsWrong) {
  expect_refused({}, "warploom trace needs a command; it has gemm, attention");
  expect_refused({"gemm"}, "problem is required");
  expect_refused({"gemm", "hstu-uniform-B1-L64-H1-D64-causal-bf16"}, "is no matrix product");
  expect_refused({"attention", "gemm-64x64x64-bf16"}, "use `warploom trace gemm`");
  expect_refused({"gemm", "gemm-64x64-bf16"}, "gemm-MxNxK-TYPE");
  expect_refused({"attention", "hstu-uniform-B1"}, "hstu-uniform-B1");
  expect_refused({"gemm", "gemm-64x64x64-bf16", "--machine", "abacus"}, "machine = 'abacus'");
  expect_refused({"gemm", "gemm-64x64x64-bf16", "--detail", "all"}, "detail = 'all' must be rings or steps");
  expect_refused({"gemm", "gemm-64x64x64-bf16", "--capacity", "0"}, "capacity = 0 must lie in");
  expect_refused({"gemm", "gemm-64x64x64-bf16", "--rounds", "-1"}, "rounds = -1 must lie in");
  expect_refused({"gemm", "gemm-64x64x64-bf16", "--rung", "top"}, "no rung's name contains top");
  expect_refused({"gemm", "gemm-64x64x64-bf16", "--rung", "sync"}, "--rung sync fits synchronous and cp-async");
  expect_refused({"gemm", "gemm-64x64x64-bf16", "--device", "cpu"}, "kernels for Hopper GPUs", 1);
}

}  // namespace
}  // namespace warploom::cli
