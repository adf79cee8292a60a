#include "gpu/backward_around.h"

#include <algorithm>

#include "attention/hopper_backward_pair_config.h"
#include "gpu/backward_tiles.h"
#include "gpu/device_call.h"
#include "gpu/hopper_backward_plan.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

constexpr int kMaxHeadDim = 256;

BackwardRowTermsConfig row_terms_config(const ConfigKey& key) {
  return {key[0], key[1] != 0};
}
BackwardDqSumsConfig dq_sums_config(const ConfigKey& key) {
  return {key[0], key[1] != 0, key[2] != 0, key[3]};
}

KernelRequest row_terms_request(const ConfigKey& key, const Architecture& architecture) {
  const BackwardRowTermsConfig c = row_terms_config(key);
  return backward_request_for("attention/backward_row_terms.cu", "backward_row_terms", "BackwardRowTermsConfig",
                              message(".value_dim = ", c.value_dim, ", .bfloat16 = ", truth(c.bfloat16)), architecture);
}
KernelRequest dq_sums_request(const ConfigKey& key, const Architecture& architecture) {
  const BackwardDqSumsConfig c = dq_sums_config(key);
  return backward_request_for(
      "attention/backward_dq_sums.cu", "backward_dq_sums", "BackwardDqSumsConfig",
      message(".head_dim = ", c.head_dim, ", .bfloat16 = ", truth(c.bfloat16),
              ", .vector_reduction = ", truth(c.vector_reduction), ", .query_rows = ", c.query_rows),
      architecture);
}

KernelVariant row_terms_variant(const ConfigKey& key) {
  const BackwardRowTermsConfig c = row_terms_config(key);
  return backward_variant_of(kBackwardRowTerms, key, "softmax backward row terms", c.value_dim, c.value_dim, c.bfloat16,
                             false);
}
KernelVariant dq_sums_variant(const ConfigKey& key) {
  const BackwardDqSumsConfig c = dq_sums_config(key);
  return backward_variant_of(kBackwardDqSums, key, "backward dq sums", c.head_dim, c.head_dim, c.bfloat16, false);
}

std::vector<KernelVariant> row_terms_variants(const DeviceInfo&, bool) {
  std::vector<KernelVariant> result;
  for (int dim = 8; dim <= kMaxHeadDim; dim += 8) {
    for (const int bfloat16 : {1, 0}) result.push_back(row_terms_variant({dim, bfloat16}));
  }
  return result;
}

ConfigKey key_of(const BackwardDqSumsConfig& c) {
  return {c.head_dim, c.bfloat16, c.vector_reduction, c.query_rows};
}

std::vector<KernelVariant> dq_sums_variants(const DeviceInfo& device, bool) {
  std::vector<KernelVariant> result;
  const auto add = [&](const BackwardDqSumsConfig& config) {
    const ConfigKey key = key_of(config);
    const bool known = std::any_of(result.begin(), result.end(), [&](const auto& v) { return v.config == key; });
    if (!known) result.push_back(dq_sums_variant(key));
  };
  for (int dim = 8; dim <= kMaxHeadDim; dim += 8) {
    if (device.major == 9 && dim <= kMaxOnePassDim) {
      for (const bool bfloat16 : {true, false}) {
        const HopperBackwardConfig tile =
            choose_hopper_backward_config({.head_dim = dim, .value_dim = dim, .bfloat16 = bfloat16});
        add({dim, bfloat16, /*vector_reduction=*/true, tile.query_rows});
      }
    }
    if (device.major == 9 && dim > kMaxOnePassDim) {
      add({dim, /*bfloat16=*/true, /*vector_reduction=*/true, kPairQueryRows});
    }
    for (const int bits : {0, 1, 2, 3}) {
      BackwardConfig base;
      base.head_dim = base.value_dim = dim;
      base.bfloat16 = (bits & 1) == 0;
      base.interval_mask = (bits & 2) != 0;
      for (const BiasKind bias : {BiasKind::none, BiasKind::rows16, BiasKind::bucketed}) {
        base.bias = bias;
        for (const BackwardConfig& config : backward_tiles(base, device, false)) {
          add({dim, config.bfloat16, config.vector_reduction, config.query_rows});
        }
      }
    }
  }
  return result;
}

std::size_t aligned(long long bytes) {
  return static_cast<std::size_t>((bytes + 255) / 256 * 256);
}

}  // namespace

const KernelFamily kBackwardRowTerms = {"backward_row_terms", "kernels/attention/backward_row_terms.cu",
                                        row_terms_request, row_terms_variants, row_terms_variant};
const KernelFamily kBackwardDqSums = {"backward_dq_sums", "kernels/attention/backward_dq_sums.cu", dq_sums_request,
                                      dq_sums_variants, dq_sums_variant};

const char* truth(bool value) {
  return value ? "true" : "false";
}

KernelRequest backward_request_for(const char* file, const char* kernel, const std::string& type,
                                   const std::string& members, const Architecture& architecture,
                                   const std::string& text_after, const char* header) {
  KernelRequest request;
  request.entry_file = file;
  request.config_text = message("#include \"", header, "\"\nnamespace warploom {\ninline constexpr ", type,
                                " kConfig = {", members, "};\n}  // namespace warploom\n", text_after);
  request.kernel_name = kernel;
  request.architecture = architecture;
  return request;
}

std::string score_name(bool softmax, bool softcap) {
  return softmax ? softcap ? "softmax softcap" : "softmax" : "hstu";
}

KernelVariant backward_variant_of(const KernelFamily& family, const ConfigKey& key, const std::string& what,
                                  int head_dim, int value_dim, bool bfloat16, bool interval_mask) {
  std::string name = what + " D" + std::to_string(head_dim);
  if (value_dim != head_dim) name += " Dv" + std::to_string(value_dim);
  name += std::string(bfloat16 ? " bf16" : " fp16") + (interval_mask ? " intervals" : "");
  return {&family, key, name, head_dim, bfloat16, interval_mask};
}

BackwardParams backward_params(const warploom_attention& call) {
  BackwardParams params;
  fill_device_call(call, params.call);
  const auto tensor_of = [&](const warploom_tensor& tensor) {
    return Tensor{tensor.data, is_dense(call) ? tensor.batch_stride : 0, tensor.row_stride, tensor.head_stride};
  };
  params.dquery = tensor_of(call.dq);
  params.dkey = tensor_of(call.dk);
  params.dvalue = tensor_of(call.dv);
  const bool softmax = call.op == WARPLOOM_SOFTMAX;
  const double alpha = effective_alpha(call);
  const double over_n = softmax || call.divisor_rows != nullptr ? 1.0 : 1.0 / effective_divisor(call);
  params.score_factor = static_cast<float>(softmax ? alpha : 0.5 * alpha * over_n);
  params.probability_factor = static_cast<float>(over_n);
  return params;
}

int64_t longest_keys(const warploom_attention& call) {
  return call.max_seqlen_k == WARPLOOM_FROM_CU_SEQLENS ? effective_max_seqlen_q(call) : call.max_seqlen_k;
}

std::size_t dq_sums_bytes(const warploom_attention& call, int query_rows) {
  return aligned(dq_tiles(call.total_q, static_cast<int>(call.batch), query_rows) * call.heads * query_rows *
                 call.head_dim * static_cast<long long>(sizeof(float)));
}

std::size_t row_terms_bytes(const warploom_attention& call) {
  if (call.op != WARPLOOM_SOFTMAX) return 0;
  return aligned(call.heads * call.total_q * static_cast<long long>(sizeof(SoftmaxRowTerms)));
}

Status add_row_terms(const warploom_attention& call, const BackwardParams& params, GpuPlan& plan) {
  const BackwardRowTermsConfig config{static_cast<int>(call.value_dim), call.dtype == WARPLOOM_BFLOAT16};
  const long long lanes = call.total_q * call.heads * lanes_of_row(config);
  const long long ctas = (lanes + kRowTermsThreads - 1) / kRowTermsThreads;
  if (Status status = check_grid(ctas, kRowTermsThreads / lanes_of_row(config)); !status.ok()) return status;
  PlannedLaunch& launch = plan.add_launch(kBackwardRowTerms, {config.value_dim, config.bfloat16});
  launch.threads = kRowTermsThreads;
  launch.shared_bytes = 0;
  launch.ctas = ctas;
  BackwardParams& own = launch.start_params<BackwardParams>();
  own = params;
  own.call.schedule = {};
  own.call.schedule.heads = static_cast<int>(call.heads);
  return {};
}

Status add_dq_sums(const warploom_attention& call, const BackwardParams& params, const DeviceInfo& device,
                   bool vector_reduction, int query_rows, GpuPlan& plan) {
  const BackwardDqSumsConfig config{static_cast<int>(call.head_dim), call.dtype == WARPLOOM_BFLOAT16, vector_reduction,
                                    query_rows};
  const geometry::Schedule schedule = schedule_of(call, effective_max_seqlen_q(call), query_rows, 1, device);
  const long long ctas = call.total_q == 0 ? 0 : schedule.items();
  if (Status status = check_grid(ctas, query_rows); !status.ok()) return status;
  PlannedLaunch& launch = plan.add_launch(kBackwardDqSums, key_of(config));
  launch.threads = kDqSumsThreads;
  launch.shared_bytes = 0;
  launch.ctas = ctas;
  BackwardParams& own = launch.start_params<BackwardParams>();
  own = params;
  own.call.schedule = schedule;
  return {};
}

}  // namespace warploom::gpu
