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
  int launch_attribute = 0;  ///< of the last launch that had one
  int launch_attribute_value = 0;
  unsigned grid_x = 0, block_x = 0, shared_bytes = 0;
  int launch_device = -1;
  const void* stream = nullptr;
  int fail_module_load = 0;  ///< the error to give; 0: none
  int fail_launch = 0;
  int fail_function = 0;
  int maps_encoded = 0;
  int map_element = 0, map_swizzle = 0, map_promotion = 0, map_interleave = -1, map_fill = -1;
  unsigned map_rank = 0;
  unsigned long long map_address = 0;
  unsigned long long map_dims[5] = {}, map_strides[5] = {};
  unsigned map_box[5] = {}, map_element_strides[5] = {};
  int pools_made = 0;
  unsigned long long pool_keeps = 0;  ///< release threshold of the pool made last
  int scratch_live = 0;               ///< allocations from pools minus frees
  int capturing = 0;                  ///< what cuStreamIsCapturing says
  int memory_sets = 0;
};

/// Two devices like an H200; memory addresses below 0x1000 are unknown to it, odd ones are pinned host memory.
FAKE_PUBLIC FakeDriverState* fake_driver_state();
