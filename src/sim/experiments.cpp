#include "sim/experiments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "sim/rows.h"

namespace warploom::sim {
namespace {

// Only the experiments' own machines are asked for here, and they exist.
Machine machine(const char* name) {
  return *find_machine(name);
}

GemmScenario gemm(Scheme scheme, std::int64_t stages = 4) {
  GemmScenario scenario;
  scenario.scheme = scheme;
  scenario.stages = stages;
  return scenario;
}

GemmScenario with_issue(Scheme scheme, Cycles issue, std::int64_t k = 4096) {
  GemmScenario scenario = gemm(scheme);
  scenario.producer = Producer::cp_async;
  scenario.machine.issue_cp = issue;
  scenario.k = k;
  return scenario;
}

GemmScenario with_bandwidth(Scheme scheme, double bandwidth) {
  GemmScenario scenario = gemm(scheme);
  scenario.machine.bandwidth = bandwidth;
  return scenario;
}

GemmScenario with_latency(Cycles latency) {
  GemmScenario scenario = gemm(Scheme::cp_async);
  scenario.machine.latency = latency;
  return scenario;
}

GemmScenario persistent(std::int64_t k, double epilogue_scale, std::int64_t consumers) {
  GemmScenario scenario = gemm(Scheme::specialized);
  scenario.tiles = 8;
  scenario.k = k;
  scenario.epilogue_scale = epilogue_scale;
  scenario.consumers = consumers;
  return scenario;
}

AttentionScenario attention(const char* machine_name, Variant variant, bool fp8 = false) {
  AttentionScenario scenario;
  scenario.machine = machine(machine_name);
  scenario.variant = variant;
  scenario.fp8 = fp8;
  return scenario;
}

std::vector<Claim> tensor(std::string percent) {
  return {{Measure::tensor_percent, std::move(percent)}};
}
std::vector<Claim> exact(std::string makespan, std::string percent) {
  std::vector<Claim> claims = {{Measure::makespan, std::move(makespan)}};
  if (!percent.empty()) claims.push_back({Measure::tensor_percent, std::move(percent)});
  return claims;
}

std::vector<Experiment> make_experiments() {
  std::vector<Experiment> list = {
      {"synchronous", "7.1", "load, wait, multiply", gemm(Scheme::sync), exact("167168", "39.2"), 0, 72},
      {"register-staged", "7.1", "double buffer through registers", gemm(Scheme::register_staged),
       exact("114944", "57.0"), 0, 72},
      {"cp-async-2", "7.1", "cp.async, 2 stages", gemm(Scheme::cp_async, 2), exact("85348", ""), 0, 72},
      {"cp-async-3", "7.1", "cp.async, 3 stages", gemm(Scheme::cp_async, 3), exact("74484", "88.0"), 0, 72},
      {"specialized", "7.1", "producer warp with TMA, 4 stages", gemm(Scheme::specialized), exact("68294", "96.0"), 0,
       72},
      {"free-issue-cp-async", "7.1", "cp.async, 4 stages, issue 0", with_issue(Scheme::cp_async, 0), exact("68284", ""),
       0, 72},
      {"free-issue-specialized", "7.1", "producer warp, issue 0: the same", with_issue(Scheme::specialized, 0),
       exact("68284", ""), 0, 72},
      {"issue-800", "7.1", "producer warp with cp.async, issue 800", with_issue(Scheme::specialized, 800),
       exact("69084", "94.9"), 0, 72},
      {"half-bandwidth-cp-async",
       "7.1",
       "cp.async, 4 stages, 32 B/cycle",
       with_bandwidth(Scheme::cp_async, 32),
       {{Measure::tensor_percent, "64.0"}, {Measure::memory_percent, "96"}},
       0,
       72},
      {"half-bandwidth-specialized",
       "7.1",
       "producer warp, 32 B/cycle",
       with_bandwidth(Scheme::specialized, 32),
       {{Measure::tensor_percent, "64.0"}, {Measure::memory_percent, "96"}},
       0,
       72},
      {"stages-latency-300",
       "7.2",
       "stages needed, L = 300",
       with_latency(300),
       {{Measure::stages_needed, "2"}},
       0,
       72},
      {"stages-latency-700",
       "7.2",
       "stages needed, L = 700",
       with_latency(700),
       {{Measure::stages_needed, "3"}},
       0,
       72},
      {"stages-latency-1500",
       "7.2",
       "stages needed, L = 1500",
       with_latency(1500),
       {{Measure::stages_needed, "4"}},
       0,
       72},
      {"stages-latency-3000",
       "7.2",
       "stages needed, L = 3000",
       with_latency(3000),
       {{Measure::stages_needed, "5"}},
       0,
       72},
      {"persistent-k256-one", "7.3", "8 tiles, K 256, one consumer", persistent(256, 1, 1), exact("44486", "73.7"), 0,
       72},
      {"persistent-k256-ping-pong", "7.3", "8 tiles, K 256, ping-pong", persistent(256, 1, 2), exact("35526", "92.2"),
       0, 72},
      {"persistent-k1024-one", "7.3", "8 tiles, K 1024, epilogue x 8, one consumer", persistent(1024, 8, 1),
       tensor("61.1"), 0, 72},
      {"persistent-k1024-ping-pong", "7.3", "8 tiles, K 1024, epilogue x 8, ping-pong", persistent(1024, 8, 2),
       tensor("91.8"), 0, 72},
      {"attention-h100-serial", "7.4", "one warpgroup", attention("h100", Variant::serial), exact("57344", "57.1"), 0,
       72},
      {"attention-h100-inter", "7.4", "two warpgroups, ping-pong", attention("h100", Variant::inter),
       exact("33280", "98.5"), 0, 72},
      {"attention-h100-intra", "7.4", "two stages in one warpgroup", attention("h100", Variant::intra),
       exact("41472", "79.0"), 0, 72},
      {"attention-h100-both", "7.4", "two stages in two warpgroups", attention("h100", Variant::both),
       exact("33024", "99.2"), 0, 72},
      {"attention-b200-serial", "7.4", "one warpgroup", attention("b200", Variant::serial), {}, 0, 72},
      {"attention-b200-inter", "7.4", "two warpgroups, ping-pong", attention("b200", Variant::inter), {}, 0, 72},
      {"attention-b200-intra", "7.4", "two stages in one warpgroup", attention("b200", Variant::intra), tensor("49.6"),
       0, 72},
      {"attention-b200-both", "7.4", "two stages in two warpgroups", attention("b200", Variant::both), tensor("96"), 0,
       72},
      {"attention-fp8-intra", "7.4", "H100 with FP8 is the B200's model", attention("h100", Variant::intra, true),
       tensor("49.6"), 0, 72},
      {"attention-fp8-both", "7.4", "H100 with FP8 is the B200's model", attention("h100", Variant::both, true),
       tensor("96"), 0, 72},
      {"timeline-synchronous",
       "7.5",
       "the first 12,000 cycles",
       gemm(Scheme::sync),
       {{Measure::tensor_row, "9. 7M 9. 6M 10. 6M 9. 6M 10."},
        {Measure::memory_row, "1. 4L 11. 5L 11. 4L 11. 5L 11. 4L 5."}},
       12000,
       72},
      {"timeline-specialized",
       "7.5",
       "the first 12,000 cycles",
       gemm(Scheme::specialized),
       {{Measure::tensor_row, "9. 63M"}},
       12000,
       72},
      {"timeline-persistent",
       "7.5",
       "8 tiles, K 512, one consumer",
       persistent(512, 1, 1),
       {{Measure::makespan, "77254"}, {Measure::tensor_row, "2. 8M 1. 9M 1. 9M 1. 8M 2. 8M 2. 8M 1. 9M 1. 9M 1."}},
       0,
       80},
      {"timeline-attention",
       "7.5",
       "ping-pong, the first 6,000 cycles",
       attention("h100", Variant::inter),
       {{Measure::tensor_row, "6A 6B 3. 13A 12B 12A 13B 7A"}},
       6000,
       72},
      {"slow-producer", "9", "issue 1500 at K 4096: start-up and epilogue count", with_issue(Scheme::specialized, 1500),
       tensor("65.7"), 0, 72},
      {"slow-producer-long", "9", "issue 1500 at K 65,536: the limit 1024/1500",
       with_issue(Scheme::specialized, 1500, 65536), tensor("68.1"), 0, 72},
      {"dram-share",
       "9",
       "one SM's share of 3.35 TB/s, 13.9 B/cycle: memory bound",
       with_bandwidth(Scheme::specialized, 13.9),
       {},
       0,
       72},
  };
  return list;
}

int decimals_of(const std::string& figure) {
  const std::size_t point = figure.find('.');
  return point == std::string::npos ? 0 : static_cast<int>(figure.size() - point - 1);
}

std::string measured(const Claim& claim, const Experiment& experiment, const Run& run) {
  const Timeline& timeline = run.timeline;
  const Cycles until = experiment.until > 0 ? experiment.until : timeline.makespan;
  switch (claim.measure) {
    case Measure::tensor_percent:
      return fixed(timeline.utilisation(TC), decimals_of(claim.published));
    case Measure::memory_percent:
      return fixed(timeline.utilisation(MEM), decimals_of(claim.published));
    case Measure::makespan:
      return std::to_string(timeline.makespan);
    case Measure::stages_needed:
      return std::to_string(std::get<GemmScenario>(experiment.scenario).stages);
    case Measure::tensor_row:
      return run_lengths(sample_row(timeline.intervals[TC], until, experiment.width));
    case Measure::memory_row:
      return run_lengths(sample_row(timeline.intervals[MEM], until, experiment.width));
  }
  return {};
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string fixed(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

const std::vector<Experiment>& experiments() {
  static const std::vector<Experiment> list = make_experiments();
  return list;
}

Result<Experiment> find_experiment(const std::string& name) {
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const Experiment& experiment : experiments()) {
    if (experiment.name == name) return experiment;
    const bool contains = !name.empty() && experiment.name.find(name) != std::string::npos;
    near.emplace_back(contains ? 0 : edit_distance(experiment.name, name), experiment.name);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return Status::invalid_value("experiment = '" + name + "' is not known; near it are " + near[0].second + ", " +
                               near[1].second + ", " + near[2].second + " (`warploom simulate` lists all)");
}

Result<std::int64_t> stages_needed(GemmScenario scenario) {
  std::vector<double> utilisation;
  for (scenario.stages = 2; scenario.stages <= 8; ++scenario.stages) {
    const Result<Run> run = run_scenario(scenario);
    if (!run.ok()) return run.status();
    utilisation.push_back(run->timeline.utilisation(TC));
  }
  const double best = *std::max_element(utilisation.begin(), utilisation.end());
  const auto enough = std::find_if(utilisation.begin(), utilisation.end(), [&](double u) { return best - u < 1; });
  return 2 + (enough - utilisation.begin());
}

bool Outcome::agrees() const {
  return std::all_of(claims.begin(), claims.end(), [](const CheckedClaim& claim) { return claim.agrees; });
}

Result<Outcome> run_experiment(const Experiment& experiment, RunOptions options) {
  Outcome outcome;
  outcome.experiment = experiment;
  for (const Claim& claim : experiment.claims) {
    if (claim.measure != Measure::stages_needed) continue;
    auto& scenario = std::get<GemmScenario>(outcome.experiment.scenario);
    const Result<std::int64_t> stages = stages_needed(scenario);
    if (!stages.ok()) return stages.status();
    scenario.stages = *stages;
  }
  Result<Run> run = run_scenario(outcome.experiment.scenario, options);
  if (!run.ok()) return run.status();
  outcome.run = std::move(*run);
  for (const Claim& claim : experiment.claims) {
    std::string ours = measured(claim, outcome.experiment, outcome.run);
    const bool agrees = ours == claim.published;
    outcome.claims.push_back({claim, std::move(ours), agrees});
  }
  return outcome;
}

std::vector<Formula> formulas(const Machine& machine) {
  GemmScenario scenario;
  scenario.machine = machine;
  scenario.scheme = Scheme::cp_async;
  const GemmCosts c = costs(scenario);
  const auto number = [](Cycles cycles) { return static_cast<double>(cycles); };
  const double I = number(c.issue), C = number(c.mma), L = number(machine.latency), E = number(c.epilogue());
  const double in_flight = machine.bandwidth * L;
  const double latency_s = L / (machine.clock_ghz * 1e9);
  const double gpu_in_flight = machine.dram_tb_per_s * 1e12 * latency_s;
  std::string conservative, counted;
  for (const Cycles latency : {300, 700, 1500, 3000}) {
    const char* comma = latency == 300 ? "" : ", ";
    conservative += comma + std::to_string(conservative_stages(c, latency));
    counted += comma + std::to_string(exact_stages(c, latency));
  }
  AttentionScenario attention;
  attention.machine = machine;
  const BlockWork block = block_work(attention, false);
  const double G = number(block.before[0]), M = number(block.sfu + block.fma);
  const auto registers_left = [&](std::int64_t producer, std::int64_t consumers) {
    return (machine.registers - 128 * producer) / (128 * consumers) / 8 * 8;
  };
  const std::int64_t even = machine.registers / 384 / 8 * 8;
  const auto triple = [&](auto f) { return f(40, 2) + ", " + f(24, 2) + ", " + f(24, 3); };
  const double epilogue_main = 4 * C, long_main = 8 * 16 * C, long_epilogue = 8 * E;
  return {
      {"ideal time", "nk * C",
       std::to_string(c.steps * c.mma) + " cycles = " + fixed(microseconds(machine, c.steps * c.mma), 1) + " us"},
      {"Little's law, per SM", "bandwidth * L",
       fixed(in_flight, 0) + " B = " + fixed(in_flight / 1024, 2) + " KB, " +
           fixed(in_flight / number(c.stage_bytes), 1) + " stage"},
      {"Little's law, GPU at " + fixed(machine.dram_tb_per_s, 2) + " TB/s", "rate * L / clock",
       fixed(latency_s * 1e9, 0) + " ns, " + fixed(gpu_in_flight / 1e6, 2) + " MB; " +
           fixed(gpu_in_flight / number(machine.sms) / 1000, 1) + " KB for each of " + std::to_string(machine.sms) +
           " SMs"},
      {"one SM's share of the GPU's memory", "rate / SMs / clock",
       fixed(machine.dram_tb_per_s * 1e3 / number(machine.sms) / machine.clock_ghz, 1) + " B/cycle"},
      {"cp.async ceiling", "C / (C + I)", fixed(100 * C / (C + I), 1) + " %"},
      {"stage bound, conservative", "1 + ceil((L + X + I) / (C + I))", conservative + " for L = 300, 700, 1500, 3000"},
      {"stages, exact count", "1 + ceil((L + X) / (C + I))", counted + " for L = 300, 700, 1500, 3000"},
      {"slow producer limit (long K)", "C / max(C, producer's step)",
       fixed(C, 0) + "/1500 = " + fixed(100 * C / std::max(C, 1500.0), 0) + " %"},
      {"epilogue ceiling, one consumer, K 256", "main / (main + E)",
       fixed(100 * epilogue_main / (epilogue_main + E), 1) + " %"},
      {"epilogue ceiling, ping-pong, 8 tiles, K 1024, E x 8", "n*main / (n*main + E)",
       fixed(100 * long_main / (long_main + long_epilogue), 1) + " %"},
      {"staging registers", "stage bytes / 4 / 128 threads", std::to_string(c.stage_bytes / 4 / 128)},
      {"accumulators per thread", "tile / 256 threads", std::to_string(scenario.tile_m * scenario.tile_n / 256)},
      {"even register split", "floor8(registers / 384)",
       std::to_string(even) + ", leaves " + std::to_string(even - scenario.tile_m * scenario.tile_n / 256)},
      {"consumer registers for (r_p, n_c) = (40, 2), (24, 2), (24, 3)", "128*r_p + 128*n_c*r_c <= registers",
       triple([&](std::int64_t p, std::int64_t n) { return std::to_string(registers_left(p, n)); })},
      {"gain per consumer thread, (40, 2) and (24, 2)", "r_c - even split",
       std::to_string(registers_left(40, 2) - even) + ", " + std::to_string(registers_left(24, 2) - even)},
      {"exp : GEMM time, from peak rates", "(989/3.9) / (4*128) = 254/512", fixed(989 / 3.9 / 512, 2)},
      {"intra estimate", "(G0+G1) / (max(G0, exp+other) + G1)", fixed(100 * 2 * G / (std::max(G, M) + G), 0) + " %"},
      {"FA3 share of peak", "661/989", fixed(100 * 661.0 / 989, 0) + " %"},
      {"FP8 FA3 share of peak", "1.2/1.979", fixed(100 * 1.2 / 1.979, 0) + " %"},
  };
}

}  // namespace warploom::sim
