// The simulator's parameters as a GPU has them: measured by kernels/laboratory/calibrate.cu.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/driver.h"
#include "sim/machine.h"
#include "warploom/status.h"

namespace warploom::calibrate {

/// What one kernel saw: cycles of the SM's clock, the median over its CTAs, and nanoseconds of the GPU's timer.
struct Reading {
  double cycles = 0;
  double ns = 0;       ///< the median over the CTAs
  double span_ns = 0;  ///< from the first CTA's beginning to the last one's end
  std::int64_t ctas = 0;
};

/// How much each kernel is asked to do, and what it saw. The amounts are those of one CTA.
struct Readings {
  // Operations: 512 threads x 8 chains x count.
  std::int64_t operations = 0;
  Reading exp, tanh, fma;
  std::int64_t latency_loads = 0;  ///< of 1 KiB, one after the other
  Reading latency_l2, latency_memory;
  std::int64_t l2_stages = 0, memory_stages = 0;  ///< of 48 KiB
  Reading bandwidth_l2, bandwidth_memory;
  std::int64_t issues = 0;  ///< stages asked for
  Reading issue_tma, issue_cp;
  std::int64_t register_bytes = 0;
  Reading register_copy;
  std::int64_t tensor_steps = 0;  ///< of 128 x 256 x 64
  Reading tensor;
  std::int64_t hand_overs = 0;  ///< there and back
  Reading turns, mbarrier;
};

/// The machine file's fields, and what the model has no field for.
struct Calibration {
  sim::Machine machine;
  double tanh_rate = 0;         ///< per cycle and SM
  double memory_latency = 0;    ///< cycles, of a load that misses L2
  double memory_bandwidth = 0;  ///< bytes per cycle and SM, all SMs loading
  double turn = 0;              ///< cycles from bar.arrive in one warpgroup to the other's going on
  double mbarrier = 0;          ///< the same for an mbarrier's arrive and wait, between two warps
};

/// Rates and costs of what was read on a device. Latency is what is left of a 1 KiB load without its issue and
/// transfer.
Calibration derive(const Readings& readings, const gpu::DeviceInfo& device, const std::string& name);

/// Runs the kernels on a Hopper GPU: some seconds to compile, one to run. Errors: runtime_error for another GPU, for
/// 1.1 GiB that are not free, for the driver and the compiler.
Result<Readings> measure(int device);

}  // namespace warploom::calibrate
