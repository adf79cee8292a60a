#include "gpu/module.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

namespace warploom::gpu {
namespace {

struct LoadedModules {
  std::mutex mutex;
  std::map<std::pair<int, std::string>, ModuleHandle> modules;  // by device and key
  std::map<std::tuple<int, std::string, std::string, int>, std::unique_ptr<LoadedKernel>> kernels;
};

// Never destroyed: the driver unloads modules with the context, and may be gone before static destructors run.
LoadedModules& loaded_modules() {
  static LoadedModules& held = *new LoadedModules;
  return held;
}

std::string where(const Driver& driver, const Cubin& cubin, int device) {
  return cubin.kernel_name + " (" + to_string(cubin.architecture) + ", made by NVRTC " + to_string(cubin.nvrtc) +
         ") on device " + std::to_string(device) + " (driver for CUDA " + cuda_version_text(driver.version) + ")";
}

}  // namespace

Result<const LoadedKernel*> load_kernel(const CubinPointer& cubin, int device, int dynamic_shared_bytes) {
  LoadedModules& loaded = loaded_modules();
  const std::lock_guard lock(loaded.mutex);
  std::unique_ptr<LoadedKernel>& kernel =
      loaded.kernels[{device, cubin->key, cubin->kernel_name, dynamic_shared_bytes}];
  if (kernel) return kernel.get();

  const Result<ContextScope> scope = ContextScope::enter(device);
  if (!scope.ok()) return scope.status();
  const Driver& cuda = **driver();
  ModuleHandle& module = loaded.modules[{device, cubin->key}];
  if (module == nullptr) {
    const DriverResult result = cuda.cuModuleLoadData(&module, cubin->image.data());
    if (result != 0) module = nullptr;
    if (Status status = driver_status(cuda, result, "loading " + where(cuda, *cubin, device)); !status.ok()) {
      return status;
    }
  }
  FunctionHandle function = nullptr;
  DriverResult result = cuda.cuModuleGetFunction(&function, module, cubin->kernel_name.c_str());
  if (Status status = driver_status(cuda, result, "finding " + where(cuda, *cubin, device)); !status.ok())
    return status;
  // The limit belongs to the function, which all amounts share: it must only grow.
  int limit = 0;
  result = cuda.cuFuncGetAttribute(&limit, function_max_dynamic_shared_bytes, function);
  if (result == 0 && dynamic_shared_bytes > limit) {
    result = cuda.cuFuncSetAttribute(function, function_max_dynamic_shared_bytes, dynamic_shared_bytes);
  }
  if (Status status = driver_status(cuda, result,
                                    "giving " + std::to_string(dynamic_shared_bytes) + " bytes of shared memory to " +
                                        where(cuda, *cubin, device));
      !status.ok()) {
    return status;
  }
  kernel = std::make_unique<LoadedKernel>(LoadedKernel{&cuda, function, device, dynamic_shared_bytes, cubin});
  return kernel.get();
}

Status launch(const LoadedKernel& kernel, const LaunchShape& shape, StreamHandle stream, void** arguments) {
  if (shape.grid_x == 0 || shape.grid_y == 0 || shape.grid_z == 0) return {};
  const Result<ContextScope> scope = ContextScope::enter(kernel.device);
  if (!scope.ok()) return scope.status();
  const auto shared_bytes = static_cast<unsigned>(kernel.dynamic_shared_bytes);
  DriverResult result = 0;
  if (shape.overlaps_previous && kernel.driver->cuLaunchKernelEx != nullptr &&
      kernel.driver->version >= programmatic_serialization_version) {
    LaunchAttribute attribute;
    attribute.id = launch_attribute_programmatic_serialization;
    attribute.value[0] = 1;
    const LaunchConfig config{shape.grid_x,  shape.grid_y, shape.grid_z, shape.block_x, shape.block_y,
                              shape.block_z, shared_bytes, stream,       &attribute,    1};
    result = kernel.driver->cuLaunchKernelEx(&config, kernel.function, arguments, nullptr);
  } else {
    result = kernel.driver->cuLaunchKernel(kernel.function, shape.grid_x, shape.grid_y, shape.grid_z, shape.block_x,
                                           shape.block_y, shape.block_z, shared_bytes, stream, arguments, nullptr);
  }
  if (result == 0) return {};
  return driver_status(*kernel.driver, result,
                       "launching " + where(*kernel.driver, *kernel.cubin, kernel.device) + " with a grid of " +
                           std::to_string(shape.grid_x) + " x " + std::to_string(shape.grid_y) + " x " +
                           std::to_string(shape.grid_z) + " blocks");
}

}  // namespace warploom::gpu
