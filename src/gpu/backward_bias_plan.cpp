#include "gpu/backward_bias_plan.h"

#include <algorithm>
#include <array>

#include "gpu/backward_tiles.h"
#include "gpu/device_call.h"
#include "gpu/user_score.h"
#include "problem/extents.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

constexpr const char* kHeader = "attention/backward_bias_config.h";

ConfigKey key_of(const BackwardBiasConfig& c) {
  return {c.head_dim,    c.value_dim, c.bfloat16,   c.softmax,   c.softcap, c.interval_mask, static_cast<int>(c.bias),
          c.key_columns, c.warps,     c.min_blocks, c.user_score};
}

KernelRequest sums_request(const ConfigKey& key, const Architecture& architecture) {
  const BackwardBiasConfig c = mma_backward_bias_config(key);
  return backward_request_for(
      "attention/attention_backward_bias_mma.cu", "attention_backward_bias", "BackwardBiasConfig",
      message(".head_dim = ", c.head_dim, ", .value_dim = ", c.value_dim, ", .bfloat16 = ", truth(c.bfloat16),
              ", .softmax = ", truth(c.softmax), ", .softcap = ", truth(c.softcap), ", .interval_mask = ",
              truth(c.interval_mask), ", .bias = BiasKind::", bias_name(c.bias), ", .key_columns = ", c.key_columns,
              ", .warps = ", c.warps, ", .min_blocks = ", c.min_blocks, user_score_member(c.user_score)),
      architecture, user_score_text(c.user_score), kHeader);
}

KernelVariant sums_variant(const ConfigKey& key) {
  const BackwardBiasConfig c = mma_backward_bias_config(key);
  return backward_variant_of(kMmaBackwardBias, key,
                             score_name(c.softmax, c.softcap) + " backward" + user_score_name(c.user_score) + " bias " +
                                 bias_name(c.bias) + " sums",
                             c.head_dim, c.value_dim, c.bfloat16, c.interval_mask);
}

std::vector<KernelVariant> sums_variants(const DeviceInfo& device, bool whole_table) {
  std::vector<KernelVariant> result;
  for (const BiasedScore& asked : biased_scores(whole_table)) {
    const auto base = config_for<BackwardBiasConfig>(asked);
    for (const BackwardBiasConfig& config : backward_bias_tiles(base, device, whole_table)) {
      result.push_back(sums_variant(key_of(config)));
    }
  }
  return result;
}

KernelRequest tables_request(const ConfigKey& key, const Architecture& architecture) {
  return backward_request_for("attention/backward_table_sums.cu", "backward_table_sums", "BackwardTableSumsConfig",
                              message(".tile = ", key[0]), architecture, "", kHeader);
}
KernelVariant tables_variant(const ConfigKey& key) {
  return {&kBackwardTableSums, key, "backward table sums of " + std::to_string(key[0]), 8, true, false};
}
std::vector<KernelVariant> tables_variants(const DeviceInfo&, bool) {
  return {tables_variant({32}), tables_variant({64})};
}

KernelRequest totals_request(const ConfigKey& key, const Architecture& architecture) {
  return backward_request_for("attention/backward_table_totals.cu", "backward_table_totals",
                              "BackwardTableTotalsConfig", message(".threads = ", key[0]), architecture, "", kHeader);
}
KernelVariant totals_variant(const ConfigKey& key) {
  return {&kBackwardTableTotals, key, "backward table totals", 8, true, false};
}
std::vector<KernelVariant> totals_variants(const DeviceInfo&, bool) {
  return {totals_variant({BackwardTableTotalsConfig{}.threads})};
}

Result<BackwardBiasConfig> config_of(const warploom_attention& call, const DeviceInfo& device) {
  return choose_backward_bias_tile(config_for<BackwardBiasConfig>(call), device);
}

int tiles(int64_t extent, int tile) {
  return static_cast<int>((extent + tile - 1) / tile);
}

/// Entries of both tables' gradients, as far as they are wanted.
void fill_tables(const warploom_attention& call, BiasSums& sums) {
  const warploom_bias& bias = call.bias;
  sums.position_gradient = bias.position_grad;
  sums.position_heads = static_cast<int>(bias.position_heads);
  sums.position_totals = bias.position_grad == nullptr ? 0 : bias.position_heads * bias.num_positions;
  sums.time_gradient = bias.time_grad;
  sums.time_heads = static_cast<int>(bias.time_heads);
  sums.time_totals = bias.time_grad == nullptr ? 0 : bias.time_heads * bias.num_times;
}

void fill_counts(const warploom_attention& call, int tile, BackwardParams& params) {
  const warploom_bias& bias = call.bias;
  BiasSums& sums = params.bias_sums;
  const int64_t longest_q = effective_max_seqlen_q(call), longest_k = longest_keys(call);
  switch (bias.kind) {
    case WARPLOOM_DENSE_BIAS:
      sums.sequences = static_cast<int>(bias.batch);
      sums.heads = static_cast<int>(bias.heads);
      sums.row_tiles = tiles(bias.num_rows, tile);
      sums.column_tiles = tiles(bias.num_columns, tile);
      break;
    case WARPLOOM_PACKED_BIAS:
      sums.sequences = static_cast<int>(call.batch);
      sums.heads = static_cast<int>(bias.heads);
      sums.row_tiles = std::max(1, tiles(bias.rows == WARPLOOM_ROWS_QUERY ? longest_q : longest_k, tile));
      // The gradient of a row's padding is written too.
      sums.column_tiles = std::max(1, tiles(longest_k + 16 / dtype_bytes(bias.dtype) - 1, tile));
      break;
    default:
      fill_tables(call, sums);
      sums.row_tiles = std::max(1, tiles(longest_q, tile) + tiles(longest_k, tile) - 1);
      sums.time_passes = bias.time_grad == nullptr ? 1 : std::max(1, tiles(bias.num_times, kTimesOfPass));
      sums.record_bytes =
          table_records(call.total_q, call.total_k, static_cast<int>(call.batch), tile, static_cast<int>(call.heads)) *
          table_record(tile, params.call.bias.num_times).floats * static_cast<int>(sizeof(float));
      break;
  }
}

PlannedLaunch& add(const warploom_attention& call, const KernelFamily& family, const ConfigKey& key, int threads,
                   int shared_bytes, long long ctas, const BackwardParams& params, GpuPlan& plan) {
  PlannedLaunch& launch = plan.add_launch(family, key);
  launch.threads = threads;
  launch.shared_bytes = shared_bytes;
  launch.ctas = ctas;
  BackwardParams& own = has_score_function(call) ? start_user_params<UserBackwardParams>(call, launch)
                                                 : launch.start_params<BackwardParams>();
  own = params;
  return launch;
}

}  // namespace

const KernelFamily kMmaBackwardBias = {"attention_backward_bias (mma.sync)",
                                       "kernels/attention/attention_backward_bias_mma.cu",
                                       sums_request,
                                       sums_variants,
                                       sums_variant,
                                       nullptr,
                                       [](const ConfigKey& key, const std::string& message) {
                                         return user_score_failure(mma_backward_bias_config(key).user_score, message);
                                       }};
const KernelFamily kBackwardTableSums = {"backward_table_sums", "kernels/attention/backward_table_sums.cu",
                                         tables_request, tables_variants, tables_variant};
const KernelFamily kBackwardTableTotals = {"backward_table_totals", "kernels/attention/backward_table_totals.cu",
                                           totals_request, totals_variants, totals_variant};

BackwardBiasConfig mma_backward_bias_config(const ConfigKey& key) {
  return {key[0], key[1], key[2] != 0, key[3] != 0, key[4] != 0, key[5] != 0, static_cast<BiasKind>(key[6]),
          key[7], key[8], key[9],      key[10]};
}

BiasGradientBy bias_gradient_by(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  if (bias.kind == WARPLOOM_BUCKETED_BIAS) {
    if (bias.position_grad == nullptr && bias.time_grad == nullptr) return BiasGradientBy::nobody;
    const bool many_times = bias.time != nullptr && bias.num_times > kStagedTimes;
    const bool repeatable = (call.flags & WARPLOOM_DETERMINISTIC) != 0;
    const bool wide = std::max(call.head_dim, call.value_dim) > kMostAddedDim;
    return repeatable || many_times || wide ? BiasGradientBy::tables : BiasGradientBy::totals;
  }
  if (bias.kind == WARPLOOM_NO_BIAS || bias.grad == nullptr) return BiasGradientBy::nobody;
  const bool shared =
      (bias.heads == 1 && call.heads != 1) || (bias.kind == WARPLOOM_DENSE_BIAS && bias.batch == 1 && call.batch != 1);
  return shared ? BiasGradientBy::sums : BiasGradientBy::main_kernel;
}

const char* bias_gradient_text(BiasGradientBy by) {
  switch (by) {
    case BiasGradientBy::nobody:
      return "not wanted";
    case BiasGradientBy::main_kernel:
      return "written beside dk and dv, 0 where nothing is visible";
    case BiasGradientBy::sums:
      return "summed in float32 by a kernel of its own, each tile over the sequences and heads that share it";
    case BiasGradientBy::tables:
      return "summed in float32 by a kernel of its own, along block diagonals, whose sums are added up at the end";
    case BiasGradientBy::totals:
      return "summed a warp's part of a tile at a time, the sums added in float32 in memory";
  }
  return "";
}

float bias_gradient_factor(const warploom_attention& call, const BiasCall& bias) {
  if (call.op == WARPLOOM_SOFTMAX) return 1;
  const double over_n = call.divisor_rows != nullptr ? 1.0 : 1.0 / effective_divisor(call);
  return static_cast<float>(0.5 * over_n * static_cast<double>(bias.scale));
}

Status fill_bias_gradient(const warploom_attention& call, const DeviceInfo& device, BackwardParams& params) {
  const BiasGradientBy by = bias_gradient_by(call);
  if (by == BiasGradientBy::nobody) return {};
  params.bias_factor = bias_gradient_factor(call, params.call.bias);
  if (call.bias.kind != WARPLOOM_BUCKETED_BIAS) fill_bias_gradient_call(call, params.bias_gradient);
  if (by == BiasGradientBy::main_kernel) return {};
  if (by == BiasGradientBy::totals) {
    fill_tables(call, params.bias_sums);
    return {};
  }
  const Result<BackwardBiasConfig> config = config_of(call, device);
  if (!config.ok()) return config.status();
  fill_counts(call, config->key_columns, params);
  return {};
}

std::size_t table_totals_bytes(const BackwardParams& params) {
  const BiasSums& sums = params.bias_sums;
  const long long floats = sums.record_bytes > 0 ? 0 : sums.position_totals + sums.time_totals;
  return static_cast<std::size_t>((floats * static_cast<int>(sizeof(float)) + 255) / 256 * 256);
}

Status add_bias_sums(const warploom_attention& call, const DeviceInfo& device, const BackwardParams& params,
                     GpuPlan& plan) {
  const long long entries = params.bias_sums.position_totals + params.bias_sums.time_totals;
  if (bias_gradient_by(call) == BiasGradientBy::totals) {
    const int threads = BackwardTableTotalsConfig{}.threads;
    const long long ctas = (entries + threads - 1) / threads;
    if (Status status = check_grid(ctas, threads); !status.ok()) return status;
    add(call, kBackwardTableTotals, {threads}, threads, 0, ctas, params, plan);
    return {};
  }
  const Result<BackwardBiasConfig> config = config_of(call, device);
  if (!config.ok()) return config.status();
  BackwardParams own = params;
  own.call.schedule = {};
  own.call.schedule.heads = static_cast<int>(call.heads);
  const BiasSums& sums = params.bias_sums;
  const bool tables = call.bias.kind == WARPLOOM_BUCKETED_BIAS;
  const long long ctas =
      tables ? call.batch * call.heads * static_cast<long long>(sums.row_tiles) * sums.time_passes * kDiagonalParts
             : static_cast<long long>(sums.sequences) * sums.heads * sums.row_tiles * sums.column_tiles;
  if (Status status = check_grid(ctas, config->key_columns); !status.ok()) return status;
  add(call, kMmaBackwardBias, key_of(*config), config->warps * 32, shared_map(*config).bytes, ctas, own, plan);
  if (!tables) return {};
  if (Status status = check_grid(entries, 1); !status.ok()) return status;
  add(call, kBackwardTableSums, {config->key_columns}, kTableSumsThreads, 0, entries, own, plan);
  return {};
}

}  // namespace warploom::gpu
