#include "gpu/module.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "fake_driver_fixture.h"

namespace warploom::gpu {
namespace {

class ModuleWithFake : public FakeDriverFixture {
 protected:
  // Every test uses a key of its own: what is loaded stays loaded.
  static CubinPointer cubin(const std::string& key, const std::string& kernel = "kernel") {
    auto made = std::make_shared<Cubin>();
    made->key = key;
    made->kernel_name = kernel;
    made->architecture = {9, 0, true};
    made->nvrtc = {13, 5};
    made->image = "cubin";
    return made;
  }
  void SetUp() override {
    state().fail_module_load = state().fail_launch = state().fail_function = 0;
    state().shared_limit = 49152;
  }
};

TEST_F(ModuleWithFake, IsLoadedOnceADeviceAndKey) {
  const int before = state().modules_loaded;
  const auto first = load_kernel(cubin("once"), 0, 1000);
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(*load_kernel(cubin("once"), 0, 1000), *first);
  EXPECT_EQ(state().modules_loaded, before + 1);
  EXPECT_NE(*load_kernel(cubin("once"), 0, 2000), *first);
  EXPECT_NE(*load_kernel(cubin("once", "second_kernel"), 0, 1000), *first);
  EXPECT_EQ(state().modules_loaded, before + 1) << "one module serves all kernels and sizes";
  EXPECT_TRUE(load_kernel(cubin("once"), 1, 1000).ok());
  EXPECT_EQ(state().modules_loaded, before + 2) << "another device loads its own";
  EXPECT_EQ(state().context_depth, 0);
}

TEST_F(ModuleWithFake, IsLoadedOnceByManyThreads) {
  const int before = state().modules_loaded;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([] { EXPECT_TRUE(load_kernel(cubin("threads"), 0, 0).ok()); });
  threads.clear();
  EXPECT_EQ(state().modules_loaded, before + 1);
}

TEST_F(ModuleWithFake, LimitOfSharedMemoryOnlyGrows) {
  const int changes = state().shared_limit_changes;
  ASSERT_TRUE(load_kernel(cubin("limit"), 0, 40000).ok());
  EXPECT_EQ(state().shared_limit_changes, changes) << "48 KB are there without asking";
  ASSERT_TRUE(load_kernel(cubin("limit"), 0, 200000).ok());
  EXPECT_EQ(state().shared_limit, 200000);
  ASSERT_TRUE(load_kernel(cubin("limit"), 0, 100000).ok());
  EXPECT_EQ(state().shared_limit, 200000);
  const auto too_much = load_kernel(cubin("limit"), 0, 300000);
  ASSERT_FALSE(too_much.ok());
  EXPECT_NE(too_much.status().message().find("300000 bytes of shared memory"), std::string::npos);
}

TEST_F(ModuleWithFake, LoadErrorNamesVersionsAndArchitecture) {
  state().fail_module_load = 209;
  const auto refused = load_kernel(cubin("refused"), 0, 0);
  ASSERT_FALSE(refused.ok());
  const std::string message = refused.status().message();
  for (const char* part : {"CUDA_ERROR_NO_BINARY_FOR_GPU", "kernel", "sm_90a", "NVRTC 13.5", "CUDA 13.0", "device 0"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  state().fail_module_load = 0;
  EXPECT_TRUE(load_kernel(cubin("refused"), 0, 0).ok()) << "a failure is not kept";
}

TEST_F(ModuleWithFake, MissingFunctionIsAnError) {
  state().fail_function = 1;
  const auto missing = load_kernel(cubin("missing", "no_such_kernel"), 0, 0);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("no_such_kernel"), std::string::npos);
}

TEST_F(ModuleWithFake, LaunchGoesToItsDeviceAndStream) {
  const auto kernel = load_kernel(cubin("launch"), 1, 100000);
  ASSERT_TRUE(kernel.ok());
  int stream = 0;
  const auto handle = reinterpret_cast<StreamHandle>(&stream);
  const int before = state().launches;
  ASSERT_TRUE(launch(**kernel, {.grid_x = 7, .block_x = 128}, handle, nullptr).ok());
  EXPECT_EQ(state().launches, before + 1);
  EXPECT_EQ(state().grid_x, 7u);
  EXPECT_EQ(state().block_x, 128u);
  EXPECT_EQ(state().shared_bytes, 100000u);
  EXPECT_EQ(state().launch_device, 1);
  EXPECT_EQ(state().stream, &stream);
  EXPECT_EQ(state().context_depth, 0);
  ASSERT_TRUE(launch(**kernel, {.grid_x = 0, .block_x = 128}, handle, nullptr).ok());
  EXPECT_EQ(state().launches, before + 1) << "an empty grid is no launch";
  EXPECT_EQ(state().launch_attribute, 0);
  ASSERT_TRUE(launch(**kernel, {.grid_x = 5, .block_x = 64, .overlaps_previous = true}, handle, nullptr).ok());
  EXPECT_EQ(state().launches, before + 2);
  EXPECT_EQ(state().grid_x, 5u);
  EXPECT_EQ(state().block_x, 64u);
  EXPECT_EQ(state().shared_bytes, 100000u);
  EXPECT_EQ(state().stream, &stream);
  EXPECT_EQ(state().launch_attribute, launch_attribute_programmatic_serialization);
  EXPECT_EQ(state().launch_attribute_value, 1);
  state().fail_launch = 1;
  const Status failed = launch(**kernel, {.grid_x = 7, .block_x = 128}, handle, nullptr);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.message().find("7 x 1 x 1 blocks"), std::string::npos) << failed.message();
}

}  // namespace
}  // namespace warploom::gpu
