#include "gpu/scratch.h"

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace warploom::gpu {
namespace {

struct Pools {
  std::mutex mutex;
  std::map<int, MemoryPoolHandle> of_device;
};

// Never destroyed: calls may still be queued when static destructors run.
Pools& pools() {
  static Pools& held = *new Pools;
  return held;
}

Result<MemoryPoolHandle> pool_of(const Driver& cuda, int device) {
  Pools& known = pools();
  const std::lock_guard lock(known.mutex);
  if (const auto found = known.of_device.find(device); found != known.of_device.end()) return found->second;
  MemoryPoolProperties properties;
  properties.location_id = device;
  MemoryPoolHandle pool = nullptr;
  DriverResult result = cuda.cuMemPoolCreate(&pool, &properties);
  // A pool gives its memory back at every synchronisation unless it is told to keep it.
  std::uint64_t kept = std::numeric_limits<std::uint64_t>::max();
  if (result == 0) result = cuda.cuMemPoolSetAttribute(pool, memory_pool_release_threshold, &kept);
  const std::string what = "making the pool of scratch memory of device " + std::to_string(device);
  if (Status status = driver_status(cuda, result, what); !status.ok()) return status;
  known.of_device.emplace(device, pool);
  return pool;
}

}  // namespace

Result<Scratch> Scratch::allocate(const Driver& cuda, int device, std::size_t bytes, StreamHandle stream) {
  const Result<MemoryPoolHandle> pool = pool_of(cuda, device);
  if (!pool.ok()) return pool.status();
  DevicePointer address = 0;
  const DriverResult result = cuda.cuMemAllocFromPoolAsync(&address, bytes, *pool, stream);
  if (result != 0) {
    return driver_status(cuda, result, "allocating " + std::to_string(bytes) + " bytes of scratch memory");
  }
  return Scratch(cuda, stream, address);
}

Result<DevicePointer> memory_of_stream(const Driver& cuda, int device, std::size_t bytes, StreamHandle stream) {
  constexpr std::size_t kMostStreams = 1000;
  static std::mutex mutex;
  static std::map<std::pair<int, unsigned long long>, DevicePointer>& known =
      *new std::map<std::pair<int, unsigned long long>, DevicePointer>;
  int capturing = 1;
  unsigned long long id = 0;
  if (bytes > kStreamMemoryBytes || cuda.cuStreamGetId == nullptr) return DevicePointer{0};
  if (cuda.cuStreamIsCapturing(stream, &capturing) != 0 || capturing != 0) return DevicePointer{0};
  if (cuda.cuStreamGetId(stream, &id) != 0) return DevicePointer{0};
  const std::lock_guard lock(mutex);
  if (const auto found = known.find({device, id}); found != known.end()) return found->second;
  if (known.size() >= kMostStreams) return DevicePointer{0};
  Result<Scratch> memory = Scratch::allocate(cuda, device, kStreamMemoryBytes, stream);
  if (!memory.ok()) return memory.status();
  const DriverResult result = cuda.cuMemsetD8Async(memory->address(), 0, kStreamMemoryBytes, stream);
  if (result != 0) return driver_status(cuda, result, "clearing scratch memory");
  return known.emplace(std::pair(device, id), memory->keep()).first->second;
}

Scratch::~Scratch() {
  if (address_ != 0) cuda_->cuMemFreeAsync(address_, stream_);
}

}  // namespace warploom::gpu
