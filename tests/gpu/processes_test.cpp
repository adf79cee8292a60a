// Several processes on one cache: what one of them does or suffers must not hurt the others.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "support.h"

extern char** environ;

namespace warploom::gpu {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// A compile_process with its output in files; ended with the object.
class Process {
 public:
  Process(const TemporaryDirectory& directory, std::vector<std::string> arguments) {
    static int count = 0;
    output_ = directory / ("output" + std::to_string(++count));
    arguments.insert(arguments.begin(), WARPLOOM_TEST_COMPILE_PROCESS);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_addopen(&actions, 2, (output_ + ".err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (::posix_spawn(&id_, pointers[0], &actions, nullptr, pointers.data(), environ) != 0) id_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    EXPECT_GT(id_, 0) << "cannot start " << pointers[0];
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() { end(); }

  // Its output once it has ended by itself.
  std::string finish() {
    int status = 0;
    if (id_ > 0) ::waitpid(id_, &status, 0);
    id_ = -1;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << read_file(output_) << read_file(output_ + ".err");
    return read_file(output_);
  }
  std::string errors() const { return read_file(output_ + ".err"); }

  void wait_for(const std::string& text) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (read_file(output_).find(text) == std::string::npos) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the process never wrote " << text;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  // As a crash would: no chance to clean up.
  void end() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
    id_ = -1;
  }

 private:
  pid_t id_ = -1;
  std::string output_;
};

int number_after(const std::string& text, const std::string& name) {
  const std::size_t at = text.find(name + "=");
  EXPECT_NE(at, std::string::npos) << name << " is not in: " << text;
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + name.size() + 1);
}

TEST(Processes, AtOnceOnOneKernelCompileItOnce) {
  const TemporaryDirectory directory;
  const std::string cache = directory / "cache";
  std::vector<std::unique_ptr<Process>> processes;
  for (int i = 0; i < 4; ++i) {
    processes.push_back(
        std::make_unique<Process>(directory, std::vector<std::string>{"compile", cache, "3", directory / "gate"}));
  }
  write_file(directory / "gate", "");
  int compiles = 0;
  int disk_hits = 0;
  for (const auto& process : processes) {
    const std::string said = process->finish();
    compiles += number_after(said, "compiles");
    disk_hits += number_after(said, "disk");
    EXPECT_EQ(number_after(said, "damaged"), 0);
  }
  EXPECT_EQ(compiles, 1);
  EXPECT_EQ(disk_hits, 3);
}

TEST(Processes, SecondOneCompilesNothingAndDoesNotEvenLoadNvrtc) {
  const TemporaryDirectory directory;
  const std::string cold = Process(directory, {"compile", directory / "cache", "3"}).finish();
  EXPECT_EQ(number_after(cold, "compiles"), 1);
  EXPECT_EQ(number_after(cold, "nvrtc_mapped"), 1);
  const std::string warm = Process(directory, {"compile", directory / "cache", "3"}).finish();
  EXPECT_EQ(number_after(warm, "compiles"), 0);
  EXPECT_EQ(number_after(warm, "disk"), 1);
  EXPECT_EQ(number_after(warm, "nvrtc_mapped"), 0);
}

TEST(Processes, DeadLockOwnerBlocksNobody) {
  const TemporaryDirectory directory;
  Process owner(directory, {"lock", directory / "cache", "3"});
  owner.wait_for("held=1");
  owner.end();
  CompilerOptions options = test_options(directory / "cache");
  options.lock_wait = std::chrono::hours(1);
  Compiler compiler(options);
  EXPECT_TRUE(compiler.get(scale_request(3)).ok());
  EXPECT_EQ(compiler.counters().compiles, 1u);
}

TEST(Processes, StuckLockOwnerIsWaitedForNoLongerThanAllowed) {
  const TemporaryDirectory directory;
  const Process owner(directory, {"lock", directory / "cache", "3"});
  owner.wait_for("held=1");
  CompilerOptions options = test_options(directory / "cache");
  options.lock_wait = milliseconds(50);
  Compiler compiler(options);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(compiler.get(scale_request(3)).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(50));
  EXPECT_EQ(compiler.counters().compiles, 1u);
  EXPECT_EQ(files_below(directory / "cache", ".kernel").size(), 1u) << "what was compiled without the lock is kept too";
}

TEST(Processes, FullDiskWarnsOnceAndGoesOnInMemory) {
  const TemporaryDirectory directory;
  // Room for what the process writes to its output, not for a cubin.
  for (const char* room : {"1000", "3000"}) {
    Process process(directory, {"limited", directory / "cache", room});
    const std::string said = process.finish();
    const std::string errors = process.errors();
    EXPECT_EQ(number_after(said, "compiles"), 2) << "the third request is served from memory";
    const std::size_t first = errors.find("warning");
    ASSERT_NE(first, std::string::npos) << errors;
    EXPECT_EQ(errors.find("warning", first + 1), std::string::npos) << errors;
    EXPECT_NE(errors.find("WARPLOOM_CACHE_DIR"), std::string::npos) << errors;
    EXPECT_TRUE(files_below(directory / "cache", ".kernel").empty());
    for (const fs::path& file : files_below(directory / "cache", "")) {
      EXPECT_TRUE(file.string().ends_with(".lock")) << file << " was left behind";
    }
  }
}

}  // namespace
}  // namespace warploom::gpu
