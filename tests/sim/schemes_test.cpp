// Makespans and utilisations of simulator.md section 7, the invariants of section 3, and section 6's closed forms
// against the engine.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "sim/attention.h"
#include "sim/engine.h"
#include "sim/gemm.h"

namespace warploom::sim {
namespace {

void expect_invariants(const Timeline& timeline, Cycles tensor) {
  ASSERT_FALSE(timeline.deadlock.has_value());
  for (const std::vector<Interval>& intervals : timeline.intervals) {
    Cycles last = 0;
    for (const Interval& interval : intervals) {
      ASSERT_GE(interval.start, last);
      ASSERT_GT(interval.end, interval.start);
      ASSERT_LE(interval.end, timeline.makespan);
      last = interval.end;
    }
  }
  EXPECT_EQ(timeline.busy(TC), tensor);
}

// Runs the scenario forwards and with reversed ties, checks the invariants, and returns the makespan.
template <typename Scenario>
Timeline run_both_ways(const Scenario& scenario, const Model& model) {
  EXPECT_TRUE(validate(scenario).ok()) << validate(scenario).message();
  EXPECT_TRUE(validate(model).ok());
  const Timeline timeline = run(model);
  expect_invariants(timeline, tensor_work(scenario));
  const Timeline reversed = run(model, {.reverse_ties = true});
  expect_invariants(reversed, tensor_work(scenario));
  EXPECT_EQ(timeline.makespan, reversed.makespan);
  return timeline;
}

Timeline run_both_ways(const GemmScenario& scenario) {
  return run_both_ways(scenario, gemm_model(scenario));
}
Timeline run_both_ways(const AttentionScenario& scenario) {
  return run_both_ways(scenario, attention_model(scenario));
}

double two_decimals(double percent) {
  return std::round(percent * 100) / 100;
}

GemmScenario gemm(Scheme scheme, std::int64_t stages = 4) {
  GemmScenario scenario;
  scenario.scheme = scheme;
  scenario.stages = stages;
  return scenario;
}

void expect_gemm(const GemmScenario& scenario, Cycles makespan, double utilisation) {
  const Timeline timeline = run_both_ways(scenario);
  EXPECT_EQ(timeline.makespan, makespan);
  EXPECT_DOUBLE_EQ(two_decimals(timeline.utilisation(TC)), utilisation);
}

TEST(Section71, SingleTile) {
  expect_gemm(gemm(Scheme::sync), 167168, 39.20);
  expect_gemm(gemm(Scheme::register_staged), 114944, 57.02);
  expect_gemm(gemm(Scheme::cp_async, 1), 167168, 39.20);
  expect_gemm(gemm(Scheme::cp_async, 2), 85348, 76.79);
  expect_gemm(gemm(Scheme::cp_async, 3), 74484, 87.99);
  expect_gemm(gemm(Scheme::specialized), 68294, 95.96);
  EXPECT_EQ(run(gemm_model(gemm(Scheme::specialized))).busy(MEM), 49152);
  EXPECT_EQ(run(gemm_model(gemm(Scheme::specialized))).busy(TC), 65536);
}

TEST(Section71, IssueCosts) {
  GemmScenario no_issue = gemm(Scheme::cp_async);
  no_issue.machine.issue_cp = 0;
  expect_gemm(no_issue, 68284, 95.98);
  no_issue.scheme = Scheme::specialized;
  no_issue.producer = Producer::cp_async;
  expect_gemm(no_issue, 68284, 95.98);
  GemmScenario slow = gemm(Scheme::specialized);
  slow.producer = Producer::cp_async;
  slow.machine.issue_cp = 800;
  expect_gemm(slow, 69084, 94.86);
}

TEST(Section71, HalfBandwidth) {
  for (const Scheme scheme : {Scheme::cp_async, Scheme::specialized}) {
    GemmScenario scenario = gemm(scheme);
    scenario.machine.bandwidth = 32;
    const Timeline timeline = run_both_ways(scenario);
    EXPECT_EQ(std::round(timeline.utilisation(TC) * 10) / 10, 64.0);
    EXPECT_EQ(std::round(timeline.utilisation(MEM)), 96.0);
  }
}

TEST(Section72, StageSweep) {
  const Cycles at_700[] = {85348, 74484, 74384, 74284, 74184, 74084, 73984};
  for (std::int64_t stages = 2; stages <= 8; ++stages)
    EXPECT_EQ(run_both_ways(gemm(Scheme::cp_async, stages)).makespan, at_700[stages - 2]);
  const std::pair<Cycles, std::int64_t> needed[] = {{300, 2}, {700, 3}, {1500, 4}, {3000, 5}};
  for (const auto& [latency, expected] : needed) {
    std::vector<double> utilisation;
    for (std::int64_t stages = 2; stages <= 8; ++stages) {
      GemmScenario scenario = gemm(Scheme::cp_async, stages);
      scenario.machine.latency = latency;
      utilisation.push_back(run_both_ways(scenario).utilisation(TC));
    }
    const double best = *std::max_element(utilisation.begin(), utilisation.end());
    std::int64_t smallest = 2;
    while (best - utilisation[static_cast<std::size_t>(smallest - 2)] >= 1) ++smallest;
    EXPECT_EQ(smallest, expected) << latency;
    GemmScenario scenario = gemm(Scheme::cp_async);
    EXPECT_EQ(exact_stages(costs(scenario), latency), expected);
    EXPECT_EQ(conservative_stages(costs(scenario), latency), expected == 2 ? 3 : expected);
  }
}

TEST(Section73, PersistentGemm) {
  GemmScenario scenario = gemm(Scheme::specialized);
  scenario.tiles = 8;
  scenario.k = 256;
  expect_gemm(scenario, 44486, 73.66);
  scenario.consumers = 2;
  expect_gemm(scenario, 35526, 92.24);
  scenario.k = 1024;
  scenario.epilogue_scale = 8;
  EXPECT_EQ(std::round(run_both_ways(scenario).utilisation(TC) * 10) / 10, 91.8);
  scenario.consumers = 1;
  EXPECT_EQ(std::round(run_both_ways(scenario).utilisation(TC) * 10) / 10, 61.1);
}

TEST(Section74, Attention) {
  const std::pair<Variant, std::pair<Cycles, double>> h100[] = {{Variant::serial, {57344, 57.14}},
                                                                {Variant::inter, {33280, 98.46}},
                                                                {Variant::intra, {41472, 79.01}},
                                                                {Variant::both, {33024, 99.22}}};
  for (const auto& [variant, expected] : h100) {
    AttentionScenario scenario;
    scenario.variant = variant;
    const Timeline timeline = run_both_ways(scenario);
    EXPECT_EQ(timeline.makespan, expected.first);
    EXPECT_DOUBLE_EQ(two_decimals(timeline.utilisation(TC)), expected.second);
  }
  AttentionScenario b200;
  b200.machine = *find_machine("b200");
  b200.variant = Variant::intra;
  EXPECT_EQ(std::round(run_both_ways(b200).utilisation(TC) * 10) / 10, 49.6);
  b200.variant = Variant::both;
  EXPECT_EQ(std::round(run_both_ways(b200).utilisation(TC)), 96.0);
  AttentionScenario fp8;
  fp8.fp8 = true;
  for (const Variant variant : {Variant::serial, Variant::inter, Variant::intra, Variant::both}) {
    fp8.variant = b200.variant = variant;
    EXPECT_EQ(run_both_ways(fp8).makespan, run_both_ways(b200).makespan);
  }
}

TEST(Section9, SlowProducerReachesItsLimitOnlyForLongK) {
  GemmScenario scenario = gemm(Scheme::specialized);
  scenario.producer = Producer::cp_async;
  scenario.machine.issue_cp = 1500;
  EXPECT_EQ(std::round(run_both_ways(scenario).utilisation(TC) * 10) / 10, 65.7);
  scenario.k = 65536;
  EXPECT_EQ(std::round(run_both_ways(scenario).utilisation(TC) * 10) / 10, 68.1);
}

TEST(EdgeCases, LastStepOfKIsPaddedStagesAndConsumersMayExceedTheWork) {
  GemmScenario scenario = gemm(Scheme::specialized);
  scenario.k = 100;
  EXPECT_EQ(costs(scenario).steps, 2);
  EXPECT_EQ(run_both_ways(scenario).makespan, 10 + 768 + 700 + 2 * 1024 + 1280);
  scenario.k = 1;
  scenario.stages = 1000000;
  scenario.consumers = 7;
  EXPECT_EQ(run_both_ways(scenario).makespan, 10 + 768 + 700 + 1024 + 1280);
  scenario.scheme = Scheme::cp_async;
  scenario.k = 128;  // two loads in the prologue, none in the loop
  EXPECT_EQ(run_both_ways(scenario).makespan, 100 + 768 + 700 + 2 * 1024 + 1280);
}

TEST(EdgeCases, OddBlocksAndSingleBlocksDoNotDeadlock) {
  for (const Variant variant : {Variant::serial, Variant::inter, Variant::intra, Variant::both})
    for (const Pass pass : {Pass::forward, Pass::backward, Pass::backward_keys, Pass::backward_dq})
      for (std::int64_t blocks = 1; blocks <= 9; ++blocks)
        for (std::int64_t stages : {0, 2, 3}) {
          AttentionScenario scenario;
          scenario.variant = variant;
          scenario.pass = pass;
          scenario.blocks = blocks;
          scenario.kv_stages = stages;
          scenario.bias_bytes = 2;
          ASSERT_TRUE(validate(scenario).ok());
          const Timeline timeline = run(attention_model(scenario));
          ASSERT_FALSE(timeline.deadlock.has_value());
          EXPECT_EQ(timeline.busy(TC), tensor_work(scenario));
        }
}

TEST(BadInput, NamesArgumentValueAndRule) {
  const auto message = [](auto change) {
    GemmScenario scenario;
    change(scenario);
    const Status status = validate(scenario);
    EXPECT_EQ(status.code(), StatusCode::invalid_value);
    return status.message();
  };
  EXPECT_NE(message([](GemmScenario& s) { s.stages = 0; }).find("stages = 0 must lie in [1"), std::string::npos);
  EXPECT_NE(message([](GemmScenario& s) { s.k = 0; }).find("k = 0"), std::string::npos);
  EXPECT_NE(message([](GemmScenario& s) { s.tiles = -1; }).find("tiles = -1"), std::string::npos);
  EXPECT_NE(
      message([](GemmScenario& s) { s.machine.bandwidth = 0; }).find("bandwidth = 0 must be a finite number above 0"),
      std::string::npos);
  EXPECT_NE(message([](GemmScenario& s) { s.machine.tensor_rate = NAN; }).find("tensor_rate"), std::string::npos);
  EXPECT_NE(message([](GemmScenario& s) { s.machine.bandwidth = 1e-12; }).find("rate is so small"), std::string::npos);
  EXPECT_NE(message([](GemmScenario& s) { s.machine.latency = -1; }).find("latency = -1"), std::string::npos);
  EXPECT_NE(message([](GemmScenario& s) { s.epilogue_scale = -1; }).find("epilogue_scale"), std::string::npos);
  EXPECT_NE(message([](GemmScenario& s) { s.k = std::int64_t{1} << 40; }).find("2^24 operations"), std::string::npos);
  AttentionScenario attention;
  attention.blocks = 0;
  EXPECT_NE(validate(attention).message().find("blocks = 0"), std::string::npos);
}

// Random parameters over the ranges in which the conditions of section 6 are met often enough.
GemmScenario random_gemm(std::mt19937_64& random) {
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  GemmScenario s;
  s.scheme = static_cast<Scheme>(draw(0, 3));
  s.k = draw(1, 3000);
  s.tiles = draw(0, 1) ? 1 : draw(1, 6);
  s.consumers = draw(1, 3);
  s.stages = draw(1, 9);
  s.producer = static_cast<Producer>(draw(0, 1));
  s.machine.latency = draw(0, 3000);
  s.machine.bandwidth = static_cast<double>(draw(16, 256));
  s.machine.issue_cp = draw(0, 1) ? draw(0, 300) : draw(0, 3000);
  s.machine.issue_tma = draw(0, 60);
  s.machine.tensor_rate = static_cast<double>(draw(1024, 8192));
  s.epilogue_scale = static_cast<double>(draw(0, 8)) / 2;
  s.register_copy = draw(0, 400);
  return s;
}

TEST(Section6, ClosedFormsAgreeWithTheEngineOnRandomParameters) {
  std::mt19937_64 random(2024);
  std::map<std::string, int> seen;
  for (int round = 0; round < 20000; ++round) {
    const GemmScenario scenario = random_gemm(random);
    const std::optional<ClosedForm> form = closed_form(scenario);
    if (!form) continue;
    ++seen[std::string(to_string(scenario.scheme)) + ": " + form->formula];
    ASSERT_EQ(run(gemm_model(scenario)).makespan, form->makespan)
        << form->formula << " scheme " << to_string(scenario.scheme) << " k " << scenario.k << " tiles "
        << scenario.tiles << " consumers " << scenario.consumers << " stages " << scenario.stages << " latency "
        << scenario.machine.latency << " bandwidth " << scenario.machine.bandwidth << " issue " << costs(scenario).issue
        << " mma " << costs(scenario).mma;
  }
  EXPECT_EQ(seen.size(), 8u);
  for (const auto& [formula, count] : seen) EXPECT_GT(count, 50) << formula;
}

TEST(Section6, AttentionClosedFormsAgreeWithTheEngineOnRandomParameters) {
  std::mt19937_64 random(99);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  for (int round = 0; round < 4000; ++round) {
    AttentionScenario scenario;
    scenario.variant = draw(0, 1) ? Variant::serial : Variant::intra;
    scenario.blocks = draw(1, 60);
    scenario.rows = draw(1, 256);
    scenario.keys = draw(1, 256);
    scenario.head_dim = draw(1, 256);
    scenario.operations = static_cast<double>(draw(0, 16));
    scenario.machine.exp_rate = static_cast<double>(draw(1, 64));
    ASSERT_EQ(run(attention_model(scenario)).makespan, closed_form(scenario)->makespan);
  }
}

TEST(Section6, IntraVariantsBound) {
  AttentionScenario scenario;
  scenario.variant = Variant::intra;
  EXPECT_EQ(closed_form(scenario)->makespan, 41472);
}

TEST(Rates, RoundUpToWholeCycles) {
  EXPECT_EQ(cycles_for(49152, 13.8), 3562);  // 3561.7
  EXPECT_EQ(cycles_for(49152, 64), 768);
  EXPECT_EQ(cycles_for(0.3, 0.1), 3);  // 2.9999999999999996 in binary
  EXPECT_EQ(cycles_for(1, 3), 1);
}

}  // namespace
}  // namespace warploom::sim
