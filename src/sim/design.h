// Design search: which tile, stages, consumers and registers a GEMM or attention kernel should have on a machine, by
// the model (ours, docs/simulator.md).
#pragma once

#include <string>
#include <vector>

#include "sim/parallel.h"
#include "sim/scenario.h"

namespace warploom::sim {

/// The problem and the choices to combine. Everything is per the rules of docs/simulator.md, "Design search".
struct GemmDesignSpace {
  Machine machine;
  std::int64_t m = 8192, n = 8192, k = 8192;
  std::int64_t element_bytes = 2;
  std::vector<std::int64_t> tile_m = {64, 128, 192, 256};
  std::vector<std::int64_t> tile_n = {64, 128, 192, 256};
  std::vector<std::int64_t> tile_k = {64};
  std::vector<std::int64_t> stages = {2, 3, 4, 5, 6, 7, 8};
  std::vector<std::int64_t> consumers = {1, 2, 3};
};

struct AttentionDesignSpace {
  Machine machine;
  std::int64_t length = 8192;  ///< of queries and keys, not causal
  std::int64_t batch = 4, heads = 16;
  std::int64_t head_dim = 128;
  std::vector<std::int64_t> keys = {64, 96, 128, 176, 192, 256};
  std::vector<std::int64_t> kv_stages = {1, 2, 3, 4};
};

struct Design {
  Scenario scenario;  ///< what the busiest SM runs
  std::string shape;  ///< "128x256x64" or "rows 128, keys 128"
  std::string roles;  ///< "2 cooperating consumers", "ping-pong of 2", "inter", ...
  std::int64_t stages = 0;
  std::int64_t shared_memory = 0;       ///< bytes
  std::int64_t producer_registers = 0;  ///< per thread; 0: no producer
  std::int64_t consumer_registers = 0;
  std::int64_t accumulators = 0;  ///< registers per consumer thread that hold accumulators (attention: and scores)
  std::string infeasible;         ///< why not; empty: feasible, and what follows is set
  Cycles makespan = 0;
  double useful =
      0;  ///< the problem's products at full tensor rate over the makespan, percent: padding and uneven tiles count
  double tensor_busy = 0;  ///< percent
  std::string limiter;     ///< largest share of the critical path
  std::string path;        ///< the critical path in shares
  bool pareto = false;     ///< no other design has less shared memory and as much use, or more use and as little
};

/// Bytes of shared memory kept for barriers, and registers a consumer needs beside its accumulators (the even split's
/// 168 - 128).
inline constexpr std::int64_t kBarrierBytes = 1024;
inline constexpr std::int64_t kWorkingRegisters = 40;
inline constexpr std::int64_t kMostRegisters = 255;  ///< that an instruction can name

/// Every combination, feasible ones first and fastest first (then less shared memory); infeasible ones after them with
/// their reasons. When stopped, combinations that were not reached are left out.
Result<std::vector<Design>> search(const GemmDesignSpace& space, const Control& control = {});
Result<std::vector<Design>> search(const AttentionDesignSpace& space, const Control& control = {});

}  // namespace warploom::sim
