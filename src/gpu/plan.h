// The plan of a GPU call: which kernels it launches, with which configuration, shape and arguments. `run` follows it,
// `explain` prints it. A kernel family's own file (src/gpu/*_plan.cpp) makes it; docs/architecture.md says how one is
// added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "gpu/compiler.h"
#include "gpu/driver.h"
#include "pipeline/trace_records.h"
#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::gpu {

/// The members of a kernel's configuration struct in order, zeros after them: what a compiled kernel is found by.
using ConfigKey = std::array<std::int32_t, 26>;

/// Whether launches that can start over the end of the one before do (PlannedLaunch::overlaps_previous).
inline constexpr bool kOverlapsLaunches = true;

struct KernelVariant;
struct PlannedLaunch;

/// What a kernel with marks (pipeline/trace.h) is traced by.
struct TraceHooks {
  const char* name;                        ///< what the kernel computes, among those of one call
  int (*strips)(const ConfigKey& config);  ///< warps of a CTA that mark
  /// Makes the launch its traced variant, whose marks go to `sheet`.
  void (*attach)(PlannedLaunch& launch, trace::Level level, const trace::Sheet& sheet);
};

/// A kernel in all its configurations. There is one object a family; its address is the family's identity.
struct KernelFamily {
  const char* name;    ///< as `explain` shows it
  const char* source;  ///< its file, from the project's root
  /// The compiler's request for a configuration. Made only when no process-wide table has the kernel.
  KernelRequest (*request)(const ConfigKey& config, const Architecture& architecture);
  /// Every configuration that the device's calls choose (dtypes, masks, head_dim = value_dim, every multiple of 8), and
  /// with `whole_table` those of the tile table's other rows too.
  std::vector<KernelVariant> (*variants)(const DeviceInfo& device, bool whole_table);
  /// One configuration as a variant.
  KernelVariant (*variant)(const ConfigKey& config);
  const TraceHooks* trace = nullptr;  ///< null: the kernel has no marks
  /// Kernels with a user's function: the compiler's message with the lines of the user's text that it names.
  std::string (*failure)(const ConfigKey& config, const std::string& message) = nullptr;
};

/// A configuration with what a list of them is filtered and printed by.
struct KernelVariant {
  const KernelFamily* family = nullptr;
  ConfigKey config{};
  std::string name;  ///< e.g. "hstu forward D64 bf16 intervals"
  int head_dim = 0;
  bool bfloat16 = false;
  bool interval_mask = false;
};

/// One launch: a loaded kernel and its one argument.
struct PlannedLaunch {
  static constexpr std::size_t kMaxParamsBytes = 2048;
  static constexpr std::size_t kParamsAlignment = 64;  // of a CUtensorMap

  const KernelFamily* family;
  ConfigKey config;
  long long ctas;  ///< 0: nothing to launch
  int threads;
  int shared_bytes;
  bool overlaps_previous;  ///< LaunchShape::overlaps_previous
  alignas(kParamsAlignment) std::byte params[kMaxParamsBytes];

  /// Starts the argument: a value-initialised Params in place.
  template <typename Params>
  Params& start_params() {
    static_assert(sizeof(Params) <= kMaxParamsBytes && alignof(Params) <= kParamsAlignment);
    static_assert(std::is_trivially_copyable_v<Params> && std::is_trivially_destructible_v<Params>);
    return *new (params) Params{};
  }
  template <typename Params>
  Params& params_as() {
    return *std::launder(reinterpret_cast<Params*>(params));
  }
  template <typename Params>
  const Params& params_as() const {
    return *std::launder(reinterpret_cast<const Params*>(params));
  }
};

/// Launches in the order they run. Large, and made on every call: it is filled in place and never cleared as a whole.
struct GpuPlan {
  static constexpr int kMaxLaunches = 5;

  GpuPlan()
      : launch_count(0),
        queries_elsewhere(0),
        scratch_bytes(0),
        cleared_bytes(0),
        scratch_left_cleared(false),
        bind_scratch(nullptr),
        bind_first(nullptr),
        describe(nullptr),
        describe_first(nullptr) {}
  GpuPlan(const GpuPlan&) = delete;
  GpuPlan& operator=(const GpuPlan&) = delete;

  int launch_count;
  /// Set before the plan is made: sequences with at most so many query rows are left to launches added after it.
  int queries_elsewhere;
  /// Device memory for the length of the call, allocated and freed on its stream. Its first cleared_bytes are set to 0
  /// before the first launch.
  std::size_t scratch_bytes;
  std::size_t cleared_bytes;
  /// The launches leave the scratch memory as they found it, all of it cleared: a few bytes that stay with the stream
  /// may serve, which costs nothing a call.
  bool scratch_left_cleared;
  /// Tells the launches' arguments where the scratch memory is; needed when there is some.
  void (*bind_scratch)(GpuPlan& plan, DevicePointer scratch);
  /// In a plan that adds launches to another one: that one's, whose scratch memory comes first.
  void (*bind_first)(GpuPlan& plan, DevicePointer scratch);
  /// Adds to `json` what `explain` says beside the common part.
  void (*describe)(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device, nlohmann::json& json);
  void (*describe_first)(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device,
                         nlohmann::json& json);
  Architecture architecture;
  std::array<PlannedLaunch, kMaxLaunches> launches;

  /// The next launch; its arguments are to be started by the caller.
  PlannedLaunch& add_launch(const KernelFamily& family, const ConfigKey& config) {
    PlannedLaunch& launch = launches[static_cast<std::size_t>(launch_count++)];
    launch.family = &family;
    launch.config = config;
    launch.overlaps_previous = false;
    return launch;
  }
};

/// What the plan does and why, as a JSON object.
std::string describe(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device);

/// Error: runtime_error for more CTAs than one launch takes.
Status check_grid(long long ctas, int tile_rows);

}  // namespace warploom::gpu
