// What the stand-in for libcuda.so.1 counts and can be told; its functions are those of the driver API.
#pragma once

#include <cstddef>
#include <string>

#if defined(FAKE_CUDA_DRIVER)
#define FAKE_PUBLIC extern "C" __attribute__((visibility("default")))
#else
#define FAKE_PUBLIC extern "C"
#endif

struct FakeDriverState {
  int initialised = 0;
  int contexts_retained = 0;
  int context_depth = 0;    ///< pushes minus pops, all threads
  int current_device = -1;  ///< of the context pushed last
  int modules_loaded = 0;
  int shared_limit = 49152;  ///< of the one function
  int shared_limit_changes = 0;
  int launches = 0;
  unsigned grid_x = 0, block_x = 0, shared_bytes = 0;
  int launch_device = -1;
  const void* stream = nullptr;
  int fail_module_load = 0;  ///< the error to give; 0: none
  int fail_launch = 0;
  int fail_function = 0;
};

/// Two devices like an H200; memory addresses below 0x1000 are unknown to it, odd ones are pinned host memory.
FAKE_PUBLIC FakeDriverState* fake_driver_state();
