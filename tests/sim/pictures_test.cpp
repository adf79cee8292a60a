// Critical paths cover the makespan; pictures are well formed and say what happened.
#include "sim/pictures.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "sim/critical_path.h"
#include "sim/document_pictures.h"
#include "sim/json.h"
#include "sim/parameters.h"

namespace warploom::sim {
namespace {

auto traced(const Scenario& scenario) {
  return *run_scenario(scenario, {.trace = true});
}

void expect_cover(const Model& model, const Timeline& timeline) {
  Cycles at = 0;
  for (const PathPiece& piece : critical_path(model, timeline)) {
    ASSERT_EQ(piece.start, at);
    ASSERT_GT(piece.end, piece.start);
    at = piece.end;
  }
  ASSERT_EQ(at, timeline.makespan);
}

TEST(CriticalPath, CoversTheMakespanWithoutGapsOnRandomScenarios) {
  std::mt19937_64 random(5);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    GemmScenario gemm;
    gemm.scheme = static_cast<Scheme>(draw(0, 3));
    gemm.k = draw(1, 1500);
    gemm.tiles = draw(1, 5);
    gemm.consumers = draw(1, 3);
    gemm.stages = draw(1, 6);
    gemm.machine.latency = draw(0, 2000);
    gemm.machine.bandwidth = static_cast<double>(draw(16, 256));
    gemm.machine.issue_tma = draw(0, 1500);
    const auto one = traced(gemm);
    expect_cover(one.model, one.timeline);

    AttentionScenario attention;
    attention.variant = static_cast<Variant>(draw(0, 3));
    attention.blocks = draw(1, 30);
    attention.machine.exp_rate = static_cast<double>(draw(4, 64));
    attention.pass = static_cast<Pass>(draw(0, 1));
    attention.bias_bytes = draw(0, 4);
    attention.kv_stages = draw(0, 1) * draw(2, 4);
    attention.cheap_blocks = draw(0, attention.blocks);
    const auto two = traced(attention);
    expect_cover(two.model, two.timeline);
  }
}

TEST(CriticalPath, NamesTheLimiter) {
  const auto limiter = [](const Scenario& scenario) {
    const auto run = traced(scenario);
    return shares(critical_path(run.model, run.timeline)).front().what;
  };
  GemmScenario gemm;
  EXPECT_EQ(limiter(gemm), "TC");
  gemm.machine.bandwidth = 13.9;
  EXPECT_EQ(limiter(gemm), "MEM");
  gemm.machine.bandwidth = 64;
  gemm.producer = Producer::cp_async;
  gemm.machine.issue_cp = 1500;
  EXPECT_EQ(limiter(gemm), "issue");
  gemm.producer = Producer::tma;
  gemm.stages = 1;
  gemm.machine.latency = 5000;
  EXPECT_EQ(limiter(gemm), "latency");
  AttentionScenario attention;
  attention.variant = Variant::both;
  attention.machine.exp_rate = 2;
  EXPECT_EQ(limiter(attention), "SFU");
}

TEST(CriticalPath, SharesAddUp) {
  const auto run = traced(GemmScenario{});
  const std::vector<Share> list = shares(critical_path(run.model, run.timeline));
  Cycles sum = 0;
  for (const Share& share : list) sum += share.cycles;
  EXPECT_EQ(sum, 68294);
  EXPECT_EQ(list[0].cycles, 65536);
  EXPECT_EQ(to_string(list), "TC 96 %, epilogue, drain 1 %, MEM 1 %, latency 1 %");
}

// Tags must nest, attributes must be quoted and no raw '<' or '&' may stand in the text: enough of XML for what we
// write.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < xml.size();) {
    if (xml[at] == '&') {
      const std::size_t end = xml.find(';', at);
      ASSERT_LE(end - at, 5u);
      at = end + 1;
    } else if (xml[at] != '<') {
      ASSERT_NE(xml[at], '>') << xml.substr(at, 40);
      ++at;
    } else {
      const std::size_t end = xml.find('>', at);
      ASSERT_NE(end, std::string::npos);
      const std::string tag = xml.substr(at + 1, end - at - 1);
      ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
      const std::string name = tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
      if (tag[0] == '/') {
        ASSERT_EQ(open.back(), tag.substr(1));
        open.pop_back();
      } else if (tag.back() != '/') {
        open.push_back(name);
      }
      at = end + 1;
    }
  }
  EXPECT_TRUE(open.empty());
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Svg, IsWellFormedSelfContainedAndNamesStalls) {
  const auto run = traced(GemmScenario{});
  const std::string svg = timeline_svg(run, 12000);
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "href"), 0u);
  EXPECT_EQ(count(svg, "http"), 1u);  // the namespace
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_NE(svg.find("producer waits for empty[0] &gt;= 1"), std::string::npos);
  EXPECT_NE(svg.find("consumer 0 waits for full[0] &gt;= 1, 0 to 1478 (1478 cycles)"), std::string::npos);
  EXPECT_NE(svg.find("microseconds"), std::string::npos);
  EXPECT_GT(count(svg, "<title>"), 40u);
}

TEST(Svg, ThinBoxesMergeSoThatLongRunsStaySmall) {
  GemmScenario scenario;
  scenario.k = 64 * 100000;
  const auto run = traced(scenario);
  const std::string svg = timeline_svg(run, run.timeline.makespan);
  expect_well_formed(svg);
  EXPECT_LT(svg.size(), 1000000u);
  EXPECT_NE(svg.find(" more</title>"), std::string::npos);
}

TEST(Svg, TextFromOutsideIsEscaped) {
  GemmScenario scenario;
  scenario.machine.name = "<b>&\"chip\"";
  const std::string svg = timeline_svg(traced(scenario), 5000);
  expect_well_formed(svg);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
}

TEST(Perfetto, EveryBlockedWaitHasItsSliceAndOneArrow) {
  for (const Scenario& scenario : {Scenario(GemmScenario{}), Scenario([] {
                                     AttentionScenario s;
                                     s.variant = Variant::inter;
                                     return s;
                                   }())}) {
    const auto run = traced(scenario);
    const Json json = Json::parse(perfetto_json(run));
    struct Slice {
      double start, end;
    };
    std::map<std::pair<int, int>, std::vector<Slice>> slices;
    std::map<int, Json> starts;
    std::size_t waits = 0, finishes = 0, tracks = 0;
    for (const Json& event : json["traceEvents"]) {
      if (event["ph"] == "X") {
        slices[{event["pid"], event["tid"]}].push_back(
            {event["ts"], event["ts"].get<double>() + event["dur"].get<double>()});
        waits += event["name"].get<std::string>().starts_with("wait ");
      }
      if (event["ph"] == "s") starts[event["id"]] = event;
      tracks += event["name"] == "thread_name";
    }
    EXPECT_EQ(tracks, run.model.resources.size() + run.model.executors.size());
    const auto inside = [&](const Json& event) {
      const double ts = event["ts"];
      for (const Slice& slice : slices[{event["pid"], event["tid"]}])
        if (slice.start <= ts && ts < slice.end) return true;
      return false;
    };
    for (const Json& event : json["traceEvents"]) {
      if (event["ph"] != "f") continue;
      ++finishes;
      ASSERT_TRUE(starts.contains(event["id"].get<int>()));
      const Json& start = starts[event["id"].get<int>()];
      EXPECT_TRUE(inside(event)) << event;
      EXPECT_TRUE(inside(start)) << start;
      EXPECT_LE(start["ts"].get<double>(), event["ts"].get<double>());
    }
    EXPECT_EQ(finishes, starts.size());
    EXPECT_EQ(finishes, waits);
    EXPECT_GT(waits, 20u);
  }
}

TEST(Report, HasAFigureForEveryExperimentTheNoteAndTheAblation) {
  std::vector<Outcome> outcomes;
  for (const Experiment& experiment : experiments()) outcomes.push_back(*run_experiment(experiment, {.trace = true}));
  const std::string html = html_report(outcomes);
  for (const Experiment& experiment : experiments())
    EXPECT_EQ(count(html, "<figure id=\"figure-" + experiment.name + "\">"), 1u);
  EXPECT_EQ(count(html, "<svg "), experiments().size());
  EXPECT_NE(html.find(kOptimism), std::string::npos);
  EXPECT_NE(html.find("661 TFLOP/s"), std::string::npos);
  EXPECT_EQ(count(html, "src="), 0u);
}

TEST(Documentation, PicturesAreWhatTheCommandMakes) {
  const auto pictures = document_pictures();
  ASSERT_TRUE(pictures.ok()) << pictures.status().message();
  for (const DocumentPicture& picture : *pictures) {
    expect_well_formed(picture.svg);
    std::ifstream file(std::string(WARPLOOM_DOCS) + "/pictures/" + picture.file, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    EXPECT_TRUE(text.str() == picture.svg)
        << picture.file << " is out of date; run `warploom simulate pictures docs/pictures`";
  }
}

TEST(Axis, StepsAreRound) {
  EXPECT_DOUBLE_EQ(axis_step(12000, 10), 2000);
  EXPECT_DOUBLE_EQ(axis_step(100, 10), 10);
  EXPECT_DOUBLE_EQ(axis_step(6.6, 10), 1);
}

}  // namespace
}  // namespace warploom::sim
