#include "gpu/choose_plan.h"

#include <array>

#include "gpu/backward_around.h"
#include "gpu/backward_bias_plan.h"
#include "gpu/backward_plan.h"
#include "gpu/gemm_plan.h"
#include "gpu/hopper_backward_plan.h"
#include "gpu/hopper_forward_plan.h"
#include "gpu/hopper_pair_plan.h"
#include "gpu/hopper_two_kernel_plan.h"
#include "gpu/mask_intervals.h"
#include "gpu/mma_forward_plan.h"
#include "gpu/reference_device.h"
#include "gpu/settings.h"
#include "gpu/split_plan.h"
#include "problem/message.h"

namespace warploom::gpu {
namespace {

constexpr std::array kFamilies = {&kHopperForward,
                                  &kMmaForward,
                                  &kSplitForward,
                                  &kCombine,
                                  &kHopperBackward,
                                  &kHopperBackwardPair,
                                  &kHopperBackwardKeys,
                                  &kHopperBackwardDq,
                                  &kMmaBackward,
                                  &kMmaBackwardDq,
                                  &kBackwardRowTerms,
                                  &kBackwardDqSums,
                                  &kMmaBackwardBias,
                                  &kBackwardTableSums,
                                  &kBackwardTableTotals,
                                  &kMaskIntervals,
                                  &kGemm,
                                  &kGemmFewRows};

}  // namespace

Status choose_plan(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda, GpuPlan& plan) {
  if (device.major < 8) {
    return Status::runtime_error(message(device.name, " has compute capability ", device.major, ".", device.minor,
                                         "; the kernels need 8.0 or newer. Move the tensors to the CPU"));
  }
  plan.architecture = compile_architecture(device);
  const Result<KernelChoice> choice = kernel_choice();
  if (!choice.ok()) return choice.status();
  if (call.pass == WARPLOOM_BACKWARD) {
    const bool hopper = *choice != KernelChoice::mma_sync && hopper_backward_serves(call, device, cuda);
    if (!hopper) return plan_mma_backward(call, device, plan);
    if (pair_serves(call)) return plan_hopper_pair(call, device, cuda, plan);
    return takes_two_kernels(call) ? plan_hopper_two_kernels(call, device, cuda, plan)
                                   : plan_hopper_backward(call, device, cuda, plan);
  }
  const bool splits = *choice != KernelChoice::unsplit && splits_short_queries(call);
  if (splits && has_only_short_queries(call)) return add_split_launches(call, device, plan);
  plan.queries_elsewhere = splits ? kShortQueries : 0;
  const bool hopper = *choice != KernelChoice::mma_sync && hopper_forward_serves(call, device, cuda);
  Status status = hopper ? plan_hopper_forward(call, device, cuda, plan) : plan_mma_forward(call, device, plan);
  return status.ok() && splits ? add_split_launches(call, device, plan) : status;
}

std::vector<KernelVariant> kernel_variants(const DeviceInfo& device, bool whole_table) {
  std::vector<KernelVariant> result;
  for (const KernelFamily* family : kFamilies) {
    for (KernelVariant& variant : family->variants(device, whole_table)) result.push_back(std::move(variant));
  }
  return result;
}

}  // namespace warploom::gpu
