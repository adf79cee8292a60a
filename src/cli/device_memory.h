// Copies of host buffers in a GPU's memory, and events to time with.
#pragma once

#include <cstddef>
#include <map>

#include "gpu/driver.h"
#include "warploom/status.h"

namespace warploom::cli {

/// The device's context is current at every call and when it is destroyed.
class DeviceMemory {
 public:
  explicit DeviceMemory(const gpu::Driver& driver) : driver_(driver) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  Status make_events();

  /// Copies a host buffer to the device, once.
  Status add(const void* host, std::size_t bytes);
  /// A buffer back to where it came from; one that was not added is left alone.
  Status fetch(void* host) const;

  /// The device's address for a host address in a buffer; any other stays as it is.
  template <typename T>
  void translate(T*& pointer) const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver names device memory by number
    if (const gpu::DevicePointer device = find(pointer); device != 0) pointer = reinterpret_cast<T*>(device);
  }

  /// Milliseconds between two events around the work.
  template <typename Work>
  Result<double> time(gpu::StreamHandle stream, Work work) const {
    if (Status status = check(driver_.cuEventRecord(events_[0], stream), "recording an event"); !status.ok())
      return status;
    if (Status status = work(); !status.ok()) return status;
    if (Status status = check(driver_.cuEventRecord(events_[1], stream), "recording an event"); !status.ok())
      return status;
    if (Status status = check(driver_.cuEventSynchronize(events_[1]), "running the kernel"); !status.ok())
      return status;
    float milliseconds = 0;
    if (Status status = check(driver_.cuEventElapsedTime(&milliseconds, events_[0], events_[1]), "reading events");
        !status.ok())
      return status;
    return static_cast<double>(milliseconds);
  }

 private:
  struct Buffer {
    gpu::DevicePointer device;
    std::size_t bytes;
  };

  Status check(gpu::DriverResult result, const char* what) const { return gpu::driver_status(driver_, result, what); }
  gpu::DevicePointer find(const void* host) const;

  const gpu::Driver& driver_;
  std::map<const void*, Buffer> buffers_;
  gpu::EventHandle events_[2] = {};
};

}  // namespace warploom::cli
