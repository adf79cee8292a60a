// Compiles own_pipeline.cu for Hopper and writes own_pipeline.cubin, which cuModuleLoadData takes. Needs NVRTC
// (pip install nvidia-cuda-nvrtc), no GPU, no nvcc.
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "warploom/kernel.h"

int main() {
  std::ostringstream source;
  source << std::ifstream(OWN_PIPELINE_SOURCE).rdbuf();
  char* cubin = nullptr;
  size_t bytes = 0;
  if (warploom_compile_kernel(source.str().c_str(), "matrix_vector", "sm_90a", &cubin, &bytes) != WARPLOOM_OK) {
    std::cout << warploom_last_error() << "\n";
    // A machine without NVRTC is told so; anything else is this example's fault.
    return std::string(warploom_last_error()).find("NVRTC") != std::string::npos ? 0 : 1;
  }
  std::ofstream("own_pipeline.cubin", std::ios::binary).write(cubin, static_cast<std::streamsize>(bytes));
  warploom_free(cubin);
  std::cout << "own_pipeline.cubin: " << bytes << " bytes for sm_90a\n";
  return 0;
}
