// Device memory for the length of one call, allocated and freed in the order of its stream. Under stream capture both
// become nodes of the graph.
#pragma once

#include <cstddef>
#include <utility>

#include "gpu/driver.h"
#include "warploom/status.h"

namespace warploom::gpu {

/// Freed on the stream by the destructor: work that was queued before still has it. Aligned to 256 bytes.
class Scratch {
 public:
  /// From a pool of our own that keeps what it has (a process has one a device). The device's context is current.
  /// Error: runtime_error with the driver's words and the number of bytes.
  static Result<Scratch> allocate(const Driver& cuda, int device, std::size_t bytes, StreamHandle stream);

  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch(Scratch&& other) noexcept
      : cuda_(other.cuda_), stream_(other.stream_), address_(std::exchange(other.address_, 0)) {}
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch();

  DevicePointer address() const { return address_; }
  /// The memory is the caller's from here on.
  DevicePointer keep() { return std::exchange(address_, 0); }

 private:
  Scratch(const Driver& cuda, StreamHandle stream, DevicePointer address)
      : cuda_(&cuda), stream_(stream), address_(address) {}

  const Driver* cuda_;
  StreamHandle stream_;
  DevicePointer address_;
};

/// Memory that stays with the stream: cleared when it is first given out, and for kernels that leave it cleared. 0 when
/// there is none to give: the stream is being captured (its graph may run beside the stream), it has no id, `bytes` is
/// above kStreamMemoryBytes, or more than a thousand streams have some. The device's context is current. Error:
/// runtime_error with the driver's words.
inline constexpr std::size_t kStreamMemoryBytes = 256;
Result<DevicePointer> memory_of_stream(const Driver& cuda, int device, std::size_t bytes, StreamHandle stream);

}  // namespace warploom::gpu
