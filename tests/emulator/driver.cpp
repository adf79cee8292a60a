// libcuda.so.1 of the emulated GPU: device memory is the process's own, a module is PTX, a launch runs at once.
//
// The environment says what the GPU is:
//   WARPLOOM_EMULATOR_ARCH   90 (default) or 80
//   WARPLOOM_EMULATOR_SMS    multiprocessors, and CTAs that run side by side; default 4
//   WARPLOOM_EMULATOR_HOST_MEMORY  1: any memory of the process counts as the device's, e.g. tensors of a CPU library
//   WARPLOOM_EMULATOR_SEED   0 (default): asynchronous copies are made at once. Else: late, in an order that it
//                            chooses, and one warp of each CTA is far slower than the others
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "grid.h"
#include "memory.h"
#include "module.h"
#include "tensor_map.h"

#define DRIVER_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace warploom::emulator;

constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kInvalidImage = 200;
constexpr int kNotFound = 500;
constexpr int kLaunchFailed = 719;

struct Function {
  const Kernel* kernel = nullptr;
  int max_dynamic_shared = 48 << 10;
};

struct LoadedModule {
  std::unique_ptr<Module> module;
  std::map<std::string, Function> functions;
};

std::mutex mutex;
std::string last_error = "the emulated kernel failed";
bool failed = false;  // as on a GPU, nothing works after a kernel has failed
thread_local int pushed = 0;

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

bool hopper() {
  return setting("WARPLOOM_EMULATOR_ARCH", 90) >= 90;
}
int multiprocessors() {
  return std::max(1, setting("WARPLOOM_EMULATOR_SMS", 4));
}

int tell(const std::string& error, int code) {
  last_error = error;
  std::fprintf(stderr, "emulated GPU: %s\n", error.c_str());
  return code;
}

// Allocations keep a distance, so that an access just past one does not fall into the next.
constexpr std::size_t kAlignment = 512;
constexpr std::size_t kDistance = 64 << 10;

int allocate(std::uint64_t* address, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded + 2 * kDistance);
  if (memory == nullptr) return 2;
  auto* begin = static_cast<std::uint8_t*>(memory) + kDistance;
  std::memset(begin, 0xFF, rounded);
  global_memory().add(begin, bytes);
  *address = reinterpret_cast<std::uint64_t>(begin);
  return 0;
}

int release(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  auto* begin = reinterpret_cast<std::uint8_t*>(address);
  if (begin == nullptr) return 0;
  global_memory().remove(begin);
  std::free(begin - kDistance);
  return 0;
}

}  // namespace

DRIVER_API int cuInit(unsigned) {
  if (setting("WARPLOOM_EMULATOR_HOST_MEMORY", 0) != 0) global_memory().open_all();
  return 0;
}
DRIVER_API int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
DRIVER_API int cuGetErrorName(int result, const char** name) {
  *name = result == 0 ? "CUDA_SUCCESS" : result == kLaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR";
  return 0;
}
DRIVER_API int cuGetErrorString(int, const char** text) {
  *text = last_error.c_str();
  return 0;
}
DRIVER_API int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
DRIVER_API int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? 0 : 101;
}
DRIVER_API int cuDeviceGetName(char* name, int length, int) {
  std::snprintf(name, static_cast<std::size_t>(length), "emulated GPU");
  return 0;
}
DRIVER_API int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{8} << 30;
  return 0;
}
DRIVER_API int cuDeviceGetAttribute(int* value, int attribute, int) {
  const std::map<int, int> attributes = {{1, 1024},                         // threads of a block
                                         {8, 48 << 10},                     // shared bytes of a block
                                         {10, 32},                          // threads of a warp
                                         {13, 1000000},                     // clock in kHz
                                         {16, multiprocessors()},           //
                                         {36, 1000000},                     // memory clock in kHz
                                         {37, 5120},                        // memory bus in bits
                                         {38, 50 << 20},                    // L2 bytes
                                         {39, 2048},                        // threads of a multiprocessor
                                         {75, hopper() ? 9 : 8},            // compute capability
                                         {76, 0},                           //
                                         {81, hopper() ? 233472 : 167936},  // shared bytes of a multiprocessor
                                         {82, 65536},                       // registers of a multiprocessor
                                         {97, hopper() ? 232448 : 166912},  // shared bytes of a block, on request
                                         {115, 1}};                         // memory pools
  const auto found = attributes.find(attribute);
  if (found == attributes.end()) return kInvalidValue;
  *value = found->second;
  return 0;
}

DRIVER_API int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = reinterpret_cast<void*>(0x100);
  return 0;
}
DRIVER_API int cuCtxPushCurrent_v2(void*) {
  ++pushed;
  return 0;
}
DRIVER_API int cuCtxPopCurrent_v2(void** context) {
  if (pushed == 0) return kInvalidContext;
  --pushed;
  *context = reinterpret_cast<void*>(0x100);
  return 0;
}
DRIVER_API int cuCtxSetCurrent(void* context) {
  pushed = context == nullptr ? 0 : 1;
  return 0;
}
DRIVER_API int cuCtxGetCurrent(void** context) {
  *context = pushed == 0 ? nullptr : reinterpret_cast<void*>(0x100);
  return 0;
}
DRIVER_API int cuCtxGetDevice(int* device) {
  *device = 0;
  return pushed == 0 ? kInvalidContext : 0;
}
DRIVER_API int cuCtxSynchronize() {
  return failed ? kLaunchFailed : 0;
}

DRIVER_API int cuModuleLoadData(void** module, const void* image) {
  const std::lock_guard lock(mutex);
  try {
    auto loaded = std::make_unique<LoadedModule>();
    loaded->module = parse_module(static_cast<const char*>(image));
    for (const auto& [name, kernel] : loaded->module->kernels) loaded->functions[name].kernel = kernel.get();
    *module = loaded.release();
    return 0;
  } catch (const EmulationError& error) {
    return tell(error.what(), kInvalidImage);
  }
}
DRIVER_API int cuModuleUnload(void* module) {
  delete static_cast<LoadedModule*>(module);
  return 0;
}
DRIVER_API int cuModuleGetFunction(void** function, void* module, const char* name) {
  auto& functions = static_cast<LoadedModule*>(module)->functions;
  const auto found = functions.find(name);
  if (found == functions.end()) return kNotFound;
  *function = &found->second;
  return 0;
}
DRIVER_API int cuFuncGetAttribute(int* value, int attribute, void* handle) {
  const auto* function = static_cast<Function*>(handle);
  *value = attribute == 1   ? function->kernel->static_shared_bytes
           : attribute == 4 ? 128
           : attribute == 8 ? function->max_dynamic_shared
                            : 0;
  return 0;
}
DRIVER_API int cuFuncSetAttribute(void* handle, int attribute, int value) {
  if (attribute != 8) return 0;
  if (value > (hopper() ? 232448 : 166912)) return kInvalidValue;
  static_cast<Function*>(handle)->max_dynamic_shared = value;
  return 0;
}
DRIVER_API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) {
  *blocks = 1;
  return 0;
}

DRIVER_API int cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned shared_bytes, void*, void** arguments,
                              void**) {
  const std::lock_guard lock(mutex);
  if (failed) return kLaunchFailed;
  const auto* function = static_cast<Function*>(handle);
  const Kernel& kernel = *function->kernel;
  if (static_cast<int>(shared_bytes) > function->max_dynamic_shared || block_x * block_y * block_z > 1024 ||
      grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_y > 65535 || grid_z > 65535) {
    return tell("the launch of " + kernel.name + " asks for more than there is", kInvalidValue);
  }
  Launch launch;
  launch.kernel = &kernel;
  launch.grid = {grid_x, grid_y, grid_z};
  launch.block = {block_x, block_y, block_z};
  launch.shared_bytes = shared_bytes;
  launch.cluster = static_cast<std::uint32_t>(kernel.cluster);
  launch.resident_ctas = static_cast<std::uint32_t>(multiprocessors());
  launch.order.seed = static_cast<std::uint64_t>(setting("WARPLOOM_EMULATOR_SEED", 0));
  launch.parameters.resize(static_cast<std::size_t>(kernel.parameter_bytes));
  for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
    const Parameter& parameter = kernel.parameters[i];
    std::memcpy(launch.parameters.data() + parameter.offset, arguments[i], static_cast<std::size_t>(parameter.bytes));
  }
  try {
    run_grid(launch);
    return 0;
  } catch (const EmulationError& error) {
    failed = true;
    return tell(error.what(), kLaunchFailed);
  }
}

DRIVER_API int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  return bytes == 0 ? kInvalidValue : allocate(address, bytes);
}
DRIVER_API int cuMemFree_v2(std::uint64_t address) {
  return release(address);
}
DRIVER_API int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
DRIVER_API int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  if (failed) return kLaunchFailed;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
DRIVER_API int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void*) {
  return cuMemcpyHtoD_v2(to, from, bytes);
}
DRIVER_API int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void*) {
  return cuMemcpyDtoH_v2(to, from, bytes);
}
DRIVER_API int cuMemsetD8Async(std::uint64_t to, unsigned char value, std::size_t bytes, void*) {
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return 0;
}
DRIVER_API int cuMemPoolCreate(void** pool, const void*) {
  *pool = reinterpret_cast<void*>(0x300);
  return 0;
}
DRIVER_API int cuMemPoolSetAttribute(void*, int, void*) {
  return 0;
}
DRIVER_API int cuMemAllocFromPoolAsync(std::uint64_t* address, std::size_t bytes, void*, void*) {
  return allocate(address, bytes);
}
DRIVER_API int cuMemFreeAsync(std::uint64_t address, void*) {
  return release(address);
}
DRIVER_API int cuPointerGetAttribute(void* value, int attribute, std::uint64_t address) {
  const std::lock_guard lock(mutex);
  if (!global_memory().holds(address, 1)) return kInvalidValue;
  constexpr int kMemoryType = 2;
  constexpr int kDeviceOrdinal = 9;
  if (attribute != kMemoryType && attribute != kDeviceOrdinal) return kInvalidValue;
  *static_cast<int*>(value) = attribute == kMemoryType ? 2 : 0;
  return 0;
}

DRIVER_API int cuStreamSynchronize(void*) {
  return failed ? kLaunchFailed : 0;
}
DRIVER_API int cuStreamIsCapturing(void*, int* status) {
  *status = 0;
  return 0;
}
DRIVER_API int cuStreamGetId(void* stream, unsigned long long* id) {
  *id = reinterpret_cast<std::uint64_t>(stream);
  return 0;
}
DRIVER_API int cuEventCreate(void** event, unsigned) {
  *event = reinterpret_cast<void*>(0x400);
  return 0;
}
DRIVER_API int cuEventDestroy_v2(void*) {
  return 0;
}
DRIVER_API int cuEventRecord(void*, void*) {
  return 0;
}
DRIVER_API int cuEventSynchronize(void*) {
  return failed ? kLaunchFailed : 0;
}
DRIVER_API int cuEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 1;
  return 0;
}

DRIVER_API int cuTensorMapEncodeTiled(void* into, int element_type, std::uint32_t rank, std::uint64_t address,
                                      const std::uint64_t* dims, const std::uint64_t* strides, const std::uint32_t* box,
                                      const std::uint32_t*, int, int swizzle, int, int) {
  if (rank < 1 || rank > 5) return kInvalidValue;
  TensorMap map;
  map.address = address;
  map.rank = static_cast<std::uint8_t>(rank);
  map.element_type = static_cast<std::uint8_t>(element_type);
  map.swizzle = static_cast<std::uint8_t>(swizzle);
  map.mark = kTensorMapMark;
  for (std::size_t i = 0; i < rank; ++i) {
    map.dims[i] = static_cast<std::uint32_t>(dims[i]);
    map.box[i] = static_cast<std::uint16_t>(box[i]);
    if (i > 0) map.strides[i - 1] = strides[i - 1];
  }
  std::memset(into, 0, 128);
  std::memcpy(into, &map, sizeof map);
  return 0;
}
