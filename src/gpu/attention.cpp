#include "gpu/attention.h"

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "gpu/choose_plan.h"
#include "gpu/launch_plan.h"
#include "gpu/mask_intervals.h"
#include "gpu/module.h"
#include "gpu/scratch.h"
#include "problem/message.h"
#include "problem/sequence.h"
#include "problem/validate.h"

namespace warploom::gpu {
namespace {

/// Device arrays of a call, copied to the host: `call` points to the copies.
struct HostValues {
  warploom_attention call;
  std::vector<std::vector<char>> copies;
};

/// Copies what validate_values reads. Waits for the stream, so it fails while a graph is captured.
Result<HostValues> copy_values(const warploom_attention& call, const Driver& cuda) {
  HostValues host{call, {}};
  const auto stream = static_cast<StreamHandle>(call.stream);
  if (Status status = driver_status(cuda, cuda.cuStreamSynchronize(stream), "waiting for the stream to read lengths");
      !status.ok()) {
    return status;
  }
  Status failure;
  const auto copy = [&]<typename T>(T*& pointer, int64_t count, int64_t element_bytes) {
    if (pointer == nullptr || !failure.ok()) return;
    std::vector<char>& target = host.copies.emplace_back(static_cast<size_t>(count * element_bytes));
    if (count > 0) {
      failure =
          driver_status(cuda, cuda.cuMemcpyDtoH(target.data(), reinterpret_cast<DevicePointer>(pointer), target.size()),
                        "reading lengths from the device");
    }
    pointer = reinterpret_cast<T*>(target.data());
  };
  const auto width = [](uint32_t dtype) -> int64_t { return dtype == WARPLOOM_INT64 ? 8 : 4; };
  copy(host.call.cu_seqlens_q, call.batch + 1, width(call.cu_seqlens_q_dtype));
  copy(host.call.cu_seqlens_k, call.batch + 1, width(call.cu_seqlens_k_dtype));
  copy(host.call.seqused_q, call.batch, 4);
  copy(host.call.seqused_k, call.batch, 4);
  copy(host.call.num_contexts, call.batch, 4);
  copy(host.call.num_targets, call.batch, 4);
  if (!failure.ok()) return failure;
  return host;
}

/// The call with max_seqlen_* known, its values checked when that was asked for.
Result<warploom_attention> resolve(const warploom_attention& call, const Driver& cuda) {
  const bool check = (call.flags & WARPLOOM_CHECK_INPUTS) != 0;
  // Backward has tiles of keys too. Without cu_seqlens_k both sides are as long.
  const bool measure =
      call.max_seqlen_q == WARPLOOM_FROM_CU_SEQLENS ||
      (call.pass == WARPLOOM_BACKWARD && call.max_seqlen_k == WARPLOOM_FROM_CU_SEQLENS && call.cu_seqlens_k != nullptr);
  if (!check && !measure) return call;
  const Result<HostValues> host = copy_values(call, cuda);
  if (!host.ok()) return host.status();
  if (check) {
    if (Status status = validate_values(host->call); !status.ok()) return status;
  }
  warploom_attention resolved = call;
  resolved.max_seqlen_q = effective_max_seqlen_q(host->call);
  resolved.max_seqlen_k = effective_max_seqlen_k(host->call);
  return resolved;
}

/// A call on its device: plan, resolved description, driver.
struct Prepared {
  GpuPlan plan;
  warploom_attention call;
  DeviceInfo device;
  const Driver* cuda;
  std::optional<Scratch> intervals;  ///< of a mask function
};

/// Plans the call, its mask function evaluated for that `use`, and runs `body(prepared)` with the call's device
/// current.
template <typename Body>
auto on_device(const warploom_attention& call, MaskUse use, Body body) -> decltype(body(std::declval<Prepared&>())) {
  const Result<const Driver*> cuda = driver();
  if (!cuda.ok()) return cuda.status();
  const Result<ContextScope> context = ContextScope::enter(call.device_index);
  if (!context.ok()) return context.status();
  Result<DeviceInfo> device = device_info(call.device_index);
  if (!device.ok()) return device.status();
  const Result<warploom_attention> resolved = resolve(call, **cuda);
  if (!resolved.ok()) return resolved.status();
  Result<ExpandedCall> expanded = expand_mask(*resolved, *device, **cuda, use);
  if (!expanded.ok()) return expanded.status();
  Prepared prepared{{}, expanded->call, std::move(*device), *cuda, std::move(expanded->memory)};
  if (Status status = choose_plan(prepared.call, prepared.device, *cuda, prepared.plan); !status.ok()) return status;
  return body(prepared);
}

/// The plan's loaded kernels, in the order of its launches. `body(launch, kernel)` runs for each until one fails.
template <typename Body>
Status for_each_kernel(Prepared& prepared, Body body) {
  for (int n = 0; n < prepared.plan.launch_count; ++n) {
    PlannedLaunch& planned = prepared.plan.launches[static_cast<size_t>(n)];
    const Result<const LoadedKernel*> kernel =
        loaded_kernel(planned, prepared.plan.architecture, prepared.call.device_index);
    if (!kernel.ok()) return kernel.status();
    if (Status status = body(planned, **kernel); !status.ok()) return status;
  }
  return {};
}

Status launch_all(Prepared& prepared) {
  return for_each_kernel(prepared, [&](PlannedLaunch& planned, const LoadedKernel& kernel) -> Status {
    return launch(kernel, planned, static_cast<StreamHandle>(prepared.call.stream));
  });
}

/// launch_all with scratch memory that lives on the stream from before the first launch to after the last.
Status launch_with_scratch(Prepared& prepared) {
  GpuPlan& plan = prepared.plan;
  const auto stream = static_cast<StreamHandle>(prepared.call.stream);
  // A kernel that does not compile must not leave memory behind.
  Status status = for_each_kernel(prepared, [](PlannedLaunch&, const LoadedKernel&) { return Status(); });
  if (!status.ok()) return status;
  Result<Scratch> scratch = Scratch::allocate(*prepared.cuda, prepared.call.device_index, plan.scratch_bytes, stream);
  if (!scratch.ok()) return scratch.status();
  if (plan.cleared_bytes > 0) {
    status =
        driver_status(*prepared.cuda, prepared.cuda->cuMemsetD8Async(scratch->address(), 0, plan.cleared_bytes, stream),
                      "clearing scratch memory");
    if (!status.ok()) return status;
  }
  plan.bind_scratch(plan, scratch->address());
  return launch_all(prepared);
}

}  // namespace

Status run(const warploom_attention& call) {
  return on_device(call, MaskUse::run, [](Prepared& prepared) -> Status {
    GpuPlan& plan = prepared.plan;
    if (plan.scratch_left_cleared) {
      const Result<DevicePointer> kept =
          memory_of_stream(*prepared.cuda, prepared.call.device_index, plan.scratch_bytes,
                           static_cast<StreamHandle>(prepared.call.stream));
      if (!kept.ok()) return kept.status();
      if (*kept != 0) {
        plan.bind_scratch(plan, *kept);
        return launch_all(prepared);
      }
    }
    return plan.scratch_bytes > 0 ? launch_with_scratch(prepared) : launch_all(prepared);
  });
}

Status with_plan(const warploom_attention& call, const std::function<Status(GpuPlan&, const Driver&)>& body) {
  return on_device(call, MaskUse::run,
                   [&body](Prepared& prepared) -> Status { return body(prepared.plan, *prepared.cuda); });
}

Status warmup(const warploom_attention& call) {
  return on_device(call, MaskUse::compile, [](Prepared& prepared) -> Status {
    return for_each_kernel(prepared, [](PlannedLaunch&, const LoadedKernel&) { return Status(); });
  });
}

Result<std::string> explain(const warploom_attention& call) {
  return on_device(call, MaskUse::plan, [](Prepared& prepared) -> Result<std::string> {
    return describe(prepared.plan, prepared.call, prepared.device);
  });
}

}  // namespace warploom::gpu
