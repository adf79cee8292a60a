#include "gpu/backward_bias_plan.h"

#include <algorithm>
#include <array>

#include "gpu/backward_tiles.h"
#include "gpu/device_call.h"
#include "problem/extents.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

constexpr const char* kHeader = "attention/backward_bias_config.h";

ConfigKey key_of(const BackwardBiasConfig& c) {
  return {c.head_dim,    c.value_dim, c.bfloat16,  c.softmax, c.softcap, c.interval_mask, static_cast<int>(c.bias),
          c.key_columns, c.warps,     c.min_blocks};
}

KernelRequest sums_request(const ConfigKey& key, const Architecture& architecture) {
  const BackwardBiasConfig c = mma_backward_bias_config(key);
  return backward_request_for(
      "attention/attention_backward_bias_mma.cu", "attention_backward_bias", "BackwardBiasConfig",
      message(".head_dim = ", c.head_dim, ", .value_dim = ", c.value_dim, ", .bfloat16 = ", truth(c.bfloat16),
              ", .softmax = ", truth(c.softmax), ", .softcap = ", truth(c.softcap),
              ", .interval_mask = ", truth(c.interval_mask), ", .bias = BiasKind::", bias_name(c.bias),
              ", .key_columns = ", c.key_columns, ", .warps = ", c.warps, ", .min_blocks = ", c.min_blocks),
      architecture, kHeader);
}

KernelVariant sums_variant(const ConfigKey& key) {
  const BackwardBiasConfig c = mma_backward_bias_config(key);
  return backward_variant_of(kMmaBackwardBias, key,
                             score_name(c.softmax, c.softcap) + " backward bias " + bias_name(c.bias) + " sums",
                             c.head_dim, c.value_dim, c.bfloat16, c.interval_mask);
}

std::vector<KernelVariant> sums_variants(const DeviceInfo& device, bool whole_table) {
  std::vector<KernelVariant> result;
  for (const BiasedScore& asked : biased_scores(whole_table)) {
    BackwardBiasConfig base;
    base.head_dim = base.value_dim = asked.head_dim;
    base.bfloat16 = asked.bfloat16;
    base.softmax = asked.softmax;
    base.softcap = asked.softcap;
    base.interval_mask = asked.interval_mask;
    base.bias = asked.bias;
    for (const BackwardBiasConfig& config : backward_bias_tiles(base, device, whole_table)) {
      result.push_back(sums_variant(key_of(config)));
    }
  }
  return result;
}

KernelRequest tables_request(const ConfigKey& key, const Architecture& architecture) {
  return backward_request_for("attention/backward_table_sums.cu", "backward_table_sums", "BackwardTableSumsConfig",
                              message(".tile = ", key[0]), architecture, kHeader);
}
KernelVariant tables_variant(const ConfigKey& key) {
  return {&kBackwardTableSums, key, "backward table sums of " + std::to_string(key[0]), 8, true, false};
}
std::vector<KernelVariant> tables_variants(const DeviceInfo&, bool) {
  return {tables_variant({32}), tables_variant({64})};
}

Result<BackwardBiasConfig> config_of(const warploom_attention& call, const DeviceInfo& device) {
  BackwardBiasConfig base;
  base.head_dim = static_cast<int>(call.head_dim);
  base.value_dim = static_cast<int>(call.value_dim);
  base.bfloat16 = call.dtype == WARPLOOM_BFLOAT16;
  base.softmax = call.op == WARPLOOM_SOFTMAX;
  base.softcap = base.softmax && call.softcap != 0;
  base.interval_mask = has_interval_mask(call);
  base.bias = bias_kind(call);
  return choose_backward_bias_tile(base, device);
}

int tiles(int64_t extent, int tile) {
  return static_cast<int>((extent + tile - 1) / tile);
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
      sums.position_gradient = bias.position_grad;
      sums.position_heads = static_cast<int>(bias.position_heads);
      sums.time_gradient = bias.time_grad;
      sums.time_heads = static_cast<int>(bias.time_heads);
      sums.row_tiles = std::max(1, tiles(longest_q, tile) + tiles(longest_k, tile) - 1);
      sums.time_passes = bias.time_grad == nullptr ? 1 : std::max(1, tiles(bias.num_times, kTimesOfPass));
      sums.record_bytes =
          table_records(call.total_q, call.total_k, static_cast<int>(call.batch), tile, static_cast<int>(call.heads)) *
          table_record(tile, params.call.bias.num_times).floats * static_cast<int>(sizeof(float));
      break;
  }
}

PlannedLaunch& add(const KernelFamily& family, const ConfigKey& key, int threads, int shared_bytes, long long ctas,
                   const BackwardParams& params, GpuPlan& plan) {
  PlannedLaunch& launch = plan.add_launch(family, key);
  launch.threads = threads;
  launch.shared_bytes = shared_bytes;
  launch.ctas = ctas;
  launch.start_params<BackwardParams>() = params;
  return launch;
}

}  // namespace

const KernelFamily kMmaBackwardBias = {"attention_backward_bias (mma.sync)",
                                       "kernels/attention/attention_backward_bias_mma.cu", sums_request, sums_variants,
                                       sums_variant};
const KernelFamily kBackwardTableSums = {"backward_table_sums", "kernels/attention/backward_table_sums.cu",
                                         tables_request, tables_variants, tables_variant};

BackwardBiasConfig mma_backward_bias_config(const ConfigKey& key) {
  return {key[0], key[1], key[2] != 0, key[3] != 0, key[4] != 0, key[5] != 0, static_cast<BiasKind>(key[6]),
          key[7], key[8], key[9]};
}

BiasGradientBy bias_gradient_by(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  if (bias.kind == WARPLOOM_BUCKETED_BIAS) {
    return bias.position_grad != nullptr || bias.time_grad != nullptr ? BiasGradientBy::tables : BiasGradientBy::nobody;
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
  }
  return "";
}

Status fill_bias_gradient(const warploom_attention& call, const DeviceInfo& device, BackwardParams& params) {
  const BiasGradientBy by = bias_gradient_by(call);
  if (by == BiasGradientBy::nobody) return {};
  const bool softmax = call.op == WARPLOOM_SOFTMAX;
  const double over_n = softmax || call.divisor_rows != nullptr ? 1.0 : 1.0 / effective_divisor(call);
  params.bias_factor = static_cast<float>(softmax ? 1.0 : 0.5 * over_n * static_cast<double>(params.call.bias.scale));
  if (by != BiasGradientBy::tables) fill_bias_gradient_call(call, params.bias_gradient);
  if (by == BiasGradientBy::main_kernel) return {};
  const Result<BackwardBiasConfig> config = config_of(call, device);
  if (!config.ok()) return config.status();
  fill_counts(call, config->key_columns, params);
  return {};
}

Status add_bias_sums(const warploom_attention& call, const DeviceInfo& device, const BackwardParams& params,
                     GpuPlan& plan) {
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
  add(kMmaBackwardBias, key_of(*config), config->warps * 32, shared_map(*config).bytes, ctas, own, plan);
  if (!tables) return {};
  const long long entries =
      (sums.position_gradient == nullptr ? 0 : call.bias.position_heads * call.bias.num_positions) +
      (sums.time_gradient == nullptr ? 0 : call.bias.time_heads * call.bias.num_times);
  if (Status status = check_grid(entries, 1); !status.ok()) return status;
  add(kBackwardTableSums, {config->key_columns}, kTableSumsThreads, 0, entries, own, plan);
  return {};
}

}  // namespace warploom::gpu
