#include "cli/runner.h"

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "cli/device_memory.h"
#include "gpu/driver.h"

namespace warploom::cli {
namespace {

template <typename T>
std::size_t size_of(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

}  // namespace

struct Runner::State {
  Problem* problem = nullptr;
  Device device;
  Execution execution;
  warploom_attention host[2] = {}, run[2] = {};  // forward, backward
  std::unique_ptr<DeviceMemory> memory;

  /// The buffers that a device needs a copy of; results among them start with the host's poison.
  Status upload() {
    Problem& p = *problem;
    for (const OwnedTensor* tensor : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv}) {
      if (Status status = memory->add(tensor->memory.data(), tensor->memory.bytes()); !status.ok()) return status;
    }
    const std::pair<const void*, std::size_t> others[] = {{p.offsets_q.data(), size_of(p.offsets_q)},
                                                          {p.offsets_k.data(), size_of(p.offsets_k)},
                                                          {p.intervals.data(), size_of(p.intervals)},
                                                          {p.lse.data(), size_of(p.lse)},
                                                          {p.bias.data(), p.bias.bytes()},
                                                          {p.bias_grad.data(), p.bias_grad.bytes()},
                                                          {p.position.data(), size_of(p.position)},
                                                          {p.time.data(), size_of(p.time)},
                                                          {p.position_grad.data(), size_of(p.position_grad)},
                                                          {p.time_grad.data(), size_of(p.time_grad)},
                                                          {p.timestamps.data(), size_of(p.timestamps)},
                                                          {p.thresholds.data(), size_of(p.thresholds)},
                                                          {p.divisors.data(), size_of(p.divisors)},
                                                          {p.config.used_q.data(), size_of(p.config.used_q)},
                                                          {p.config.used_k.data(), size_of(p.config.used_k)},
                                                          {p.config.contexts.data(), size_of(p.config.contexts)},
                                                          {p.config.targets.data(), size_of(p.config.targets)}};
    for (const auto& [data, bytes] : others) {
      if (Status status = memory->add(data, bytes); !status.ok()) return status;
    }
    return {};
  }

  void translate(warploom_attention& call) const {
    for (warploom_tensor* tensor : {&call.q, &call.k, &call.v, &call.out, &call.dout, &call.dq, &call.dk, &call.dv}) {
      memory->translate(tensor->data);
    }
    memory->translate(call.lse);
    memory->translate(call.cu_seqlens_q);
    memory->translate(call.cu_seqlens_k);
    memory->translate(call.seqused_q);
    memory->translate(call.seqused_k);
    memory->translate(call.num_contexts);
    memory->translate(call.num_targets);
    memory->translate(call.intervals);
    memory->translate(call.divisor_rows);
    warploom_bias& bias = call.bias;
    memory->translate(bias.values);
    memory->translate(bias.grad);
    memory->translate(bias.position);
    memory->translate(bias.position_grad);
    memory->translate(bias.time);
    memory->translate(bias.time_grad);
    memory->translate(bias.timestamps);
    memory->translate(bias.time_bucket);
  }

  ~State() {
    if (memory == nullptr) return;
    const Result<gpu::ContextScope> scope = gpu::ContextScope::enter(device.ordinal);
    memory.reset();
  }
};

Runner::Runner(std::unique_ptr<State> state) : state_(std::move(state)) {}
Runner::Runner(Runner&&) noexcept = default;
Runner& Runner::operator=(Runner&&) noexcept = default;
Runner::~Runner() = default;

Result<Runner> Runner::make(Problem& problem, const Device& device, bool backward) {
  auto state = std::make_unique<State>();
  state->problem = &problem;
  state->device = device;
  state->execution = device.execution();
  for (int pass = 0; pass <= (backward ? 1 : 0); ++pass) {
    const Result<warploom_attention> call =
        pass == 0 ? forward_call(problem, state->execution) : backward_call(problem, state->execution);
    if (!call.ok()) return call.status();
    state->host[pass] = state->run[pass] = *call;
  }
  if (!device.cuda) return Runner(std::move(state));

  const Result<const gpu::Driver*> driver = gpu::driver();
  if (!driver.ok()) return driver.status();
  const Result<gpu::ContextScope> scope = gpu::ContextScope::enter(device.ordinal);
  if (!scope.ok()) return scope.status();
  state->memory = std::make_unique<DeviceMemory>(**driver);
  if (Status status = state->memory->make_events(); !status.ok()) return status;
  if (Status status = state->upload(); !status.ok()) return status;
  for (warploom_attention& call : state->run) state->translate(call);
  return Runner(std::move(state));
}

Result<double> Runner::run(bool backward) {
  const warploom_attention& call = state_->run[backward ? 1 : 0];
  const auto work = [&call] { return detail::status_of(warploom_run(&call)); };
  if (state_->memory == nullptr) {
    const auto start = std::chrono::steady_clock::now();
    if (Status status = work(); !status.ok()) return status;
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  const Result<gpu::ContextScope> scope = gpu::ContextScope::enter(state_->device.ordinal);
  if (!scope.ok()) return scope.status();
  return state_->memory->time(static_cast<gpu::StreamHandle>(call.stream), work);
}

Status Runner::fetch() {
  if (state_->memory == nullptr) return {};
  const Result<gpu::ContextScope> scope = gpu::ContextScope::enter(state_->device.ordinal);
  if (!scope.ok()) return scope.status();
  Problem& p = *state_->problem;
  for (const OwnedTensor* tensor : {&p.out, &p.dq, &p.dk, &p.dv}) {
    if (Status status = state_->memory->fetch(tensor->memory.data()); !status.ok()) return status;
  }
  for (void* data : {static_cast<void*>(p.lse.data()), p.bias_grad.data(), static_cast<void*>(p.position_grad.data()),
                     static_cast<void*>(p.time_grad.data())}) {
    if (data == nullptr) continue;
    if (Status status = state_->memory->fetch(data); !status.ok()) return status;
  }
  return {};
}

const warploom_attention& Runner::host_call(bool backward) const {
  return state_->host[backward ? 1 : 0];
}

const warploom_attention& Runner::device_call(bool backward) const {
  return state_->run[backward ? 1 : 0];
}

}  // namespace warploom::cli
