// Puts the stand-in for libcuda.so.1 into the process before the library asks for it.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "fake_cuda_driver.h"

namespace warploom::gpu {

class FakeDriverFixture : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // The loader answers the bare name libcuda.so.1 with the library of that SONAME that is already loaded.
    void* library = dlopen(WARPLOOM_TEST_FAKE_DRIVER, RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto get = reinterpret_cast<FakeDriverState* (*)()>(dlsym(library, "fake_driver_state"));
    ASSERT_NE(get, nullptr);
    state_ = get();
  }
  static FakeDriverState& state() { return *state_; }

 private:
  static inline FakeDriverState* state_ = nullptr;
};

}  // namespace warploom::gpu
