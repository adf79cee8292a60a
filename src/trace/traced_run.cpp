#include "trace/traced_run.h"

#include <functional>
#include <optional>
#include <vector>

#include "gpu/attention.h"
#include "gpu/gemm.h"
#include "gpu/gemm_plan.h"
#include "gpu/hopper_backward_plan.h"
#include "gpu/hopper_forward_plan.h"
#include "gpu/hopper_pair_plan.h"
#include "gpu/hopper_two_kernel_plan.h"
#include "gpu/launch_plan.h"
#include "gpu/scratch.h"
#include "median.h"
#include "problem/message.h"

namespace warploom::trace {
namespace {

constexpr std::size_t kMostBytes = std::size_t{8} << 30;

/// Launches a plan's kernels with their scratch memory, plain or traced, and times them.
class Launcher {
 public:
  Launcher(gpu::GpuPlan& plan, const gpu::Driver& driver, int device, gpu::StreamHandle stream,
           const KernelsElsewhere* elsewhere)
      : plan_(plan), driver_(driver), device_(device), stream_(stream), elsewhere_(elsewhere) {}
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  ~Launcher() {
    for (gpu::EventHandle event : events_)
      if (event != nullptr) driver_.cuEventDestroy(event);
  }

  Status prepare() {
    for (gpu::EventHandle& event : events_) {
      if (Status status = check(driver_.cuEventCreate(&event, 0), "creating an event"); !status.ok()) return status;
    }
    if (plan_.scratch_bytes == 0) return {};
    Result<gpu::Scratch> scratch = gpu::Scratch::allocate(driver_, device_, plan_.scratch_bytes, stream_);
    if (!scratch.ok()) return scratch.status();
    scratch_.emplace(std::move(*scratch));
    plan_.bind_scratch(plan_, scratch_->address());
    return {};
  }

  /// The plan's launches, with `marked` in place of number `which`, to their end.
  Status run(int which, gpu::PlannedLaunch& marked) {
    if (Status status = launch(which, marked); !status.ok()) return status;
    return finish();
  }

  /// Milliseconds of the kernels, the second time of two: the first one fetches their code, which the form without
  /// marks or with them, whose turn was before, has displaced, and the launches of the second wait behind it.
  Result<double> time(int which, gpu::PlannedLaunch& marked) {
    if (Status status = launch(which, marked); !status.ok()) return status;
    if (Status status = launch(which, marked); !status.ok()) return status;
    if (Status status = finish(); !status.ok()) return status;
    float milliseconds = 0;
    Status status = check(driver_.cuEventElapsedTime(&milliseconds, events_[0], events_[1]), "timing");
    if (!status.ok()) return status;
    return static_cast<double>(milliseconds);
  }

  Status launch(int which, gpu::PlannedLaunch& marked) {
    if (plan_.cleared_bytes > 0) {
      if (Status status = clear(scratch_->address(), plan_.cleared_bytes); !status.ok()) return status;
    }
    if (Status status = check(driver_.cuEventRecord(events_[0], stream_), "timing"); !status.ok()) return status;
    for (int n = 0; n < plan_.launch_count; ++n) {
      gpu::PlannedLaunch& planned = n == which ? marked : plan_.launches[static_cast<std::size_t>(n)];
      const Result<const gpu::LoadedKernel*> kernel =
          elsewhere_ == nullptr ? gpu::loaded_kernel(planned, plan_.architecture, device_) : elsewhere_->load(planned);
      if (!kernel.ok()) return kernel.status();
      if (Status status = gpu::launch(**kernel, planned, stream_); !status.ok()) return status;
    }
    return check(driver_.cuEventRecord(events_[1], stream_), "timing");
  }
  Status finish() const { return check(driver_.cuEventSynchronize(events_[1]), "running the traced kernel"); }

  Status clear(gpu::DevicePointer address, std::size_t bytes) const {
    return check(driver_.cuMemsetD8Async(address, 0, bytes, stream_), "clearing device memory");
  }
  Status check(gpu::DriverResult result, const char* what) const { return gpu::driver_status(driver_, result, what); }

 private:
  gpu::GpuPlan& plan_;
  const gpu::Driver& driver_;
  int device_;
  gpu::StreamHandle stream_;
  const KernelsElsewhere* elsewhere_;
  gpu::EventHandle events_[2] = {};
  std::optional<gpu::Scratch> scratch_;
};

/// The number of the launch to trace.
Result<int> marked_launch(const gpu::GpuPlan& plan, const std::string& wanted) {
  std::string marked, all;
  for (int n = 0; n < plan.launch_count; ++n) {
    const gpu::KernelFamily& family = *plan.launches[static_cast<std::size_t>(n)].family;
    all += (n > 0 ? ", " : "") + std::string(family.name);
    if (family.trace == nullptr) continue;
    if (wanted.empty() || wanted == family.trace->name) return n;
    marked += (marked.empty() ? "" : ", ") + std::string(family.trace->name);
  }
  if (!marked.empty()) {
    return Status::invalid_value(message("kernel = '", wanted, "' is not one that the call runs with marks: ", marked));
  }
  return Status::runtime_error(message(
      "the call runs ", all, ", which has no marks; traced are the kernels for Hopper of products and attention"));
}

Subject subject_of_launch(const gpu::PlannedLaunch& launch, const sim::Machine& machine) {
  if (launch.family == &gpu::kGemm)
    return subject_of(gpu::gemm_config(launch.config), machine, launch.params_as<GemmParams>().steps);
  if (launch.family == &gpu::kHopperForward) return subject_of(gpu::hopper_forward_config(launch.config), machine);
  if (launch.family == &gpu::kHopperBackwardPair) return subject_of(gpu::hopper_pair_config(launch.config), machine);
  if (launch.family == &gpu::kHopperBackwardKeys) return subject_of(gpu::hopper_keys_config(launch.config), machine);
  if (launch.family == &gpu::kHopperBackwardDq) return subject_of(gpu::hopper_dq_config(launch.config), machine);
  return subject_of(gpu::hopper_backward_config(launch.config), machine);
}

/// Traces one launch of a plan. The plan's device is current.
Status trace_plan(gpu::GpuPlan& plan, const gpu::Driver& driver, int device, gpu::StreamHandle stream,
                  const TraceOptions& options, TracedRun& result, const KernelsElsewhere* elsewhere = nullptr) {
  const Result<int> found = marked_launch(plan, options.kernel);
  if (!found.ok()) return found.status();
  const int which = *found;
  gpu::PlannedLaunch& plain = plan.launches[static_cast<std::size_t>(which)];
  if (plain.ctas == 0) return {};  // no work: nothing to record
  if (options.cta >= plain.ctas) {
    return Status::invalid_value(
        message("cta = ", options.cta, " is none of the launch's ", plain.ctas, "; they count from 0"));
  }
  const gpu::TraceHooks& hooks = *plain.family->trace;
  result.cta = options.cta >= 0 ? options.cta : plain.family == &gpu::kGemm ? plain.ctas - 1 : 0;
  const std::int64_t first = options.record == 0 ? 0 : result.cta;
  const Layout layout{
      .ctas = options.record == 0 ? plain.ctas : std::min<std::int64_t>(options.record, plain.ctas - first),
      .strips = hooks.strips(plain.config),
      .capacity = options.capacity,
      .first_cta = first};
  if (layout.bytes() > kMostBytes) {
    return Status::invalid_value(message("capacity = ", options.capacity, " for each of ", layout.ctas, " x ",
                                         layout.strips, " warps takes more than 8 GiB; ask for less"));
  }
  Launcher launcher(plan, driver, device, stream, elsewhere);
  if (Status status = launcher.prepare(); !status.ok()) return status;
  const Result<gpu::Scratch> buffer = gpu::Scratch::allocate(driver, device, layout.bytes(), stream);
  if (!buffer.ok()) return buffer.status();
  // NOLINTBEGIN(performance-no-int-to-ptr): the driver names device memory by number
  const Sheet sheet{reinterpret_cast<Strip*>(buffer->address()),
                    reinterpret_cast<Record*>(buffer->address() + layout.strip_bytes()),
                    layout.strips,
                    static_cast<unsigned>(options.capacity),
                    static_cast<unsigned>(layout.first_cta),
                    static_cast<unsigned>(layout.ctas)};
  // NOLINTEND(performance-no-int-to-ptr)
  gpu::PlannedLaunch traced = plain;  // after the scratch memory was bound
  hooks.attach(traced, options.level, sheet);

  std::vector<double> plain_ms, traced_ms;
  for (int round = -1; round < options.rounds; ++round) {  // the first compiles and warms up
    const Result<double> without = launcher.time(which, plain);
    if (!without.ok()) return without.status();
    const Result<double> with = launcher.time(which, traced);
    if (!with.ok()) return with.status();
    if (round < 0) continue;
    plain_ms.push_back(*without);
    traced_ms.push_back(*with);
  }
  result.plain_ms = median_of(plain_ms);
  result.traced_ms = median_of(traced_ms);

  if (Status status = launcher.clear(buffer->address(), layout.strip_bytes()); !status.ok()) return status;
  if (Status status = launcher.run(which, traced); !status.ok()) return status;
  std::vector<std::byte> bytes(layout.bytes());
  if (Status status =
          launcher.check(driver.cuMemcpyDtoH(bytes.data(), buffer->address(), bytes.size()), "reading the trace");
      !status.ok())
    return status;
  Result<Recording> recording = decode(bytes, layout);
  if (!recording.ok()) return recording.status();
  result.recording = std::move(*recording);

  if (elsewhere != nullptr) {
    result.subject = elsewhere->subject;
    return {};
  }
  result.subject = subject_of_launch(plain, options.machine);
  result.subject.title = plain.family->variant(plain.config).name;
  return {};
}

/// `with_plan`: hands a plan and its driver to a function.
template <typename Call, typename WithPlan>
Result<TracedRun> traced(const Call& call, const TraceOptions& options, const WithPlan& with_plan) {
  if (Status status = validate(options); !status.ok()) return status;
  TracedRun result;
  Status status = with_plan([&](gpu::GpuPlan& plan, const gpu::Driver& driver) {
    return trace_plan(plan, driver, call.device_index, static_cast<gpu::StreamHandle>(call.stream), options, result);
  });
  if (!status.ok()) return status;
  if (result.recording.ctas.empty()) return Status::runtime_error("the kernel recorded nothing: the call has no work");
  return result;
}

}  // namespace

Status validate(const TraceOptions& options) {
  constexpr std::int64_t kMostCapacity = 1 << 24;
  if (options.capacity < 1 || options.capacity > kMostCapacity) {
    return Status::invalid_value(
        message("capacity = ", options.capacity, " must lie in [1, ", kMostCapacity, "] marks a warp"));
  }
  if (options.cta < -1)
    return Status::invalid_value(message("cta = ", options.cta, " must be -1 (one that is chosen) or more"));
  if (options.record < 0)
    return Status::invalid_value(message("record = ", options.record, " must be 0 (all CTAs) or more"));
  if (options.rounds < 0 || options.rounds > 10000)
    return Status::invalid_value(message("rounds = ", options.rounds, " must lie in [0, 10000]"));
  return validate(options.machine);
}

Result<Level> parse_level(const std::string& name) {
  if (name == "rings") return Level::rings;
  if (name == "steps") return Level::steps;
  return Status::invalid_value(message("detail = '", name, "' must be rings or steps"));
}

Result<TracedRun> traced_run(const warploom_gemm& call, const TraceOptions& options) {
  return traced_run(call, nullptr, options);
}

Result<TracedRun> traced_run(const warploom_gemm& call, const std::function<bool(const gpu::GemmCandidate&)>& wanted,
                             const TraceOptions& options) {
  return traced(call, options, [&](const auto& body) { return gpu::with_plan(call, wanted, body); });
}

Result<TracedRun> traced_run(const warploom_attention& call, const TraceOptions& options) {
  return traced(call, options, [&](const auto& body) { return gpu::with_plan(call, body); });
}

Result<TracedRun> traced_run(gpu::GpuPlan& plan, const gpu::Driver& driver, int device, const KernelsElsewhere& kernels,
                             const TraceOptions& options) {
  if (Status status = validate(options); !status.ok()) return status;
  TracedRun result;
  if (Status status = trace_plan(plan, driver, device, nullptr, options, result, &kernels); !status.ok()) return status;
  return result;
}

}  // namespace warploom::trace
