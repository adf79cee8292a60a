// Runs a made-up matrix product on a device.
#pragma once

#include "cli/devices.h"
#include "cli/gemm_problem.h"

namespace warploom::cli {

/// Copies the problem to the device, runs it by the public function (with a tile of its own: by that tile's plan) and
/// copies all memory back. Errors: the library's and the driver's.
Status run_product(GemmProblem& problem, const Device& device);

}  // namespace warploom::cli
