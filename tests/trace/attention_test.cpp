// Traces of attention's kernels, made up with known times: the lanes of each product, what is handed from consumer to
// consumer, the order, the pictures, and the model's schedules beside them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "pipelines.h"
#include "sim/pictures.h"
#include "trace/order.h"
#include "trace/report.h"
#include "trace/timeline.h"

namespace warploom::trace {
namespace {

using Times = std::vector<std::pair<sim::Cycles, sim::Cycles>>;

Times lane(const sim::Run& run, const std::string& name, char tag) {
  Times times;
  for (std::size_t r = 0; r < run.model.resources.size(); ++r) {
    if (run.model.resources[r] != name) continue;
    for (const sim::Interval& interval : run.timeline.intervals[r]) {
      if (interval.tag == tag) times.emplace_back(interval.start, interval.end);
    }
    return times;
  }
  ADD_FAILURE() << "no lane " << name;
  return times;
}

TracedRun traced(const Subject& subject, const std::vector<std::vector<Made>>& marks) {
  Result<Recording> recording = recorded(marks);
  EXPECT_TRUE(recording.ok()) << recording.status().message();
  TracedRun run;
  run.subject = subject;
  run.recording = std::move(*recording);
  return run;
}

std::string words(const OrderCheck& check) {
  return check.violations.empty() ? "" : check.violations.front();
}

// --- forward: two tiles of keys, S of the second beside P V of the first. `later`: cycles that the warpgroup lags.

std::vector<Made> forward_consumer(std::uint64_t later) {
  using M = ForwardMarks;
  std::vector<Made> marks = {
      {1004, Mark::wait_full, M::items, 0},
      {1012, Mark::wait_full, M::queries, 0},
      {1020, Mark::scores},
      {1022, Mark::wait_full, M::keys, 0},
      {1030, Mark::turn},
      {1040, Mark::product, M::keys, 0},
      {1050, Mark::wait_product, M::keys, 0},
      {1100, Mark::scores},
      {1140, Mark::wait_full, M::keys, 1},
      {1142, Mark::turn},
      {1150, Mark::product, M::keys, 1},
      {1160, Mark::product, M::values, 0},
      {1170, Mark::wait_product, M::keys, 1},
      {1210, Mark::scores},
      {1240, Mark::wait_product, M::values, 0},
      {1250, Mark::scores},
      {1260, Mark::product, M::values, 1},
      {1262, Mark::wait_product, M::values, 1},
      {1300, Mark::epilogue, M::items, 0},
      {1330, Mark::wait_full, M::items, 1},
  };
  for (Made& mark : marks) mark.clock += later;
  return marks;
}

std::vector<std::vector<Made>> forward_marks() {
  using M = ForwardMarks;
  const std::vector<Made> scheduler = {
      {1001, Mark::wait_empty, M::items, 0},
      {1002, Mark::load, M::items, 0},
      {1005, Mark::wait_empty, M::queries, 0},
      {1006, Mark::load, M::queries, 0},
      {1008, Mark::idle},
  };
  const std::vector<Made> loader = {
      {1005, Mark::wait_full, M::items, 0}, {1007, Mark::wait_empty, M::keys, 0},
      {1008, Mark::load, M::keys, 0},       {1012, Mark::wait_empty, M::keys, 1},
      {1013, Mark::load, M::keys, 1},       {1015, Mark::wait_empty, M::values, 0},
      {1016, Mark::load, M::values, 0},     {1018, Mark::wait_empty, M::values, 1},
      {1019, Mark::load, M::values, 1},     {1021, Mark::wait_empty, M::keys, 2},
  };
  return {forward_consumer(0), forward_consumer(60), scheduler, loader};
}

Subject forward_subject() {
  return subject_of(HopperForwardConfig{.head_dim = 128, .value_dim = 128}, sim::Machine{});
}

TEST(ForwardTrace, BothProductsHaveLanesAndOverlapOneAnother) {
  const TracedRun run = traced(forward_subject(), forward_marks());
  const sim::Run drawn = run_of(run.subject, run.recording, run.recording.ctas[0]);
  // S of tile 1 from its issue on, then P V of tile 0, which was issued beside it, from where S had ended.
  EXPECT_EQ(lane(drawn, "S[0]", 'A'), (Times{{40, 100}, {150, 210}}));
  EXPECT_EQ(lane(drawn, "PV[0]", 'A'), (Times{{210, 250}, {260, 300}}));
  EXPECT_EQ(lane(drawn, "TC[0]", 'A'), (Times{{40, 100}, {150, 210}, {210, 250}, {260, 300}}));
  EXPECT_EQ(lane(drawn, "S[1]", 'B'), (Times{{100, 160}, {210, 270}}));
  EXPECT_EQ(lane(drawn, "FMA[0]", 'x'), (Times{{20, 22}, {100, 140}, {210, 240}, {250, 260}}));
  EXPECT_EQ(lane(drawn, "FMA[0]", 'E'), (Times{{300, 330}}));
  // Loads end when the first warpgroup has them; V's when its product is issued. Items have no lane.
  EXPECT_EQ(lane(drawn, "K[0]", 'L'), (Times{{8, 30}}));
  EXPECT_EQ(lane(drawn, "K[1]", 'L'), (Times{{13, 142}}));
  EXPECT_EQ(lane(drawn, "V[0]", 'L'), (Times{{16, 160}}));
  for (const std::string& name : drawn.model.resources) EXPECT_FALSE(name.starts_with("item")) << name;
}

TEST(ForwardTrace, KeepsTheOrderAndAWrongOneIsFound) {
  const TracedRun run = traced(forward_subject(), forward_marks());
  const OrderCheck right = check_order(run.subject, run.recording.ctas[0]);
  EXPECT_EQ(right.violated, 0) << words(right);
  // Of each warpgroup: an item, Q, two K tiles waited for (V's wait is in its product); turns, two each. The loader's
  // item. Tile K 2 is not loaded.
  EXPECT_EQ(right.checked, 2 * 4 + 1 + 3);
  auto marks = forward_marks();
  marks[3].push_back({1030, Mark::load, ForwardMarks::keys, 2});  // while the products read K 0
  const TracedRun early = traced(forward_subject(), marks);
  const OrderCheck wrong = check_order(early.subject, early.recording.ctas[0]);
  EXPECT_EQ(wrong.violated, 2);
  EXPECT_NE(words(wrong).find("K filling 2 was loaded before warpgroup 0 waited for the product"), std::string::npos)
      << words(wrong);
}

TEST(ForwardTrace, PicturesShowProducerTurnsAndProducts) {
  const TracedRun run = traced(forward_subject(), forward_marks());
  const Result<Report> report = report_of(run, /*compare=*/false);
  ASSERT_TRUE(report.ok()) << report.status().message();
  const std::string svg = sim::timeline_svg(report->run, report->run.timeline.makespan);
  for (const char* what : {"scheduler", "loader", "warpgroup 1 waits for turn[1]", "warpgroup 0 waits for K full[1]",
                           "products of warpgroup 1", "silu", "PV[1]"}) {
    EXPECT_NE(svg.find(what), std::string::npos) << what;
  }
  const auto perfetto = nlohmann::json::parse(sim::perfetto_json(report->run));
  int products = 0, issues = 0;
  for (const auto& event : perfetto["traceEvents"]) {
    products += event["name"] == "products of warpgroup 0" && event["cat"] == "resource" ? 1 : 0;
    issues += event["name"] == "issue" ? 1 : 0;
  }
  EXPECT_EQ(products, 2 * 4);  // on TC[0], and on S[0] or PV[0]
  EXPECT_EQ(issues, 1 + 1 + 4);
  const sim::Json json = report_json(*report, {400, 40});
  EXPECT_EQ(json["note"], "measured");
  EXPECT_EQ(json["order"]["violated"], 0);
  EXPECT_FALSE(json.contains("schedules"));
}

TEST(ForwardTrace, TheModelsSchedulesStandBesideIt) {
  TracedRun run = traced(forward_subject(), forward_marks());
  std::get<sim::AttentionScenario>(run.subject.model).kv_stages = 0;  // loads hidden: there is a closed form
  const Result<Report> report = report_of(run, /*compare=*/true);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->schedules.size(), 3u);
  // Four blocks of 64 x 128 x 128 on the default machine: G = 512, M = 512 + 256, one warpgroup G + 3 (M + G) + M + G.
  EXPECT_EQ(report->schedules[0].name, "inter");
  EXPECT_EQ(report->schedules[1].name, "intra");
  EXPECT_EQ(report->schedules[1].makespan, 512 + 3 * (768 + 512) + 768 + 512);
  EXPECT_DOUBLE_EQ(report->schedules[1].tensor, 100.0 * 8 * 512 / (512 + 3 * (768 + 512) + 768 + 512));
  EXPECT_EQ(report->schedules[2].name, "both");
  ASSERT_TRUE(report->comparison.has_value());
  const sim::Json json = report_json(*report, {400, 40});
  EXPECT_EQ(json["schedules"][0]["name"], "inter");
  EXPECT_EQ(json["schedules"].size(), 3u);
}

// --- backward: one tile of 64 queries and dQ of the one before, products apart.

HopperBackwardConfig backward_config() {
  return {.head_dim = 128, .value_dim = 128, .softmax = true, .splits_scores = true};
}

std::vector<Made> backward_consumer(std::uint64_t later) {
  using M = BackwardMarks;
  std::vector<Made> marks = {
      {1010, Mark::wait_full, M::tiles, 1},
      {1020, Mark::product, M::score_products, 1},
      {1022, Mark::product, M::slope_product, 1},
      {1025, Mark::wait_product, M::score_products, 1},
      {1060, Mark::scores},
      {1090, Mark::product, M::gradient_products, 1},
      {1092, Mark::wait_product, M::slope_product, 1},
      {1100, Mark::scores},
      {1120, Mark::hand_over, M::scores, 1},
      {1130, Mark::wait_full, M::scores, 0},
      {1140, Mark::product, M::query_product, 0},
      {1145, Mark::product, M::key_product, 1},
      {1150, Mark::wait_product, M::query_product, 0},
      {1200, Mark::add},
      {1220, Mark::wait_product, M::key_product, 1},
      {1250, Mark::wait_full, M::scores, 1},
      {1300, Mark::idle},
  };
  for (Made& mark : marks) mark.clock += later;
  return marks;
}

std::vector<std::vector<Made>> backward_marks() {
  const std::vector<Made> loader = {{1002, Mark::wait_empty, BackwardMarks::tiles, 1},
                                    {1003, Mark::load, BackwardMarks::tiles, 1},
                                    {1005, Mark::wait_empty, BackwardMarks::tiles, 3},
                                    {1300, Mark::load, BackwardMarks::tiles, 3}};
  return {backward_consumer(0), backward_consumer(30), {}, loader};
}

TEST(BackwardTrace, FiveProductsHaveFiveLanes) {
  const Subject subject = subject_of(backward_config(), sim::Machine{});
  const TracedRun run = traced(subject, backward_marks());
  const sim::Run drawn = run_of(run.subject, run.recording, run.recording.ctas[0]);
  EXPECT_EQ(lane(drawn, "S[0]", 'A'), (Times{{20, 60}}));
  EXPECT_EQ(lane(drawn, "dP[0]", 'A'), (Times{{60, 100}}));
  // Nobody waited for dV by itself: it and dQ, as much work each, had ended when dQ had.
  EXPECT_EQ(lane(drawn, "dV[0]", 'A'), (Times{{100, 150}}));
  EXPECT_EQ(lane(drawn, "dQ[0]", 'A'), (Times{{150, 200}}));
  EXPECT_EQ(lane(drawn, "dK[0]", 'A'), (Times{{200, 250}}));
  EXPECT_EQ(lane(drawn, "TC[1]", 'B').size(), 5u);
  EXPECT_EQ(lane(drawn, "FMA[0]", 'h'), (Times{{120, 130}}));
  EXPECT_EQ(lane(drawn, "FMA[0]", 'Q'), (Times{{200, 220}}));
  // dS of tile 1 is there when the later consumer has handed its part over.
  const auto perfetto = nlohmann::json::parse(sim::perfetto_json(drawn));
  int arrows = 0;
  for (const auto& event : perfetto["traceEvents"])
    arrows += event["ph"] == "s" && event["name"] == "dS full[1]" ? 1 : 0;
  EXPECT_EQ(arrows, 2);
}

TEST(BackwardTrace, WhatIsHandedOverComesBeforeItIsUsed) {
  const Subject subject = subject_of(backward_config(), sim::Machine{});
  const TracedRun run = traced(subject, backward_marks());
  const OrderCheck right = check_order(run.subject, run.recording.ctas[0]);
  EXPECT_EQ(right.violated, 0) << words(right);
  // Each consumer: tile 1 had; dS 1 handed over by two; four waits for products that read tile 1, where 3 comes later.
  EXPECT_EQ(right.checked, 2 * (1 + 2 + 3));
  auto marks = backward_marks();
  marks[0][15].clock = 1256;  // consumer 0 has dS at 300, consumer 1 hands it over at 310
  marks[1][8].clock = 1310;
  marks[1].resize(9);
  const TracedRun wrong = traced(subject, marks);
  const OrderCheck check = check_order(wrong.subject, wrong.recording.ctas[0]);
  EXPECT_EQ(check.violated, 1);
  EXPECT_NE(words(check).find("dS filling 1 was handed over after warpgroup 0 had it: cycle 310 after cycle 300"),
            std::string::npos)
      << words(check);
}

TEST(BackwardTrace, ProductsThatAreWaitedForAtOnceShareTheTimeByTheirWork) {
  HopperBackwardConfig config = backward_config();
  config.splits_scores = false;
  config.bfloat16 = false;  // S with dP, dV with dK
  config.head_dim = 96;
  config.value_dim = 32;
  using M = BackwardMarks;
  const std::vector<Made> consumer = {{1000, Mark::product, M::score_products, 0},
                                      {1010, Mark::wait_product, M::score_products, 0},
                                      {1080, Mark::scores},
                                      {1100, Mark::product, M::gradient_products, 0},
                                      {1110, Mark::wait_product, M::gradient_products, 0},
                                      {1140, Mark::idle}};
  const TracedRun run = traced(subject_of(config, sim::Machine{}), {consumer, {}, {}, {}});
  const sim::Run drawn = run_of(run.subject, run.recording, run.recording.ctas[0]);
  EXPECT_EQ(lane(drawn, "S[0]", 'A'), (Times{{0, 60}}));
  EXPECT_EQ(lane(drawn, "dP[0]", 'A'), (Times{{60, 80}}));
  EXPECT_EQ(lane(drawn, "dV[0]", 'A'), (Times{{100, 110}}));
  EXPECT_EQ(lane(drawn, "dK[0]", 'A'), (Times{{110, 140}}));
}

TEST(BackwardTrace, TheModelIsTheSimulatorsBackwardPass) {
  HopperBackwardConfig narrow = backward_config();
  narrow.head_dim = narrow.value_dim = 64;
  narrow.query_rows = 128;  // in halves, each with its product S
  for (const HopperBackwardConfig& config : {backward_config(), narrow}) {
    const TracedRun run = traced(subject_of(config, sim::Machine{}), backward_marks());
    const auto model = std::get<sim::AttentionScenario>(fit_model(run.subject, run.recording.ctas[0]));
    EXPECT_EQ(model.pass, sim::Pass::backward);
    EXPECT_EQ(model.variant, sim::Variant::inter);
    EXPECT_EQ(model.rows, 64);
    EXPECT_EQ(model.keys, 64);
    EXPECT_EQ(model.head_dim, config.head_dim);
    EXPECT_EQ(model.blocks, 2);
    EXPECT_EQ(sim::block_work(model, false).before.size() + sim::block_work(model, false).after.size(), 5u);
    const Result<Report> report = report_of(run, /*compare=*/true);
    ASSERT_TRUE(report.ok()) << report.status().message();
    ASSERT_EQ(report->schedules.size(), 3u);
    EXPECT_EQ(report->schedules[0].makespan, report->comparison->model_makespan);
  }
}

TEST(TwoKernelTrace, EachKernelHasItsProductsAndItsModel) {
  using Keys = BackwardKeysMarks;
  const Subject keys = subject_of(HopperBackwardKeysConfig{.head_dim = 256, .value_dim = 256}, sim::Machine{});
  // Consumer 0 owns tile 0, hands dS over and sums dV; consumer 1 sums dK of it, and owns tile 1.
  const std::vector<Made> first = {{1000, Mark::product, Keys::score_products, 0},
                                   {1010, Mark::wait_product, Keys::score_products, 0},
                                   {1080, Mark::scores},
                                   {1100, Mark::hand_over, Keys::handoffs, 0},
                                   {1110, Mark::product, Keys::value_product, 0},
                                   {1112, Mark::wait_product, Keys::value_product, 0},
                                   {1150, Mark::idle}};
  const std::vector<Made> second = {{1005, Mark::product, Keys::score_products, 1},
                                    {1010, Mark::wait_full, Keys::handoffs, 0},
                                    {1120, Mark::product, Keys::key_product, 0},
                                    {1130, Mark::wait_product, Keys::score_products, 1},
                                    {1140, Mark::scores},
                                    {1150, Mark::wait_product, Keys::key_product, 0},
                                    {1190, Mark::idle}};
  const TracedRun run = traced(keys, {first, second, {}, {}, {}});
  const sim::Run drawn = run_of(run.subject, run.recording, run.recording.ctas[0]);
  EXPECT_EQ(lane(drawn, "S[0]", 'A'), (Times{{0, 40}}));
  EXPECT_EQ(lane(drawn, "dP[0]", 'A'), (Times{{40, 80}}));
  EXPECT_EQ(lane(drawn, "dV[0]", 'A'), (Times{{110, 150}}));
  EXPECT_EQ(lane(drawn, "dK[1]", 'B'), (Times{{140, 190}}));
  EXPECT_EQ(check_order(run.subject, run.recording.ctas[0]).violated, 0);
  EXPECT_EQ(check_order(run.subject, run.recording.ctas[0]).checked, 1);
  auto model = std::get<sim::AttentionScenario>(fit_model(run.subject, run.recording.ctas[0]));
  EXPECT_EQ(sim::block_work(model, false).after.size(), 2u);
  EXPECT_EQ(sim::block_work(model, false).gradient, 0);
  EXPECT_EQ(model.blocks, 2);

  using Dq = BackwardDqMarks;
  const Subject dq = subject_of(HopperBackwardDqConfig{.head_dim = 256, .value_dim = 256}, sim::Machine{});
  ASSERT_EQ(dq.roles.size(), 5u);
  const std::vector<Made> consumer = {{1000, Mark::turn},
                                      {1010, Mark::product, Dq::query_product, 0},
                                      {1020, Mark::product, Dq::score_product, 1},
                                      {1030, Mark::wait_product, Dq::query_product, 0},
                                      {1060, Mark::wait_full, Dq::values, 1},
                                      {1062, Mark::product, Dq::slope_product, 1},
                                      {1070, Mark::wait_product, Dq::slope_product, 1},
                                      {1160, Mark::scores},
                                      {1200, Mark::wait_full, Dq::queries, 1}};
  const TracedRun one = traced(dq, {consumer, {}, {}, {}, {}});
  const sim::Run shown = run_of(one.subject, one.recording, one.recording.ctas[0]);
  EXPECT_EQ(lane(shown, "dQ[0]", 'A'), (Times{{10, 60}}));
  EXPECT_EQ(lane(shown, "S[0]", 'A'), (Times{{60, 110}}));  // it and dP, as much work, end together at the latest
  EXPECT_EQ(lane(shown, "dP[0]", 'A'), (Times{{110, 160}}));
  model = std::get<sim::AttentionScenario>(fit_model(one.subject, one.recording.ctas[0]));
  EXPECT_EQ(sim::block_work(model, false).after.size(), 1u);
  EXPECT_EQ(model.blocks, 1);
}

TEST(AttentionTrace, AMarkOfARingThatTheKernelDoesNotHaveIsRefused) {
  auto marks = forward_marks();
  marks[1].push_back({1395, Mark::wait_full, 7, 0});
  const Result<Report> rings = report_of(traced(forward_subject(), marks), false);
  ASSERT_FALSE(rings.ok());
  EXPECT_NE(rings.status().message().find("strip 1 of CTA 0 has mark 1 with number 7 of 4"), std::string::npos)
      << rings.status().message();
  marks[1].back() = {1395, Mark::product, 2, 0};
  const Result<Report> products = report_of(traced(forward_subject(), marks), false);
  ASSERT_FALSE(products.ok());
  EXPECT_NE(products.status().message().find("with number 2 of 2"), std::string::npos) << products.status().message();
}

}  // namespace
}  // namespace warploom::trace
