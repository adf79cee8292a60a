// `warploom simulate` as a user types it: exit codes, JSON of the contract, files, errors.
#include "cli/command.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/simulate_command.h"

namespace warploom::cli {
namespace {

struct Said {
  int code;
  std::string out, err;
};

Said simulate(const std::string& arguments) {
  CLI::App app("test", "warploom");
  add_simulate_command(app);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  int code = 0;
  try {
    app.parse("simulate " + arguments, false);
  } catch (const CLI::RuntimeError& error) {
    code = error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    code = app.exit(error) == 0 ? exit_success : exit_usage;
  }
  std::string out = testing::internal::GetCapturedStdout();
  return {code, std::move(out), testing::internal::GetCapturedStderr()};
}

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("warploom-simulate-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(SimulateCommand, AloneIsTheTableWithTheNoteAndTheAblation) {
  const Said said = simulate("");
  EXPECT_EQ(said.code, 0);
  EXPECT_NE(said.out.find("persistent-k1024-ping-pong"), std::string::npos);
  EXPECT_NE(said.out.find("optimistic"), std::string::npos);
  EXPECT_NE(said.out.find("661 TFLOP/s"), std::string::npos);
  EXPECT_EQ(said.out.find("NO"), std::string::npos);
}

TEST(SimulateCommand, JsonToStandardOutputIsAlone) {
  const Said said = simulate("gemm --scheme cp_async --stages 3 --until 12000 --width 60 --json");
  EXPECT_EQ(said.code, 0);
  const Json json = Json::parse(said.out);
  EXPECT_EQ(json["makespan"], 74484);
  EXPECT_EQ(json["timeline"]["TC"].get<std::string>().size(), 60u);
  EXPECT_EQ(Json::parse(simulate("attention --variant both --json -").out)["makespan"], 33024);
  EXPECT_EQ(Json::parse(simulate("timeline-persistent --json").out)["makespan"], 77254);
  EXPECT_GT(Json::parse(simulate("--json").out)["experiments"].size(), 30u);
}

TEST(SimulateCommand, WritesFiles) {
  const Folder folder;
  const Said said = simulate("gemm --k 512 --svg " + folder.file("a.svg") + " --perfetto " + folder.file("a.json") +
                             " --json " + folder.file("b.json"));
  EXPECT_EQ(said.code, 0);
  EXPECT_NE(said.out.find("critical path"), std::string::npos);
  EXPECT_EQ(read(folder.file("a.svg")).substr(0, 4), "<svg");
  EXPECT_TRUE(Json::parse(read(folder.file("a.json"))).contains("traceEvents"));
  EXPECT_TRUE(Json::parse(read(folder.file("b.json"))).contains("makespan"));
  EXPECT_EQ(simulate("machine a100 --json " + folder.file("m.json")).code, 0);
  EXPECT_EQ(simulate("gemm --machine " + folder.file("m.json")).code, 0);
  EXPECT_EQ(simulate("gemm --svg /no/such/folder/a.svg").code, exit_usage);
  EXPECT_EQ(simulate("gemm --svg /dev/full").code, exit_check_failed);
}

TEST(SimulateCommand, ExploringCommandsRun) {
  for (const char* arguments :
       {"sweep gemm --x stages=1..4 --y latency=300,700", "design gemm --k 256 --tile-m 128 --tile-n 128,256",
        "design attention --keys 128 --top 3", "work --length 1024 --sms 4,8", "shared --sms 3 --k 256"}) {
    const Said said = simulate(arguments);
    EXPECT_EQ(said.code, 0) << arguments << said.err;
    EXPECT_NE(said.out.find("optimistic"), std::string::npos) << arguments;
  }
}

TEST(SimulateCommand, WrongUsageExitsWithTwoAndNamesTheArgument) {
  const std::pair<const char*, const char*> cases[] = {{"gemm --stages 0", "stages = 0"},
                                                       {"gemm --bandwidth -5", "bandwidth = -5"},
                                                       {"gemm --bandwidth 0", "bandwidth = 0"},
                                                       {"gemm --machine v100", "h100, h200, a100, b200"},
                                                       {"gemm --until 0", "until = 0"},
                                                       {"gemm --width 0", "width = 0"},
                                                       {"gemm --k 1.5", "k = '1.5'"},
                                                       {"gemm --speed 3", "--speed"},
                                                       {"attention --blocks 0", "blocks = 0"},
                                                       {"specialised", "near it are specialized"},
                                                       {"sweep gemm --x stages=3..1", "stages = '3..1'"},
                                                       {"work --sms 0", "sms = 0"},
                                                       {"program /no/file.json", "cannot be read"}};
  for (const auto& [arguments, message] : cases) {
    const Said said = simulate(arguments);
    EXPECT_EQ(said.code, exit_usage) << arguments;
    EXPECT_NE(said.err.find(message), std::string::npos) << arguments << ": " << said.err;
  }
}

TEST(SimulateCommand, ADeadlockIsAFailureWithItsReport) {
  const Folder folder;
  std::ofstream(folder.file("p.json"))
      << R"({"barriers": ["b"], "executors": [{"name": "e", "program": [["wait", "b", 1]]}]})";
  const Said said = simulate("program " + folder.file("p.json"));
  EXPECT_EQ(said.code, exit_check_failed);
  EXPECT_NE(said.err.find("e waits for b >= 1"), std::string::npos) << said.err;
}

}  // namespace
}  // namespace warploom::cli
