// What a kernel's machine code says of its inner loop, without a GPU.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace warploom::cli {

/// The innermost loop with the most matrix instructions (HMMA of mma.sync, HGMMA of wgmma).
struct InnerLoop {
  int instructions = 0;  ///< all from its first to its last, rarely taken branches among them included
  int mma = 0;

  double others_per_mma() const { return static_cast<double>(instructions - mma) / mma; }
};

/// Finds it in what `nvdisasm -c` prints; nothing when no loop holds a matrix instruction.
std::optional<InnerLoop> inner_loop(std::string_view listing);

/// What `nvdisasm -c` prints for a cubin: nvdisasm of PATH, of the CUDA toolkit or of the nvidia-cuda-nvcc and
/// nvidia-cuda-cuobjdump wheels beside NVRTC. Nothing where there is none.
std::optional<std::string> disassemble(const std::string& cubin);

}  // namespace warploom::cli
