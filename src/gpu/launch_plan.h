// From a plan's launches to loaded kernels.
#pragma once

#include "gpu/module.h"
#include "gpu/plan.h"

namespace warploom::gpu {

/// The loaded kernel of a launch: a table look-up when the process has used it before, else compiled or found, and
/// loaded.
Result<const LoadedKernel*> loaded_kernel(const PlannedLaunch& planned, const Architecture& architecture, int device);

/// Puts one launch of a plan on the stream.
Status launch(const LoadedKernel& kernel, PlannedLaunch& planned, StreamHandle stream);

}  // namespace warploom::gpu
