#include "gpu/backward_plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "gpu/backward_around.h"
#include "gpu/backward_bias_plan.h"
#include "gpu/backward_tiles.h"
#include "gpu/device_call.h"
#include "gpu/user_score.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

constexpr int kMaxHeadDim = 256;

/// A whole table is compiled to find spills: at the ends of its rows' ranges, where registers are fewest, the
/// dimensions between them only repeat what is found there.
bool is_listed(int dim, bool whole_table) {
  return !whole_table || dim == 8 || dim % 64 == 56 || dim == 64 || dim % 128 == 0;
}

/// The scores without a bias that kernels are compiled for.
std::vector<BiasedScore> plain_scores(int head_dim) {
  std::vector<BiasedScore> result;
  for (const bool softmax : {false, true}) {
    for (const bool softcap : {false, true}) {
      if (softcap && !softmax) continue;
      for (const bool interval_mask : {false, true}) {
        for (const bool bfloat16 : {true, false}) {
          result.push_back({head_dim, softmax, softcap, bfloat16, interval_mask, BiasKind::none});
        }
      }
    }
  }
  return result;
}

std::string bias_text(BiasKind bias) {
  return bias == BiasKind::none ? "" : std::string(" bias ") + bias_name(bias);
}

// --- dK, dV and the sums for dQ
// ----------------------------------------------------------------------------------------

ConfigKey key_of(const BackwardConfig& c) {
  return {c.head_dim,
          c.value_dim,
          c.bfloat16,
          c.softmax,
          c.softcap,
          c.interval_mask,
          static_cast<int>(c.bias),
          c.bias_gradient,
          c.bias_aligned,
          c.accumulate_dq,
          c.vector_reduction,
          c.query_rows,
          c.key_rows,
          c.key_blocks,
          c.dq_row_warps,
          c.stages,
          c.warps,
          c.min_blocks,
          c.user_score};
}

KernelRequest backward_request(const ConfigKey& key, const Architecture& architecture) {
  const BackwardConfig c = mma_backward_config(key);
  return backward_request_for(
      "attention/attention_backward_mma.cu", "attention_backward", "BackwardConfig",
      message(".head_dim = ", c.head_dim, ", .value_dim = ", c.value_dim, ", .bfloat16 = ", truth(c.bfloat16),
              ", .softmax = ", truth(c.softmax), ", .softcap = ", truth(c.softcap),
              ", .interval_mask = ", truth(c.interval_mask), ", .bias = BiasKind::", bias_name(c.bias),
              ", .bias_gradient = ", truth(c.bias_gradient), ", .bias_aligned = ", truth(c.bias_aligned),
              ", .accumulate_dq = ", truth(c.accumulate_dq), ", .vector_reduction = ", truth(c.vector_reduction),
              ", .query_rows = ", c.query_rows, ", .key_rows = ", c.key_rows, ", .key_blocks = ", c.key_blocks,
              ", .dq_row_warps = ", c.dq_row_warps, ", .stages = ", c.stages, ", .warps = ", c.warps,
              ", .min_blocks = ", c.min_blocks, user_score_member(c.user_score)),
      architecture, user_score_text(c.user_score));
}

KernelVariant backward_variant(const ConfigKey& key) {
  const BackwardConfig c = mma_backward_config(key);
  return backward_variant_of(kMmaBackward, key,
                             score_name(c.softmax, c.softcap) + " backward" + user_score_name(c.user_score) +
                                 bias_text(c.bias) + (c.bias_gradient ? " with gradient" : "") +
                                 (c.bias_aligned ? "" : " unaligned") + (c.accumulate_dq ? "" : " deterministic"),
                             c.head_dim, c.value_dim, c.bfloat16, c.interval_mask);
}

std::vector<KernelVariant> backward_variants(const DeviceInfo& device, bool whole_table) {
  std::vector<KernelVariant> result;
  for (int dim = 8; dim <= kMaxHeadDim; dim += 8) {
    if (!is_listed(dim, whole_table)) continue;
    for (const BiasedScore& asked : plain_scores(dim)) {
      for (const bool accumulate_dq : {true, false}) {
        auto base = config_for<BackwardConfig>(asked);
        base.accumulate_dq = accumulate_dq;
        for (const BackwardConfig& config : backward_tiles(base, device, whole_table)) {
          result.push_back(backward_variant(key_of(config)));
        }
      }
    }
  }
  for (const BiasedScore& asked : biased_scores(whole_table)) {
    for (const bool accumulate_dq : {true, false}) {
      auto base = config_for<BackwardConfig>(asked);
      base.bias_gradient = asked.bias != BiasKind::bucketed || (accumulate_dq && asked.head_dim <= kMostAddedDim);
      base.accumulate_dq = accumulate_dq;
      base.bias_aligned = accumulate_dq || asked.bias == BiasKind::bucketed;  // the rarer of both together
      for (const BackwardConfig& config : backward_tiles(base, device, whole_table)) {
        result.push_back(backward_variant(key_of(config)));
      }
    }
  }
  if (!whole_table) return result;
  for (const int number : sample_scores()) {
    for (const int dim : {64, 128, 256}) {
      for (const BiasKind bias : {BiasKind::none, BiasKind::rows16}) {
        BackwardConfig base;
        base.head_dim = base.value_dim = dim;
        base.bias = bias;
        base.bfloat16 = bias == BiasKind::none;
        base.user_score = number;
        const Result<BackwardConfig> chosen = choose_backward_tile(base, device);
        if (chosen.ok()) result.push_back(backward_variant(key_of(*chosen)));
      }
    }
  }
  return result;
}

// --- dQ by a kernel of its own
// -----------------------------------------------------------------------------------------

ConfigKey key_of(const BackwardDqConfig& c) {
  return {c.head_dim,    c.value_dim, c.bfloat16, c.softmax,    c.softcap,   c.interval_mask, static_cast<int>(c.bias),
          c.key_columns, c.stages,    c.warps,    c.min_blocks, c.user_score};
}

KernelRequest dq_request(const ConfigKey& key, const Architecture& architecture) {
  const BackwardDqConfig c = mma_backward_dq_config(key);
  return backward_request_for(
      "attention/attention_backward_dq_mma.cu", "attention_backward_dq", "BackwardDqConfig",
      message(".head_dim = ", c.head_dim, ", .value_dim = ", c.value_dim, ", .bfloat16 = ", truth(c.bfloat16),
              ", .softmax = ", truth(c.softmax), ", .softcap = ", truth(c.softcap),
              ", .interval_mask = ", truth(c.interval_mask), ", .bias = BiasKind::", bias_name(c.bias),
              ", .key_columns = ", c.key_columns, ", .stages = ", c.stages, ", .warps = ", c.warps,
              ", .min_blocks = ", c.min_blocks, user_score_member(c.user_score)),
      architecture, user_score_text(c.user_score));
}

KernelVariant dq_variant(const ConfigKey& key) {
  const BackwardDqConfig c = mma_backward_dq_config(key);
  return backward_variant_of(
      kMmaBackwardDq, key,
      score_name(c.softmax, c.softcap) + " backward" + user_score_name(c.user_score) + bias_text(c.bias) + " dq",
      c.head_dim, c.value_dim, c.bfloat16, c.interval_mask);
}

std::vector<KernelVariant> dq_variants(const DeviceInfo& device, bool whole_table) {
  std::vector<KernelVariant> result;
  for (int dim = 8; dim <= kMaxHeadDim; dim += 8) {
    if (!is_listed(dim, whole_table)) continue;
    for (const BiasedScore& asked : plain_scores(dim)) {
      const auto base = config_for<BackwardDqConfig>(asked);
      for (const BackwardDqConfig& config : backward_dq_tiles(base, device, whole_table)) {
        result.push_back(dq_variant(key_of(config)));
      }
    }
  }
  for (const BiasedScore& asked : biased_scores(whole_table)) {
    const auto base = config_for<BackwardDqConfig>(asked);
    for (const BackwardDqConfig& config : backward_dq_tiles(base, device, whole_table)) {
      result.push_back(dq_variant(key_of(config)));
    }
  }
  if (!whole_table) return result;
  for (const int number : sample_scores()) {
    for (const int dim : {64, 128, 256}) {
      BackwardDqConfig base;
      base.head_dim = base.value_dim = dim;
      base.user_score = number;
      const Result<BackwardDqConfig> chosen = choose_backward_dq_tile(base, device);
      if (chosen.ok()) result.push_back(dq_variant(key_of(*chosen)));
    }
  }
  return result;
}

// --- the plan
// ----------------------------------------------------------------------------------------------------------

void bind(GpuPlan& plan, DevicePointer scratch) {
  // The sums are cleared, so they come first; a plan without them has nothing to clear.
  auto* const base = reinterpret_cast<char*>(scratch);
  for (int n = 0; n < plan.launch_count; ++n) {
    auto& params = plan.launches[static_cast<std::size_t>(n)].params_as<BackwardParams>();
    params.dq_sums = reinterpret_cast<float*>(base);
    params.row_terms = reinterpret_cast<SoftmaxRowTerms*>(base + plan.cleared_bytes);
    BiasSums& sums = params.bias_sums;
    sums.totals = reinterpret_cast<float*>(base + plan.cleared_bytes - table_totals_bytes(params));
    sums.records = reinterpret_cast<float*>(base + plan.scratch_bytes - sums.record_bytes);
  }
}

void describe_plan(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device,
                   nlohmann::json& json) {
  const auto* main = std::find_if(plan.launches.begin(), plan.launches.begin() + plan.launch_count,
                                  [](const PlannedLaunch& launch) { return launch.family == &kMmaBackward; });
  const BackwardConfig c = mma_backward_config(main->config);
  const geometry::Schedule& schedule = main->params_as<BackwardParams>().call.schedule;
  json["config"] = {{"head_dim", c.head_dim},
                    {"value_dim", c.value_dim},
                    {"dtype", c.bfloat16 ? "bfloat16" : "float16"},
                    {"score", c.user_score != 0 ? kUserScoreName : score_name(c.softmax, c.softcap)},
                    {"mask", c.interval_mask ? "intervals" : "sequence"},
                    {"bias", bias_name(c.bias)},
                    {"query_rows", c.query_rows},
                    {"key_rows", c.key_rows},
                    {"warps_of_a_key", warps_of_group(c)},
                    {"stages", c.stages},
                    {"warps", c.warps},
                    {"min_blocks", c.min_blocks}};
  json["registers_limit"] = std::min(255, 65536 / (main->threads * c.min_blocks) / 8 * 8);
  json["schedule"] = {{"key_tiles", schedule.query_tiles},
                      {"pairs_in_group", schedule.pairs_in_group},
                      {"order", "first key tile first"}};
  json["dq"] =
      c.accumulate_dq ? "added in float32 in memory, then converted" : "by a kernel of its own (deterministic)";
  if (c.bias != BiasKind::none) json["bias_gradient"] = bias_gradient_text(bias_gradient_by(call));
  json["limiter"] = {
      {"name", "shared memory"},
      {"why", message("each visible pair costs ", 2.0 * static_cast<double>(3 * call.head_dim + 2 * call.value_dim),
                      " FLOPs, whose operands come from shared memory")}};
  json["why"] =
      message(c.user_score != 0 ? "the kernels through mma.sync take any score function; " : "",
              "the tile table's first row for heads up to ", std::max(c.head_dim, c.value_dim), " whose ", c.min_blocks,
              " CTA(s) fit the ", device.shared_bytes_per_sm, " bytes of shared memory of an SM");
}

}  // namespace

const KernelFamily kMmaBackward = {"attention_backward (mma.sync)",
                                   "kernels/attention/attention_backward_mma.cu",
                                   backward_request,
                                   backward_variants,
                                   backward_variant,
                                   nullptr,
                                   [](const ConfigKey& key, const std::string& message) {
                                     return user_score_failure(mma_backward_config(key).user_score, message);
                                   }};
const KernelFamily kMmaBackwardDq = {"attention_backward_dq (mma.sync)",
                                     "kernels/attention/attention_backward_dq_mma.cu",
                                     dq_request,
                                     dq_variants,
                                     dq_variant,
                                     nullptr,
                                     [](const ConfigKey& key, const std::string& message) {
                                       return user_score_failure(mma_backward_dq_config(key).user_score, message);
                                     }};
BackwardConfig mma_backward_config(const ConfigKey& key) {
  return {key[0],      key[1],      key[2] != 0, key[3] != 0,  key[4] != 0, key[5] != 0, static_cast<BiasKind>(key[6]),
          key[7] != 0, key[8] != 0, key[9] != 0, key[10] != 0, key[11],     key[12],     key[13],
          key[14],     key[15],     key[16],     key[17],      key[18]};
}

BackwardDqConfig mma_backward_dq_config(const ConfigKey& key) {
  return {key[0], key[1], key[2] != 0, key[3] != 0, key[4] != 0, key[5] != 0, static_cast<BiasKind>(key[6]),
          key[7], key[8], key[9],      key[10],     key[11]};
}

Status plan_mma_backward(const warploom_attention& call, const DeviceInfo& device, GpuPlan& plan) {
  auto base = config_for<BackwardConfig>(call);
  const BiasGradientBy gradient_by = bias_gradient_by(call);
  base.bias_gradient = gradient_by == BiasGradientBy::main_kernel || gradient_by == BiasGradientBy::totals;
  base.accumulate_dq = (call.flags & WARPLOOM_DETERMINISTIC) == 0;
  BackwardParams common = backward_params(call);
  if (Status status = fill_bias_gradient(call, device, common); !status.ok()) return status;
  if (base.bias == BiasKind::rows16 || base.bias == BiasKind::rows32) {
    base.bias_aligned = common.call.bias.aligned && (!base.bias_gradient || common.bias_gradient.aligned);
  }
  const Result<BackwardConfig> chosen = choose_backward_tile(base, device);
  if (!chosen.ok()) return chosen.status();
  const BackwardConfig& config = *chosen;
  plan.cleared_bytes = (base.accumulate_dq ? dq_sums_bytes(call, config.query_rows) : 0) + table_totals_bytes(common);
  plan.scratch_bytes =
      plan.cleared_bytes + row_terms_bytes(call) + static_cast<std::size_t>(common.bias_sums.record_bytes);
  plan.bind_scratch = bind;
  plan.describe = describe_plan;

  const auto add = [&](const KernelFamily& family, const ConfigKey& key, int threads, int shared_bytes,
                       const geometry::Schedule& schedule, long long ctas) {
    PlannedLaunch& launch = plan.add_launch(family, key);
    launch.threads = threads;
    launch.shared_bytes = shared_bytes;
    launch.ctas = ctas;
    BackwardParams& params = base.user_score != 0 ? start_user_params<UserBackwardParams>(call, launch)
                                                  : launch.start_params<BackwardParams>();
    params = common;
    params.call.schedule = schedule;
  };

  if (base.softmax) {
    if (Status status = add_row_terms(call, common, plan); !status.ok()) return status;
  }

  geometry::Schedule key_schedule = schedule_of(call, longest_keys(call), config.key_rows, config.min_blocks, device);
  key_schedule.heads = static_cast<int>(call.key_heads);
  key_schedule.first_to_last = true;
  // A bias's gradient is there, and 0, even where no key is.
  const long long key_ctas = call.total_k == 0 && !writes_bias_gradient(config) ? 0 : key_schedule.items();
  if (Status status = check_grid(key_ctas, config.key_rows); !status.ok()) return status;
  add(kMmaBackward, key_of(config), config.warps * 32, shared_map(config).bytes, key_schedule, key_ctas);

  if (gradient_by != BiasGradientBy::nobody && gradient_by != BiasGradientBy::main_kernel) {
    if (Status status = add_bias_sums(call, device, common, plan); !status.ok()) return status;
  }
  if (base.accumulate_dq) {
    return add_dq_sums(call, common, device, config.vector_reduction, config.query_rows, plan);
  }
  const Result<BackwardDqConfig> dq = choose_backward_dq_tile(config_for<BackwardDqConfig>(call), device);
  if (!dq.ok()) return dq.status();
  const geometry::Schedule schedule =
      schedule_of(call, effective_max_seqlen_q(call), 16 * dq->warps, dq->min_blocks, device);
  const long long dq_ctas = call.total_q == 0 ? 0 : schedule.items();
  if (Status status = check_grid(dq_ctas, 16 * dq->warps); !status.ok()) return status;
  add(kMmaBackwardDq, key_of(*dq), dq->warps * 32, shared_map(*dq).bytes, schedule, dq_ctas);
  return {};
}

}  // namespace warploom::gpu
