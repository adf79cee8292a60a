// From a kernel request to a cubin: memory, then the user's cache, then packs, then NVRTC.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/architecture.h"
#include "gpu/kernel_sources.h"
#include "gpu/nvrtc_search.h"
#include "gpu/resources.h"
#include "gpu/settings.h"
#include "warploom/status.h"

namespace warploom::gpu {

/// One variant of one kernel.
struct KernelRequest {
  std::string entry_file;  ///< path below kernels/, e.g. "attention/hstu_forward_sm80.cu"
  std::string
      config_text;  ///< C++ put before the entry file, printed from a plain config struct; may use #include "..."
  std::string kernel_name;  ///< an extern "C" __global__ function of the entry file
  Architecture architecture;

  friend bool operator==(const KernelRequest&, const KernelRequest&) = default;
};

enum class CubinOrigin { compiled, disk, pack };

/// A kernel ready to load.
struct Cubin {
  std::string key;  ///< SHA-256 in hex of everything that made it
  std::string kernel_name;
  Architecture architecture;
  std::string image;  ///< the cubin's bytes
  std::string log;    ///< what the compiler said
  KernelResources resources;
  CubinOrigin origin = CubinOrigin::compiled;
  Status kept;  ///< why a compiled kernel is not in the cache; ok where it is, or no cache was asked for
  NvrtcVersion nvrtc;
};

using CubinPointer = std::shared_ptr<const Cubin>;

struct CompilerCounters {
  std::uint64_t compiles = 0;
  std::uint64_t memory_hits = 0;
  std::uint64_t disk_hits = 0;
  std::uint64_t pack_hits = 0;
  std::uint64_t damaged_files = 0;  ///< files of the cache or a pack that were passed over
};

struct CompilerOptions {
  Settings settings;
  SourceLookup sources = embedded_source;
  std::function<std::vector<NvrtcCandidate>()> nvrtc_candidates = gpu::nvrtc_candidates;
  /// How long another process may hold a kernel's lock before this one compiles all the same.
  std::chrono::milliseconds lock_wait = std::chrono::seconds(30);
};

/// Thread safe. The process has one (compiler()); tests and `warploom compile` make their own with other options.
class Compiler {
 public:
  explicit Compiler(CompilerOptions options);
  explicit Compiler(Settings settings);
  ~Compiler();

  /// The kernel of `request`, compiled only when no memory, cache or pack has it. Errors: runtime_error with the
  /// compiler's log, NVRTC's version, the driver's version and the architecture, or with the NVRTCs that were refused;
  /// invalid_value for an unknown entry file or an include that cannot be resolved.
  Result<CubinPointer> get(const KernelRequest& request);

  /// All of them, `threads` at a time (0: one a core); results in the order of the requests.
  std::vector<Result<CubinPointer>> get_many(const std::vector<KernelRequest>& requests, int threads = 0);

  CompilerCounters counters() const;
  const Settings& settings() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The process's compiler. Its settings are those of configure(), else of the environment.
Compiler& compiler();

/// Sets the settings of compiler(). Error: invalid_value after the first use of compiler().
Status configure(Settings settings);

}  // namespace warploom::gpu
