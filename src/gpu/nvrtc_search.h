// Where NVRTC is looked for. The library is 141 MB, so it is found on the machine, never bundled.
//
// Search order (docs/runtime-compilation.md says why):
//   1. folders given to add_search_directory, in order
//   2. the system: LD_LIBRARY_PATH, the folders of the loader's configuration, CUDA toolkits (/usr/local/cuda*)
//   3. the Python environment that holds the program or this library: the nvidia-cuda-nvrtc wheel, then torch's own
//   copy
//   4. what the loader finds by name (an RPATH, for example)
// A candidate that cannot serve is refused with a reason, and the next one is tried.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/nvrtc.h"

namespace warploom::gpu {

/// One libnvrtc of this machine.
struct NvrtcCandidate {
  std::string path;      ///< a file, or a bare name for the loader
  std::string origin;    ///< "search directory", "system", "CUDA toolkit", "Python environment", "loader"
  NvrtcVersion version;  ///< from the file names beside it; {0, 0} until it is loaded when they do not tell
  std::string refusal;   ///< why it cannot be used; empty: nothing speaks against it so far
};

/// Adds a folder to the front part of the search: one with libnvrtc itself, or a site-packages folder (nvidia/cu*/lib,
/// nvidia/cuda_nvrtc/lib and torch/lib are looked at below it). Earlier additions come first; a repeated one is
/// ignored.
void add_search_directory(const std::string& directory);

/// The libnvrtc of `directory` and of the wheels below it. Loads nothing.
std::vector<NvrtcCandidate> candidates_below(const std::string& directory, const std::string& origin);

/// All candidates of this machine in search order. Loads nothing: a version comes from file names.
std::vector<NvrtcCandidate> nvrtc_candidates();

/// The same for `warploom info`: each candidate is loaded, so that version and refusal are the library's own.
std::vector<NvrtcCandidate> probe_nvrtc_candidates();

/// Opens a candidate; the outcome, good or bad, is kept for the process.
Result<std::shared_ptr<const Nvrtc>> load_candidate(const NvrtcCandidate& candidate);

}  // namespace warploom::gpu
