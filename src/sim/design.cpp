#include "sim/design.h"

#include <algorithm>

#include "sim/critical_path.h"

namespace warploom::sim {
namespace {

// Registers for consumers of `warpgroups` warpgroups beside a producer warpgroup: the larger producer share that leaves
// consumers what they need, else the smaller. Without a producer (no TMA: no setmaxnreg either) all warpgroups share
// evenly.
void split_registers(const Machine& machine, std::int64_t warpgroups, std::int64_t needed, Design& design) {
  const auto left = [&](std::int64_t producer) {
    return std::min(kMostRegisters, (machine.registers - 128 * producer) / (128 * warpgroups)) / 8 * 8;
  };
  if (!machine.has_tma) {
    design.consumer_registers = left(0);
    return;
  }
  design.producer_registers = left(40) >= needed ? 40 : 24;
  design.consumer_registers = left(design.producer_registers);
}

std::string too_large(const Design& design, const Machine& machine) {
  if (design.shared_memory > machine.shared_memory)
    return "shared memory: " + std::to_string(design.shared_memory) + " B exceed the SM's " +
           std::to_string(machine.shared_memory);
  if (design.accumulators + kWorkingRegisters > design.consumer_registers)
    return "registers: " + std::to_string(design.accumulators) + " accumulators + " +
           std::to_string(kWorkingRegisters) + " exceed the consumer's " + std::to_string(design.consumer_registers);
  return {};
}

void simulate_design(Design& design, double ideal_cycles, std::int64_t waves) {
  Result<Run> run = run_scenario(design.scenario, {.trace = true});
  if (!run.ok()) {
    design.infeasible = run.status().message();
    return;
  }
  design.makespan = run->timeline.makespan * waves;
  design.useful = 100 * ideal_cycles / static_cast<double>(design.makespan);
  design.tensor_busy = run->timeline.utilisation(TC);
  const std::vector<Share> path = shares(critical_path(run->model, run->timeline));
  design.limiter = path.empty() ? "" : path.front().what;
  design.path = to_string(path);
}

// Of designs that are equal in both, the first in order stands for all.
void mark_pareto(std::vector<Design>& designs) {
  for (std::size_t i = 0; i < designs.size(); ++i) {
    Design& design = designs[i];
    if (!design.infeasible.empty()) continue;
    design.pareto = true;
    for (std::size_t j = 0; j < designs.size() && design.pareto; ++j) {
      const Design& other = designs[j];
      if (i == j || !other.infeasible.empty()) continue;
      const bool no_worse = other.shared_memory <= design.shared_memory && other.useful >= design.useful;
      const bool better = other.shared_memory < design.shared_memory || other.useful > design.useful;
      if (no_worse && (better || j < i)) design.pareto = false;
    }
  }
}

// Runs the feasible ones on all cores and puts everything in order.
std::vector<Design> finish(std::vector<Design> designs, const Control& control,
                           const std::function<void(Design&)>& simulate) {
  std::vector<char> reached(designs.size(), 0);
  for_each_index(static_cast<std::int64_t>(designs.size()), control, [&](std::int64_t i) {
    Design& design = designs[static_cast<std::size_t>(i)];
    if (design.infeasible.empty()) simulate(design);
    reached[static_cast<std::size_t>(i)] = 1;
  });
  std::vector<Design> done;
  for (std::size_t i = 0; i < designs.size(); ++i)
    if (reached[i]) done.push_back(std::move(designs[i]));
  std::stable_sort(done.begin(), done.end(), [](const Design& a, const Design& b) {
    if (a.infeasible.empty() != b.infeasible.empty()) return a.infeasible.empty();
    if (!a.infeasible.empty()) return false;
    return a.makespan != b.makespan ? a.makespan < b.makespan : a.shared_memory < b.shared_memory;
  });
  mark_pareto(done);
  return done;
}

Status positive(const char* name, const std::vector<std::int64_t>& values) {
  if (values.empty()) return Status::invalid_value(std::string(name) + " has no values; give at least one");
  for (const std::int64_t value : values)
    if (value < 1 || value > (std::int64_t{1} << 32))
      return Status::invalid_value(std::string(name) + " = " + std::to_string(value) + " must lie in [1, 2^32]");
  return {};
}

// One combination, with the reason why it cannot be built, if any.
Design gemm_design(const GemmDesignSpace& space, std::int64_t tile_m, std::int64_t tile_n, std::int64_t tile_k,
                   std::int64_t stages, std::int64_t consumers, bool ping_pong) {
  Design design;
  GemmScenario s;
  s.machine = space.machine;
  s.scheme = space.machine.has_tma ? Scheme::specialized : Scheme::cp_async;
  s.k = space.k;
  s.tile_m = tile_m;
  s.tile_n = tile_n;
  s.tile_k = tile_k;
  s.stages = stages;
  s.element_bytes = space.element_bytes;
  s.consumers = ping_pong ? consumers : 1;
  s.tiles = ceil_div(ceil_div(space.m, tile_m) * ceil_div(space.n, tile_n), space.machine.sms);
  design.scenario = s;
  design.stages = stages;
  design.shape = std::to_string(tile_m) + "x" + std::to_string(tile_n) + "x" + std::to_string(tile_k);
  design.roles = consumers == 1 ? "1 consumer"
                 : ping_pong    ? "ping-pong of " + std::to_string(consumers)
                                : std::to_string(consumers) + " cooperating consumers";
  design.shared_memory = stages * (tile_m + tile_n) * tile_k * space.element_bytes + kBarrierBytes;
  design.accumulators = ceil_div(tile_m * tile_n, 128 * (ping_pong ? 1 : consumers));
  split_registers(space.machine, consumers, design.accumulators + kWorkingRegisters, design);
  const std::int64_t rows = ping_pong ? tile_m : tile_m / consumers;
  if (rows % 64 != 0 || (!ping_pong && tile_m % consumers != 0))
    design.infeasible = "a consumer's rows (" + std::to_string(tile_m) +
                        (ping_pong ? "" : " / " + std::to_string(consumers)) + ") must be a multiple of 64";
  else if (tile_n % 8 != 0 || tile_n > 256)
    design.infeasible = "tile_n = " + std::to_string(tile_n) + " must be a multiple of 8 up to 256";
  else
    design.infeasible = too_large(design, space.machine);
  return design;
}

Design attention_design(const AttentionDesignSpace& space, Variant variant, std::int64_t keys, std::int64_t stages) {
  Design design;
  AttentionScenario s;
  s.machine = space.machine;
  s.variant = variant;
  s.keys = keys;
  s.head_dim = space.head_dim;
  s.kv_stages = stages;
  const std::int64_t groups = warpgroups(variant), rows = groups * s.rows;
  s.blocks = groups * ceil_div(space.length, keys);
  design.scenario = s;
  design.stages = stages;
  design.shape = "rows " + std::to_string(rows) + ", keys " + std::to_string(keys);
  design.roles = to_string(variant);
  design.shared_memory = (rows + 2 * stages * keys) * space.head_dim * 2 + kBarrierBytes;
  const bool overlaps = variant == Variant::intra || variant == Variant::both;
  // 32-bit accumulators of O and S (twice when the next S is computed ahead) and the 16-bit P.
  design.accumulators =
      ceil_div(s.rows * (space.head_dim + keys * (overlaps ? 2 : 1)), 128) + ceil_div(s.rows * keys, 256);
  split_registers(space.machine, groups, design.accumulators + kWorkingRegisters, design);
  design.infeasible = too_large(design, space.machine);
  if (design.infeasible.empty())
    if (const Status status = validate(s); !status.ok()) design.infeasible = status.message();
  return design;
}

}  // namespace

Result<std::vector<Design>> search(const GemmDesignSpace& space, const Control& control) {
  for (const Status& status :
       {validate(space.machine), positive("m", {space.m}), positive("n", {space.n}), positive("k", {space.k}),
        positive("tile_m", space.tile_m), positive("tile_n", space.tile_n), positive("tile_k", space.tile_k),
        positive("stages", space.stages), positive("consumers", space.consumers),
        positive("element_bytes", {space.element_bytes})})
    if (!status.ok()) return status;
  std::vector<Design> designs;
  for (const std::int64_t tile_m : space.tile_m)
    for (const std::int64_t tile_n : space.tile_n)
      for (const std::int64_t tile_k : space.tile_k)
        for (const std::int64_t stages : space.stages)
          for (const std::int64_t consumers : space.consumers) {
            designs.push_back(gemm_design(space, tile_m, tile_n, tile_k, stages, consumers, false));
            if (consumers > 1 && space.machine.has_tma)
              designs.push_back(gemm_design(space, tile_m, tile_n, tile_k, stages, consumers, true));
          }
  const double ideal = 2.0 * static_cast<double>(space.m) * static_cast<double>(space.n) *
                       static_cast<double>(space.k) / space.machine.tensor_rate /
                       static_cast<double>(space.machine.sms);
  return finish(std::move(designs), control, [&](Design& design) { simulate_design(design, ideal, 1); });
}

Result<std::vector<Design>> search(const AttentionDesignSpace& space, const Control& control) {
  for (const Status& status :
       {validate(space.machine), positive("length", {space.length}), positive("batch", {space.batch}),
        positive("heads", {space.heads}), positive("head_dim", {space.head_dim}), positive("keys", space.keys),
        positive("kv_stages", space.kv_stages)})
    if (!status.ok()) return status;
  std::vector<Design> designs;
  for (const Variant variant : {Variant::serial, Variant::inter, Variant::intra, Variant::both})
    for (const std::int64_t keys : space.keys)
      for (const std::int64_t stages : space.kv_stages)
        designs.push_back(attention_design(space, variant, keys, stages));
  const double products = 4.0 * static_cast<double>(space.length) * static_cast<double>(space.length) *
                          static_cast<double>(space.head_dim) * static_cast<double>(space.batch * space.heads);
  const double ideal = products / space.machine.tensor_rate / static_cast<double>(space.machine.sms);
  return finish(std::move(designs), control, [&](Design& design) {
    const auto& s = std::get<AttentionScenario>(design.scenario);
    const std::int64_t items = ceil_div(space.length, warpgroups(s.variant) * s.rows) * space.batch * space.heads;
    simulate_design(design, ideal, ceil_div(items, space.machine.sms));  // the busiest SM, one item after the other
  });
}

}  // namespace warploom::sim
