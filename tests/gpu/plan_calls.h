// What the tests of plans share: devices that need not be there, and calls on them. Planning reads none of a call's
// pointers.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <vector>

#include "gpu/backward_plan.h"
#include "gpu/choose_plan.h"
#include "gpu/plan.h"
#include "gpu/reference_device.h"
#include "warploom/warploom.h"

namespace warploom::gpu {

inline DeviceInfo device_of(const char* architecture) {
  return *reference_device(*parse_architecture(architecture));
}

alignas(16) inline char nowhere[16];

/// A jagged, causal HSTU forward call in bfloat16 of sequences of one length; its tensors are not set.
inline warploom_attention jagged_call(int64_t batch, int64_t length, int64_t heads, int64_t head_dim) {
  warploom_attention call;
  warploom_attention_init(&call);
  call.device = WARPLOOM_CUDA;
  call.dtype = WARPLOOM_BFLOAT16;
  call.batch = batch;
  call.heads = call.key_heads = heads;
  call.head_dim = call.value_dim = head_dim;
  call.total_q = call.total_k = batch * length;
  call.max_seqlen_q = call.max_seqlen_k = length;
  call.cu_seqlens_q = nowhere;
  call.right = 0;
  return call;
}

/// Contiguous rows for some of the call's tensors.
inline void give_rows(const warploom_attention& call, std::initializer_list<warploom_tensor*> tensors) {
  for (warploom_tensor* tensor : tensors) {
    tensor->data = nowhere;
    tensor->row_stride = call.heads * call.head_dim;
    tensor->head_stride = call.head_dim;
  }
}

/// The same backward, with rows for every tensor.
inline warploom_attention backward_call(int64_t batch, int64_t length, int64_t heads, int64_t head_dim) {
  warploom_attention call = jagged_call(batch, length, heads, head_dim);
  call.pass = WARPLOOM_BACKWARD;
  give_rows(call, {&call.q, &call.k, &call.v, &call.out, &call.dout, &call.dq, &call.dk, &call.dv});
  return call;
}

/// A dense bias in bfloat16 of `length` rows and columns for each sequence and head, and a gradient like it.
inline void give_dense_bias(warploom_attention& call, int64_t length) {
  warploom_bias& bias = call.bias;
  bias.kind = WARPLOOM_DENSE_BIAS;
  bias.dtype = WARPLOOM_BFLOAT16;
  bias.values = bias.grad = nowhere;
  bias.batch = call.batch;
  bias.heads = call.heads;
  bias.num_rows = bias.num_columns = bias.row_stride = bias.grad_row_stride = length;
  bias.head_stride = bias.grad_head_stride = length * length;
  bias.batch_stride = bias.grad_batch_stride = call.heads * length * length;
}

/// The plan of a call that has one.
inline std::unique_ptr<GpuPlan> plan_of(const warploom_attention& call, const DeviceInfo& device) {
  auto plan = std::make_unique<GpuPlan>();
  const Status status = choose_plan(call, device, nullptr, *plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}
inline std::unique_ptr<GpuPlan> plan_of(const warploom_attention& call, const char* architecture = "sm_90a") {
  return plan_of(call, device_of(architecture));
}

/// The backward plan by the kernels for every GPU.
inline std::unique_ptr<GpuPlan> mma_backward_plan_of(const warploom_attention& call,
                                                     const DeviceInfo& device = device_of("sm_90a")) {
  auto plan = std::make_unique<GpuPlan>();
  plan->architecture = compile_architecture(device);
  const Status status = plan_mma_backward(call, device, *plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

/// The kernels that a plan launches, in order.
using Families = std::vector<const KernelFamily*>;
inline Families families_of(const GpuPlan& plan) {
  Families result;
  for (int n = 0; n < plan.launch_count; ++n) result.push_back(plan.launches[static_cast<size_t>(n)].family);
  return result;
}

}  // namespace warploom::gpu
