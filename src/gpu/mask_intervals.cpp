#include "gpu/mask_intervals.h"

#include "attention/user_functions.h"
#include "expression/functions.h"
#include "gpu/device_call.h"
#include "gpu/launch_plan.h"
#include "gpu/reference_device.h"
#include "problem/mask_rows.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

/// The address of intervals that nobody reads: aligned, and not null.
const auto* const kNowhere = reinterpret_cast<const std::int32_t*>(std::uintptr_t{4096});

KernelRequest request_of(const ConfigKey& key, const Architecture& architecture) {
  KernelRequest request;
  request.entry_file = "attention/mask_intervals.cu";
  request.config_text = expression::mask_of_number(key[0]).device_text;
  request.kernel_name = "mask_intervals";
  request.architecture = architecture;
  return request;
}

KernelVariant variant_of(const ConfigKey& key) {
  return {&kMaskIntervals, key, "mask intervals", 0, true, true};
}

/// Each is a user's own.
std::vector<KernelVariant> variants_of(const DeviceInfo&, bool) {
  return {};
}

Status queue(const warploom_attention& call, const expression::MaskFunction& function, const DeviceInfo& device,
             DevicePointer bounds, MaskUse use) {
  PlannedLaunch launch;
  launch.family = &kMaskIntervals;
  launch.config = {function.number};
  launch.threads = kMaskIntervalsThreads;
  launch.shared_bytes = 0;
  MaskIntervalsCall& params = launch.start_params<MaskIntervalsCall>();
  fill_device_call(call, params);
  params.schedule = schedule_of(call, effective_max_seqlen_q(call), kMaskIntervalsThreads, 1, device);
  if (!function.by_head) {
    params.schedule.heads = 1;
    params.schedule.pairs_in_group = 1;
  }
  params.bounds = reinterpret_cast<int*>(bounds);
  for (std::size_t n = 0; n < function.parameters.size(); ++n) {
    params.mask_parameters[n] = static_cast<long long>(call.mask_function.values[n]);
  }
  launch.ctas = params.schedule.items();
  if (Status status = check_grid(launch.ctas, kMaskIntervalsThreads); !status.ok()) return status;
  const Result<const LoadedKernel*> kernel = loaded_kernel(launch, compile_architecture(device), call.device_index);
  if (!kernel.ok()) return kernel.status();
  return use == MaskUse::run ? gpu::launch(**kernel, launch, static_cast<StreamHandle>(call.stream)) : Status();
}

}  // namespace

const KernelFamily kMaskIntervals = {
    "mask_intervals",
    "kernels/attention/mask_intervals.cu",
    request_of,
    variants_of,
    variant_of,
    nullptr,
    [](const ConfigKey& key, const std::string& message) { return expression::with_mask_lines(key[0], message); }};

Result<ExpandedCall> expand_mask(const warploom_attention& call, const DeviceInfo& device, const Driver& cuda,
                                 MaskUse use) {
  if (!has_mask_function(call)) return ExpandedCall{call, std::nullopt};
  const expression::MaskFunction& function = **expression::find_mask(call.mask_function);  // validated
  ExpandedCall expanded{with_interval_shape(call, function, kNowhere), std::nullopt};
  if (use == MaskUse::plan || call.total_q == 0) return expanded;
  const int64_t bytes =
      expanded.call.interval_heads * call.total_q * function.intervals * 2 * static_cast<int64_t>(sizeof(std::int32_t));
  DevicePointer bounds = 0;
  if (use == MaskUse::run) {
    Result<Scratch> memory = Scratch::allocate(cuda, call.device_index, static_cast<std::size_t>(bytes),
                                               static_cast<StreamHandle>(call.stream));
    if (!memory.ok()) return memory.status();
    bounds = memory->address();
    expanded.memory.emplace(std::move(*memory));
    expanded.call.intervals = reinterpret_cast<const std::int32_t*>(bounds);
  }
  if (Status status = queue(call, function, device, bounds, use); !status.ok()) return status;
  return expanded;
}

}  // namespace warploom::gpu
