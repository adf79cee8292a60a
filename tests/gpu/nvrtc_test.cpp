#include "gpu/nvrtc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "gpu/nvrtc_search.h"
#include "support.h"

namespace warploom::gpu {
namespace {

namespace fs = std::filesystem;

const std::string fakes = WARPLOOM_TEST_FAKES;

std::shared_ptr<const Nvrtc> real_nvrtc() {
  const std::vector<NvrtcCandidate> candidates = test_nvrtc();
  if (candidates.empty()) return nullptr;
  Result<std::shared_ptr<const Nvrtc>> nvrtc = load_candidate(candidates.front());
  EXPECT_TRUE(nvrtc.ok()) << nvrtc.status().message();
  return nvrtc.ok() ? *nvrtc : nullptr;
}

bool has(const std::vector<std::string>& options, const std::string& option) {
  return std::find(options.begin(), options.end(), option) != options.end();
}

TEST(Nvrtc, TellsVersionAndArchitectures) {
  const auto nvrtc = real_nvrtc();
  ASSERT_NE(nvrtc, nullptr);
  EXPECT_GE(nvrtc->version(), oldest_nvrtc);
  EXPECT_TRUE(nvrtc->supports({8, 0, false}));
  EXPECT_TRUE(nvrtc->supports({9, 0, true}));
  EXPECT_FALSE(nvrtc->supports({3, 5, false}));
  EXPECT_FALSE(nvrtc->supports({99, 0, false}));
  EXPECT_EQ(test_nvrtc().front().version, nvrtc->version()) << "the file names and the library agree";
}

TEST(Nvrtc, CompilesForAmpereAndHopper) {
  const auto nvrtc = real_nvrtc();
  ASSERT_NE(nvrtc, nullptr);
  for (const Architecture architecture : {Architecture{8, 0, false}, Architecture{9, 0, true}}) {
    const Result<CompileOutput> output =
        nvrtc->compile("extern \"C\" __global__ void k(int* x) { *x = __CUDA_ARCH__; }\n", "k.cu", architecture);
    ASSERT_TRUE(output.ok()) << output.status().message();
    EXPECT_TRUE(
        output->cubin.starts_with("\x7f"
                                  "ELF"));
    EXPECT_TRUE(parse_resources(output->log, "k").known) << output->log;
  }
}

// setmaxnreg and wgmma exist for the `a` form only; and nothing may be linked or precompiled.
TEST(Nvrtc, HopperCodeIsCompiledForItsOwnFormInOneUnit) {
  const std::vector<std::string> hopper = compile_options({13, 5}, {9, 0, true});
  EXPECT_TRUE(has(hopper, "--gpu-architecture=sm_90a"));
  EXPECT_TRUE(has(compile_options({13, 5}, {8, 0, false}), "--gpu-architecture=sm_80"));
  for (const std::string& option : hopper) {
    EXPECT_EQ(option.find("pch"), std::string::npos);
    EXPECT_EQ(option.find("relocatable"), std::string::npos);
    EXPECT_EQ(option.find("dlto"), std::string::npos);
  }
  const auto nvrtc = real_nvrtc();
  ASSERT_NE(nvrtc, nullptr);
  const std::string source =
      "extern \"C\" __global__ void k() { asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\"); }\n";
  EXPECT_TRUE(nvrtc->compile(source, "k.cu", {9, 0, true}).ok());
  EXPECT_FALSE(nvrtc->compile(source, "k.cu", {9, 0, false}).ok());
}

TEST(Nvrtc, OwnCacheIsSwitchedOffWhereThereIsOne) {
  EXPECT_TRUE(has(compile_options({13, 5}, {8, 0, false}), "--no-cache"));
  EXPECT_TRUE(has(compile_options({12, 9}, {8, 0, false}), "--no-cache"));
  EXPECT_FALSE(has(compile_options({12, 8}, {8, 0, false}), "--no-cache")) << "12.8 does not know the option";
}

TEST(Nvrtc, ErrorCarriesLogVersionsAndArchitecture) {
  const auto nvrtc = real_nvrtc();
  ASSERT_NE(nvrtc, nullptr);
  const Result<CompileOutput> output =
      nvrtc->compile("#line 7 \"deep/file.h\"\nint broken = nothing;\n", "k.cu", {9, 0, true});
  ASSERT_FALSE(output.ok());
  const std::string message = output.status().message();
  for (const std::string& part :
       {std::string("NVRTC_ERROR_COMPILATION"), std::string("deep/file.h(7): error"), std::string("\"nothing\""),
        "NVRTC " + to_string(nvrtc->version()), nvrtc->path(), std::string("driver"), std::string("sm_90a")}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
}

TEST(Nvrtc, TooOldForTheDeviceIsSaidBeforeCompiling) {
  const Result<std::shared_ptr<const Nvrtc>> old = Nvrtc::open(fakes + "/fake_nvrtc_12/libnvrtc.so.12");
  ASSERT_TRUE(old.ok()) << old.status().message();
  const Result<CompileOutput> output = (*old)->compile("", "k.cu", {12, 0, false});
  ASSERT_FALSE(output.ok());
  const std::string message = output.status().message();
  for (const char* part :
       {"NVRTC 12.4", "too old for sm_120", "sm_70, sm_80, sm_90", "pip install nvidia-cuda-nvrtc"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_NE((*old)->check_supports({5, 0, false}).message().find("does not support sm_50"), std::string::npos);
}

TEST(Nvrtc, IsRefusedWithTheReason) {
  const auto reason = [](const std::string& path) {
    const Result<std::shared_ptr<const Nvrtc>> nvrtc = Nvrtc::open(path);
    EXPECT_FALSE(nvrtc.ok());
    return nvrtc.status().message();
  };
  EXPECT_NE(reason(fakes + "/fake_nvrtc_partial/libnvrtc.so.12").find("no function nvrtcGetErrorString"),
            std::string::npos);
  EXPECT_NE(reason(fakes + "/fake_nvrtc_11/libnvrtc.so.12").find("is NVRTC 11.8, too old"), std::string::npos);
  EXPECT_NE(reason("/no/such/libnvrtc.so.13").find("cannot be opened"), std::string::npos);
  const TemporaryDirectory directory;
  write_file(directory / "libnvrtc.so.13", "not a library");
  EXPECT_NE(reason(directory / "libnvrtc.so.13").find("cannot be opened"), std::string::npos);
}

TEST(NvrtcSearch, ReadsVersionsFromNames) {
  const TemporaryDirectory directory;
  const auto versions = [&] {
    std::vector<std::string> found;
    for (const NvrtcCandidate& candidate : candidates_below(directory.text(), "test")) {
      found.push_back(fs::path(candidate.path).filename().string() + " " + to_string(candidate.version));
    }
    return found;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(versions(), Names{});
  EXPECT_EQ(candidates_below("/no/such/folder", "test").size(), 0u);
  write_file(directory / "libnvrtc.so.13", "");
  EXPECT_EQ(versions(), Names{"libnvrtc.so.13 0.0"}) << "the name tells the major version only";
  write_file(directory / "libnvrtc-builtins.so.13.5", "");
  write_file(directory / "libnvrtc-builtins.alt.so.13.6", "");
  write_file(directory / "libnvrtc.alt.so.13", "");
  EXPECT_EQ(versions(), Names{"libnvrtc.so.13 13.5"});
  write_file(directory / "libnvrtc-builtins.so.12.9", "");
  EXPECT_EQ(versions(), Names{"libnvrtc.so.13 13.5"}) << "of another major version";
  write_file(directory / "libnvrtc-builtins.so.13.0", "");
  EXPECT_EQ(versions(), Names{"libnvrtc.so.13 0.0"}) << "two that could be meant";
  // A toolkit: libnvrtc.so.12 -> libnvrtc.so.12.4.127 is one candidate.
  write_file(directory / "libnvrtc.so.12.4.127", "");
  fs::create_symlink("libnvrtc.so.12.4.127", directory.path() / "libnvrtc.so.12");
  EXPECT_EQ(versions(), (Names{"libnvrtc.so.12 12.4", "libnvrtc.so.13 0.0"}));
}

TEST(NvrtcSearch, LooksIntoWheelsAndTorch) {
  const TemporaryDirectory site;
  const std::vector<std::string> expected{"libnvrtc.so.12", "nvidia/cu14/lib/libnvrtc.so.14",
                                          "nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                                          "torch/lib/libnvrtc-672ee683.so.12"};
  for (const std::string& name : expected) write_file(site / name, "");
  write_file(site / "nvidia/cudnn/lib/libnvrtc.so.13", "");  // not a place for it
  std::vector<std::string> found;
  for (const NvrtcCandidate& candidate : candidates_below(site.text(), "test")) {
    found.push_back(fs::relative(candidate.path, site.path()).string());
    EXPECT_EQ(candidate.origin, "test");
  }
  EXPECT_EQ(found, expected);
}

TEST(NvrtcSearch, RefusesTooOldByNameAlone) {
  const TemporaryDirectory directory;
  write_file(directory / "libnvrtc.so.11.2", "");
  const std::vector<NvrtcCandidate> candidates = candidates_below(directory.text(), "test");
  ASSERT_EQ(candidates.size(), 1u);
  EXPECT_NE(candidates[0].refusal.find("11.2, too old"), std::string::npos);
}

TEST(NvrtcSearch, AddedDirectoriesComeFirstInOrderAndOnce) {
  const TemporaryDirectory first;
  const TemporaryDirectory second;
  write_file(first / "libnvrtc.so.13", "not a library");
  write_file(second / "libnvrtc.so.13", "not a library");
  for (const std::string& directory : {first.text(), second.text(), first.text(), std::string()}) {
    add_search_directory(directory);
  }
  const std::vector<NvrtcCandidate> candidates = nvrtc_candidates();
  ASSERT_GE(candidates.size(), 4u);
  EXPECT_EQ(candidates[0].path, first / "libnvrtc.so.13");
  EXPECT_EQ(candidates[1].path, second / "libnvrtc.so.13");
  EXPECT_NE(candidates[2].origin, "search directory");
  EXPECT_EQ(candidates.back().origin, "loader");
  const std::vector<NvrtcCandidate> probed = probe_nvrtc_candidates();
  ASSERT_EQ(probed.size(), candidates.size());
  EXPECT_NE(probed[0].refusal.find("cannot be opened"), std::string::npos);
}

}  // namespace
}  // namespace warploom::gpu
