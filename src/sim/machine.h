// What the model knows of a GPU: simulator.md section 4.1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/model.h"

namespace warploom::sim {

/// Rates are per SM and per cycle. Every duration is rounded up to a whole cycle: work is done when its last byte or
/// operation is.
struct Machine {
  std::string name = "h100";
  double tensor_rate = 4096;                ///< tensor core, FLOP per cycle (dense, 16-bit operands)
  double bandwidth = 64;                    ///< global memory or L2 to shared memory, bytes per cycle
  Cycles latency = 700;                     ///< from the end of a transfer to its arrival
  Cycles issue_cp = 100;                    ///< issuing one stage with cp.async
  Cycles issue_tma = 10;                    ///< issuing one stage with TMA
  double exp_rate = 16;                     ///< exponentials (or tanh) per cycle
  double fma_rate = 128;                    ///< CUDA-core operations per cycle
  double register_copy_bandwidth = 256;     ///< registers to shared memory, bytes per cycle
  double clock_ghz = 1.83;                  ///< only converts cycles to time
  std::int64_t shared_memory = 228 * 1024;  ///< bytes per SM
  std::int64_t registers = 65536;           ///< 32-bit registers per SM
  std::int64_t sms = 132;
  double dram_tb_per_s = 3.35;  ///< the GPU's total
  bool has_tma = true;
};

/// h100, h200, a100, b200. Beside the H100's numbers only the tensor rates of A100 and B200 are the model's
/// (section 4.1); clocks, shared memory, SM counts and memory rates are data-sheet figures and change no makespan.
const std::vector<Machine>& known_machines();

/// A machine by name, or from a JSON file when `name` ends in ".json". Errors name the machines that exist, or the file
/// and the field that is missing, unknown or out of range.
Result<Machine> find_machine(const std::string& name);

/// A machine from JSON text: an object with every field of Machine, spelt as there. `where` names the text in errors.
Result<Machine> machine_from_json(const std::string& text, const std::string& where);
std::string machine_to_json(const Machine& machine);

/// Rates positive and finite, costs not negative.
Status validate(const Machine& machine);

/// amount / rate, rounded up to whole cycles; at most kLongestOperation + 1, which validate(Model) refuses.
Cycles cycles_for(double amount, double rate);

/// a / b rounded up, for a >= 0 and b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Cycles as microseconds on this machine.
double microseconds(const Machine& machine, Cycles cycles);

}  // namespace warploom::sim
