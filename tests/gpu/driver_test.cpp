#include "gpu/driver.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "fake_driver_fixture.h"

namespace warploom::gpu {
namespace {

TEST(LoadDriver, SaysWhatIsMissing) {
  const Result<Driver> absent = load_driver("libcuda-that-is-not-there.so.1");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code(), StatusCode::runtime_error);
  EXPECT_NE(absent.status().message().find("libcuda-that-is-not-there.so.1"), std::string::npos);
  EXPECT_NE(absent.status().message().find("install"), std::string::npos);
  // A library, but not a driver.
  const Result<Driver> other = load_driver("libm.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("cuInit"), std::string::npos) << other.status().message();
}

using DriverWithFake = FakeDriverFixture;

TEST_F(DriverWithFake, IsInitialisedOnceFromManyThreads) {
  EXPECT_EQ(*driver_version(), 13000);
  std::vector<std::jthread> threads;
  std::array<const Driver*, 8> seen{};
  for (const Driver*& slot : seen) threads.emplace_back([&slot] { slot = *driver(); });
  threads.clear();
  for (const Driver* one : seen) EXPECT_EQ(one, seen[0]);
  EXPECT_EQ(state().initialised, 1);
  EXPECT_EQ(cuda_version_text(seen[0]->version), "13.0");
}

TEST_F(DriverWithFake, TellsOfItsDevices) {
  EXPECT_EQ(*device_count(), 2);
  const Result<DeviceInfo> info = device_info(1);
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->name, "Fake H200");
  EXPECT_EQ(info->ordinal, 1);
  EXPECT_EQ(info->sm_count, 132);
  EXPECT_EQ(info->shared_bytes_per_block, 232448);
  EXPECT_EQ(info->shared_bytes_per_sm, 233472);
  EXPECT_EQ(info->registers_per_sm, 65536);
  EXPECT_EQ(info->l2_bytes, 60 << 20);
  EXPECT_EQ(info->memory_bytes, 141ull << 30);
  EXPECT_EQ(to_string(info->architecture()), "sm_90");
  EXPECT_EQ(to_string(info->architecture(true)), "sm_90a");
  for (const int ordinal : {-1, 2}) {
    const Result<DeviceInfo> none = device_info(ordinal);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.status().code(), StatusCode::invalid_value);
    EXPECT_NE(none.status().message().find("device = " + std::to_string(ordinal)), std::string::npos);
  }
}

TEST_F(DriverWithFake, ContextScopePushesAndPopsThePrimaryContext) {
  ContextHandle current = nullptr;
  const Driver& cuda = **driver();
  {
    const Result<ContextScope> outer = ContextScope::enter(0);
    ASSERT_TRUE(outer.ok());
    const Result<ContextScope> inner = ContextScope::enter(1);
    ASSERT_TRUE(inner.ok());
    EXPECT_EQ(state().context_depth, 2);
    EXPECT_EQ(state().current_device, 1);
    const int retained = state().contexts_retained;
    EXPECT_TRUE(ContextScope::enter(1).ok());
    EXPECT_EQ(state().contexts_retained, retained) << "a context is retained once";
    EXPECT_EQ(cuda.cuCtxGetCurrent(&current), 0);
    EXPECT_NE(current, nullptr);
  }
  EXPECT_EQ(state().context_depth, 0);
  EXPECT_EQ(cuda.cuCtxGetCurrent(&current), 0);
  EXPECT_EQ(current, nullptr) << "the caller's context is put back";
  EXPECT_FALSE(ContextScope::enter(2).ok());
}

TEST_F(DriverWithFake, FindsTheDeviceOfAPointer) {
  EXPECT_EQ(*device_of_pointer(reinterpret_cast<const void*>(0x2000)), 1);
  for (const std::uintptr_t address : {std::uintptr_t{0x10}, std::uintptr_t{0x2001}}) {  // unknown; pinned host memory
    const Result<int> none = device_of_pointer(reinterpret_cast<const void*>(address));
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.status().code(), StatusCode::invalid_value);
  }
}

TEST_F(DriverWithFake, ErrorsCarryNameAndText) {
  const Driver& cuda = **driver();
  EXPECT_TRUE(driver_status(cuda, 0, "nothing").ok());
  EXPECT_EQ(
      driver_status(cuda, 209, "loading k").message(),
      "loading k failed: CUDA_ERROR_NO_BINARY_FOR_GPU (no kernel image is available for execution on the device)");
  EXPECT_EQ(driver_status(cuda, 12345, "x").message(), "x failed: CUDA error 12345");
}

}  // namespace
}  // namespace warploom::gpu
