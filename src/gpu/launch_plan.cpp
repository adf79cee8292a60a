#include "gpu/launch_plan.h"

#include <mutex>
#include <unordered_map>

#include "gpu/settings.h"

namespace warploom::gpu {
namespace {

/// A kernel's family and configuration, and a device.
struct LoadedKey {
  const KernelFamily* family;
  ConfigKey config;
  int device;

  bool operator==(const LoadedKey&) const = default;
};

struct LoadedKeyHash {
  size_t operator()(const LoadedKey& key) const {
    size_t hash = reinterpret_cast<size_t>(key.family) ^ static_cast<size_t>(key.device);
    for (const int member : key.config) hash = hash * 1000003u ^ static_cast<size_t>(member);
    return hash;
  }
};

}  // namespace

Result<const LoadedKernel*> loaded_kernel(const PlannedLaunch& planned, const Architecture& architecture, int device) {
  static std::mutex mutex;
  static std::unordered_map<LoadedKey, const LoadedKernel*, LoadedKeyHash> loaded;
  const LoadedKey key{planned.family, planned.config, device};
  {
    const std::lock_guard lock(mutex);
    if (const auto found = loaded.find(key); found != loaded.end()) return found->second;
  }
  const Result<CubinPointer> cubin = compiler().get(planned.family->request(planned.config, architecture));
  if (!cubin.ok()) {
    const Status status = cubin.status();
    const auto marked = planned.family->failure;
    return marked == nullptr ? status : Status(status.code(), marked(planned.config, status.message()));
  }
  const Result<const LoadedKernel*> kernel = load_kernel(*cubin, device, planned.shared_bytes);
  if (!kernel.ok()) return kernel;
  const std::lock_guard lock(mutex);
  loaded.emplace(key, *kernel);
  return kernel;
}

Status launch(const LoadedKernel& kernel, PlannedLaunch& planned, StreamHandle stream) {
  LaunchShape shape;
  shape.grid_x = static_cast<uint32_t>(planned.ctas);
  shape.block_x = static_cast<uint32_t>(planned.threads);
  shape.overlaps_previous = planned.overlaps_previous && overlaps_launches();
  void* arguments[] = {planned.params};
  return launch(kernel, shape, stream, arguments);
}

}  // namespace warploom::gpu
