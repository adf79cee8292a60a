// The CUDA driver, opened at run time. Its few entry points are declared here, so that the library builds without CUDA.
//
// Types and values are those of the CUDA driver API reference (stable ABI since CUDA 3.2, hence the _v2 symbols that
// load_driver asks for).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/architecture.h"
#include "warploom/status.h"

namespace warploom::gpu {

using DriverResult = int;                    ///< CUresult; 0 is success
using DeviceHandle = int;                    ///< CUdevice
using DevicePointer = std::uint64_t;         ///< CUdeviceptr
using ContextHandle = struct ContextTag*;    ///< CUcontext
using ModuleHandle = struct ModuleTag*;      ///< CUmodule
using FunctionHandle = struct FunctionTag*;  ///< CUfunction
using StreamHandle = struct StreamTag*;      ///< CUstream = cudaStream_t; nullptr is the default stream
using EventHandle = struct EventTag*;        ///< CUevent
using MemoryPoolHandle = struct PoolTag*;    ///< CUmemoryPool

/// CUmemPoolProps, of pinned memory on one device.
struct MemoryPoolProperties {
  int allocation_type = 1;  ///< CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = 0;
  int location_type = 1;  ///< CU_MEM_LOCATION_TYPE_DEVICE
  int location_id = 0;    ///< the device's ordinal
  void* security_attributes = nullptr;
  std::size_t max_bytes = 0;
  unsigned short usage = 0;
  unsigned char reserved[54] = {};
};
static_assert(sizeof(MemoryPoolProperties) == 88);

/// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id = 0;
  int padding = 0;
  int value[16] = {};
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  StreamHandle stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);
/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
inline constexpr int launch_attribute_programmatic_serialization = 6;
/// The driver from which on graphs know it.
inline constexpr int programmatic_serialization_version = 12030;

/// CUmemPool_attribute.
inline constexpr int memory_pool_release_threshold = 4;

/// The driver's functions under their own names. Filled by load_driver: every pointer is set, but for the last ones.
struct Driver {
  std::string path;  ///< the file that was loaded
  int version = 0;   ///< 1000 * major + 10 * minor, e.g. 13000: the newest CUDA this driver runs

  DriverResult (*cuInit)(unsigned flags) = nullptr;
  DriverResult (*cuDriverGetVersion)(int* version) = nullptr;
  DriverResult (*cuGetErrorName)(DriverResult, const char** name) = nullptr;
  DriverResult (*cuGetErrorString)(DriverResult, const char** text) = nullptr;

  DriverResult (*cuDeviceGetCount)(int* count) = nullptr;
  DriverResult (*cuDeviceGet)(DeviceHandle*, int ordinal) = nullptr;
  DriverResult (*cuDeviceGetName)(char* name, int length, DeviceHandle) = nullptr;
  DriverResult (*cuDeviceGetAttribute)(int* value, int attribute, DeviceHandle) = nullptr;
  DriverResult (*cuDeviceTotalMem)(std::size_t* bytes, DeviceHandle) = nullptr;

  DriverResult (*cuDevicePrimaryCtxRetain)(ContextHandle*, DeviceHandle) = nullptr;
  DriverResult (*cuCtxPushCurrent)(ContextHandle) = nullptr;
  DriverResult (*cuCtxPopCurrent)(ContextHandle*) = nullptr;
  DriverResult (*cuCtxGetCurrent)(ContextHandle*) = nullptr;
  DriverResult (*cuCtxGetDevice)(DeviceHandle*) = nullptr;
  DriverResult (*cuCtxSynchronize)() = nullptr;

  DriverResult (*cuModuleLoadData)(ModuleHandle*, const void* image) = nullptr;
  DriverResult (*cuModuleUnload)(ModuleHandle) = nullptr;
  DriverResult (*cuModuleGetFunction)(FunctionHandle*, ModuleHandle, const char* name) = nullptr;
  DriverResult (*cuFuncGetAttribute)(int* value, int attribute, FunctionHandle) = nullptr;
  DriverResult (*cuFuncSetAttribute)(FunctionHandle, int attribute, int value) = nullptr;
  DriverResult (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int* blocks, FunctionHandle, int threads,
                                                              std::size_t shared_bytes) = nullptr;
  DriverResult (*cuLaunchKernel)(FunctionHandle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared_bytes, StreamHandle,
                                 void** arguments, void** extra) = nullptr;

  DriverResult (*cuMemAlloc)(DevicePointer*, std::size_t bytes) = nullptr;
  DriverResult (*cuMemFree)(DevicePointer) = nullptr;
  DriverResult (*cuMemcpyHtoD)(DevicePointer, const void* host, std::size_t bytes) = nullptr;
  DriverResult (*cuMemcpyDtoH)(void* host, DevicePointer, std::size_t bytes) = nullptr;
  DriverResult (*cuMemcpyHtoDAsync)(DevicePointer, const void* host, std::size_t bytes, StreamHandle) = nullptr;
  DriverResult (*cuMemcpyDtoHAsync)(void* host, DevicePointer, std::size_t bytes, StreamHandle) = nullptr;
  DriverResult (*cuMemsetD8Async)(DevicePointer, unsigned char value, std::size_t bytes, StreamHandle) = nullptr;
  DriverResult (*cuMemPoolCreate)(MemoryPoolHandle*, const MemoryPoolProperties*) = nullptr;
  DriverResult (*cuMemPoolSetAttribute)(MemoryPoolHandle, int attribute, void* value) = nullptr;
  DriverResult (*cuMemAllocFromPoolAsync)(DevicePointer*, std::size_t bytes, MemoryPoolHandle, StreamHandle) = nullptr;
  DriverResult (*cuMemFreeAsync)(DevicePointer, StreamHandle) = nullptr;
  DriverResult (*cuPointerGetAttribute)(void* value, int attribute, DevicePointer) = nullptr;

  DriverResult (*cuStreamSynchronize)(StreamHandle) = nullptr;
  DriverResult (*cuStreamIsCapturing)(StreamHandle, int* status) = nullptr;  ///< 0: not being captured
  DriverResult (*cuEventCreate)(EventHandle*, unsigned flags) = nullptr;
  DriverResult (*cuEventDestroy)(EventHandle) = nullptr;
  DriverResult (*cuEventRecord)(EventHandle, StreamHandle) = nullptr;
  DriverResult (*cuEventSynchronize)(EventHandle) = nullptr;
  DriverResult (*cuEventElapsedTime)(float* milliseconds, EventHandle start, EventHandle end) = nullptr;

  /// Null in drivers from before CUDA 12: ids of streams (never used again), launches with attributes, and tensor maps
  /// (gpu/tensor_map.h).
  DriverResult (*cuStreamGetId)(StreamHandle, unsigned long long* id) = nullptr;
  DriverResult (*cuLaunchKernelEx)(const LaunchConfig*, FunctionHandle, void** arguments, void** extra) = nullptr;
  DriverResult (*cuTensorMapEncodeTiled)(void* map, int element_type, std::uint32_t rank, DevicePointer address,
                                         const std::uint64_t* dims, const std::uint64_t* strides,
                                         const std::uint32_t* box, const std::uint32_t* element_strides, int interleave,
                                         int swizzle, int l2_promotion, int fill) = nullptr;
};

/// CUfunction_attribute.
enum FunctionAttribute : int {
  function_shared_bytes = 1,
  function_local_bytes = 3,
  function_registers = 4,
  function_max_dynamic_shared_bytes = 8,
};

/// Opens the driver library `name` and takes its functions; does not initialise it. Error: runtime_error that says
/// whether the library or a symbol is missing, and what to install.
Result<Driver> load_driver(const std::string& name);

/// The process's driver: libcuda.so.1 loaded and initialised on the first call, from any thread; the outcome, good or
/// bad, is kept.
Result<const Driver*> driver();

/// Its version without initialising it: a process that only compiles may still fork children that use the GPU.
Result<int> driver_version();

/// "13.0" for 13000.
std::string cuda_version_text(int version);

/// Ok, or runtime_error "what failed: CUDA_ERROR_NAME (text)".
Status driver_status(const Driver& driver, DriverResult result, std::string_view what);

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int sm_count = 0;
  int shared_bytes_per_block = 0;  ///< the most a block may ask for (opt-in)
  int shared_bytes_per_sm = 0;
  int registers_per_sm = 0;
  int l2_bytes = 0;
  int clock_khz = 0;
  std::size_t memory_bytes = 0;

  /// The device's own architecture; `specific` asks for its `a` form (sm_90a).
  Architecture architecture(bool specific = false) const { return {major, minor, specific}; }
};

Result<int> device_count();
/// Asked of the driver once a device. Error: invalid_value when there is no such device.
Result<DeviceInfo> device_info(int ordinal);
/// The device whose memory `pointer` names. Error: invalid_value when it is not memory of a CUDA device.
Result<int> device_of_pointer(const void* pointer);

/// Makes a device's primary context current for the life of the object: the context that the CUDA runtime, and so
/// torch, uses. The context is retained on first use and kept until the process ends.
class ContextScope {
 public:
  static Result<ContextScope> enter(int device);
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ContextScope(ContextScope&& other) noexcept : driver_(std::exchange(other.driver_, nullptr)) {}
  ContextScope& operator=(ContextScope&&) = delete;
  ~ContextScope();

 private:
  explicit ContextScope(const Driver* driver) : driver_(driver) {}
  const Driver* driver_;
};

}  // namespace warploom::gpu
