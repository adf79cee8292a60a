#include "cli/device_memory.h"

#include <iterator>

namespace warploom::cli {

DeviceMemory::~DeviceMemory() {
  for (const auto& [host, buffer] : buffers_) driver_.cuMemFree(buffer.device);
  for (gpu::EventHandle event : events_)
    if (event != nullptr) driver_.cuEventDestroy(event);
}

Status DeviceMemory::make_events() {
  for (gpu::EventHandle& event : events_) {
    if (Status status = check(driver_.cuEventCreate(&event, 0), "creating an event"); !status.ok()) return status;
  }
  return {};
}

Status DeviceMemory::add(const void* host, std::size_t bytes) {
  if (host == nullptr || bytes == 0 || buffers_.contains(host)) return {};
  gpu::DevicePointer device = 0;
  if (Status status = check(driver_.cuMemAlloc(&device, bytes), "allocating device memory"); !status.ok())
    return status;
  buffers_[host] = {device, bytes};
  return check(driver_.cuMemcpyHtoD(device, host, bytes), "copying to the device");
}

Status DeviceMemory::fetch(void* host) const {
  const auto found = buffers_.find(host);
  if (found == buffers_.end()) return {};
  return check(driver_.cuMemcpyDtoH(host, found->second.device, found->second.bytes), "copying from the device");
}

gpu::DevicePointer DeviceMemory::find(const void* host) const {
  const auto after = buffers_.upper_bound(host);
  if (after == buffers_.begin()) return 0;
  const auto& [start, buffer] = *std::prev(after);
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(host) - static_cast<const char*>(start));
  return offset < buffer.bytes ? buffer.device + offset : 0;
}

}  // namespace warploom::cli
