// Marks become lanes, spans and arrows; their order is checked; the model stands beside them.
#include "trace/timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "pipelines.h"
#include "sim/pictures.h"
#include "sim/rows.h"
#include "trace/compare.h"
#include "trace/order.h"

namespace warploom::trace {
namespace {

using sim::Interval;

sim::Run cooperative_run() {
  const Result<Recording> recording = recorded(cooperative_marks());
  EXPECT_TRUE(recording.ok()) << recording.status().message();
  return run_of(cooperative_subject(), *recording, recording->ctas[0]);
}

std::vector<Interval> lane(const sim::Run& run, const std::string& name) {
  for (std::size_t r = 0; r < run.model.resources.size(); ++r) {
    if (run.model.resources[r] == name) return run.timeline.intervals[r];
  }
  ADD_FAILURE() << "no lane " << name;
  return {};
}

void expect_lane(const sim::Run& run, const std::string& name, char tag,
                 const std::vector<std::pair<sim::Cycles, sim::Cycles>>& expected) {
  const std::vector<Interval> found = lane(run, name);
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].tag, tag) << name;
    EXPECT_EQ(std::pair(found[i].start, found[i].end), expected[i]) << name << " " << i;
  }
}

TEST(TracedTimeline, ProductsFollowOneAnotherOnTheirLane) {
  const sim::Run run = cooperative_run();
  // From the issue or the end of the one before, to when the consumer had waited for it.
  for (const char* name : {"TC[0]", "TC[1]"})
    expect_lane(run, name, 'M', {{110, 160}, {160, 264}, {264, 314}, {314, 361}});
  for (const char* name : {"FMA[0]", "FMA[1]"}) expect_lane(run, name, 'E', {{361, 400}});
}

TEST(TracedTimeline, ALoadLastsUntilTheFirstConsumerHasIt) {
  const sim::Run run = cooperative_run();
  expect_lane(run, "MEM[0]", 'L', {{10, 110}, {165, 260}});
  expect_lane(run, "MEM[1]", 'L', {{20, 121}, {270, 311}});
}

TEST(TracedTimeline, IsARunOfTheSimulator) {
  const sim::Run run = cooperative_run();
  EXPECT_EQ(run.timeline.makespan, 420);
  EXPECT_EQ(run.timeline.events, 10 + 14 + 14);
  EXPECT_DOUBLE_EQ(run.machine.clock_ghz, 2.0);
  ASSERT_EQ(run.model.executors.size(), 3u);
  EXPECT_EQ(run.model.executors[0].name, "producer");
  EXPECT_EQ(sim::run_lengths(sim::sample_row(lane(run, "TC[0]"), 420, 42)), "11. 25M 6.");
  const std::string svg = sim::timeline_svg(run, 420);
  EXPECT_NE(svg.find("consumer 1 waits for full[0]"), std::string::npos);
  EXPECT_NE(svg.find("epilogue"), std::string::npos);
}

TEST(TracedTimeline, WithoutMarksInTheMainLoopProductsAreWhatTheOthersSaw) {
  // The producer's marks, the consumers' epilogues and a watching warp.
  auto marks = cooperative_marks();
  for (int consumer = 1; consumer <= 2; ++consumer)
    marks[consumer].erase(marks[consumer].begin(), marks[consumer].end() - 2);
  marks.push_back(
      {{1108, Mark::landed, 0, 0}, {1119, Mark::landed, 0, 1}, {1258, Mark::landed, 0, 2}, {1309, Mark::landed, 0, 3}});
  const Result<Recording> recording = recorded(marks);
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  const sim::Run run = run_of(cooperative_subject(), *recording, recording->ctas[0]);
  expect_lane(run, "MEM[0]", 'L', {{10, 108}, {165, 258}});
  expect_lane(run, "MEM[1]", 'L', {{20, 119}, {270, 309}});
  // Slots came back at 165, 270, 318, and when the producer ended.
  expect_lane(run, "TC[0]", 'M', {{108, 165}, {165, 270}, {270, 318}, {318, 420}});
  EXPECT_EQ(run.model.executors.size(), 3u);  // the watcher is not drawn
  const OrderCheck check = check_order(cooperative_subject(), recording->ctas[0]);
  EXPECT_EQ(check.violated, 0);
  EXPECT_EQ(check.checked, 4 + 2);
}

TEST(TracedTimeline, PerfettoHasAnArrowForEveryArrivalThatAWaitEndedWith) {
  const auto json = nlohmann::json::parse(sim::perfetto_json(cooperative_run()));
  std::map<std::string, int> arrows;
  for (const auto& event : json["traceEvents"])
    if (event["ph"] == "s") ++arrows[event["name"]];
  // Two consumers waited for each of four fillings; the producer for the slots of fillings 2 to 5.
  EXPECT_EQ(arrows["full[0]"], 4);
  EXPECT_EQ(arrows["full[1]"], 4);
  EXPECT_EQ(arrows["empty[0]"], 2);
  EXPECT_EQ(arrows["empty[1]"], 2);
}

TEST(TracedTimeline, LostMarksAreSaid) {
  const Result<Recording> recording = recorded(cooperative_marks(), /*capacity=*/8);
  ASSERT_TRUE(recording.ok());
  const sim::Run run = run_of(cooperative_subject(), *recording, recording->ctas[0]);
  bool said = false;
  for (const std::string& note : run.notes) said = said || note.find("14 marks were lost") != std::string::npos;
  EXPECT_TRUE(said);
  EXPECT_NE(sim::timeline_svg(run, 420), "");
}

TEST(Order, TheMadeUpPipelineKeepsIt) {
  const Result<Recording> recording = recorded(cooperative_marks());
  const OrderCheck check = check_order(cooperative_subject(), recording->ctas[0]);
  EXPECT_EQ(check.violated, 0) << (check.violations.empty() ? "" : check.violations.front());
  EXPECT_EQ(check.checked, 2 * (4 + 2));  // two consumers: four fillings had, two slots filled again
}

TEST(Order, ALoadAfterItsProductIsFound) {
  auto marks = cooperative_marks();
  marks[0][5].clock = 1300;  // filling 2, which both consumers had at 260
  marks[0].resize(6);
  const Result<Recording> recording = recorded(marks);
  ASSERT_TRUE(recording.ok());
  const OrderCheck check = check_order(cooperative_subject(), recording->ctas[0]);
  EXPECT_EQ(check.violated, 2);
  EXPECT_NE(check.violations.at(0).find("filling 2 was loaded after consumer 0 had it: cycle 300 after cycle 260"),
            std::string::npos)
      << check.violations.at(0);
}

TEST(Order, ASlotFilledWhileItIsReadIsFound) {
  auto marks = cooperative_marks();
  marks[0][5].clock = 1120;  // filling 2 into slot 0, whose product is waited for from 125 on
  const Result<Recording> recording = recorded(marks);
  const OrderCheck check = check_order(cooperative_subject(), recording->ctas[0]);
  EXPECT_EQ(check.violated, 2);
  EXPECT_NE(check.violations.at(0).find(
                "filling 2 was loaded before consumer 0 waited for the product that read what lay there"),
            std::string::npos)
      << check.violations.at(0);
}

TEST(Order, TurnsOutOfTurnAreFound) {
  GemmConfig config = cooperative_gemm();
  config.ping_pong = true;
  const Subject subject = subject_of(config, sim::Machine{}, 4);
  const auto turns = [](std::vector<std::uint64_t> ends) {
    std::vector<Made> marks;
    for (const std::uint64_t end : ends) {
      marks.push_back({end - 10, Mark::turn});
      marks.push_back({end, Mark::idle});
    }
    return marks;
  };
  const Result<Recording> right = recorded({{}, turns({1020, 1060, 1100}), turns({1040, 1080})});
  EXPECT_EQ(check_order(subject, right->ctas[0]).violated, 0);
  EXPECT_EQ(check_order(subject, right->ctas[0]).checked, 4);
  const Result<Recording> wrong = recorded({{}, turns({1020, 1060, 1100}), turns({1070, 1080})});
  const OrderCheck check = check_order(subject, wrong->ctas[0]);
  EXPECT_EQ(check.violated, 1);
  EXPECT_NE(check.violations.at(0).find("turn 0 of consumer 1"), std::string::npos) << check.violations.at(0);
}

const ComparedRow& row(const Comparison& comparison, const std::string& tag, const std::string& what) {
  for (const ComparedRow& each : comparison.rows)
    if (each.tag == tag && (what.empty() || each.what == what)) return each;
  ADD_FAILURE() << "no row " << tag << " " << what;
  return comparison.rows.front();
}

TEST(Comparison, CountsMeansAndSharesAreThoseOfOneWarp) {
  const Comparison comparison = compare(cooperative_run(), cooperative_run());
  const Activity products = row(comparison, "M", "").measured;
  EXPECT_DOUBLE_EQ(products.count, 4);
  EXPECT_DOUBLE_EQ(products.mean, (361 - 110) / 4.0);
  EXPECT_DOUBLE_EQ(products.share, 100.0 * (361 - 110) / 420);
  EXPECT_DOUBLE_EQ(row(comparison, "L", "").measured.mean, (100 + 95 + 101 + 41) / 4.0);
  EXPECT_DOUBLE_EQ(row(comparison, "", "waits: full").measured.count, 4);
  EXPECT_DOUBLE_EQ(row(comparison, "", "waits: products").measured.count, 4 + 4);  // issued, waited for
  EXPECT_DOUBLE_EQ(comparison.measured_tensor, 100.0 * (361 - 110) / 420);
  for (const ComparedRow& each : comparison.rows) EXPECT_DOUBLE_EQ(each.model.share, each.measured.share) << each.what;
}

TEST(Comparison, TheModelIsFittedToTheCtasWorkAndSaysWhereTheyDiffer) {
  const Result<Recording> recording = recorded(cooperative_marks());
  const sim::Scenario model = fit_model(cooperative_subject(), recording->ctas[0]);
  const auto& gemm = std::get<sim::GemmScenario>(model);
  EXPECT_EQ(gemm.tiles, 1);
  EXPECT_EQ(gemm.k, 256);
  EXPECT_EQ(gemm.stages, 2);
  EXPECT_EQ(gemm.consumers, 1);
  const Result<sim::Run> predicted = sim::run_scenario(model, {.trace = true});
  ASSERT_TRUE(predicted.ok());
  const Comparison comparison = compare(*predicted, cooperative_run());
  EXPECT_EQ(comparison.model_makespan, predicted->timeline.makespan);
  // The model's own figures: a product of 1024 cycles; a load of 768 and 700, the second one behind the first (asked
  // for at 20, the pipe free at 10 + 768); an epilogue of 256 + 1024.
  EXPECT_DOUBLE_EQ(row(comparison, "M", "").model.mean, 1024);
  EXPECT_DOUBLE_EQ(row(comparison, "L", "").model.mean, (3 * (768 + 700) + (10 + 768 - 20 + 768 + 700)) / 4.0);
  EXPECT_DOUBLE_EQ(row(comparison, "E", "").model.mean, 256 + 1024);
  EXPECT_DOUBLE_EQ(row(comparison, "E", "").model.count, 1);
  EXPECT_NE(comparison.verdict.find("they differ most in " +
                                    (comparison.rows[0].tag.empty() ? "" : comparison.rows[0].tag + " ") +
                                    comparison.rows[0].what),
            std::string::npos)
      << comparison.verdict;
}

TEST(Comparison, APingPongsModelHasBothConsumersTiles) {
  GemmConfig config = cooperative_gemm();
  config.ping_pong = true;
  config.tile_columns = 128;
  const Subject subject = subject_of(config, sim::Machine{}, 4);
  EXPECT_EQ(subject.roles[1].product, 'M');
  EXPECT_EQ(subject.roles[2].product, 'm');
  const std::vector<Made> two = {{1010, Mark::epilogue, 0, 0}, {1020, Mark::idle}, {1030, Mark::epilogue, 0, 1}};
  const Result<Recording> recording = recorded({{}, two, {{1010, Mark::epilogue, 0, 0}}});
  const sim::Scenario scenario = fit_model(subject, recording->ctas[0]);
  EXPECT_EQ(std::get<sim::GemmScenario>(scenario).tiles, 3);
  EXPECT_EQ(std::get<sim::GemmScenario>(scenario).consumers, 2);
}

TEST(Comparison, AttentionsModelHasTheBlocksOfTwoWarpgroups) {
  const HopperForwardConfig config{.score = ScoreKind::softmax, .head_dim = 128, .value_dim = 128};
  const Subject subject = subject_of(config, sim::Machine{});
  ASSERT_EQ(subject.roles.size(), 4u);
  EXPECT_EQ(subject.roles[2].name, "scheduler");
  const std::vector<Made> steps = {
      {1010, Mark::product, 0, 0}, {1020, Mark::product, 1, 0}, {1030, Mark::product, 0, 1}};
  const Result<Recording> recording = recorded({steps, steps, {}, {}});
  const auto attention = std::get<sim::AttentionScenario>(fit_model(subject, recording->ctas[0]));
  EXPECT_EQ(attention.blocks, 4);  // products of K: two of each
  EXPECT_EQ(attention.variant, sim::Variant::both);
  EXPECT_EQ(attention.keys, 128);
  EXPECT_EQ(attention.kv_stages, 2);
  const Result<sim::Run> run = sim::run_scenario(attention, {.trace = true});
  ASSERT_TRUE(run.ok()) << run.status().message();
}

}  // namespace
}  // namespace warploom::trace
