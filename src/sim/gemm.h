// The GEMM schemes of simulator.md section 5 as programs, and their closed forms of section 6.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/machine.h"
#include "sim/model.h"

namespace warploom::sim {

enum class Scheme { sync, register_staged, cp_async, specialized };
enum class Producer { tma, cp_async };

/// One SM that computes `tiles` output tiles of tile_m x tile_n, each a sum over k.
struct GemmScenario {
  Machine machine;
  Scheme scheme = Scheme::specialized;
  std::int64_t k = 4096;
  std::int64_t tiles = 1;
  std::int64_t consumers = 1;           ///< specialized only; 2 is ping-pong
  std::int64_t stages = 4;              ///< cp_async and specialized
  Producer producer = Producer::tma;    ///< specialized only; the other schemes issue with cp.async
  std::optional<Cycles> register_copy;  ///< cycles a stage; none: stage bytes / machine.register_copy_bandwidth
  double epilogue_scale = 1;            ///< multiplies both parts of the epilogue
  std::int64_t tile_m = 128, tile_n = 256, tile_k = 64;
  std::int64_t element_bytes = 2;  ///< of operands and output
};

/// The costs of section 4.2, in cycles.
struct GemmCosts {
  std::int64_t steps = 0;  ///< ceil(k / tile_k): the last step is padded with zeros and costs as much as any other
  std::int64_t stage_bytes = 0;
  Cycles issue = 0;
  Cycles transfer = 0;
  Cycles mma = 0;
  Cycles convert = 0;  ///< epilogue on FMA, scaled
  Cycles drain = 0;    ///< epilogue, busy, scaled
  Cycles register_copy = 0;
  Cycles epilogue() const { return convert + drain; }
};

Status validate(const GemmScenario& scenario);
GemmCosts costs(const GemmScenario& scenario);

/// The programs of the scenario; call validate() first. Several tiles of a scheme without specialization run one after
/// the other, each with its own prologue and epilogue.
Model gemm_model(const GemmScenario& scenario);

/// What a reader should know about the scenario: padding, shared memory exceeded, options without effect, impossible
/// accumulators.
std::vector<std::string> notes(const GemmScenario& scenario);

/// A makespan that section 6 gives, with the formula.
struct ClosedForm {
  std::string formula;
  Cycles makespan = 0;
};

/// The closed form whose stated conditions the scenario meets; none otherwise.
std::optional<ClosedForm> closed_form(const GemmScenario& scenario);

/// Section 6's counts of stages. conservative: 1 + ceil((L + X + I) / (C + I)); exact: 1 + ceil((L + X) / (C + I)).
std::int64_t conservative_stages(const GemmCosts& costs, Cycles latency);
std::int64_t exact_stages(const GemmCosts& costs, Cycles latency);

/// tile_m * tile_n * tile_k * (2 FLOP) * steps * tiles over the tensor rate: what the tensor core must be busy.
Cycles tensor_work(const GemmScenario& scenario);

const char* to_string(Scheme scheme);
const char* to_string(Producer producer);

}  // namespace warploom::sim
