#include "sim/gemm.h"

#include <algorithm>
#include <cmath>

namespace warploom::sim {
namespace {

Cycles scaled(Cycles cycles, double scale) {
  return cycles_for(static_cast<double>(cycles) * scale, 1.0);
}

// LOAD of section 5: the transfer queues only when issuing is over, and the data lands `latency` after the transfer
// ends.
void load(Executor& executor, const GemmCosts& c, Cycles latency, Barrier full) {
  executor.busy(c.issue, 'i').async(MEM, c.transfer, 'L', latency, full);
}

// The drain does not queue on MEM.
void epilogue(Executor& executor, const GemmCosts& c) {
  executor.use(FMA, c.convert, 'E').busy(c.drain, 'D');
}

void synchronous(Model& model, const GemmScenario& scenario, const GemmCosts& c) {
  const Barrier full = model.add_barrier("full");
  Executor loop{"loop", {}};
  for (std::int64_t tile = 0, i = 0; tile < scenario.tiles; ++tile) {
    for (std::int64_t step = 0; step < c.steps; ++step, ++i) {
      load(loop, c, scenario.machine.latency, full);
      loop.wait(full, i + 1).use(TC, c.mma, 'M');
    }
    epilogue(loop, c);
  }
  model.add_executor(std::move(loop));
}

void register_staged(Model& model, const GemmScenario& scenario, const GemmCosts& c) {
  const Barrier full = model.add_barrier("full");
  Executor loop{"loop", {}};
  for (std::int64_t tile = 0; tile < scenario.tiles; ++tile) {
    const std::int64_t first = tile * c.steps;
    load(loop, c, scenario.machine.latency, full);
    loop.wait(full, first + 1).busy(c.register_copy, 'T');
    for (std::int64_t step = 0; step < c.steps; ++step) {
      const bool more = step + 1 < c.steps;
      if (more) load(loop, c, scenario.machine.latency, full);
      loop.use(TC, c.mma, 'M');
      if (more) loop.wait(full, first + step + 2).busy(c.register_copy, 'T');
    }
    epilogue(loop, c);
  }
  model.add_executor(std::move(loop));
}

void cp_async(Model& model, const GemmScenario& scenario, const GemmCosts& c) {
  const Barrier full = model.add_barrier("full");
  const std::int64_t ahead = scenario.stages - 1;
  Executor loop{"loop", {}};
  for (std::int64_t tile = 0; tile < scenario.tiles; ++tile) {
    for (std::int64_t step = 0; step < std::min(ahead, c.steps); ++step) load(loop, c, scenario.machine.latency, full);
    for (std::int64_t step = 0; step < c.steps; ++step) {
      if (ahead < c.steps - step) load(loop, c, scenario.machine.latency, full);  // issue before waiting
      loop.wait(full, tile * c.steps + step + 1).use(TC, c.mma, 'M');
    }
    epilogue(loop, c);
  }
  model.add_executor(std::move(loop));
}

void specialized(Model& model, const GemmScenario& scenario, const GemmCosts& c) {
  const std::int64_t all_steps = c.steps * scenario.tiles;
  const std::int64_t stages = std::min(scenario.stages, all_steps);  // a slot that no step reaches changes nothing
  std::vector<Barrier> full, empty;
  for (std::int64_t s = 0; s < stages; ++s) full.push_back(model.add_barrier(numbered("full", s)));
  for (std::int64_t s = 0; s < stages; ++s) empty.push_back(model.add_barrier(numbered("empty", s)));
  const Barrier turn = model.add_barrier("turn");

  Executor producer{"producer", {}};
  producer.program.reserve(static_cast<std::size_t>(3 * all_steps));
  for (std::int64_t i = 0; i < all_steps; ++i) {
    const auto slot = static_cast<std::size_t>(i % stages);
    producer.wait(empty[slot], i / stages);
    load(producer, c, scenario.machine.latency, full[slot]);
  }
  model.add_executor(std::move(producer));

  constexpr char kTags[] = {'M', 'm', 'N', 'n', 'P', 'p', 'R', 'r'};
  for (std::int64_t consumer = 0; consumer < scenario.consumers; ++consumer) {
    const char tag = kTags[consumer % 8];
    Executor executor{"consumer " + std::to_string(consumer), {}};
    for (std::int64_t tile = consumer; tile < scenario.tiles; tile += scenario.consumers) {
      executor.wait(turn, tile);
      for (std::int64_t i = tile * c.steps; i < (tile + 1) * c.steps; ++i) {
        const auto slot = static_cast<std::size_t>(i % stages);
        executor.wait(full[slot], i / stages + 1).use(TC, c.mma, tag).arrive(empty[slot]);
      }
      executor.arrive(turn);  // before the epilogue: the other consumer's tile overlaps it
      epilogue(executor, c);
    }
    model.add_executor(std::move(executor));
    model.legend.push_back({tag, "MMA of consumer " + std::to_string(consumer)});
  }
}

Status at_least(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return {};
  return Status::invalid_value(std::string(name) + " = " + std::to_string(value) + " must lie in [" +
                               std::to_string(least) + ", " + std::to_string(most) + "]");
}

}  // namespace

Status validate(const GemmScenario& s) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 40;
  if (Status status = validate(s.machine); !status.ok()) return status;
  for (const Status& status :
       {at_least("k", s.k, 1, kLarge), at_least("tiles", s.tiles, 1, kLarge),
        at_least("consumers", s.consumers, 1, 1024), at_least("stages", s.stages, 1, kLarge),
        at_least("tile_m", s.tile_m, 1, 1 << 16), at_least("tile_n", s.tile_n, 1, 1 << 16),
        at_least("tile_k", s.tile_k, 1, 1 << 16), at_least("element_bytes", s.element_bytes, 1, 16),
        at_least("register_copy", s.register_copy.value_or(0), 0, kLongestOperation)})
    if (!status.ok()) return status;
  if (!(s.epilogue_scale >= 0) || !std::isfinite(s.epilogue_scale))
    return Status::invalid_value("epilogue_scale = " + std::to_string(s.epilogue_scale) + " must be 0 or more");
  const double operations =
      7.0 * std::ceil(static_cast<double>(s.k) / static_cast<double>(s.tile_k)) * static_cast<double>(s.tiles);
  if (operations > static_cast<double>(kMostOperations))
    return Status::invalid_value("k = " + std::to_string(s.k) + " with tiles = " + std::to_string(s.tiles) +
                                 " makes more than 2^24 operations; the steady state shows with far fewer steps");
  const GemmCosts c = costs(s);
  for (const Cycles cycles : {c.transfer, c.mma, c.convert, c.drain, c.register_copy})
    if (cycles > kLongestOperation)
      return Status::invalid_value("a rate is so small that one operation takes more than 2^36 cycles; raise it");
  return {};
}

GemmCosts costs(const GemmScenario& s) {
  GemmCosts c;
  const auto m = static_cast<double>(s.tile_m), n = static_cast<double>(s.tile_n), k = static_cast<double>(s.tile_k);
  c.steps = ceil_div(s.k, s.tile_k);
  c.stage_bytes = (s.tile_m + s.tile_n) * s.tile_k * s.element_bytes;
  const bool tma = s.scheme == Scheme::specialized && s.producer == Producer::tma;
  c.issue = tma ? s.machine.issue_tma : s.machine.issue_cp;
  c.transfer = cycles_for(static_cast<double>(c.stage_bytes), s.machine.bandwidth);
  c.mma = cycles_for(2 * m * n * k, s.machine.tensor_rate);
  c.convert = scaled(cycles_for(m * n, s.machine.fma_rate), s.epilogue_scale);
  c.drain = scaled(cycles_for(m * n * static_cast<double>(s.element_bytes), s.machine.bandwidth), s.epilogue_scale);
  c.register_copy =
      s.register_copy.value_or(cycles_for(static_cast<double>(c.stage_bytes), s.machine.register_copy_bandwidth));
  return c;
}

Model gemm_model(const GemmScenario& scenario) {
  const GemmCosts c = costs(scenario);
  Model model = sm_model();
  model.legend = {{'L', "load"}, {'E', "epilogue, convert"}, {'D', "epilogue, drain"}, {'i', "issue"}};
  if (scenario.scheme != Scheme::specialized) model.legend.push_back({'M', "MMA"});
  if (scenario.scheme == Scheme::register_staged) model.legend.push_back({'T', "registers to shared memory"});
  switch (scenario.scheme) {
    case Scheme::sync:
      synchronous(model, scenario, c);
      break;
    case Scheme::register_staged:
      register_staged(model, scenario, c);
      break;
    case Scheme::cp_async:
      cp_async(model, scenario, c);
      break;
    case Scheme::specialized:
      specialized(model, scenario, c);
      break;
  }
  return model;
}

std::vector<std::string> notes(const GemmScenario& s) {
  std::vector<std::string> lines;
  const GemmCosts c = costs(s);
  const bool specialized_scheme = s.scheme == Scheme::specialized;
  const bool has_stages = specialized_scheme || s.scheme == Scheme::cp_async;
  if (s.k % s.tile_k != 0)
    lines.push_back("k = " + std::to_string(s.k) + " is not a multiple of " + std::to_string(s.tile_k) + ": " +
                    std::to_string(c.steps) + " steps, the last one padded with zeros and as long as the others");
  const std::int64_t stage_count = has_stages ? s.stages : s.scheme == Scheme::register_staged ? 2 : 1;
  if (static_cast<double>(stage_count) * static_cast<double>(c.stage_bytes) >
      static_cast<double>(s.machine.shared_memory))
    lines.push_back(std::to_string(stage_count) + " stages take " +
                    std::to_string(static_cast<std::int64_t>(static_cast<double>(stage_count) *
                                                             static_cast<double>(c.stage_bytes) / 1024)) +
                    " KB and do not fit the " + std::to_string(s.machine.shared_memory / 1024) + " KB of an SM");
  if (has_stages && s.stages > c.steps * s.tiles)
    lines.push_back("stages = " + std::to_string(s.stages) + " exceeds the " + std::to_string(c.steps * s.tiles) +
                    " steps; the rest stay empty");
  if (specialized_scheme && s.consumers > s.tiles)
    lines.push_back("consumers = " + std::to_string(s.consumers) + " exceeds tiles = " + std::to_string(s.tiles) +
                    "; the rest have nothing to do");
  if (specialized_scheme && s.consumers > 1)
    lines.push_back("each consumer has a whole " + std::to_string(s.tile_m) + " x " + std::to_string(s.tile_n) +
                    " tile, for comparison's sake; no register file holds " +
                    std::to_string(s.tile_m * s.tile_n / 128) + " accumulators a thread");
  if (specialized_scheme && s.producer == Producer::tma && !s.machine.has_tma)
    lines.push_back(s.machine.name + " has no TMA; pass producer = cp_async for what it can do");
  return lines;
}

std::int64_t conservative_stages(const GemmCosts& c, Cycles latency) {
  return 1 + ceil_div(latency + c.transfer + c.issue, c.mma + c.issue);
}

std::int64_t exact_stages(const GemmCosts& c, Cycles latency) {
  return 1 + ceil_div(latency + c.transfer, c.mma + c.issue);
}

Cycles tensor_work(const GemmScenario& scenario) {
  const GemmCosts c = costs(scenario);
  return c.mma * c.steps * scenario.tiles;
}

std::optional<ClosedForm> closed_form(const GemmScenario& s) {
  const GemmCosts c = costs(s);
  const Cycles I = c.issue, X = c.transfer, L = s.machine.latency, C = c.mma, T = c.register_copy, E = c.epilogue();
  const std::int64_t nk = c.steps, S = s.stages, n = s.tiles;
  switch (s.scheme) {
    case Scheme::sync:
      if (n == 1) return ClosedForm{"nk*(I + X + L + C) + E", nk * (I + X + L + C) + E};
      break;
    case Scheme::register_staged:
      if (n == 1 && I + X + L > I + C) return ClosedForm{"nk*(I + X + L + T) + C + E", nk * (I + X + L + T) + C + E};
      break;
    case Scheme::cp_async:
      // The conservative bound is not enough: the last S - 1 steps issue nothing, so the last load has only (S - 1)*C
      // to land. (X 541, L 1552, C 1046, I 146 meets the bound with S = 3 and stalls one cycle.) And MEM must keep up.
      if (n == 1 && S <= nk && S >= conservative_stages(c, L) && (S - 1) * C >= X + L && X <= C && S * I <= I + X + L)
        return ClosedForm{"I + X + L + nk*C + (nk - S)*I + E", I + X + L + nk * C + (nk - S) * I + E};
      break;
    case Scheme::specialized: {
      // The ring never holds the producer back when a slot's round trip (issue, transfer, latency, use) fits its S
      // steps.
      const bool fed = std::max(I, X) <= C && (S >= nk * n || (S - 1) * C >= I + X + L);
      if (fed && (s.consumers == 1 || n == 1)) {
        if (n == 1) return ClosedForm{"I + X + L + nk*C + E", I + X + L + nk * C + E};
        return ClosedForm{"I + X + L + n*(nk*C + E)", I + X + L + n * (nk * C + E)};
      }
      if (fed && s.consumers == 2 && E <= nk * C)
        return ClosedForm{"I + X + L + n*nk*C + E", I + X + L + n * nk * C + E};
      if (n == 1 && X >= C && I <= X && (S >= nk || (S - 1) * X >= I + L + C))
        return ClosedForm{"I + nk*X + L + C + E", I + nk * X + L + C + E};
      if (n == 1 && I > C && I >= X && (S >= nk || (S - 1) * I >= X + L + C))
        return ClosedForm{"nk*I + X + L + C + E", nk * I + X + L + C + E};
      break;
    }
  }
  return std::nullopt;
}

const char* to_string(Scheme scheme) {
  switch (scheme) {
    case Scheme::sync:
      return "sync";
    case Scheme::register_staged:
      return "register";
    case Scheme::cp_async:
      return "cp_async";
    case Scheme::specialized:
      return "specialized";
  }
  return "";
}

const char* to_string(Producer producer) {
  return producer == Producer::tma ? "tma" : "cp_async";
}

}  // namespace warploom::sim
