// Kernels of a user's own, compiled on the library's device layer.
#pragma once

#include <string>

#include "gpu/architecture.h"
#include "gpu/compiler.h"
#include "warploom/status.h"

namespace warploom::gpu {

/// The cubin of `source`, in which `#include "..."` names files of kernels/; messages call it kernel.cu. Errors as
/// Compiler::get.
Result<CubinPointer> compile_user_kernel(const std::string& source, const std::string& kernel,
                                         const Architecture& architecture, const Settings& settings);

/// The architecture named, or without a name the first GPU's. Error: invalid_value without either.
Result<Architecture> user_architecture(const char* name);

}  // namespace warploom::gpu
