// NVRTC, NVIDIA's run-time compiler: found on this machine, never bundled.
//
// Search order (docs/runtime-compilation.md says why):
//   1. folders given to add_search_directory, in order
//   2. the system: LD_LIBRARY_PATH, the loader's configured folders, CUDA toolkits (/usr/local/cuda*)
//   3. the Python environment that holds the program or this library: the nvidia-cuda-nvrtc wheel, then torch's own copy
// In each folder the newest libnvrtc wins. A candidate that cannot serve is refused with a reason and the next is tried.
#pragma once

#include <compare>
#include <memory>
#include <string>
#include <vector>

#include "gpu/architecture.h"
#include "warploom/status.h"

namespace warploom::gpu {

struct NvrtcVersion {
  int major = 0;
  int minor = 0;

  bool known() const { return major != 0; }
  friend auto operator<=>(const NvrtcVersion&, const NvrtcVersion&) = default;
};

/// "13.5".
std::string to_string(const NvrtcVersion& version);

/// What a compile gives back.
struct CompileOutput {
  std::string cubin;
  std::string log;
};

/// One loaded NVRTC. Thread safe: NVRTC allows concurrent programs.
class Nvrtc {
 public:
  /// Opens a libnvrtc, its builtins library first. Error: runtime_error with the loader's words or the missing symbol.
  static Result<std::shared_ptr<const Nvrtc>> open(const std::string& path);
  ~Nvrtc();

  const std::string& path() const;
  NvrtcVersion version() const;
  /// Supported architectures as 10 * major + minor, ascending.
  const std::vector<int>& architectures() const;
  bool supports(const Architecture& architecture) const;

  /// Compiles one translation unit. `options` without the architecture, which is added. Error: runtime_error with
  /// NVRTC's error, its log, its version and path, the driver's version (when there is one) and the architecture.
  Result<CompileOutput> compile(const std::string& source, const std::string& name, const Architecture& architecture,
                                const std::vector<std::string>& options) const;

 private:
  struct Functions;
  Nvrtc();
  std::unique_ptr<Functions> functions_;
  std::string path_;
  NvrtcVersion version_;
  std::vector<int> architectures_;
};

/// A place where an NVRTC was looked for, for `warploom info`.
struct NvrtcCandidate {
  std::string path;
  std::string origin;     ///< "search directory", "system", "CUDA toolkit", "Python environment"
  NvrtcVersion version;   ///< from the file names beside it, from the library itself once loaded; {0, 0}: unknown
  bool loaded = false;
  std::string refusal;    ///< why it cannot be used; empty: it can
};

/// Adds a folder to the front part of the search: one with libnvrtc itself, or a site-packages folder (nvidia/cu13/lib,
/// nvidia/cuda_nvrtc/lib and torch/lib are looked at below it). Earlier additions come first; a repeated one is ignored.
void add_search_directory(const std::string& directory);

/// All candidates in search order, with what is known of each. Loads nothing.
std::vector<NvrtcCandidate> nvrtc_candidates();

}  // namespace warploom::gpu
