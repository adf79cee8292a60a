#include "gpu/compiler.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "gpu/cache.h"
#include "support.h"

namespace warploom::gpu {
namespace {

namespace fs = std::filesystem;

CubinPointer must(Result<CubinPointer> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : std::make_shared<Cubin>();
}

TEST(Compiler, SecondCallCompilesNothing) {
  const TemporaryDirectory cache;
  Compiler compiler(test_options(cache.text()));
  const CubinPointer first = must(compiler.get(scale_request()));
  EXPECT_TRUE(
      first->image.starts_with("\x7f"
                               "ELF"));
  EXPECT_EQ(first->origin, CubinOrigin::compiled);
  EXPECT_EQ(must(compiler.get(scale_request())), first);
  EXPECT_EQ(compiler.counters().compiles, 1u);
  EXPECT_EQ(compiler.counters().memory_hits, 1u);
  EXPECT_EQ(compiler.counters().disk_hits, 0u) << "what was compiled is used from memory";
}

TEST(Compiler, AnotherCompilerFindsItOnDisk) {
  const TemporaryDirectory cache;
  const CubinPointer made = must(Compiler(test_options(cache.text())).get(scale_request()));
  Compiler second(test_options(cache.text()));
  const CubinPointer found = must(second.get(scale_request()));
  EXPECT_EQ(second.counters().compiles, 0u);
  EXPECT_EQ(second.counters().disk_hits, 1u);
  EXPECT_EQ(found->origin, CubinOrigin::disk);
  EXPECT_EQ(found->image, made->image);
  EXPECT_EQ(found->log, made->log);
  EXPECT_EQ(found->key, made->key);
}

TEST(Compiler, ReportsResourcesFromDiskAsFromTheCompiler) {
  const TemporaryDirectory cache;
  for (int pass = 0; pass < 2; ++pass) {
    Compiler compiler(test_options(cache.text()));
    const KernelResources resources = must(compiler.get(scale_request()))->resources;
    EXPECT_TRUE(resources.known);
    EXPECT_GT(resources.registers, 0);
    EXPECT_EQ(resources.static_shared_bytes, 512);
    EXPECT_EQ(resources.spill_store_bytes, 0);
    EXPECT_TRUE(resources.performance_warnings.empty());
  }
}

TEST(Compiler, KernelsOfOneFileShareOneCompile) {
  const TemporaryDirectory cache;
  Compiler compiler(test_options(cache.text()));
  KernelRequest other = scale_request();
  other.kernel_name = "clear";
  const CubinPointer scale = must(compiler.get(scale_request()));
  const CubinPointer clear = must(compiler.get(other));
  EXPECT_EQ(compiler.counters().compiles, 1u);
  EXPECT_EQ(clear->key, scale->key);
  EXPECT_EQ(clear->kernel_name, "clear");
  EXPECT_EQ(clear->resources.static_shared_bytes, 0);
  EXPECT_EQ(scale->resources.static_shared_bytes, 512);
}

TEST(Compiler, AnotherConfigOrArchitectureOrSourceIsAnotherKernel) {
  const TemporaryDirectory cache;
  Compiler compiler(test_options(cache.text()));
  const std::string key = must(compiler.get(scale_request(2)))->key;
  EXPECT_NE(must(compiler.get(scale_request(3)))->key, key);
  EXPECT_NE(must(compiler.get(scale_request(2, {9, 0, true})))->key, key);
  CompilerOptions changed = test_options(cache.text());
  SourceFiles sources = small_sources();
  sources["scale/factor.h"] += "// changed\n";  // a file that the entry file only includes
  changed.sources = lookup_in(sources);
  Compiler other(changed);
  EXPECT_NE(must(other.get(scale_request(2)))->key, key);
  EXPECT_EQ(other.counters().disk_hits, 0u);
}

TEST(Compiler, KeyDoesNotDependOnEnvironmentOrPlace) {
  const TemporaryDirectory first;
  const TemporaryDirectory second;
  const std::string key = must(Compiler(test_options(first.text())).get(scale_request()))->key;
  ::setenv("WARPLOOM_TEST_PATH", "x", 1);
  const std::string path = ::getenv("PATH") != nullptr ? ::getenv("PATH") : "";
  ::setenv("PATH", "/elsewhere", 1);
  const fs::path here = fs::current_path();
  fs::current_path(second.path());
  EXPECT_EQ(must(Compiler(test_options(second.text())).get(scale_request()))->key, key);
  fs::current_path(here);
  ::setenv("PATH", path.c_str(), 1);
  // The time of the file is no part of it either.
  fs::last_write_time(files_below(first.path(), ".kernel").at(0), fs::file_time_type::min());
  Compiler again(test_options(first.text()));
  must(again.get(scale_request()));
  EXPECT_EQ(again.counters().compiles, 0u);
}

TEST(Compiler, DamagedFileIsCompiledAgainAndReplaced) {
  const TemporaryDirectory cache;
  const CubinPointer made = must(Compiler(test_options(cache.text())).get(scale_request()));
  const fs::path file = files_below(cache.path(), ".kernel").at(0);
  const std::string whole = read_file(file);
  std::string flipped = whole;
  flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 1);
  for (const std::string& broken : {std::string(), whole.substr(0, whole.size() - 1), whole + "x", flipped}) {
    write_file(file, broken);
    Compiler compiler(test_options(cache.text()));
    EXPECT_EQ(must(compiler.get(scale_request()))->image, made->image);
    EXPECT_EQ(compiler.counters().compiles, 1u);
    EXPECT_GE(compiler.counters().damaged_files, 1u);
    Compiler next(test_options(cache.text()));
    must(next.get(scale_request()));
    EXPECT_EQ(next.counters().compiles, 0u) << "the file was not replaced";
  }
}

TEST(Compiler, CompilesAreTheSameBytes) {
  const TemporaryDirectory first;
  const TemporaryDirectory second;
  EXPECT_EQ(must(Compiler(test_options(first.text())).get(scale_request()))->image,
            must(Compiler(test_options(second.text())).get(scale_request()))->image);
}

TEST(Compiler, ThreadsThatAskForOneKernelCompileItOnce) {
  const TemporaryDirectory cache;
  Compiler compiler(test_options(cache.text()));
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { must(compiler.get(scale_request())); });
  threads.clear();
  EXPECT_EQ(compiler.counters().compiles, 1u);
}

TEST(Compiler, ManyAreCompiledInParallelAndGivenBackInOrder) {
  const TemporaryDirectory cache;
  Compiler compiler(test_options(cache.text()));
  std::vector<KernelRequest> requests;
  for (const int factor : {1, 2, 3, 1, 4}) requests.push_back(scale_request(factor));
  KernelRequest bad = scale_request();
  bad.entry_file = "bad/bad.cu";
  requests.push_back(bad);
  const std::vector<Result<CubinPointer>> results = compiler.get_many(requests, 3);
  ASSERT_EQ(results.size(), requests.size());
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(must(results[i])->key, must(compiler.get(requests[i]))->key);
  }
  EXPECT_EQ(must(results[0])->key, must(results[3])->key);
  EXPECT_FALSE(results[5].ok()) << "one that fails does not fail the others";
  EXPECT_EQ(compiler.counters().compiles, 5u);
  EXPECT_TRUE(compiler.get_many({}).empty());
}

TEST(Compiler, PackIsReadAndNeverWritten) {
  const TemporaryDirectory pack;
  const TemporaryDirectory cache;
  must(Compiler(test_options(pack.text())).get(scale_request()));
  const std::size_t files = files_below(pack.path(), "").size();
  CompilerOptions options = test_options(cache.text());
  options.settings.pack_directories = {"/no/such/pack", pack.text()};
  Compiler compiler(options);
  EXPECT_EQ(must(compiler.get(scale_request()))->origin, CubinOrigin::pack);
  EXPECT_EQ(compiler.counters().pack_hits, 1u);
  EXPECT_EQ(compiler.counters().compiles, 0u);
  must(compiler.get(scale_request(3)));
  EXPECT_EQ(compiler.counters().compiles, 1u);
  EXPECT_EQ(files_below(pack.path(), "").size(), files);
}

TEST(Compiler, UsersCacheComesBeforePacks) {
  const TemporaryDirectory both;
  must(Compiler(test_options(both.text())).get(scale_request()));
  CompilerOptions options = test_options(both.text());
  options.settings.pack_directories = {both.text()};
  Compiler compiler(options);
  EXPECT_EQ(must(compiler.get(scale_request()))->origin, CubinOrigin::disk);
}

TEST(Compiler, PackServesAMachineWithoutNvrtcOrWithAnother) {
  const TemporaryDirectory pack;
  must(Compiler(test_options(pack.text())).get(scale_request()));
  CompilerOptions none = test_options("");
  none.settings.pack_directories = {pack.text()};
  none.nvrtc_candidates = no_nvrtc;
  Compiler without(none);
  EXPECT_EQ(must(without.get(scale_request()))->origin, CubinOrigin::pack);

  CompilerOptions older = none;
  older.nvrtc_candidates = [] { return candidates_below(WARPLOOM_TEST_FAKES "/fake_nvrtc_12", "test"); };
  Compiler with_another(older);
  EXPECT_EQ(must(with_another.get(scale_request()))->origin, CubinOrigin::pack);
  EXPECT_EQ(with_another.counters().compiles, 0u);
}

TEST(Compiler, UsersCacheServesWithoutNvrtcButYieldsToAnotherVersion) {
  const TemporaryDirectory cache;
  must(Compiler(test_options(cache.text())).get(scale_request()));
  CompilerOptions options = test_options(cache.text());
  options.nvrtc_candidates = no_nvrtc;
  EXPECT_EQ(must(Compiler(options).get(scale_request()))->origin, CubinOrigin::disk);
  // Another NVRTC makes the kernel anew (the stand-in cannot, and that is how it shows).
  options.nvrtc_candidates = [] { return candidates_below(WARPLOOM_TEST_FAKES "/fake_nvrtc_12", "test"); };
  const Result<CubinPointer> anew = Compiler(options).get(scale_request());
  ASSERT_FALSE(anew.ok());
  EXPECT_NE(anew.status().message().find("NVRTC 12.4"), std::string::npos) << anew.status().message();
}

TEST(Compiler, NamesThatLieAboutTheVersionDoNotReachTheKey) {
  const std::vector<NvrtcCandidate> real = test_nvrtc();
  ASSERT_FALSE(real.empty());
  NvrtcCandidate lying = real.front();
  lying.version = {12, 1};
  const TemporaryDirectory cache;
  CompilerOptions options = test_options(cache.text());
  options.nvrtc_candidates = [lying] { return std::vector<NvrtcCandidate>{lying}; };
  Compiler compiler(options);
  const CubinPointer made = must(compiler.get(scale_request()));
  EXPECT_EQ(made->nvrtc, real.front().version);
  const std::string key = must(Compiler(test_options(cache.text())).get(scale_request()))->key;
  EXPECT_EQ(made->key, key);
  // A name that tells nothing costs loading the library, no more.
  lying.version = {};
  options.nvrtc_candidates = [lying] { return std::vector<NvrtcCandidate>{lying}; };
  Compiler unknown(options);
  EXPECT_EQ(must(unknown.get(scale_request()))->key, key);
  EXPECT_EQ(unknown.counters().disk_hits, 1u);
}

TEST(Compiler, TriesTheNextNvrtcWhenOneCannotServe) {
  std::vector<NvrtcCandidate> candidates = candidates_below(WARPLOOM_TEST_FAKES "/fake_nvrtc_partial", "test");
  for (NvrtcCandidate& one : candidates_below(WARPLOOM_TEST_FAKES "/fake_nvrtc_11", "test")) candidates.push_back(one);
  for (NvrtcCandidate& one : candidates_below(WARPLOOM_TEST_FAKES "/fake_nvrtc_12", "test")) candidates.push_back(one);
  CompilerOptions options = test_options("");
  options.nvrtc_candidates = [candidates] { return candidates; };
  // None of these compiles for sm_120, and the error says why of each.
  const Result<CubinPointer> none = Compiler(options).get(scale_request(2, {12, 0, false}));
  ASSERT_FALSE(none.ok());
  const std::string message = none.status().message();
  for (const char* part : {"no usable NVRTC", "scale/scale.cu", "sm_120", "nvrtcGetErrorString", "NVRTC 11.8, too old",
                           "NVRTC 12.4", "too old for sm_120", "pip install nvidia-cuda-nvrtc", "WARPLOOM_PACKS"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  for (NvrtcCandidate& one : test_nvrtc()) candidates.push_back(one);
  options.nvrtc_candidates = [candidates] { return candidates; };
  Compiler compiler(options);
  EXPECT_EQ(must(compiler.get(scale_request(2, {12, 0, false})))->nvrtc, test_nvrtc().front().version);
}

TEST(Compiler, CompileErrorTellsFileLineAndVersions) {
  Compiler compiler(test_options(""));
  KernelRequest bad = scale_request();
  bad.entry_file = "bad/bad.cu";
  for (int attempt = 1; attempt <= 2; ++attempt) {
    const Result<CubinPointer> failed = compiler.get(bad);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.status().code(), StatusCode::runtime_error);
    const std::string message = failed.status().message();
    for (const std::string& part :
         {std::string("bad/bad.cu(3): error"), std::string("no_such_function"), std::string("sm_80"),
          "NVRTC " + to_string(test_nvrtc().front().version), std::string("driver")}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
    }
  }
}

TEST(Compiler, UnknownEntryFileIsNamed) {
  KernelRequest request = scale_request();
  request.entry_file = "scale/nothing.cu";
  const Result<CubinPointer> failed = Compiler(test_options("")).get(request);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), StatusCode::invalid_value);
  EXPECT_NE(failed.status().message().find("scale/nothing.cu"), std::string::npos);
}

TEST(Compiler, KeepsSourcesWhereAsked) {
  const TemporaryDirectory sources;
  CompilerOptions options = test_options("");
  options.settings.keep_sources_directory = sources / "deep/folder";
  Compiler compiler(options);
  const CubinPointer cubin = must(compiler.get(scale_request()));
  const std::vector<fs::path> kept = files_below(sources.path(), ".cu");
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].filename().string(), "scale-" + cubin->key.substr(0, 16) + ".cu");
  const std::string text = read_file(kept[0]);
  EXPECT_NE(text.find("#define FACTOR 2.0f"), std::string::npos);
  EXPECT_NE(text.find("scaled(float x)"), std::string::npos);
}

TEST(Compiler, WithoutACacheDirectoryKernelsStayInMemory) {
  Compiler compiler(test_options(""));
  const CubinPointer first = must(compiler.get(scale_request()));
  EXPECT_EQ(must(compiler.get(scale_request())), first);
  EXPECT_EQ(compiler.counters().compiles, 1u);
}

TEST(Compiler, WarnsOfSourcesAndOfTheCacheOnceEach) {
  const TemporaryDirectory directory;
  write_file(directory / "file", "");
  CompilerOptions options = test_options(directory / "file");
  options.settings.keep_sources_directory = directory / "file";
  Compiler compiler(std::move(options));
  testing::internal::CaptureStderr();
  must(compiler.get(scale_request()));
  must(compiler.get(scale_request(2)));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
  EXPECT_NE(said.find("WARPLOOM_KEEP_SOURCES"), std::string::npos) << said;
  EXPECT_NE(said.find("compiled kernels cannot be kept"), std::string::npos) << said;
}

// Takes away this thread's right to write everywhere that root has.
class WithoutWriteOverride {
 public:
  WithoutWriteOverride() {
    EXPECT_EQ(::syscall(SYS_capget, &header_, before_), 0);
    __user_cap_data_struct without[2] = {before_[0], before_[1]};
    without[0].effective &= ~(1u << CAP_DAC_OVERRIDE);
    EXPECT_EQ(::syscall(SYS_capset, &header_, without), 0);
  }
  WithoutWriteOverride(const WithoutWriteOverride&) = delete;
  WithoutWriteOverride& operator=(const WithoutWriteOverride&) = delete;
  ~WithoutWriteOverride() { EXPECT_EQ(::syscall(SYS_capset, &header_, before_), 0); }

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

TEST(Compiler, ReadOnlyCacheIsReadAndWarnedOfOnce) {
  const TemporaryDirectory cache;
  must(Compiler(test_options(cache.text())).get(scale_request(2)));
  const fs::path folder = files_below(cache.path(), ".kernel").at(0).parent_path();
  const auto readable = fs::perms::owner_read | fs::perms::owner_exec;
  fs::permissions(folder, readable);
  const std::size_t files = files_below(cache.path(), "").size();
  {
    const WithoutWriteOverride as_an_ordinary_user;
    Compiler compiler(test_options(cache.text()));
    testing::internal::CaptureStderr();
    EXPECT_EQ(must(compiler.get(scale_request(2)))->origin, CubinOrigin::disk);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "a hit needs no writing";
    testing::internal::CaptureStderr();
    const Status kept = must(compiler.get(scale_request(3)))->kept;
    EXPECT_NE(kept.message().find("Permission denied"), std::string::npos) << kept.message();
    must(compiler.get(scale_request(4)));
    must(compiler.get(scale_request(3)));
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(compiler.counters().compiles, 2u);
    const std::size_t first = said.find("warning");
    ASSERT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.find("warning", first + 1), std::string::npos) << said;
    EXPECT_NE(said.find(folder.string()), std::string::npos) << said;
  }
  EXPECT_EQ(files_below(cache.path(), "").size(), files);
  fs::permissions(folder, fs::perms::owner_all);
}

TEST(Compiler, VerboseTellsWhatItDoes) {
  const TemporaryDirectory cache;
  CompilerOptions options = test_options(cache.text());
  options.settings.verbose = true;
  testing::internal::CaptureStderr();
  must(Compiler(options).get(scale_request()));
  must(Compiler(options).get(scale_request()));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("compiling scale/scale.cu for sm_80 with NVRTC"), std::string::npos) << said;
  EXPECT_NE(said.find("found " + cache.text()), std::string::npos) << said;
}

TEST(Compiler, OfTheProcessIsConfiguredBeforeItsFirstUse) {
  Settings settings;
  settings.cache_directory = "/configured/here";
  ASSERT_TRUE(configure(settings).ok());
  EXPECT_EQ(compiler().settings().cache_directory, "/configured/here");
  EXPECT_EQ(&compiler(), &compiler());
  const Status late = configure(settings);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.code(), StatusCode::invalid_value);
}

}  // namespace
}  // namespace warploom::gpu
