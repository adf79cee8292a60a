#include "gpu/user_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "support.h"

namespace warploom::gpu {
namespace {

const Architecture hopper{9, 0, true};

std::string own_pipeline() {
  std::ifstream file(std::string(WARPLOOM_TEST_SOURCE_DIRECTORY) + "/examples/cpp/own_pipeline/own_pipeline.cu");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Result<CubinPointer> compile(const std::string& source, const std::string& kernel, const TemporaryDirectory& cache) {
  add_search_directory(nvrtc_directory());
  return compile_user_kernel(source, kernel, hopper, test_options(cache.text()).settings);
}

TEST(UserKernel, TheExampleCompilesWithoutSpillsInUnderEightyLines) {
  const std::string source = own_pipeline();
  EXPECT_LT(std::count(source.begin(), source.end(), '\n'), 80);
  const TemporaryDirectory cache;
  const Result<CubinPointer> cubin = compile(source, "matrix_vector", cache);
  ASSERT_TRUE(cubin.ok()) << cubin.status().message();
  EXPECT_TRUE((*cubin)->resources.known);
  EXPECT_EQ((*cubin)->resources.spill_store_bytes, 0);
}

TEST(UserKernel, MistakesAreNamedByTheUsersLine) {
  const TemporaryDirectory cache;
  const Result<CubinPointer> broken =
      compile("#include \"ptx/types.h\"\nextern \"C\" __global__ void k(int* x) { *x = nothing; }\n", "k", cache);
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.status().message().find("kernel.cu(2)"), std::string::npos) << broken.status().message();
  const Result<CubinPointer> foreign = compile("#include <cuda.h>\n", "k", cache);
  ASSERT_FALSE(foreign.ok());
  EXPECT_NE(foreign.status().message().find("kernel.cu:1"), std::string::npos) << foreign.status().message();
}

TEST(UserKernel, AnArchitectureIsNamedOrAGpusOwn) {
  EXPECT_EQ(*user_architecture("sm_80"), (Architecture{8, 0, false}));
  EXPECT_FALSE(user_architecture("sm_banana").ok());
}

}  // namespace
}  // namespace warploom::gpu
