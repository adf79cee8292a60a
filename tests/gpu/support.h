// What the tests of run-time compilation share: a temporary folder, the NVRTC to test with, kernels to compile.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/cache.h"
#include "gpu/compiler.h"
#include "gpu/nvrtc_search.h"

namespace warploom::gpu {

/// A folder that goes with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "warploom-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + pattern);
    path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::filesystem::path& path() const { return path_; }
  std::string text() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// The folder to take NVRTC from: the one that CMake was given (WARPLOOM_NVRTC_DIRECTORY), else the project's .venv.
inline std::string nvrtc_directory() {
  if (*WARPLOOM_TEST_NVRTC_DIRECTORY != '\0') return WARPLOOM_TEST_NVRTC_DIRECTORY;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(WARPLOOM_TEST_SOURCE_DIRECTORY "/.venv/lib", error)) {
    if (entry.path().filename().string().starts_with("python3")) return (entry.path() / "site-packages").string();
  }
  return "";
}

/// That NVRTC and no other, whatever the machine has beside it.
inline std::vector<NvrtcCandidate> test_nvrtc() {
  std::vector<NvrtcCandidate> candidates = candidates_below(nvrtc_directory(), "search directory");
  EXPECT_FALSE(candidates.empty())
      << "these tests need NVRTC: pip install nvidia-cuda-nvrtc==13.5.37 into .venv, or give "
         "CMake its folder with -DWARPLOOM_NVRTC_DIRECTORY=";
  return candidates;
}

inline std::vector<NvrtcCandidate> no_nvrtc() {
  return {};
}

using SourceFiles = std::map<std::string, std::string, std::less<>>;

inline SourceLookup lookup_in(SourceFiles files) {
  return [files = std::move(files)](std::string_view path) -> std::optional<std::string_view> {
    const auto found = files.find(path);
    if (found == files.end()) return std::nullopt;
    return found->second;
  };
}

/// A kernel of two files that compiles in a few hundredths of a second.
inline SourceFiles small_sources() {
  return {{"scale/factor.h", "#pragma once\n__device__ inline float scaled(float x) { return FACTOR * x; }\n"},
          {"scale/scale.cu",
           "#include \"scale/factor.h\"\n"
           "extern \"C\" __global__ void __launch_bounds__(128) scale(float* x, int n) {\n"
           "  __shared__ float staged[128];\n"
           "  staged[threadIdx.x] = x[threadIdx.x];\n"
           "  __syncthreads();\n"
           "  const int i = blockIdx.x * 128 + threadIdx.x;\n"
           "  if (i < n) x[i] = scaled(staged[(i * 7) & 127]);\n"
           "}\n"
           "extern \"C\" __global__ void clear(float* x) { x[threadIdx.x] = 0.0f; }\n"},
          {"bad/bad.cu",
           "// A comment.\nextern \"C\" __global__ void bad(float* x) {\n  x[0] = no_such_function(1);\n}\n"}};
}

inline KernelRequest scale_request(int factor = 2, Architecture architecture = {8, 0, false}) {
  return {"scale/scale.cu", "#define FACTOR " + std::to_string(factor) + ".0f\n", "scale", architecture};
}

inline CompilerOptions test_options(const std::string& cache_directory) {
  CompilerOptions options;
  options.settings.cache_directory = cache_directory;
  options.sources = lookup_in(small_sources());
  options.nvrtc_candidates = test_nvrtc;
  return options;
}

/// Where the kernel of a request lies in a cache.
inline CacheSlot slot_of(const std::string& cache_directory, const KernelRequest& request,
                         const SourceFiles& sources = small_sources()) {
  const NvrtcVersion version = test_nvrtc().at(0).version;
  const Result<std::string> unit = expand_source(request.config_text, request.entry_file, lookup_in(sources));
  const Digest key = cache_key(unit.value(), request.config_text, compile_options(version, request.architecture),
                               version, request.architecture);
  return {cache_directory, request.architecture, version, to_hex(key)};
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// The files below `directory` whose names end with `suffix`.
inline std::vector<std::filesystem::path> files_below(const std::filesystem::path& directory, std::string_view suffix) {
  std::vector<std::filesystem::path> found;
  if (!std::filesystem::exists(directory)) return found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file() && entry.path().string().ends_with(suffix)) found.push_back(entry.path());
  }
  return found;
}

}  // namespace warploom::gpu
