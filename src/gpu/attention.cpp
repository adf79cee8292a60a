#include "gpu/attention.h"

#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/module.h"
#include "gpu/plan.h"
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
  const bool measure = call.max_seqlen_q == WARPLOOM_FROM_CU_SEQLENS;
  if (!check && !measure) return call;
  const Result<HostValues> host = copy_values(call, cuda);
  if (!host.ok()) return host.status();
  if (check) {
    if (Status status = validate_values(host->call); !status.ok()) return status;
  }
  warploom_attention resolved = call;
  resolved.max_seqlen_q = effective_max_seqlen_q(host->call);
  return resolved;
}

/// A configuration's members and a device.
using LoadedKey = std::pair<std::array<int, 9>, int>;

struct LoadedKeyHash {
  size_t operator()(const LoadedKey& key) const {
    size_t hash = static_cast<size_t>(key.second);
    for (const int member : key.first) hash = hash * 1000003u ^ static_cast<size_t>(member);
    return hash;
  }
};

/// The loaded kernel of a plan: a table look-up when the process has used it before.
Result<const LoadedKernel*> loaded_kernel(const HstuForwardPlan& plan, int device) {
  static std::mutex mutex;
  static std::unordered_map<LoadedKey, const LoadedKernel*, LoadedKeyHash> loaded;
  const LoadedKey key{members(plan.config), device};
  {
    const std::lock_guard lock(mutex);
    if (const auto found = loaded.find(key); found != loaded.end()) return found->second;
  }
  const Result<CubinPointer> cubin = compiler().get(kernel_request(plan.config, plan.architecture));
  if (!cubin.ok()) return cubin.status();
  const Result<const LoadedKernel*> kernel = load_kernel(*cubin, device, plan.shared_bytes);
  if (!kernel.ok()) return kernel;
  const std::lock_guard lock(mutex);
  loaded.emplace(key, *kernel);
  return kernel;
}

struct Prepared {
  HstuForwardPlan plan;
  warploom_attention call;
  DeviceInfo device;
};

Result<Prepared> prepare(const warploom_attention& call, const Driver& cuda) {
  Result<DeviceInfo> device = device_info(call.device_index);
  if (!device.ok()) return device.status();
  Result<warploom_attention> resolved = resolve(call, cuda);
  if (!resolved.ok()) return resolved.status();
  Result<HstuForwardPlan> plan = plan_hstu_forward(*resolved, *device);
  if (!plan.ok()) return plan.status();
  return Prepared{*plan, *resolved, *device};
}

/// Runs `body(prepared, cuda)` with the call's device current.
template <typename Body>
auto on_device(const warploom_attention& call, Body body) -> decltype(body(std::declval<Prepared&>())) {
  if (Status status = check_served(call); !status.ok()) return status;
  const Result<const Driver*> cuda = driver();
  if (!cuda.ok()) return cuda.status();
  const Result<ContextScope> context = ContextScope::enter(call.device_index);
  if (!context.ok()) return context.status();
  Result<Prepared> prepared = prepare(call, **cuda);
  if (!prepared.ok()) return prepared.status();
  return body(*prepared);
}

}  // namespace

Status run(const warploom_attention& call) {
  return on_device(call, [&](Prepared& prepared) -> Status {
    if (prepared.plan.ctas == 0) return {};
    const Result<const LoadedKernel*> kernel = loaded_kernel(prepared.plan, call.device_index);
    if (!kernel.ok()) return kernel.status();
    LaunchShape shape;
    shape.grid_x = static_cast<uint32_t>(prepared.plan.ctas);
    shape.block_x = static_cast<uint32_t>(prepared.plan.threads);
    void* arguments[] = {&prepared.plan.params};
    return launch(**kernel, shape, static_cast<StreamHandle>(call.stream), arguments);
  });
}

Status warmup(const warploom_attention& call) {
  return on_device(
      call, [&](Prepared& prepared) -> Status { return loaded_kernel(prepared.plan, call.device_index).status(); });
}

Result<std::string> explain(const warploom_attention& call) {
  return on_device(call, [&](Prepared& prepared) -> Result<std::string> {
    return describe(prepared.plan, prepared.call, prepared.device);
  });
}

}  // namespace warploom::gpu
