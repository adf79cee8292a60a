// Every named experiment against its published figures; rows of letters, parameter tables, machine files, JSON shapes.
#include "sim/experiments.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "sim/json.h"
#include "sim/parameters.h"
#include "sim/rows.h"

namespace warploom::sim {
namespace {

TEST(Experiments, AllAgreeWithThePublishedFiguresAlsoWithReversedTies) {
  std::set<std::string> names;
  int claims = 0;
  for (const Experiment& experiment : experiments()) {
    EXPECT_TRUE(names.insert(experiment.name).second) << experiment.name;
    for (const bool reverse : {false, true}) {
      const Result<Outcome> outcome = run_experiment(experiment, {.reverse_ties = reverse});
      ASSERT_TRUE(outcome.ok()) << outcome.status().message();
      for (const CheckedClaim& checked : outcome->claims) {
        ++claims;
        EXPECT_EQ(checked.ours, checked.claim.published) << experiment.name << " " << to_string(checked.claim.measure);
        EXPECT_TRUE(checked.agrees);
      }
    }
  }
  EXPECT_GE(claims, 2 * 45);
}

TEST(Experiments, UnknownNamesListTheNearest) {
  const Status status = find_experiment("specialised").status();
  EXPECT_EQ(status.code(), StatusCode::invalid_value);
  EXPECT_NE(status.message().find("near it are specialized"), std::string::npos) << status.message();
}

TEST(Experiments, FormulasGiveTheValuesOfSection6) {
  std::string all;
  for (const Formula& row : formulas(Machine{})) all += row.what + " | " + row.value + "\n";
  for (const char* expected :
       {"65536 cycles = 35.8 us", "44800 B = 43.75 KB, 0.9 stage", "383 ns, 1.28 MB; 9.7 KB for each of 132 SMs",
        "91.1 %", "conservative | 3, 3, 4, 5", "exact count | 2, 3, 4, 5", "1024/1500 = 68 %", "K 256 | 76.2 %",
        "E x 8 | 92.8 %", "staging registers | 96", "per thread | 128", "168, leaves 40", "232, 240, 160", "64, 72",
        "rates | 0.50", "intra estimate | 80 %", "FA3 share of peak | 67 %", "FP8 FA3 share of peak | 61 %",
        "13.9 B/cycle"})
    EXPECT_NE(all.find(expected), std::string::npos) << expected << "\n" << all;
}

TEST(Rows, ACharacterIsTheIntervalThatHoldsTheMiddleOfItsBucket) {
  // Buckets of 10 cycles, middles 5, 15, ...: [5, 6) holds the first, [14, 15) ends before the second, [25, 36) holds
  // two.
  const std::vector<Interval> intervals = {{5, 6, 0, 'a'}, {14, 15, 0, 'b'}, {25, 36, 0, 'c'}};
  EXPECT_EQ(sample_row(intervals, 50, 5), "a.cc.");
  EXPECT_EQ(run_lengths("a.cc."), "1a 1. 2c 1.");
  EXPECT_EQ(drawn("a."), "a·");
  EXPECT_EQ(sample_row({}, 7, 3), "...");
  EXPECT_EQ(sample_row({{0, Cycles{1} << 61, 0, 'x'}}, Cycles{1} << 48, 4), "xxxx");
}

TEST(Rows, AgreeWithTheDefinitionAtEveryWidth) {
  const std::vector<Interval> intervals = {{3, 9, 0, 'a'}, {9, 10, 0, 'b'}, {17, 40, 0, 'c'}, {41, 44, 0, 'd'}};
  for (Cycles until : {1, 7, 44, 45, 100})
    for (int width = 1; width <= 120; ++width) {
      const std::string row = sample_row(intervals, until, width);
      for (int c = 0; c < width; ++c) {
        char expected = '.';
        for (const Interval& i : intervals)
          if (2 * width * i.start <= (2 * c + 1) * until && (2 * c + 1) * until < 2 * width * i.end) expected = i.tag;
        ASSERT_EQ(row[static_cast<std::size_t>(c)], expected);
      }
    }
}

TEST(Parameters, TheMachineComesFirstWhateverTheOrder) {
  GemmScenario scenario;
  ASSERT_TRUE(
      configure(scenario, {{"latency", "900"}, {"machine", "b200"}, {"scheme", "register"}, {"k", "128.0"}}).ok());
  EXPECT_EQ(scenario.machine.name, "b200");
  EXPECT_EQ(scenario.machine.latency, 900);
  EXPECT_EQ(scenario.k, 128);
  EXPECT_EQ(scenario.scheme, Scheme::register_staged);
}

TEST(Parameters, BadValuesNameTheArgument) {
  const auto message = [](Settings settings) {
    GemmScenario scenario;
    return configure(scenario, settings).message();
  };
  EXPECT_NE(message({{"k", "12x"}}).find("k = '12x' must be a whole number"), std::string::npos);
  EXPECT_NE(message({{"k", ""}}).find("must be a whole number"), std::string::npos);
  EXPECT_NE(message({{"bandwidth", "fast"}}).find("bandwidth = 'fast' must be a number"), std::string::npos);
  EXPECT_NE(message({{"scheme", "magic"}}).find("sync|register|cp_async|specialized"), std::string::npos);
  EXPECT_NE(message({{"speed", "1"}}).find("'speed' is not a parameter; known are scheme, machine"), std::string::npos);
  EXPECT_NE(message({{"machine", "v100"}}).find("h100, h200, a100, b200"), std::string::npos);
  EXPECT_NE(message({{"machine", "/no/such.json"}}).find("cannot be read"), std::string::npos);
}

TEST(Machines, FilesNeedEveryFieldAndNoOther) {
  const std::string good = machine_to_json(Machine{});
  ASSERT_TRUE(machine_from_json(good, "good").ok());
  Json json = Json::parse(good);
  json.erase("latency");
  EXPECT_NE(machine_from_json(json.dump(), "m.json").status().message().find("m.json lacks the field 'latency'"),
            std::string::npos);
  json["latency"] = "soon";
  EXPECT_EQ(machine_from_json(json.dump(), "m").status().code(), StatusCode::invalid_type);
  json["latency"] = 1.5;
  EXPECT_FALSE(machine_from_json(json.dump(), "m").ok());
  json["latency"] = -1;
  EXPECT_NE(machine_from_json(json.dump(), "m").status().message().find("latency = -1"), std::string::npos);
  json["latency"] = 1;
  json["colour"] = 1;
  EXPECT_NE(machine_from_json(json.dump(), "m").status().message().find("unknown field 'colour'"), std::string::npos);
  EXPECT_FALSE(machine_from_json("[1, 2", "m").ok());
  for (const Machine& machine : known_machines()) {
    const Result<Machine> back = machine_from_json(machine_to_json(machine), machine.name);
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(machine_to_json(*back), machine_to_json(machine));
  }
}

TEST(JsonShape, HasTheKeysOfTheContract) {
  const auto run = run_scenario(GemmScenario{});
  const Json json = run_json(*run, *resolve({}, run->timeline));
  EXPECT_EQ(json["makespan"], 68294);
  for (const char* resource : {"TC", "MEM", "SFU", "FMA"}) {
    EXPECT_TRUE(json["utilisation"][resource].is_number_float());
    EXPECT_TRUE(json["busy"][resource].is_number_integer());
    EXPECT_EQ(json["timeline"][resource].get<std::string>().size(), 72u);
  }
  EXPECT_EQ(json["busy"]["TC"], 65536);
  EXPECT_TRUE(json["events"].is_number_integer());
  EXPECT_EQ(intervals_json(*run)["TC"]["start"].size(), 64u);
}

}  // namespace
}  // namespace warploom::sim
