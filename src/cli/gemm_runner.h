// Runs a made-up matrix product on a device.
#pragma once

#include "cli/devices.h"
#include "cli/gemm_problem.h"

namespace warploom::cli {

/// Runs the problem by the public function: on the CPU where it is, on a GPU (with a tile of its own: by that tile's
/// plan) on copies, all of which come back. Errors: the library's and the driver's.
Status run_product(GemmProblem& problem, const Device& device);

}  // namespace warploom::cli
