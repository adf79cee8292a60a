// A cubin loaded on a device, and the launch of its kernel.
#pragma once

#include <cstdint>

#include "gpu/compiler.h"
#include "gpu/driver.h"
#include "warploom/status.h"

namespace warploom::gpu {

/// A kernel ready to launch on one device. Lives until the process ends.
struct LoadedKernel {
  const Driver* driver = nullptr;
  FunctionHandle function = nullptr;
  int device = 0;
  int dynamic_shared_bytes = 0;  ///< what load_kernel raised the limit to
  CubinPointer cubin;
};

/// Loads `cubin` into the device's primary context, once per device, cubin and amount of shared memory, and raises its
/// limit of dynamic shared memory to `dynamic_shared_bytes`. Errors: runtime_error with the driver's words, its
/// version, NVRTC's version and the architecture.
Result<const LoadedKernel*> load_kernel(const CubinPointer& cubin, int device, int dynamic_shared_bytes);

struct LaunchShape {
  std::uint32_t grid_x = 1, grid_y = 1, grid_z = 1;
  std::uint32_t block_x = 1, block_y = 1, block_z = 1;
  /// The kernel may start while the one before it on the stream still runs: it waits for that one itself
  /// (kernels/ptx/grid_dependency.h). From compute capability 9.0 on; an old driver starts it afterwards.
  bool overlaps_previous = false;
};

/// Puts the kernel on the stream, with kernel.dynamic_shared_bytes of shared memory. `arguments` points to one pointer
/// a kernel parameter. An empty grid is a no-op.
Status launch(const LoadedKernel& kernel, const LaunchShape& shape, StreamHandle stream, void** arguments);

}  // namespace warploom::gpu
