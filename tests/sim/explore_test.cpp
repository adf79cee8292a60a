// What goes beyond the published model: sweeps, design search, work lists, shared memory, programs and requests as
// JSON.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "sim/answer.h"
#include "sim/design.h"
#include "sim/json.h"
#include "sim/program_json.h"
#include "sim/share.h"
#include "sim/sweep.h"
#include "sim/work_list.h"

namespace warploom::sim {
namespace {

TEST(Axis, FormsOfValues) {
  EXPECT_EQ(parse_axis("stages=2..5")->values, (std::vector<std::string>{"2", "3", "4", "5"}));
  EXPECT_EQ(parse_axis("latency=300..1000:300")->values, (std::vector<std::string>{"300", "600", "900"}));
  EXPECT_EQ(parse_axis("bandwidth=16..128*2")->values, (std::vector<std::string>{"16", "32", "64", "128"}));
  EXPECT_EQ(parse_axis("epilogue-scale=0.5..1.5:0.5")->values, (std::vector<std::string>{"0.5", "1", "1.5"}));
  EXPECT_EQ(parse_axis("epilogue-scale=1..1")->name, "epilogue_scale");
  EXPECT_EQ(parse_axis("scheme=sync,cp_async")->values, (std::vector<std::string>{"sync", "cp_async"}));
  for (const char* bad : {"stages", "=2", "stages=5..2", "stages=1..9:0", "stages=1..9:-1", "stages=0..9*2",
                          "stages=1..9*1", "stages=a..b", "stages=1..", "latency=1..1000000"})
    EXPECT_FALSE(parse_axis(bad).ok()) << bad;
}

TEST(Sweep, EveryCellIsTheRunOfItsParametersOnAnyNumberOfThreads) {
  const SweepRequest request{ScenarioKind::gemm,
                             {{"scheme", "cp_async"}, {"k", "512"}},
                             *parse_axis("stages=1..6"),
                             *parse_axis("latency=0..3000:500"),
                             Metric::makespan};
  for (const unsigned threads : {1u, 2u, 7u}) {
    std::int64_t reported = 0;
    const auto result =
        sweep(request, {threads, nullptr, [&](std::int64_t done) { reported = std::max(reported, done); }});
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->done, 42);
    EXPECT_GT(reported, 0);
    for (std::size_t i = 0; i < 42; ++i) {
      GemmScenario scenario;
      scenario.scheme = Scheme::cp_async;
      scenario.k = 512;
      scenario.stages = static_cast<std::int64_t>(i % 6 + 1);
      scenario.machine.latency = static_cast<Cycles>(i / 6 * 500);
      ASSERT_EQ(*result->values[i], static_cast<double>(run(gemm_model(scenario)).makespan)) << i;
    }
  }
}

TEST(Sweep, RefusedPointsStayEmptyWithTheirReasonAndUnknownNamesAreErrors) {
  const auto result = sweep({ScenarioKind::gemm, {}, *parse_axis("stages=0..2"), {}, Metric::tensor_percent});
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->values[0].has_value());
  EXPECT_TRUE(result->values[1].has_value());
  ASSERT_EQ(result->refusals.size(), 1u);
  EXPECT_NE(result->refusals[0].find("stages = 0"), std::string::npos);
  EXPECT_FALSE(sweep({ScenarioKind::gemm, {}, *parse_axis("speed=1..2"), {}, Metric::makespan}).ok());
  EXPECT_FALSE(
      sweep({ScenarioKind::gemm, {}, *parse_axis("k=64..65"), *parse_axis("k=64..65"), Metric::makespan}).ok());
}

TEST(Sweep, StoppedEarlyKeepsWhatIsDone) {
  std::atomic<bool> stop{false};
  const auto result = sweep({ScenarioKind::gemm, {}, *parse_axis("latency=0..99"), {}, Metric::makespan},
                            {1, &stop, [&](std::int64_t done) { stop = done >= 10; }});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->done, 10);
  EXPECT_EQ(std::count_if(result->values.begin(), result->values.end(), [](const auto& v) { return v.has_value(); }),
            10);
  EXPECT_EQ(sweep_json(*result)["values"][0][50], nullptr);
}

TEST(Sweep, HeatMapHasACellAPoint) {
  const auto result = sweep({ScenarioKind::attention,
                             {},
                             *parse_axis("variant=serial,inter,intra,both"),
                             *parse_axis("exp-rate=4..64*2"),
                             Metric::tensor_percent});
  const std::string svg = heat_map_svg(*result);
  std::size_t cells = 0;
  for (std::size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++cells;
  EXPECT_EQ(cells, 20u);
  EXPECT_NE(svg.find("variant inter, exp_rate 16: 98.46"), std::string::npos);
}

TEST(Design, BestFirstWithinLimitsAndEveryRefusalHasAReason) {
  GemmDesignSpace space;
  space.k = 512;
  const auto designs = search(space);
  ASSERT_TRUE(designs.ok());
  EXPECT_EQ(designs->size(), 4u * 4 * 7 * 5);
  Cycles last = 0;
  bool infeasible_seen = false;
  for (const Design& d : *designs) {
    if (!d.infeasible.empty()) {
      infeasible_seen = true;
      EXPECT_EQ(d.makespan, 0);
      continue;
    }
    EXPECT_FALSE(infeasible_seen) << "a feasible design after an infeasible one";
    EXPECT_GE(d.makespan, last);
    last = d.makespan;
    EXPECT_LE(d.shared_memory, space.machine.shared_memory);
    EXPECT_LE(d.accumulators + kWorkingRegisters, d.consumer_registers);
    const std::int64_t consumers = d.roles[0] == 'p' ? d.roles.back() - '0' : d.roles[0] - '0';
    EXPECT_LE(128 * d.producer_registers + 128 * consumers * d.consumer_registers, space.machine.registers) << d.roles;
    EXPECT_LE(d.useful, 100.0);
    EXPECT_FALSE(d.limiter.empty());
  }
  EXPECT_TRUE(infeasible_seen);
  // The plain specialized kernel of the spec: 128x256 on two cooperating consumers, 4 stages fit and 5 do not.
  const auto find = [&](std::int64_t stages) {
    return *std::find_if(designs->begin(), designs->end(), [&](const Design& d) {
      return d.shape == "128x256x64" && d.roles == "2 cooperating consumers" && d.stages == stages;
    });
  };
  EXPECT_TRUE(find(4).infeasible.empty());
  EXPECT_EQ(find(4).consumer_registers, 232);
  EXPECT_NE(find(5).infeasible.find("shared memory"), std::string::npos);
}

TEST(Design, ParetoFrontIsWhatNobodyBeats) {
  AttentionDesignSpace space;
  const auto designs = search(space);
  ASSERT_TRUE(designs.ok());
  std::set<std::pair<std::int64_t, double>> front;
  for (const Design& d : *designs) {
    if (!d.infeasible.empty()) continue;
    const bool beaten = std::any_of(designs->begin(), designs->end(), [&](const Design& o) {
      return o.infeasible.empty() && o.shared_memory <= d.shared_memory && o.useful >= d.useful &&
             (o.shared_memory < d.shared_memory || o.useful > d.useful);
    });
    if (d.pareto) {
      EXPECT_FALSE(beaten) << d.shape;
      EXPECT_TRUE(front.insert({d.shared_memory, d.useful}).second) << "two equal designs on the front";
    }
  }
  for (const Design& d : *designs) {  // and nothing is forgotten
    if (!d.infeasible.empty() || d.pareto) continue;
    EXPECT_TRUE(std::any_of(designs->begin(), designs->end(), [&](const Design& o) {
      return o.pareto && o.shared_memory <= d.shared_memory && o.useful >= d.useful;
    }));
  }
  EXPECT_GT(front.size(), 2u);
}

TEST(Design, WithoutTmaThereIsNoProducer) {
  GemmDesignSpace space;
  space.machine = *find_machine("a100");
  const auto designs = search(space);
  for (const Design& d : *designs) EXPECT_EQ(d.producer_registers, 0);
  space.stages = {0};
  EXPECT_FALSE(search(space).ok());
  space.stages = {};
  EXPECT_FALSE(search(space).ok());
}

TEST(Work, SchedulesKeepEveryItemOnceAndTheModelRunsToTheSameMakespan) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<Cycles> costs(std::uniform_int_distribution<std::size_t>(1, 300)(random));
    for (Cycles& cost : costs) cost = std::uniform_int_distribution<Cycles>(1, 5000)(random);
    const std::int64_t sms = std::uniform_int_distribution<std::int64_t>(1, 132)(random);
    const Cycles all = std::accumulate(costs.begin(), costs.end(), Cycles{0});
    const Cycles bound = std::max((all + sms - 1) / sms, *std::max_element(costs.begin(), costs.end()));
    for (const Order order : {Order::in_order, Order::longest_first})
      for (const Assignment assignment : {Assignment::fixed, Assignment::dynamic}) {
        const Schedule result = schedule(costs, sms, order, assignment);
        std::vector<int> seen(costs.size(), 0);
        for (const auto& items : result.items)
          for (const std::size_t item : items) ++seen[item];
        EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
        EXPECT_GE(result.makespan, bound);
        EXPECT_EQ(run(schedule_model(costs, result)).makespan, result.makespan);
        // Graham: list scheduling is at most twice the bound, longest first at most 4/3 of the optimum + the bound's
        // slack.
        if (assignment == Assignment::dynamic) {
          EXPECT_LE(result.makespan, 2 * bound);
        }
      }
  }
}

TEST(Work, CausalItemsCostTheSimulatedMakespanOfTheirBlocks) {
  WorkProblem problem;
  problem.attention.variant = Variant::inter;
  problem.length = 512;
  problem.batch = 2;
  problem.heads = 1;
  const auto costs = item_costs(problem);
  ASSERT_EQ(costs->size(), 8u);
  for (std::size_t tile = 0; tile < 4; ++tile) {
    AttentionScenario scenario = problem.attention;
    scenario.blocks = 2 * static_cast<std::int64_t>(tile + 1);
    EXPECT_EQ((*costs)[tile], run(attention_model(scenario)).makespan);
    EXPECT_EQ((*costs)[tile + 4], (*costs)[tile]);
  }
  problem.causal = false;
  EXPECT_EQ(item_costs(problem)->front(), costs->at(3));
  problem.sms = 0;
  EXPECT_FALSE(item_costs(problem).ok());
}

TEST(Work, TailAndBalanceByHand) {
  const Schedule result = schedule({3, 1, 2}, 2, Order::in_order, Assignment::dynamic);
  EXPECT_EQ(result.makespan, 3);  // SM 0: 3; SM 1: 1, 2
  EXPECT_EQ(result.tail, 0);
  EXPECT_DOUBLE_EQ(result.balance, 100);
  const Schedule fixed_order = schedule({3, 1, 2}, 2, Order::in_order, Assignment::fixed);
  EXPECT_EQ(fixed_order.makespan, 5);
  EXPECT_EQ(fixed_order.tail, 4);
  EXPECT_DOUBLE_EQ(fixed_order.balance, 60);
}

TEST(Shared, OneSmWithEndlessDramIsTheOneSmModelAndManyAreMemoryBound) {
  GemmScenario scenario;
  scenario.k = 1024;
  SharedMemorySystem alone{.sms = 1, .total_bandwidth = 1e12, .l2_hit = 0};
  // A request of DRAM takes one cycle at least, unless the L2 serves it all.
  EXPECT_EQ(run_shared(scenario, alone)->timeline.makespan, run_scenario(scenario)->timeline.makespan + 1);
  alone.l2_hit = 1;
  EXPECT_EQ(run_shared(scenario, alone)->timeline.makespan, run_scenario(scenario)->timeline.makespan);
  SharedMemorySystem all;
  const auto gpu = run_shared(scenario, all);
  const auto dram = static_cast<Resource>(gpu->model.resources.size() - 1);
  EXPECT_EQ(gpu->model.resources[dram], "DRAM");
  EXPECT_GT(gpu->timeline.utilisation(dram), 90);
  EXPECT_LT(gpu->timeline.utilisation(TC), 30);
  // Never faster than each SM with its own share would be at best, nor than the bytes take.
  EXPECT_GE(gpu->timeline.makespan, static_cast<Cycles>(132 * 16 * 49152 / total_bandwidth(scenario.machine, all)));
  all.l2_hit = 0.9;
  EXPECT_GT(run_shared(scenario, all)->timeline.utilisation(TC), gpu->timeline.utilisation(TC));
  EXPECT_FALSE(run_shared(scenario, {.sms = 0}).ok());
  EXPECT_FALSE(run_shared(scenario, {.sms = 2, .total_bandwidth = 0, .l2_hit = 1.5}).ok());
  for (const Scheme scheme : {Scheme::sync, Scheme::register_staged, Scheme::cp_async}) {
    scenario.scheme = scheme;
    alone = {.sms = 1, .total_bandwidth = 1e12, .l2_hit = 1};
    EXPECT_EQ(run_shared(scenario, alone)->timeline.makespan, run_scenario(scenario)->timeline.makespan);
  }
}

TEST(Hstu, BackwardHasFiveProductsAndBiasIsExtraTraffic) {
  AttentionScenario scenario;
  scenario.pass = Pass::backward;
  EXPECT_EQ(tensor_work(scenario), 32 * 5 * 512);
  for (const Variant variant : {Variant::serial, Variant::inter, Variant::intra, Variant::both}) {
    AttentionScenario hstu;
    hstu.variant = variant;
    hstu.step = Step::hstu;
    const Timeline plain = run(attention_model(hstu));
    hstu.bias_bytes = 2;
    const Timeline biased = run(attention_model(hstu));
    EXPECT_EQ(biased.busy(MEM), 32 * 256);  // 64 * 128 * 2 B at 64 B/cycle
    EXPECT_GE(biased.makespan, plain.makespan);
    hstu.cheap_blocks = 16;
    EXPECT_LT(run(attention_model(hstu)).makespan, biased.makespan);
  }
}

TEST(Hstu, AOneSlotRingIsRefusedWhereItWouldDeadlock) {
  AttentionScenario scenario;
  scenario.kv_stages = 1;
  EXPECT_TRUE(validate(scenario).ok());
  for (const Variant variant : {Variant::inter, Variant::intra, Variant::both}) {
    scenario.variant = variant;
    EXPECT_NE(validate(scenario).message().find("kv_stages = 1"), std::string::npos);
    EXPECT_TRUE(run(attention_model(scenario)).deadlock.has_value());  // the refusal is not more than needed
  }
}

TEST(ProgramJson, IsTheProgramAndErrorsSayWhere) {
  const char* text =
      R"({"barriers": ["full"], "legend": {"L": "load"}, "executors": [{"name": "loop", "program": [["busy", 100, "i"],
          ["async", "MEM", 768, "L", 700, "full"], ["wait", "full", 1], ["use", "TC", 1024, "M"], ["arrive", "full"]]}]})";
  const auto result = run_program(text, Machine{}, "mine");
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->timeline.makespan, 100 + 768 + 700 + 1024);
  const auto message = [](const std::string& operation) {
    return model_from_json(R"({"barriers": ["b"], "executors": [{"name": "e", "program": [["busy", 1], )" + operation +
                           "]}]}")
        .status()
        .message();
  };
  EXPECT_EQ(message(R"(["use", "XU", 1, "a"])"), "executor e, operation 1: resource 'XU' is not listed in the model");
  EXPECT_EQ(message(R"(["use", "TC", 1])"), "executor e, operation 1: lacks its tag");
  EXPECT_EQ(message(R"(["use", "TC", 1.5, "a"])"), "executor e, operation 1: cycles = 1.5 must be a whole number");
  EXPECT_EQ(message(R"(["busy", 1, "a", 3])"), "executor e, operation 1: has 1 parts too many");
  EXPECT_NE(message(R"(["jump", 1])").find("use|async|busy|wait|arrive"), std::string::npos);
  EXPECT_NE(message(R"(["busy", -1])").find("cycles = -1"), std::string::npos);
  EXPECT_NE(message(R"(["wait", "b", -1])").find("count = -1"), std::string::npos);
  EXPECT_NE(message("7").find("must be an array"), std::string::npos);
  for (const char* bad : {"", "[]", "{}", R"({"executors": [1]})", R"({"executors": [], "barriers": ["a", "a"]})",
                          R"({"executors": {}})"})
    EXPECT_FALSE(model_from_json(bad).ok()) << bad;
  EXPECT_EQ(
      run_program(R"({"barriers": ["b"], "executors": [{"name": "e", "program": [["wait", "b", 1]]}]})", Machine{}, "x")
          .status()
          .code(),
      StatusCode::runtime_error);
}

TEST(Answer, EveryKindOfRequest) {
  for (
      const char* request :
      {R"({"what": "gemm", "parameters": {"scheme": "cp_async", "stages": 3}, "intervals": true, "svg": true, "perfetto": true})",
       R"({"what": "attention", "parameters": {"variant": "both", "fp8": true}, "until": 4000, "width": 40})",
       R"({"what": "program", "program": {"executors": []}})",
       R"({"what": "experiment", "name": "timeline-attention"})", R"({"what": "experiments"})", R"({"what": "report"})",
       R"({"what": "sweep", "kind": "gemm", "x": "stages=2..4", "svg": true})",
       R"({"what": "design", "k": 512, "tile_m": [128], "tile_n": [128], "stages": [3]})",
       R"({"what": "design", "kind": "attention", "keys": [128]})", R"({"what": "work", "length": 512, "sms": 4})",
       R"({"what": "shared", "sms": 2, "parameters": {"k": 256}})", R"({"what": "parameters", "kind": "attention"})",
       R"({"what": "machine", "name": "a100"})", R"({"what": "axis", "x": "stages=2..8"})"}) {
    const auto result = answer(request);
    ASSERT_TRUE(result.ok()) << request << result.status().message();
    EXPECT_FALSE(Json::parse(*result).is_null());
  }
  EXPECT_EQ(Json::parse(*answer(R"({"what": "gemm", "parameters": {"scheme": "cp_async", "stages": 3}})"))["makespan"],
            74484);
  EXPECT_EQ(Json::parse(*answer(R"({"what": "experiment", "name": "timeline-attention"})"))["timeline"]["TC"]
                .get<std::string>()
                .substr(0, 8),
            "AAAAAABB");
}

TEST(Answer, WrongRequestsAreErrorsThatNameTheField) {
  const auto message = [](const char* request) {
    const auto result = answer(request);
    EXPECT_FALSE(result.ok()) << request;
    return result.status().message();
  };
  EXPECT_NE(message("").find("not a JSON object"), std::string::npos);
  EXPECT_NE(message("{}").find("lacks 'what'"), std::string::npos);
  EXPECT_NE(message(R"({"what": "dance"})").find("gemm|attention"), std::string::npos);
  EXPECT_NE(message(R"({"what": "gemm", "paramters": {}})").find("'paramters' is not a field"), std::string::npos);
  EXPECT_NE(message(R"({"what": "gemm", "parameters": []})").find("an object"), std::string::npos);
  EXPECT_NE(message(R"({"what": "gemm", "parameters": {"k": [1]}})").find("k = [1]"), std::string::npos);
  EXPECT_NE(message(R"({"what": "gemm", "until": 0})").find("until = 0"), std::string::npos);
  EXPECT_NE(message(R"({"what": "gemm", "width": "wide"})").find("width = \"wide\" must be a whole number"),
            std::string::npos);
  EXPECT_NE(message(R"({"what": "design", "kind": "conv"})").find("kind = 'conv'"), std::string::npos);
  EXPECT_NE(message(R"({"what": "sweep", "x": "stages"})").find("NAME=VALUES"), std::string::npos);
}

}  // namespace
}  // namespace warploom::sim
