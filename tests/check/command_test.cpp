// `warploom check`: exit codes, tables, JSON.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace warploom::cli {
namespace {

struct Output {
  int code = 0;
  std::string text, errors;
};

Output run(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"warploom", "check"});
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Output output;
  output.code = run_command(static_cast<int>(arguments.size()), arguments.data());
  output.text = testing::internal::GetCapturedStdout();
  output.errors = testing::internal::GetCapturedStderr();
  return output;
}

TEST(CheckCommand, shipped_pipelines_pass) {
  const Output output = run({});
  EXPECT_EQ(output.code, 0);
  EXPECT_NE(output.text.find("ping-pong"), std::string::npos);
  EXPECT_EQ(output.text.find("faulty"), std::string::npos);
}

TEST(CheckCommand, a_planted_mistake_fails_and_is_drawn) {
  const Output output = run({"--plant", "early-release"});
  EXPECT_EQ(output.code, 1);
  EXPECT_NE(output.text.find("slot overwritten: producer writes filling 1 of stage[0]"), std::string::npos);
  EXPECT_NE(output.text.find("    10  load stage[0] #1"), std::string::npos);
}

TEST(CheckCommand, json_holds_the_interleaving) {
  const Output output = run({"specialized", "--plant", "missing-release", "--stages", "1", "--steps", "1",
                             "--consumers", "1", "--tiles", "1", "--producer-exit", "late", "--json"});
  EXPECT_EQ(output.code, 1);
  const auto json = nlohmann::json::parse(output.text);
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["pipeline"], "specialized");
  EXPECT_EQ(json[0]["sizes"], 1);
  ASSERT_EQ(json[0]["faults"].size(), 1u);
  const auto& fault = json[0]["faults"][0];
  EXPECT_EQ(fault["kind"], "deadlock");
  EXPECT_EQ(fault["sizes"]["stages"], 1);
  ASSERT_EQ(fault["interleaving"].size(), 7u);
  EXPECT_EQ(fault["interleaving"][3]["who"], "memory");
  EXPECT_EQ(fault["interleaving"][3]["does"], "stage[0] #0 lands");
}

TEST(CheckCommand, wrong_arguments_are_usage_errors_that_name_the_rule) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> cases = {
      {{"pong"}, "PIPELINE 'pong' is not one of the shipped ones"},
      {{"--stages", "0"}, "--stages: '0' is not a number from 1 to 32"},
      {{"--steps", "4-2"}, "the range '4-2' runs backwards; pass 2-4"},
      {{"--consumers", "7"}, "--consumers: '7' is not a number from 1 to 6"},
      {{"--tiles", "1,"}, "--tiles: '' is not a number"},
      {{"turns", "--steps", "100", "--tiles", "100"}, "does not fit the tables"},
      {{"--plant", "gremlin"}, "--plant 'gremlin' is not known"},
  };
  for (const auto& [arguments, message] : cases) {
    const Output output = run(arguments);
    EXPECT_EQ(output.code, 2) << message;
    EXPECT_NE(output.errors.find(message), std::string::npos) << output.errors;
  }
}

}  // namespace
}  // namespace warploom::cli
