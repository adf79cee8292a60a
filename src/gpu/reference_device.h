// What is compiled for a device, and devices known without having one.
#pragma once

#include "gpu/architecture.h"
#include "gpu/driver.h"
#include "warploom/status.h"

namespace warploom::gpu {

/// The architecture that kernels for this device are compiled for.
Architecture compile_architecture(const DeviceInfo& device);

/// A device of this architecture as its vendor describes it, for planning and compiling without one.
/// Error: invalid_value for an architecture that is not known.
Result<DeviceInfo> reference_device(const Architecture& architecture);

}  // namespace warploom::gpu
