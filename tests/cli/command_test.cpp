// The command as users run it: what it prints, where, and with which exit code.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace {

using nlohmann::json;

struct Output {
  int exit_code = -1;
  std::string text, errors;
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Command : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        ::testing::TempDir() + "warploom_command_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  /// Runs `warploom ARGUMENTS` in the test's folder, with variables like "A=1 " in its environment.
  Output run(const std::string& arguments, const std::string& environment = "") const {
    const std::string line = "cd " + folder_ + " && " + environment + WARPLOOM_COMMAND + " " + arguments + " >" +
                             path("stdout") + " 2>" + path("stderr");
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(path("stdout")), contents(path("stderr"))};
  }

  static void expect_has(const std::string& text, const std::string& piece) {
    EXPECT_NE(text.find(piece), std::string::npos) << text << "\nlacks " << piece;
  }

 private:
  std::string folder_;
};

const std::string small_history = "user_id,item_id,timestamp\nann,a,1\nbob,b,5\nann,c,3\nann,b,2\nbob,a,9\n";

TEST_F(Command, NothingAndUnknownWordsAreUsageErrors) {
  EXPECT_EQ(run("").exit_code, 2);
  EXPECT_EQ(run("frobnicate").exit_code, 2);
  EXPECT_EQ(run("demo --no-such-option").exit_code, 2);
  EXPECT_EQ(run("demo --heads many").exit_code, 2);
  expect_has(run("").errors, "warploom needs a command; it has info, demo, bench");
  expect_has(run("frobnicate").errors, "warploom has no command 'frobnicate'; it has info, demo, bench");
  expect_has(run("bench frobnicate --rounds 2").errors, "warploom bench has no command 'frobnicate'; it has gemm");
  expect_has(run("demo --heads many").errors,
             "warploom: --heads: Value many not in range 1 to 256\n`warploom demo --help`");
}

TEST_F(Command, NumbersThatNoOptionTakesAreRefused) {
  const std::string bench = "bench attention hstu-uniform-B1-L8-H1-D8-causal-fp32 --device cpu --rounds 1 ";
  expect_has(run(bench + "--round-ms nan").errors, "Value nan not in range 0 to 60000");
  expect_has(run(bench + "--round-ms -1").errors, "Value -1 not in range");
  EXPECT_EQ(run(bench + "--round-ms 1e400").exit_code, 2);
  expect_has(run("demo --seed -1").errors, "--seed: -1 is negative");
  expect_has(run("check --max-states -5").errors, "--max-states: -5 is negative");
}

TEST_F(Command, OptionsThatWouldDoNothingAreRefused) {
  for (const char* option : {"--user-column who", "--item-column what", "--time-column when", "--skip-broken"}) {
    const Output demo = run(std::string("demo --sequences 1 ") + option);
    EXPECT_EQ(demo.exit_code, 2) << option;
    expect_has(demo.errors, "requires --history");
  }
  const std::string one = "compile hstu-uniform-B2-L64-H2-D32-causal-bf16 --arch sm_80 ";
  for (const char* option : {"--head-dim 64", "--dtype fp16", "--leave-out bias", "--mask all", "--whole-table"}) {
    const Output compile = run(one + option);
    EXPECT_EQ(compile.exit_code, 2) << option;
    expect_has(compile.errors, "excludes");
  }
}

TEST_F(Command, EverySubcommandHasHelpWithExamples) {
  const Output help = run("--help");
  EXPECT_EQ(help.exit_code, 0);
  for (const std::string name : {"info", "demo", "bench", "explain", "compile", "verify", "simulate", "check"}) {
    expect_has(help.text, name);
    const Output one = run(name + " --help");
    EXPECT_EQ(one.exit_code, 0) << name;
    expect_has(one.text, "Examples:");
    expect_has(one.text, "  warploom " + name);
  }
  EXPECT_EQ(run("--version").exit_code, 0);
}

TEST_F(Command, JsonGoesToStandardOutputOrAFileAndNowhereElse) {
  const Output alone = run("info --json");
  EXPECT_EQ(alone.exit_code, 0);
  EXPECT_TRUE(json::accept(alone.text)) << alone.text;
  EXPECT_TRUE(json::accept(run("info --json -").text));
  const Output file = run("info --json " + path("info.json"));
  expect_has(file.text, "devices");
  EXPECT_FALSE(json::accept(file.text));
  EXPECT_TRUE(json::accept(contents(path("info.json"))));
  const Output nowhere = run("info --json /no/such/folder/info.json");
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_EQ(nowhere.text, "") << "a file that cannot be written is found before the work";
  expect_has(nowhere.errors, "/no/such/folder/info.json cannot be written: No such file or directory");
  expect_has(run("simulate gemm --svg " + path("")).errors, "is a folder");
  const Output full = run("info --json /dev/full");
  EXPECT_EQ(full.exit_code, 1);
  expect_has(full.errors, "--json /dev/full: the file could not be written");
}

TEST_F(Command, ExplainNamesPlanOrMistake) {
  const Output plan = run("explain hstu-uniform-B2-L100-H2-D64-causal-fp32 --device cpu --json");
  EXPECT_EQ(plan.exit_code, 0) << plan.errors;
  const json value = json::parse(plan.text);
  EXPECT_EQ(value["case"], "hstu-uniform-B2-L100-H2-D64-causal-fp32");
  EXPECT_TRUE(value["forward"].is_object());
  const Output wrong = run("explain hstu-uniform-B2-L100-H2-D64-sideways-fp32");
  EXPECT_EQ(wrong.exit_code, 2);
  expect_has(wrong.errors, "expected causal or full but \"sideways\"");
  EXPECT_EQ(run("explain hstu-uniform-B2-L100-H2-D64-causal-fp32 --device quantum").exit_code, 2);
  EXPECT_EQ(run("explain hstu-uniform-B2-L100-H2-D64-causal-fp32 --device cuda:x").exit_code, 2);
}

TEST_F(Command, DemoReadsAnyFileOfTheForm) {
  write("log.csv", "when,who,what\n1,ann,a\n5,bob,b\n3,ann,c\n2,ann,b\n9,bob,a\n");
  const Output demo =
      run("demo --device cpu --history log.csv --user-column who --item-column what --time-column when --json");
  ASSERT_EQ(demo.exit_code, 0) << demo.errors;
  const json value = json::parse(demo.text);
  EXPECT_EQ(value["users"], 2);
  EXPECT_EQ(value["items"], 3);
  EXPECT_EQ(value["events"], 5);
  EXPECT_EQ(value["longest"], 3);
  EXPECT_EQ(value["ok"], true);
  EXPECT_EQ(value["checks"].size(), 6u);
  EXPECT_EQ(value["dtype"], "float32");
  EXPECT_NEAR(value["padded_work_saved"].get<double>(), 1 - 13.0 / 18, 1e-12);
}

TEST_F(Command, DemoPrintsWhatAUserWantsToSee) {
  write("small.csv", small_history);
  const Output demo = run("demo --device cpu --history small.csv --max-length 2 --sequences 1");
  ASSERT_EQ(demo.exit_code, 0) << demo.errors;
  for (const char* piece : {"small.csv", "1 users, 3 items, 2 events", "Lengths", "forward", "backward", "GFLOP/s",
                            "Memory", "float64", "ok"}) {
    expect_has(demo.text, piece);
  }
  EXPECT_EQ(demo.text.find('\x1b'), std::string::npos) << "colour belongs on a terminal only";
}

TEST_F(Command, DemoReportsABrokenLineWithItsNumber) {
  write("broken.csv", small_history + "bob,c\nann,d,soon\n");
  const Output stopped = run("demo --device cpu --history broken.csv");
  EXPECT_EQ(stopped.exit_code, 1);
  expect_has(stopped.errors, "broken.csv:7: the line has 2 fields where the header has 3");
  const Output skipped = run("demo --device cpu --history broken.csv --skip-broken");
  EXPECT_EQ(skipped.exit_code, 0) << skipped.errors;
  expect_has(skipped.text, "2 broken lines were left out, the first: broken.csv:7:");
}

TEST_F(Command, DemoRefusesFilesWithoutEvents) {
  write("header.csv", "user_id,item_id,timestamp\n");
  write("empty.csv", "");
  expect_has(run("demo --history header.csv").errors, "no events");
  expect_has(run("demo --history empty.csv").errors, "empty");
  const Output missing = run("demo --history nowhere.csv");
  EXPECT_EQ(missing.exit_code, 1);
  expect_has(missing.errors, "nowhere.csv: cannot be opened");
}

TEST_F(Command, BenchWritesTheRecordsOfTheReports) {
  const Output bench =
      run("bench attention hstu-uniform-B2-L64-H2-D32-causal-bf16 softmax-jagged-B3-L0..40-H2-D16-full-fp32 --device "
          "cpu --rounds 2 "
          "--round-ms 1 --csv " +
          path("bench.csv") + " --json");
  ASSERT_EQ(bench.exit_code, 0) << bench.errors;
  const json records = json::parse(bench.text);
  ASSERT_EQ(records.size(), 4u);
  for (const json& record : records) {
    std::string names;
    for (const auto& [name, value] : record.items()) names += name + " ";
    EXPECT_EQ(names, "bytes case device dtype implementation median_ms pass peak_memory spread_ms tflops ");  // sorted
    EXPECT_EQ(record["implementation"], "warploom");
    EXPECT_GT(record["median_ms"], 0);
  }
  EXPECT_EQ(records[0]["pass"], "forward");
  EXPECT_EQ(records[1]["pass"], "backward");
  EXPECT_EQ(records[0]["dtype"], "bfloat16");  // as reports/gpu.json spells it
  EXPECT_EQ(records[3]["dtype"], "float32");
  EXPECT_EQ(records[0]["bytes"], 4 * 2 * 64 * 2 * 32 * 2);
  const std::string csv = contents(path("bench.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 5);
}

TEST_F(Command, BenchNamesWhatItCannotDo) {
  EXPECT_EQ(run("bench attention nonsense").exit_code, 2);
  EXPECT_EQ(run("bench").exit_code, 2);
  const Output peers =
      run("bench attention hstu-uniform-B1-L8-H1-D8-causal-fp32 --device cpu --round-ms 1 --peers --python "
          "/no/such/python");
  EXPECT_EQ(peers.exit_code, 1);
  expect_has(peers.errors, "/no/such/python");
  const Output both = run("bench attention hstu-uniform-B1-L8-H1-D8-causal-fp32 --device cpu --csv --json");
  EXPECT_EQ(both.exit_code, 2);
  expect_has(both.errors, "--csv and --json both write to standard output");
  expect_has(run("bench gemm gemm-8x8-bf16").errors, "case gemm-8x8-bf16 is no matrix product");
  expect_has(run("bench gemm-ladder --machine x100").errors, "machine = 'x100' is not known");
  expect_has(run("bench ladder first --arch sm_80").errors, "no rung's name contains first");
}

TEST_F(Command, WorkForAHopperGpuFailsWithoutOne) {
  for (const char* line :
       {"bench gemm --device cpu", "trace gemm gemm-8x8x8-bf16 --device cpu", "calibrate --device cpu"}) {
    const Output refused = run(line);
    EXPECT_EQ(refused.exit_code, 1) << line;
    expect_has(refused.errors, "Hopper");
  }
}

TEST_F(Command, VerifyChecksTheCasesThatAreAskedFor) {
  const Output list = run("verify --device cpu --list");
  EXPECT_GT(std::count(list.text.begin(), list.text.end(), '\n'), 200);
  const Output one = run("verify --device cpu --only \"fp32: targets in groups\" --json");
  EXPECT_EQ(one.exit_code, 0) << one.text;
  const json value = json::parse(one.text);
  EXPECT_EQ(value["ok"], true);
  EXPECT_EQ(value["checks"].size(), 9u);  // out dq dk dv, and lse with softmax
  EXPECT_EQ(run("verify --device cpu --only nonsense").exit_code, 2);
}

TEST_F(Command, VerifyChecksTheMatrixProductsOfTheCpu) {
  const Output products = run("verify --device cpu --only gemm --json");
  EXPECT_EQ(products.exit_code, 0) << products.text;
  const json value = json::parse(products.text);
  EXPECT_TRUE(value["not_served"].empty());
  EXPECT_GT(value["checks"].size(), 80u);
  std::set<std::string> types;
  for (const json& check : value["checks"]) types.insert(check["case"].get<std::string>().substr(0, 9));
  EXPECT_EQ(types, (std::set<std::string>{"gemm bf16", "gemm fp16", "gemm fp8:"}));
}

TEST_F(Command, ExplainsAMatrixProductOnTheCpu) {
  const Output output = run("explain gemm-300x400x64-fp8-to-fp32-B2-bias --device cpu --json");
  ASSERT_EQ(output.exit_code, 0) << output.errors;
  const json plan = json::parse(output.text);
  EXPECT_EQ(plan["backend"], "cpu");
  EXPECT_EQ(plan["case"], "gemm-300x400x64-fp8-to-fp32-B2-bias");
  EXPECT_EQ(plan["work_items"], 2 * 3 * 3);
  EXPECT_FALSE(plan["device"].get<std::string>().empty());
  EXPECT_EQ(run("explain gemm-8x8x8-bf16 --device abacus").exit_code, 2);
}

TEST_F(Command, CompileSaysWhatToCompileFor) {
  const Output unknown = run("compile --arch sm_1");
  EXPECT_EQ(unknown.exit_code, 2);
  expect_has(unknown.errors, "sm_1");
  EXPECT_EQ(run("compile --arch sm_80 --head-dim 7").exit_code, 2);
  expect_has(run("compile hstu-uniform-B2-L64-H2-D32-causal-fp32 --arch sm_80").errors, "q is float32");
  expect_has(run("compile hstu-uniform-B2-L64-H2-D12-causal-bf16 --arch sm_80").errors, "q and k is 12");
  expect_has(run("compile gemm-8x8x8-bf16 --arch sm_80").errors, "Hopper");
}

TEST_F(Command, CompileFailsWhereKernelsCannotBeKept) {
  const Output homeless = run("compile --arch sm_80", "env -u HOME -u XDG_CACHE_HOME -u WARPLOOM_CACHE_DIR ");
  EXPECT_EQ(homeless.exit_code, 1);
  expect_has(homeless.errors, "HOME is not set");
  write("file", "");
  // The folder of tests/gpu/support.h: NVRTC lies in it, or in a wheel below it.
  const std::string given = WARPLOOM_TEST_NVRTC_DIRECTORY;
  const std::string below = given.empty() ? WARPLOOM_TEST_SOURCE_DIRECTORY "/.venv/lib/python3*/site-packages" : given;
  const std::string nvrtc = "LD_LIBRARY_PATH=$(echo " + below + " " + below + "/nvidia/cu*/lib | tr ' ' ':') ";
  const std::string line = "compile hstu-uniform-B2-L64-H2-D32-causal-bf16 gemm-64x64x64-bf16 --arch sm_90a --pack ";
  const Output good = run(line + "pack", nvrtc);
  EXPECT_EQ(good.exit_code, 0) << good.errors;
  expect_has(good.text, "3 of 3 kernels in pack");
  const Output bad = run(line + "file --json", nvrtc);
  EXPECT_EQ(bad.exit_code, 1);
  expect_has(bad.errors, "file/sm_90a");
  EXPECT_EQ(json::parse(bad.text)["kernels"][0]["kept"], false);
}

}  // namespace
