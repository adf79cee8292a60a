#include "sim/attention.h"

#include <algorithm>
#include <cmath>

namespace warploom::sim {
namespace {

constexpr char kTensorTags[] = {'A', 'B'};

// Barriers of one warpgroup beside the turns.
struct Loads {
  Barrier bias = 0;
  Barrier gradient = 0;
  std::vector<Barrier> full, empty;  // K/V ring, when it is modelled
};

struct Warpgroup {
  std::int64_t index = 0;
  std::vector<BlockWork> blocks;
  Loads loads;
  char tag() const { return kTensorTags[index]; }
};

// The bias tile of block j is asked for one block ahead, so that only what does not fit under a block shows.
void ask_for_bias(Executor& executor, const Warpgroup& group, std::size_t j, Cycles latency) {
  if (j < group.blocks.size() && group.blocks[j].bias > 0)
    executor.async(MEM, group.blocks[j].bias, 'R', latency, group.loads.bias);
}

void elementwise(Executor& executor, const Warpgroup& group, std::size_t j, Cycles latency) {
  const BlockWork& work = group.blocks[j];
  if (work.bias > 0) {
    executor.wait(group.loads.bias, static_cast<Cycles>(j) + 1);
    ask_for_bias(executor, group, j + 1, latency);
  }
  executor.use(SFU, work.sfu, 'x').use(FMA, work.fma, 'o');  // exp first
}

void wait_for_keys(Executor& executor, const Warpgroup& group, std::size_t j) {
  if (group.loads.full.empty()) return;
  const std::size_t stages = group.loads.full.size();
  executor.wait(group.loads.full[j % stages], static_cast<Cycles>(j / stages) + 1);
}

void products_after(Executor& executor, const Warpgroup& group, std::size_t j) {
  for (const Cycles cycles : group.blocks[j].after) executor.use(TC, cycles, group.tag());
  if (!group.loads.full.empty()) executor.arrive(group.loads.empty[j % group.loads.full.size()]);
  if (group.blocks[j].gradient > 0) executor.async(MEM, group.blocks[j].gradient, 'Q', 0, group.loads.gradient);
}

// A turn is the products after block j followed by the products before block j+1, uninterrupted. With one warpgroup
// there are no turns.
Executor in_order(const Warpgroup& group, const std::vector<Barrier>& turns, Cycles latency) {
  Executor executor{"warpgroup " + std::to_string(group.index), {}};
  const bool two = turns.size() == 2;
  const auto w = static_cast<std::size_t>(group.index);
  ask_for_bias(executor, group, 0, latency);
  for (std::size_t j = 0; j < group.blocks.size(); ++j) {
    wait_for_keys(executor, group, j);
    if (two) executor.wait(turns[w], static_cast<Cycles>(j) + group.index);
    for (const Cycles cycles : group.blocks[j].before)
      executor.use(TC, cycles, group.tag());  // ends this warpgroup's turn j
    if (two) executor.arrive(turns[1 - w]);
    elementwise(executor, group, j, latency);
    if (two) executor.wait(turns[w], static_cast<Cycles>(j) + 1 + group.index);
    products_after(executor, group, j);  // begins turn j + 1
  }
  if (two) executor.arrive(turns[1 - w]);
  return executor;
}

void issue_before(Executor& executor, const Warpgroup& group, std::size_t j, Barrier ready) {
  wait_for_keys(executor, group, j);
  for (const Cycles cycles : group.blocks[j].before) executor.async(TC, cycles, group.tag(), 0, ready);
}

Executor two_stage(const Warpgroup& group, Barrier ready, Cycles latency) {
  Executor executor{"warpgroup " + std::to_string(group.index), {}};
  ask_for_bias(executor, group, 0, latency);
  Cycles issued = 0;
  if (!group.blocks.empty()) issue_before(executor, group, 0, ready);
  for (std::size_t j = 0; j < group.blocks.size(); ++j) {
    issued += static_cast<Cycles>(group.blocks[j].before.size());
    executor.wait(ready, issued);
    if (j + 1 < group.blocks.size()) issue_before(executor, group, j + 1, ready);
    elementwise(executor, group, j, latency);
    products_after(executor, group, j);
  }
  return executor;
}

// Fills the ring with K/V blocks. Warpgroups have their own queries and share the keys, so a slot is free when all have
// released it.
Executor key_producer(const AttentionScenario& scenario, const Loads& loads, std::size_t blocks, Cycles transfer) {
  Executor producer{"producer", {}};
  const std::size_t stages = loads.full.size();
  for (std::size_t j = 0; j < blocks; ++j)
    producer.wait(loads.empty[j % stages], warpgroups(scenario.variant) * static_cast<Cycles>(j / stages))
        .busy(scenario.machine.issue_tma, 'i')
        .async(MEM, transfer, 'L', scenario.machine.latency, loads.full[j % stages]);
  return producer;
}

double elements(const AttentionScenario& s) {
  return static_cast<double>(s.rows) * static_cast<double>(s.keys);
}

bool is_spec_model(const AttentionScenario& s) {
  return s.step == Step::softmax && s.pass == Pass::forward && s.bias_bytes == 0 && s.cheap_blocks == 0 &&
         s.kv_stages == 0;
}

}  // namespace

std::int64_t warpgroups(Variant variant) {
  return variant == Variant::inter || variant == Variant::both ? 2 : 1;
}

std::int64_t blocks_of(const AttentionScenario& scenario, std::int64_t warpgroup) {
  if (warpgroups(scenario.variant) == 1) return scenario.blocks;
  return scenario.blocks / 2 + (warpgroup == 0 ? scenario.blocks % 2 : 0);
}

Status validate(const AttentionScenario& s) {
  if (Status status = validate(s.machine); !status.ok()) return status;
  const auto refuse = [](const char* name, std::int64_t value, const std::string& rule) {
    return Status::invalid_value(std::string(name) + " = " + std::to_string(value) + " must " + rule);
  };
  if (s.blocks < 1 || s.blocks > (1 << 20)) return refuse("blocks", s.blocks, "lie in [1, 2^20]");
  if (s.rows < 1 || s.rows > (1 << 16)) return refuse("rows", s.rows, "lie in [1, 2^16]");
  if (s.keys < 1 || s.keys > (1 << 16)) return refuse("keys", s.keys, "lie in [1, 2^16]");
  if (s.head_dim < 1 || s.head_dim > (1 << 16)) return refuse("head_dim", s.head_dim, "lie in [1, 2^16]");
  if (s.bias_bytes < 0 || s.bias_bytes > 16) return refuse("bias_bytes", s.bias_bytes, "lie in [0, 16]");
  if (s.cheap_blocks < 0 || s.cheap_blocks > s.blocks)
    return refuse("cheap_blocks", s.cheap_blocks, "lie in [0, blocks]");
  if (s.kv_stages < 0 || s.kv_stages > (1 << 20)) return refuse("kv_stages", s.kv_stages, "lie in [0, 2^20]");
  // Two-stage schedules hold block j's slot while they ask for block j + 1, and in ping-pong one warpgroup needs block
  // j + 1 while the other still needs block j: with one slot both would wait for themselves.
  if (s.variant != Variant::serial && s.kv_stages == 1)
    return refuse("kv_stages", 1, "be 0 or at least 2 for inter, intra and both, which hold two blocks at once");
  if (!(s.operations >= 0) || !std::isfinite(s.operations))
    return Status::invalid_value("operations = " + std::to_string(s.operations) + " must be 0 or more");
  if (!(s.cheap_share >= 0 && s.cheap_share <= 1))
    return Status::invalid_value("cheap_share = " + std::to_string(s.cheap_share) + " must lie in [0, 1]");
  const BlockWork work = block_work(s, false);
  for (const Cycles cycles : {work.before[0], work.sfu, work.fma, work.bias, work.gradient})
    if (cycles > kLongestOperation)
      return Status::invalid_value("a rate is so small that one operation takes more than 2^36 cycles; raise it");
  return {};
}

BlockWork block_work(const AttentionScenario& s, bool cheap) {
  const double share = cheap ? s.cheap_share : 1.0;
  const double scores = elements(s) * share;
  const double rate = s.machine.tensor_rate * (s.fp8 ? 2 : 1);
  const Cycles product = cycles_for(2 * scores * static_cast<double>(s.head_dim), rate);
  BlockWork work;
  work.sfu = cycles_for(scores,
                        s.machine.exp_rate);  // softmax: one exp a score; HSTU: silu(z) = z/2 (1 + tanh(z/2)), one tanh
  work.fma = cycles_for(scores * s.operations, s.machine.fma_rate);
  work.bias = s.bias_bytes == 0 ? 0 : cycles_for(scores * static_cast<double>(s.bias_bytes), s.machine.bandwidth);
  if (s.pass == Pass::forward) {
    work.before = {product};
    work.after = {product};
    return work;
  }
  work.before = {product, product};
  work.after.assign(s.pass == Pass::backward ? 3 : s.pass == Pass::backward_keys ? 2 : 1, product);
  if (s.pass == Pass::backward) {
    work.gradient = cycles_for(static_cast<double>(s.rows) * static_cast<double>(s.head_dim) * 4, s.machine.bandwidth);
  }
  return work;
}

Model attention_model(const AttentionScenario& s) {
  Model model = sm_model();
  model.legend = {{'A', "products of warpgroup 0"}, {'B', "products of warpgroup 1"}, {'o', "other elementwise work"}};
  model.legend.push_back({'x', s.step == Step::softmax ? "exp" : "tanh of silu"});
  if (s.bias_bytes > 0) model.legend.push_back({'R', "bias load"});
  if (s.pass == Pass::backward) model.legend.push_back({'Q', "dQ added"});
  if (s.kv_stages > 0) model.legend.insert(model.legend.end(), {{'L', "K/V load"}, {'i', "issue"}});

  const std::int64_t count = warpgroups(s.variant);
  const BlockWork full = block_work(s, false), cheap = block_work(s, true);
  std::vector<Warpgroup> groups;
  for (std::int64_t w = 0; w < count; ++w) {
    Warpgroup group{w, std::vector<BlockWork>(static_cast<std::size_t>(blocks_of(s, w)), full), {}};
    const std::int64_t cheap_here = s.cheap_blocks / count + (w == 0 ? s.cheap_blocks % count : 0);
    std::fill(group.blocks.end() - cheap_here, group.blocks.end(), cheap);
    groups.push_back(std::move(group));
  }

  std::vector<Barrier> turns, ready;
  const bool overlaps = s.variant == Variant::intra || s.variant == Variant::both;
  for (Warpgroup& group : groups) {
    const auto barrier = [&](const char* name) { return model.add_barrier(numbered(name, group.index)); };
    if (count == 2 && !overlaps) turns.push_back(barrier("turn"));
    if (overlaps) ready.push_back(barrier("ready"));
    if (s.bias_bytes > 0) group.loads.bias = barrier("bias");
    if (s.pass == Pass::backward) group.loads.gradient = barrier("gradient");
  }
  Loads ring;
  for (std::int64_t stage = 0; stage < std::min(s.kv_stages, blocks_of(s, 0)); ++stage) {
    ring.full.push_back(model.add_barrier(numbered("full", stage)));
    ring.empty.push_back(model.add_barrier(numbered("empty", stage)));
  }
  for (Warpgroup& group : groups) {
    group.loads.full = ring.full;
    group.loads.empty = ring.empty;
  }
  if (s.kv_stages > 0) {
    const double bytes = 2.0 * 2.0 * static_cast<double>(s.keys) * static_cast<double>(s.head_dim) / (s.fp8 ? 2 : 1);
    model.add_executor(key_producer(s, ring, groups[0].blocks.size(), cycles_for(bytes, s.machine.bandwidth)));
  }
  for (const Warpgroup& group : groups)
    model.add_executor(overlaps ? two_stage(group, ready[static_cast<std::size_t>(group.index)], s.machine.latency)
                                : in_order(group, turns, s.machine.latency));
  return model;
}

std::vector<std::string> notes(const AttentionScenario& s) {
  std::vector<std::string> lines;
  if (s.kv_stages == 0) lines.push_back("K/V loads are taken as hidden");
  if (warpgroups(s.variant) == 2 && s.blocks % 2 != 0)
    lines.push_back("blocks = " + std::to_string(s.blocks) + " is odd: warpgroup 0 gets one more than warpgroup 1");
  if (!is_spec_model(s)) lines.push_back("this goes beyond the published model: rules in docs/simulator.md");
  return lines;
}

std::optional<ClosedForm> closed_form(const AttentionScenario& s) {
  if (!is_spec_model(s)) return std::nullopt;
  const BlockWork work = block_work(s, false);
  const Cycles G = work.before[0], M = work.sfu + work.fma, n = s.blocks;
  if (s.variant == Variant::serial) return ClosedForm{"n*(2G + M)", n * (2 * G + M)};
  if (s.variant == Variant::intra)
    return ClosedForm{"G + (n-1)*(max(G, M) + G) + M + G", G + (n - 1) * (std::max(G, M) + G) + M + G};
  return std::nullopt;
}

Cycles tensor_work(const AttentionScenario& s) {
  const auto sum = [](const BlockWork& work) {
    Cycles cycles = 0;
    for (const Cycles c : work.before) cycles += c;
    for (const Cycles c : work.after) cycles += c;
    return cycles;
  };
  return sum(block_work(s, false)) * (s.blocks - s.cheap_blocks) + sum(block_work(s, true)) * s.cheap_blocks;
}

const char* to_string(Variant variant) {
  switch (variant) {
    case Variant::serial:
      return "serial";
    case Variant::inter:
      return "inter";
    case Variant::intra:
      return "intra";
    case Variant::both:
      return "both";
  }
  return "";
}

const char* to_string(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return "forward";
    case Pass::backward:
      return "backward";
    case Pass::backward_keys:
      return "backward-keys";
    case Pass::backward_dq:
      return "backward-dq";
  }
  return "";
}

}  // namespace warploom::sim
