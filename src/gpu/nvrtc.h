// NVRTC, NVIDIA's run-time compiler: one loaded library and what it can do. nvrtc_search.h finds it.
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

/// The oldest NVRTC that is used: the first with C++20 and sm_90a.
inline constexpr NvrtcVersion oldest_nvrtc{12, 0};

/// "13.5".
std::string to_string(const NvrtcVersion& version);

/// What a compile gives back.
struct CompileOutput {
  std::string cubin;
  std::string log;
};

/// One loaded NVRTC. Thread safe, as NVRTC is: programs are independent.
class Nvrtc {
 public:
  /// Opens a libnvrtc, its builtins library first. Error: runtime_error with the loader's words, the missing symbol, or
  /// "too old".
  static Result<std::shared_ptr<const Nvrtc>> open(const std::string& path);
  ~Nvrtc();

  const std::string& path() const { return path_; }
  NvrtcVersion version() const { return version_; }
  bool supports(const Architecture& architecture) const;
  /// Ok, or runtime_error "NVRTC 12.4 (path) is too old for sm_120: ..." naming what it does support.
  Status check_supports(const Architecture& architecture) const;

  /// Compiles one translation unit; `name` is its name in messages. Errors: runtime_error with NVRTC's error, its log,
  /// its version and path, the driver's version (when there is one) and the architecture.
  Result<CompileOutput> compile(const std::string& source, const std::string& name,
                                const Architecture& architecture) const;

 private:
  struct Functions;
  Nvrtc();
  std::unique_ptr<Functions> functions_;
  std::string path_;
  NvrtcVersion version_;
  std::vector<int> architectures_;  // 10 * major + minor, ascending
};

/// The options of every compile: a function of NVRTC's version and the architecture, nothing else.
std::vector<std::string> compile_options(const NvrtcVersion& version, const Architecture& architecture);

}  // namespace warploom::gpu
