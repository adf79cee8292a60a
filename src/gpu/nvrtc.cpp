#include "gpu/nvrtc.h"

#include <algorithm>
#include <filesystem>

#include "gpu/driver.h"
#include "gpu/dynamic_library.h"

namespace warploom::gpu {

namespace fs = std::filesystem;

// nvrtc.h of CUDA 12 and 13; nvrtcResult is an int-sized enum, nvrtcProgram an opaque pointer.
struct Nvrtc::Functions {
  using Program = struct ProgramTag*;
  const char* (*nvrtcGetErrorString)(int) = nullptr;
  int (*nvrtcVersion)(int* major, int* minor) = nullptr;
  int (*nvrtcGetNumSupportedArchs)(int* count) = nullptr;
  int (*nvrtcGetSupportedArchs)(int* architectures) = nullptr;
  int (*nvrtcCreateProgram)(Program*, const char* source, const char* name, int header_count,
                            const char* const* headers, const char* const* include_names) = nullptr;
  int (*nvrtcDestroyProgram)(Program*) = nullptr;
  int (*nvrtcCompileProgram)(Program, int option_count, const char* const* options) = nullptr;
  int (*nvrtcGetCUBINSize)(Program, std::size_t* bytes) = nullptr;
  int (*nvrtcGetCUBIN)(Program, char* cubin) = nullptr;
  int (*nvrtcGetProgramLogSize)(Program, std::size_t* bytes) = nullptr;
  int (*nvrtcGetProgramLog)(Program, char* log) = nullptr;

  // The first symbol that the library lacks; empty when all are there.
  std::string bind(const DynamicLibrary& library) {
    std::string missing;
    const auto take = [&](const char* symbol, auto*& target) {
      if (!library.bind(symbol, target) && missing.empty()) missing = symbol;
    };
    take("nvrtcVersion", nvrtcVersion);
    take("nvrtcGetErrorString", nvrtcGetErrorString);
    take("nvrtcGetNumSupportedArchs", nvrtcGetNumSupportedArchs);
    take("nvrtcGetSupportedArchs", nvrtcGetSupportedArchs);
    take("nvrtcCreateProgram", nvrtcCreateProgram);
    take("nvrtcDestroyProgram", nvrtcDestroyProgram);
    take("nvrtcCompileProgram", nvrtcCompileProgram);
    take("nvrtcGetCUBINSize", nvrtcGetCUBINSize);
    take("nvrtcGetCUBIN", nvrtcGetCUBIN);
    take("nvrtcGetProgramLogSize", nvrtcGetProgramLogSize);
    take("nvrtcGetProgramLog", nvrtcGetProgramLog);
    return missing;
  }
};

namespace {

// NVRTC opens libnvrtc-builtins.so.X.Y by bare name when it compiles. The 13.0 wheel has no RPATH that leads there and
// fails with error 7; once the file is in the process, the loader answers the bare name with it.
void open_builtins_beside(const std::string& path) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(path).parent_path(), error)) {
    if (!entry.path().filename().string().starts_with("libnvrtc-builtins.so.")) continue;
    Result<DynamicLibrary> library = DynamicLibrary::open(entry.path().string());
    if (library.ok()) library->keep_loaded();
  }
}

std::string driver_text() {
  const Result<int> version = driver_version();
  return version.ok() ? "driver for CUDA " + cuda_version_text(*version) : "no CUDA driver";
}

}  // namespace

std::string to_string(const NvrtcVersion& version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor);
}

std::vector<std::string> compile_options(const NvrtcVersion& version, const Architecture& architecture) {
  std::vector<std::string> options{"--gpu-architecture=" + to_string(architecture), "--std=c++20",
                                   "--ptxas-options=-v"};
  // From 12.9 on NVRTC has a cache of its own, steered by environment variables; ours is the only one.
  if (version >= NvrtcVersion{12, 9}) options.emplace_back("--no-cache");
  return options;
}

Nvrtc::Nvrtc() : functions_(std::make_unique<Functions>()) {}
Nvrtc::~Nvrtc() = default;

Result<std::shared_ptr<const Nvrtc>> Nvrtc::open(const std::string& path) {
  if (path.find('/') != std::string::npos) open_builtins_beside(path);
  Result<DynamicLibrary> library = DynamicLibrary::open(path);
  if (!library.ok()) return Status::runtime_error("cannot be opened: " + library.status().message());
  std::shared_ptr<Nvrtc> nvrtc(new Nvrtc);
  nvrtc->path_ = library->path();
  Functions& functions = *nvrtc->functions_;
  if (const std::string missing = functions.bind(*library); !missing.empty()) {
    return Status::runtime_error("has no function " + missing + "; it is not an NVRTC of CUDA " +
                                 to_string(oldest_nvrtc) + " or newer");
  }
  // NVRTC keeps state of its own until the process ends; unloading it gains nothing.
  library->keep_loaded();
  int count = 0;
  if (functions.nvrtcVersion(&nvrtc->version_.major, &nvrtc->version_.minor) != 0 ||
      functions.nvrtcGetNumSupportedArchs(&count) != 0) {
    return Status::runtime_error("does not tell its version and architectures");
  }
  if (nvrtc->version_ < oldest_nvrtc) {
    return Status::runtime_error("is NVRTC " + to_string(nvrtc->version_) + ", too old: NVRTC " +
                                 to_string(oldest_nvrtc) + " or newer is needed");
  }
  nvrtc->architectures_.resize(static_cast<std::size_t>(std::max(count, 0)));
  if (functions.nvrtcGetSupportedArchs(nvrtc->architectures_.data()) != 0) {
    return Status::runtime_error("does not tell the architectures it supports");
  }
  return std::shared_ptr<const Nvrtc>(std::move(nvrtc));
}

bool Nvrtc::supports(const Architecture& architecture) const {
  return std::find(architectures_.begin(), architectures_.end(), architecture.major * 10 + architecture.minor) !=
         architectures_.end();
}

Status Nvrtc::check_supports(const Architecture& architecture) const {
  if (supports(architecture)) return {};
  const int wanted = architecture.major * 10 + architecture.minor;
  const bool newer = architectures_.empty() || wanted > architectures_.back();
  std::string known;
  for (const int number : architectures_) known += (known.empty() ? "sm_" : ", sm_") + std::to_string(number);
  return Status::runtime_error("NVRTC " + to_string(version_) + " (" + path_ + ") " +
                               (newer ? "is too old for " : "does not support ") + to_string(architecture) +
                               "; it compiles for " + known +
                               (newer ? "; install a newer one: pip install nvidia-cuda-nvrtc" : ""));
}

Result<CompileOutput> Nvrtc::compile(const std::string& source, const std::string& name,
                                     const Architecture& architecture) const {
  if (Status status = check_supports(architecture); !status.ok()) return status;
  const Functions& call = *functions_;
  Functions::Program program = nullptr;
  CompileOutput output;
  const auto failure = [&](int result) {
    return Status::runtime_error("compiling " + name + " for " + to_string(architecture) + " failed: " +
                                 call.nvrtcGetErrorString(result) + " [NVRTC " + to_string(version_) + ", " + path_ +
                                 "; " + driver_text() + "]" + (output.log.empty() ? "" : "\n" + output.log));
  };
  if (const int result = call.nvrtcCreateProgram(&program, source.c_str(), name.c_str(), 0, nullptr, nullptr);
      result != 0) {
    return failure(result);
  }
  struct Owner {
    const Functions& call;
    Functions::Program& program;
    ~Owner() { call.nvrtcDestroyProgram(&program); }
  } owner{call, program};

  const std::vector<std::string> options = compile_options(version_, architecture);
  std::vector<const char*> pointers;
  for (const std::string& option : options) pointers.push_back(option.c_str());
  int result = call.nvrtcCompileProgram(program, static_cast<int>(pointers.size()), pointers.data());

  // The sizes count a closing zero.
  std::size_t bytes = 0;
  if (call.nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes > 1) {
    output.log.resize(bytes);
    if (call.nvrtcGetProgramLog(program, output.log.data()) != 0) output.log.clear();
    while (!output.log.empty() && (output.log.back() == '\0' || output.log.back() == '\n')) output.log.pop_back();
  }
  if (result == 0) result = call.nvrtcGetCUBINSize(program, &bytes);
  if (result == 0) {
    output.cubin.resize(bytes);
    result = call.nvrtcGetCUBIN(program, output.cubin.data());
  }
  if (result != 0) return failure(result);
  return output;
}

}  // namespace warploom::gpu
