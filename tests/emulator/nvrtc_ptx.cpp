// An NVRTC that hands out PTX where a cubin is asked for: the emulated GPU's driver loads PTX. WARPLOOM_EMULATOR_NVRTC
// names the file of the real one, which does the work.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

void* real() {
  static void* const library = [] {
    const char* path = std::getenv("WARPLOOM_EMULATOR_NVRTC");
    void* opened = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
      std::fprintf(stderr, "emulated GPU: WARPLOOM_EMULATOR_NVRTC must name libnvrtc.so.13: %s\n",
                   path == nullptr ? "it is not set" : dlerror());
      std::abort();
    }
    return opened;
  }();
  return library;
}

template <typename... Parameters>
int call(const char* name, Parameters... parameters) {
  const auto function = reinterpret_cast<int (*)(Parameters...)>(dlsym(real(), name));
  return function(parameters...);
}

}  // namespace

#define NVRTC_API extern "C" __attribute__((visibility("default")))

NVRTC_API const char* nvrtcGetErrorString(int result) {
  return reinterpret_cast<const char* (*)(int)>(dlsym(real(), "nvrtcGetErrorString"))(result);
}
NVRTC_API int nvrtcVersion(int* major, int* minor) {
  return call("nvrtcVersion", major, minor);
}
NVRTC_API int nvrtcGetNumSupportedArchs(int* count) {
  return call("nvrtcGetNumSupportedArchs", count);
}
NVRTC_API int nvrtcGetSupportedArchs(int* architectures) {
  return call("nvrtcGetSupportedArchs", architectures);
}
NVRTC_API int nvrtcCreateProgram(void** program, const char* source, const char* name, int header_count,
                                 const char* const* headers, const char* const* include_names) {
  return call("nvrtcCreateProgram", program, source, name, header_count, headers, include_names);
}
NVRTC_API int nvrtcDestroyProgram(void** program) {
  return call("nvrtcDestroyProgram", program);
}
// For a virtual architecture NVRTC ends with PTX, which takes half the time.
NVRTC_API int nvrtcCompileProgram(void* program, int option_count, const char* const* options) {
  std::vector<std::string> texts;
  for (int i = 0; i < option_count; ++i) {
    std::string text = options[i];
    if (text.starts_with("--ptxas-options")) continue;
    if (const std::size_t at = text.find("=sm_"); at != std::string::npos) text.replace(at, 4, "=compute_");
    texts.push_back(std::move(text));
  }
  // Without it NVRTC 13.5 reads through a null pointer when it is called like this.
  if (std::find(texts.begin(), texts.end(), "--no-cache") == texts.end()) texts.emplace_back("--no-cache");
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  return call("nvrtcCompileProgram", program, static_cast<int>(pointers.size()),
              static_cast<const char* const*>(pointers.data()));
}
NVRTC_API int nvrtcGetCUBINSize(void* program, std::size_t* bytes) {
  return call("nvrtcGetPTXSize", program, bytes);
}
NVRTC_API int nvrtcGetCUBIN(void* program, char* cubin) {
  return call("nvrtcGetPTX", program, cubin);
}
NVRTC_API int nvrtcGetProgramLogSize(void* program, std::size_t* bytes) {
  return call("nvrtcGetProgramLogSize", program, bytes);
}
NVRTC_API int nvrtcGetProgramLog(void* program, char* log) {
  return call("nvrtcGetProgramLog", program, log);
}
