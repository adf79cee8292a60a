// A stand-in for libcuda.so.1 that counts. It lets the host side of the driver be tested on a machine without a GPU.
#define FAKE_CUDA_DRIVER
#include "fake_cuda_driver.h"

#include <cstring>
#include <mutex>
#include <vector>

namespace {

FakeDriverState state;
std::mutex mutex;
thread_local std::vector<int> context_stack;  // devices

// Contexts are 0x100 + device; any other address is a mistake of the caller.
int device_of(void* context) {
  return static_cast<int>(reinterpret_cast<std::size_t>(context)) - 0x100;
}

}  // namespace

FakeDriverState* fake_driver_state() {
  return &state;
}

FAKE_PUBLIC int cuInit(unsigned) {
  ++state.initialised;
  return 0;
}
FAKE_PUBLIC int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
FAKE_PUBLIC int cuGetErrorName(int result, const char** name) {
  *name = result == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : result == 1 ? "CUDA_ERROR_INVALID_VALUE" : nullptr;
  return *name != nullptr ? 0 : 1;
}
FAKE_PUBLIC int cuGetErrorString(int result, const char** text) {
  *text = result == 209 ? "no kernel image is available for execution on the device" : nullptr;
  return *text != nullptr ? 0 : 1;
}
FAKE_PUBLIC int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
FAKE_PUBLIC int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
FAKE_PUBLIC int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Fake H200", static_cast<std::size_t>(length));
  return 0;
}
FAKE_PUBLIC int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = 141ull << 30;
  return 0;
}
FAKE_PUBLIC int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 13:
      *value = 1980000;
      return 0;
    case 16:
      *value = 132;
      return 0;
    case 38:
      *value = 60 << 20;
      return 0;
    case 75:
      *value = 9;
      return 0;
    case 76:
      *value = 0;
      return 0;
    case 81:
      *value = 233472;
      return 0;
    case 82:
      *value = 65536;
      return 0;
    case 97:
      *value = 232448;
      return 0;
    default:
      return 1;
  }
}
FAKE_PUBLIC int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard lock(mutex);
  ++state.contexts_retained;
  *context = reinterpret_cast<void*>(static_cast<std::size_t>(0x100 + device));
  return 0;
}
FAKE_PUBLIC int cuCtxPushCurrent_v2(void* context) {
  const std::lock_guard lock(mutex);
  context_stack.push_back(device_of(context));
  ++state.context_depth;
  state.current_device = device_of(context);
  return 0;
}
FAKE_PUBLIC int cuCtxPopCurrent_v2(void** context) {
  const std::lock_guard lock(mutex);
  if (context_stack.empty()) return 201;
  *context = reinterpret_cast<void*>(static_cast<std::size_t>(0x100 + context_stack.back()));
  context_stack.pop_back();
  --state.context_depth;
  return 0;
}
FAKE_PUBLIC int cuCtxGetCurrent(void** context) {
  *context =
      context_stack.empty() ? nullptr : reinterpret_cast<void*>(static_cast<std::size_t>(0x100 + context_stack.back()));
  return 0;
}
FAKE_PUBLIC int cuCtxGetDevice(int* device) {
  if (context_stack.empty()) return 201;
  *device = context_stack.back();
  return 0;
}
FAKE_PUBLIC int cuCtxSynchronize() {
  return 0;
}
FAKE_PUBLIC int cuModuleLoadData(void** module, const void*) {
  const std::lock_guard lock(mutex);
  if (context_stack.empty()) return 201;
  if (state.fail_module_load != 0) return state.fail_module_load;
  *module = reinterpret_cast<void*>(static_cast<std::size_t>(0x200 + ++state.modules_loaded));
  return 0;
}
FAKE_PUBLIC int cuModuleUnload(void*) {
  return 0;
}
FAKE_PUBLIC int cuModuleGetFunction(void** function, void* module, const char*) {
  if (state.fail_function != 0) return state.fail_function;
  *function = module;
  return 0;
}
FAKE_PUBLIC int cuFuncGetAttribute(int* value, int, void*) {
  *value = state.shared_limit;
  return 0;
}
FAKE_PUBLIC int cuFuncSetAttribute(void*, int, int value) {
  if (value > 232448) return 1;
  state.shared_limit = value;
  ++state.shared_limit_changes;
  return 0;
}
FAKE_PUBLIC int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) {
  *blocks = 1;
  return 0;
}
FAKE_PUBLIC int cuLaunchKernel(void*, unsigned grid_x, unsigned, unsigned, unsigned block_x, unsigned, unsigned,
                               unsigned shared_bytes, void* stream, void**, void**) {
  const std::lock_guard lock(mutex);
  if (context_stack.empty()) return 201;
  if (state.fail_launch != 0) return state.fail_launch;
  ++state.launches;
  state.grid_x = grid_x;
  state.block_x = block_x;
  state.shared_bytes = shared_bytes;
  state.stream = stream;
  state.launch_device = context_stack.back();
  return 0;
}
// cuda.h's CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int number;
  } value;
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
FAKE_PUBLIC int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments, void** extra) {
  const int result =
      cuLaunchKernel(function, config->grid_x, config->grid_y, config->grid_z, config->block_x, config->block_y,
                     config->block_z, config->shared_bytes, config->stream, arguments, extra);
  if (result == 0 && config->attribute_count == 1) {
    state.launch_attribute = config->attributes[0].id;
    state.launch_attribute_value = config->attributes[0].value.number;
  }
  return result;
}
FAKE_PUBLIC int cuMemAlloc_v2(unsigned long long*, std::size_t) {
  return 1;
}
FAKE_PUBLIC int cuMemFree_v2(unsigned long long) {
  return 1;
}
FAKE_PUBLIC int cuMemcpyHtoD_v2(unsigned long long, const void*, std::size_t) {
  return 1;
}
FAKE_PUBLIC int cuMemcpyDtoH_v2(void*, unsigned long long, std::size_t) {
  return 1;
}
FAKE_PUBLIC int cuMemcpyHtoDAsync_v2(unsigned long long, const void*, std::size_t, void*) {
  return 1;
}
FAKE_PUBLIC int cuMemcpyDtoHAsync_v2(void*, unsigned long long, std::size_t, void*) {
  return 1;
}
FAKE_PUBLIC int cuMemsetD8Async(unsigned long long, unsigned char, std::size_t, void*) {
  ++state.memory_sets;
  return 0;
}
FAKE_PUBLIC int cuMemPoolCreate(void** pool, const void*) {
  *pool = reinterpret_cast<void*>(static_cast<std::size_t>(0x300 + ++state.pools_made));
  return 0;
}
FAKE_PUBLIC int cuMemPoolSetAttribute(void*, int, void* value) {
  state.pool_keeps = *static_cast<unsigned long long*>(value);
  return 0;
}
FAKE_PUBLIC int cuMemAllocFromPoolAsync(unsigned long long* address, std::size_t bytes, void*, void*) {
  const std::lock_guard lock(mutex);
  if (bytes > 1ull << 40) return 2;
  ++state.scratch_live;
  *address = 0x10000ull * static_cast<unsigned>(state.scratch_live);
  return 0;
}
FAKE_PUBLIC int cuMemFreeAsync(unsigned long long, void*) {
  const std::lock_guard lock(mutex);
  --state.scratch_live;
  return 0;
}
FAKE_PUBLIC int cuPointerGetAttribute(void* value, int attribute, unsigned long long pointer) {
  if (pointer < 0x1000) return 1;
  if (attribute == 2) *static_cast<unsigned*>(value) = pointer % 2 == 0 ? 2 : 1;  // device or host
  if (attribute == 9) *static_cast<int*>(value) = 1;
  return 0;
}
FAKE_PUBLIC int cuStreamSynchronize(void*) {
  return 0;
}
FAKE_PUBLIC int cuStreamIsCapturing(void*, int* status) {
  *status = state.capturing;
  return 0;
}
FAKE_PUBLIC int cuStreamGetId(void* stream, unsigned long long* id) {
  *id = reinterpret_cast<unsigned long long>(stream);
  return 0;
}
FAKE_PUBLIC int cuEventCreate(void**, unsigned) {
  return 0;
}
FAKE_PUBLIC int cuEventDestroy_v2(void*) {
  return 0;
}
FAKE_PUBLIC int cuEventRecord(void*, void*) {
  return 0;
}
FAKE_PUBLIC int cuEventSynchronize(void*) {
  return 0;
}
FAKE_PUBLIC int cuEventElapsedTime(float*, void*, void*) {
  return 0;
}
FAKE_PUBLIC int cuTensorMapEncodeTiled(void* map, int element, unsigned rank, unsigned long long address,
                                       const unsigned long long* dims, const unsigned long long* strides,
                                       const unsigned* box, const unsigned* element_strides, int interleave,
                                       int swizzle, int promotion, int fill) {
  ++state.maps_encoded;
  state.map_element = element;
  state.map_rank = rank;
  state.map_address = address;
  for (unsigned i = 0; i < rank; ++i) {
    state.map_dims[i] = dims[i];
    if (i + 1 < rank) state.map_strides[i] = strides[i];
    state.map_box[i] = box[i];
    state.map_element_strides[i] = element_strides[i];
  }
  state.map_interleave = interleave;
  state.map_swizzle = swizzle;
  state.map_promotion = promotion;
  state.map_fill = fill;
  std::memset(map, 0x5a, 128);
  return 0;
}
