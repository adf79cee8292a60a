#include "gpu/driver.h"

#include <array>
#include <map>
#include <mutex>

#include "gpu/dynamic_library.h"

namespace warploom::gpu {
namespace {

// CUdevice_attribute.
enum DeviceAttribute : int {
  attribute_clock_khz = 13,
  attribute_sm_count = 16,
  attribute_l2_bytes = 38,
  attribute_major = 75,
  attribute_minor = 76,
  attribute_shared_bytes_per_sm = 81,
  attribute_registers_per_sm = 82,
  attribute_shared_bytes_per_block_optin = 97,
};

// CUpointer_attribute.
constexpr int pointer_device_ordinal = 9;
constexpr int pointer_memory_type = 2;
// CUmemorytype.
constexpr unsigned memory_type_device = 2;

constexpr const char* driver_remedy =
    "; install NVIDIA's driver (package nvidia-driver or cuda-drivers), or run on the CPU";

// The first symbol that the library lacks; empty when all are there.
std::string bind_all(const DynamicLibrary& library, Driver& driver) {
  std::string missing;
  const auto bind = [&](const char* symbol, auto*& target) {
    if (!library.bind(symbol, target) && missing.empty()) missing = symbol;
  };
  // _v2 and _v3 are the current ABI of functions whose pointers became 64 bits wide or which changed since; the plain
  // names are old entry points.
  bind("cuInit", driver.cuInit);
  bind("cuDriverGetVersion", driver.cuDriverGetVersion);
  bind("cuGetErrorName", driver.cuGetErrorName);
  bind("cuGetErrorString", driver.cuGetErrorString);
  bind("cuDeviceGetCount", driver.cuDeviceGetCount);
  bind("cuDeviceGet", driver.cuDeviceGet);
  bind("cuDeviceGetName", driver.cuDeviceGetName);
  bind("cuDeviceGetAttribute", driver.cuDeviceGetAttribute);
  bind("cuDeviceTotalMem_v2", driver.cuDeviceTotalMem);
  bind("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain);
  bind("cuCtxPushCurrent_v2", driver.cuCtxPushCurrent);
  bind("cuCtxPopCurrent_v2", driver.cuCtxPopCurrent);
  bind("cuCtxGetCurrent", driver.cuCtxGetCurrent);
  bind("cuCtxGetDevice", driver.cuCtxGetDevice);
  bind("cuCtxSynchronize", driver.cuCtxSynchronize);
  bind("cuModuleLoadData", driver.cuModuleLoadData);
  bind("cuModuleUnload", driver.cuModuleUnload);
  bind("cuModuleGetFunction", driver.cuModuleGetFunction);
  bind("cuFuncGetAttribute", driver.cuFuncGetAttribute);
  bind("cuFuncSetAttribute", driver.cuFuncSetAttribute);
  bind("cuOccupancyMaxActiveBlocksPerMultiprocessor", driver.cuOccupancyMaxActiveBlocksPerMultiprocessor);
  bind("cuLaunchKernel", driver.cuLaunchKernel);
  bind("cuMemAlloc_v2", driver.cuMemAlloc);
  bind("cuMemFree_v2", driver.cuMemFree);
  bind("cuMemcpyHtoD_v2", driver.cuMemcpyHtoD);
  bind("cuMemcpyDtoH_v2", driver.cuMemcpyDtoH);
  bind("cuMemcpyHtoDAsync_v2", driver.cuMemcpyHtoDAsync);
  bind("cuMemcpyDtoHAsync_v2", driver.cuMemcpyDtoHAsync);
  bind("cuMemsetD8Async", driver.cuMemsetD8Async);
  bind("cuMemPoolCreate", driver.cuMemPoolCreate);
  bind("cuMemPoolSetAttribute", driver.cuMemPoolSetAttribute);
  bind("cuMemAllocFromPoolAsync", driver.cuMemAllocFromPoolAsync);
  bind("cuMemFreeAsync", driver.cuMemFreeAsync);
  bind("cuPointerGetAttribute", driver.cuPointerGetAttribute);
  bind("cuStreamSynchronize", driver.cuStreamSynchronize);
  bind("cuStreamIsCapturing", driver.cuStreamIsCapturing);
  bind("cuEventCreate", driver.cuEventCreate);
  bind("cuEventDestroy_v2", driver.cuEventDestroy);
  bind("cuEventRecord", driver.cuEventRecord);
  bind("cuEventSynchronize", driver.cuEventSynchronize);
  bind("cuEventElapsedTime", driver.cuEventElapsedTime);
  (void)library.bind("cuTensorMapEncodeTiled", driver.cuTensorMapEncodeTiled);
  (void)library.bind("cuStreamGetId", driver.cuStreamGetId);
  (void)library.bind("cuLaunchKernelEx", driver.cuLaunchKernelEx);
  return missing;
}

// The library with its functions, not yet initialised.
const Result<Driver>& opened_driver() {
  static const Result<Driver> opened = load_driver("libcuda.so.1");
  return opened;
}

Status check_ordinal(int ordinal) {
  const Result<int> count = device_count();
  if (!count.ok()) return count.status();
  if (ordinal >= 0 && ordinal < *count) return {};
  return Status::invalid_value("device = " + std::to_string(ordinal) + " does not exist; this machine has " +
                               std::to_string(*count) + " CUDA device(s), numbered from 0");
}

// What is asked of a device once. Never destroyed: the context outlives static destructors, as torch's does.
struct KnownDevices {
  std::mutex mutex;
  std::map<int, ContextHandle> contexts;
  std::map<int, DeviceInfo> infos;
};

KnownDevices& known_devices() {
  static KnownDevices& held = *new KnownDevices;
  return held;
}

// The primary context of a device, retained once and never released: others (torch) use it until the process ends too.
Result<ContextHandle> primary_context(const Driver& driver, int ordinal) {
  KnownDevices& known = known_devices();
  const std::lock_guard lock(known.mutex);
  if (const auto found = known.contexts.find(ordinal); found != known.contexts.end()) return found->second;
  if (Status status = check_ordinal(ordinal); !status.ok()) return status;
  DeviceHandle device = 0;
  if (Status status = driver_status(driver, driver.cuDeviceGet(&device, ordinal), "cuDeviceGet"); !status.ok()) {
    return status;
  }
  ContextHandle context = nullptr;
  const DriverResult result = driver.cuDevicePrimaryCtxRetain(&context, device);
  if (Status status = driver_status(driver, result, "making the context of device " + std::to_string(ordinal));
      !status.ok()) {
    return status;
  }
  known.contexts.emplace(ordinal, context);
  return context;
}

}  // namespace

Result<Driver> load_driver(const std::string& name) {
  Result<DynamicLibrary> library = DynamicLibrary::open(name);
  if (!library.ok()) {
    return Status::runtime_error("no CUDA driver: " + library.status().message() + driver_remedy);
  }
  Driver driver;
  driver.path = library->path();
  if (const std::string missing = bind_all(*library, driver); !missing.empty()) {
    return Status::runtime_error("the CUDA driver " + driver.path + " has no function " + missing +
                                 "; it is older than CUDA 12: install a newer driver");
  }
  // The driver's threads and contexts outlive any owner here, so it is never closed.
  library->keep_loaded();
  if (Status status = driver_status(driver, driver.cuDriverGetVersion(&driver.version), "cuDriverGetVersion");
      !status.ok()) {
    return status;
  }
  return driver;
}

Result<int> driver_version() {
  const Result<Driver>& opened = opened_driver();
  if (!opened.ok()) return opened.status();
  return opened->version;
}

Result<const Driver*> driver() {
  static const Status started = [] {
    const Result<Driver>& opened = opened_driver();
    if (!opened.ok()) return opened.status();
    return driver_status(
        *opened, opened->cuInit(0),
        "starting the CUDA driver " + opened->path + " (CUDA " + cuda_version_text(opened->version) + ")");
  }();
  if (!started.ok()) return started;
  return &opened_driver().value();
}

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Status driver_status(const Driver& driver, DriverResult result, std::string_view what) {
  if (result == 0) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  std::string message(what);
  message += " failed: ";
  message += name != nullptr ? name : "CUDA error " + std::to_string(result);
  if (text != nullptr) message += std::string(" (") + text + ")";
  return Status::runtime_error(std::move(message));
}

Result<int> device_count() {
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  int count = 0;
  if (Status status = driver_status(**found, (*found)->cuDeviceGetCount(&count), "cuDeviceGetCount"); !status.ok()) {
    return status;
  }
  return count;
}

Result<DeviceInfo> device_info(int ordinal) {
  KnownDevices& known = known_devices();
  const std::lock_guard lock(known.mutex);
  if (const auto found = known.infos.find(ordinal); found != known.infos.end()) return found->second;
  if (Status status = check_ordinal(ordinal); !status.ok()) return status;
  const Driver& cuda = **driver();
  DeviceHandle device = 0;
  DriverResult failure = cuda.cuDeviceGet(&device, ordinal);
  const auto keep_first = [&failure](DriverResult result) {
    if (failure == 0) failure = result;
  };
  DeviceInfo info;
  info.ordinal = ordinal;
  std::array<char, 256> name{};
  keep_first(cuda.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device));
  info.name = name.data();
  keep_first(cuda.cuDeviceTotalMem(&info.memory_bytes, device));
  const auto read = [&](int& target, int attribute) {
    keep_first(cuda.cuDeviceGetAttribute(&target, attribute, device));
  };
  read(info.major, attribute_major);
  read(info.minor, attribute_minor);
  read(info.sm_count, attribute_sm_count);
  read(info.shared_bytes_per_block, attribute_shared_bytes_per_block_optin);
  read(info.shared_bytes_per_sm, attribute_shared_bytes_per_sm);
  read(info.registers_per_sm, attribute_registers_per_sm);
  read(info.l2_bytes, attribute_l2_bytes);
  read(info.clock_khz, attribute_clock_khz);
  if (Status status = driver_status(cuda, failure, "reading the properties of device " + std::to_string(ordinal));
      !status.ok()) {
    return status;
  }
  known.infos.emplace(ordinal, info);
  return info;
}

Result<int> device_of_pointer(const void* pointer) {
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const auto address = reinterpret_cast<DevicePointer>(pointer);
  unsigned memory_type = 0;
  int ordinal = -1;
  const Driver& cuda = **found;
  // Pinned host memory has an ordinal as well, hence the look at the type.
  if (cuda.cuPointerGetAttribute(&memory_type, pointer_memory_type, address) != 0 ||
      memory_type != memory_type_device || cuda.cuPointerGetAttribute(&ordinal, pointer_device_ordinal, address) != 0) {
    return Status::invalid_value("the pointer does not name memory of a CUDA device");
  }
  return ordinal;
}

Result<ContextScope> ContextScope::enter(int device) {
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const Driver& cuda = **found;
  const Result<ContextHandle> context = primary_context(cuda, device);
  if (!context.ok()) return context.status();
  if (Status status = driver_status(cuda, cuda.cuCtxPushCurrent(*context), "cuCtxPushCurrent"); !status.ok()) {
    return status;
  }
  return ContextScope(&cuda);
}

ContextScope::~ContextScope() {
  ContextHandle popped = nullptr;
  if (driver_ != nullptr) driver_->cuCtxPopCurrent(&popped);
}

}  // namespace warploom::gpu
