#include <cmath>

#include "calibrate/calibration.h"

namespace warploom::calibrate {
namespace {

constexpr double kStageBytes = 49152, kLatencyBytes = 1024;
constexpr double kStepFlops = 2.0 * 128 * 256 * 64;

/// Four digits: what is behind them differs from run to run.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double unit = std::pow(10.0, std::floor(std::log10(std::fabs(value))) - 3);
  return std::round(value / unit) * unit;
}

double per_cycle(double amount, const Reading& reading) {
  return reading.cycles > 0 ? rounded(amount / reading.cycles) : 0;
}

double each(const Reading& reading, std::int64_t times) {
  return times > 0 ? reading.cycles / static_cast<double>(times) : 0;
}

}  // namespace

Calibration derive(const Readings& r, const gpu::DeviceInfo& device, const std::string& name) {
  Calibration result;
  sim::Machine& machine = result.machine;
  machine.name = name;
  machine.sms = device.sm_count;
  machine.shared_memory = device.shared_bytes_per_sm;
  machine.registers = device.registers_per_sm;
  machine.has_tma = true;
  const auto operations = static_cast<double>(r.operations);
  machine.exp_rate = per_cycle(operations, r.exp);
  machine.fma_rate = per_cycle(operations, r.fma);
  result.tanh_rate = per_cycle(operations, r.tanh);
  machine.tensor_rate = per_cycle(static_cast<double>(r.tensor_steps) * kStepFlops, r.tensor);
  machine.clock_ghz = r.tensor.ns > 0 ? rounded(r.tensor.cycles / r.tensor.ns) : 0;
  machine.bandwidth = per_cycle(static_cast<double>(r.l2_stages) * kStageBytes, r.bandwidth_l2);
  const double memory_bytes = static_cast<double>(r.memory_stages) * kStageBytes;
  result.memory_bandwidth = per_cycle(memory_bytes, r.bandwidth_memory);
  machine.dram_tb_per_s = rounded(memory_bytes * static_cast<double>(r.bandwidth_memory.ctas) /
                                  std::max(1.0, r.bandwidth_memory.span_ns) * 1e-3);
  machine.register_copy_bandwidth = per_cycle(static_cast<double>(r.register_bytes), r.register_copy);
  machine.issue_tma = std::llround(each(r.issue_tma, r.issues));
  machine.issue_cp = std::llround(each(r.issue_cp, r.issues));
  const double transfer = machine.bandwidth > 0 ? kLatencyBytes / machine.bandwidth : 0;
  const auto latency = [&](const Reading& reading) {
    return each(reading, r.latency_loads) - static_cast<double>(machine.issue_tma) / 2 - transfer;
  };
  machine.latency = std::max<sim::Cycles>(0, std::llround(latency(r.latency_l2)));
  result.memory_latency = std::round(latency(r.latency_memory));
  result.turn = rounded(each(r.turns, 2 * r.hand_overs));
  result.mbarrier = rounded(each(r.mbarrier, 2 * r.hand_overs));
  return result;
}

}  // namespace warploom::calibrate
