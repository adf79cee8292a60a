#include "gpu/user_kernel.h"

#include <utility>

#include "gpu/driver.h"
#include "gpu/reference_device.h"

namespace warploom::gpu {

Result<CubinPointer> compile_user_kernel(const std::string& source, const std::string& kernel,
                                         const Architecture& architecture, const Settings& settings) {
  static constexpr std::string_view file = "kernel.cu";
  CompilerOptions options;
  options.settings = settings;
  options.sources = [&source](std::string_view path) -> std::optional<std::string_view> {
    if (path == file) return source;
    return embedded_source(path);
  };
  KernelRequest request;
  request.entry_file = file;
  request.kernel_name = kernel;
  request.architecture = architecture;
  return Compiler(std::move(options)).get(request);
}

Result<Architecture> user_architecture(const char* name) {
  if (name != nullptr) return parse_architecture(name);
  const Result<int> count = device_count();
  if (!count.ok() || *count == 0) {
    return Status::invalid_value("architecture is null and there is no GPU here; name one, e.g. \"sm_90a\"");
  }
  const Result<DeviceInfo> device = device_info(0);
  if (!device.ok()) return device.status();
  return compile_architecture(*device);
}

}  // namespace warploom::gpu
