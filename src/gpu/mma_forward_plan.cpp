#include "gpu/mma_forward_plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "expression/functions.h"
#include "gpu/device_call.h"
#include "gpu/user_score.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

/// One row of a tile table, for heads up to max_dim wide.
struct Tile {
  int max_dim;
  int from_major;  ///< compute capability: older code generators need more registers than the row leaves
  int query_rows, key_columns;
  int narrow_key_columns;  ///< where lists of intervals, exponents or a softcap take registers
  int stages, warps, min_blocks;
};

/// Rows of one max_dim in order of preference: the first whose min_blocks CTAs fit an SM's shared memory is taken. The
/// first row of each was measured on an H200 (docs/performance-log.md); the others serve smaller shared memories, the
/// last one every device from sm_80 on (99 KiB a block).
constexpr std::array kSiluTiles = {
    Tile{56, 8, 128, 32, 32, 2, 4, 3},  Tile{56, 8, 64, 32, 32, 2, 4, 3},   Tile{64, 9, 128, 64, 32, 2, 4, 3},
    Tile{64, 8, 128, 32, 32, 2, 4, 3},  Tile{64, 8, 64, 32, 32, 2, 4, 3},   Tile{128, 9, 128, 64, 32, 2, 4, 2},
    Tile{128, 8, 128, 32, 32, 2, 4, 2}, Tile{128, 8, 64, 32, 32, 2, 4, 1},  Tile{192, 8, 128, 64, 64, 2, 8, 1},
    Tile{192, 8, 64, 32, 32, 2, 4, 1},  Tile{256, 8, 128, 64, 64, 2, 8, 1}, Tile{256, 8, 64, 32, 32, 2, 4, 1},
};
/// The row maxima's shuffles cost the same for a wide tile as for a narrow one.
constexpr std::array kSoftmaxTiles = {
    Tile{64, 9, 128, 128, 64, 2, 4, 2}, Tile{64, 8, 128, 64, 32, 2, 4, 2},  Tile{64, 8, 64, 32, 32, 2, 4, 2},
    Tile{128, 9, 128, 64, 32, 2, 4, 2}, Tile{128, 8, 128, 32, 32, 2, 4, 2}, Tile{128, 8, 64, 32, 32, 2, 4, 1},
    Tile{192, 8, 128, 64, 64, 2, 8, 1}, Tile{192, 8, 64, 32, 32, 2, 4, 1},  Tile{256, 8, 128, 64, 64, 2, 8, 1},
    Tile{256, 8, 64, 32, 32, 2, 4, 1},
};
/// With a bias, whose tile takes shared memory and registers.
constexpr std::array kBiasTiles = {
    Tile{64, 8, 128, 64, 32, 2, 4, 2},  Tile{64, 8, 128, 32, 32, 2, 4, 2}, Tile{64, 8, 64, 32, 32, 2, 4, 2},
    Tile{128, 8, 128, 32, 32, 2, 4, 2}, Tile{128, 8, 64, 32, 32, 2, 4, 1}, Tile{256, 8, 128, 32, 32, 2, 8, 1},
    Tile{256, 8, 32, 32, 32, 2, 2, 1},
};

std::span<const Tile> tiles_of(const AttentionForwardConfig& asked) {
  if (asked.bias != BiasKind::none) return kBiasTiles;
  return asked.score == ScoreKind::softmax ? std::span<const Tile>(kSoftmaxTiles) : std::span<const Tile>(kSiluTiles);
}

constexpr int kMaxHeadDim = 256;
/// The driver keeps this much shared memory of every CTA for itself (CUDA C++ Programming Guide, compute capability 8.x
/// on).
constexpr int kReservedSharedBytes = 1024;

/// `asked` with the tile's sizes.
AttentionForwardConfig config_of(const Tile& tile, AttentionForwardConfig asked) {
  const bool narrow = asked.interval_mask || asked.softcap || asked.user_score != 0 ||
                      (!asked.bfloat16 && asked.score == ScoreKind::silu);
  asked.query_rows = tile.query_rows;
  asked.key_columns = narrow ? tile.narrow_key_columns : tile.key_columns;
  asked.stages = tile.stages;
  asked.warps = tile.warps;
  asked.min_blocks = tile.min_blocks;
  return asked;
}

int table_class(const AttentionForwardConfig& asked) {
  const int wider = std::max(asked.head_dim, asked.value_dim);
  for (const Tile& tile : tiles_of(asked)) {
    if (wider <= tile.max_dim) return tile.max_dim;
  }
  return 0;
}

bool fits(const AttentionForwardConfig& config, const DeviceInfo& device) {
  const int bytes = shared_map(config).bytes;
  return bytes <= device.shared_bytes_per_block &&
         config.min_blocks * (bytes + kReservedSharedBytes) <= device.shared_bytes_per_sm;
}

const char* name_of(ScoreKind score) {
  return score == ScoreKind::silu ? "silu" : "softmax";
}

KernelRequest request_of(const ConfigKey& key, const Architecture& architecture) {
  return forward_request(key, architecture, "attention/attention_forward_mma.cu", "attention_forward");
}

KernelVariant variant_of(const ConfigKey& key) {
  return forward_variant(kMmaForward, key, "forward");
}

/// Users' functions are compiled when they are met; two stand for them where spills are looked for.
std::vector<KernelVariant> sample_variants(const DeviceInfo& device) {
  std::vector<KernelVariant> result;
  for (const int number : sample_scores()) {
    for (const int dim : {64, 128, 256}) {
      for (const BiasKind bias : {BiasKind::none, BiasKind::rows16}) {
        AttentionForwardConfig asked;
        asked.head_dim = asked.value_dim = dim;
        asked.bias = bias;
        asked.bfloat16 = bias == BiasKind::none;
        asked.user_score = number;
        const Result<AttentionForwardConfig> chosen = choose_config(asked, device);
        if (chosen.ok()) result.push_back(variant_of(key_of(*chosen)));
      }
    }
  }
  return result;
}

std::vector<KernelVariant> variants_of(const DeviceInfo& device, bool whole_table) {
  std::vector<KernelVariant> result = whole_table ? sample_variants(device) : std::vector<KernelVariant>();
  for (int dim = 8; dim <= kMaxHeadDim; dim += 8) {
    const bool common = dim == 64 || dim == 128 || dim == 256;
    for (const AttentionForwardConfig& asked : forward_configs_asked(dim, common)) {
      const int max_dim = table_class(asked);
      const Result<AttentionForwardConfig> chosen = choose_config(asked, device);
      if (chosen.ok()) result.push_back(variant_of(key_of(*chosen)));
      // The table's other rows are compiled at their widest and for an odd number of chunks.
      if (!whole_table || (dim != max_dim && dim != max_dim - 8)) continue;
      for (const Tile& tile : tiles_of(asked)) {
        const ConfigKey key = key_of(config_of(tile, asked));
        if (tile.max_dim == max_dim && tile.from_major <= device.major && !(chosen.ok() && key == key_of(*chosen)))
          result.push_back(variant_of(key));
      }
    }
  }
  return result;
}

void describe_plan(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device,
                   nlohmann::json& json) {
  const PlannedLaunch& launch = plan.launches[0];
  const AttentionForwardConfig c = mma_forward_config(launch.config);
  const geometry::Schedule& schedule = launch.params_as<AttentionCall>().schedule;
  const double products_flops = 2.0 * static_cast<double>(call.head_dim + call.value_dim);  // a (row, column) pair
  const double key_bytes = 2.0 * static_cast<double>(call.head_dim + call.value_dim) / c.query_rows;
  json["config"] = {{"score", c.user_score != 0 ? kUserScoreName : name_of(c.score)},
                    {"bias", bias_name(c.bias)},
                    {"softcap", c.softcap},
                    {"head_dim", c.head_dim},
                    {"value_dim", c.value_dim},
                    {"dtype", c.bfloat16 ? "bfloat16" : "float16"},
                    {"mask", c.interval_mask ? "intervals" : "sequence"},
                    {"query_rows", c.query_rows},
                    {"key_columns", c.key_columns},
                    {"stages", c.stages},
                    {"warps", c.warps},
                    {"min_blocks", c.min_blocks}};
  json["registers_limit"] = std::min(255, 65536 / (launch.threads * c.min_blocks) / 8 * 8);
  json["schedule"] = {
      {"query_tiles", schedule.query_tiles},
      {"pairs_in_group", schedule.pairs_in_group},
      {"order", schedule.first_tile_is_long ? "context tile first, then last to first" : "last query tile first"}};
  json["limiter"] = {{"name", "tensor core and special functions"},
                     {"why", message("each visible pair costs ", products_flops, " FLOPs and ", key_bytes,
                                     " bytes of K and V from L2, shared by the ", c.query_rows,
                                     " rows of a tile: far above the memory's balance")}};
  json["why"] = message(c.user_score != 0 ? "the kernels through mma.sync take any score function; " : "",
                        "the tile table's first row for heads up to ", table_class(c), " whose ", c.min_blocks,
                        " CTA(s) fit the ", device.shared_bytes_per_sm, " bytes of shared memory of an SM");
}

}  // namespace

ConfigKey key_of(const AttentionForwardConfig& c) {
  return {static_cast<int>(c.score),
          static_cast<int>(c.bias),
          c.softcap,
          c.head_dim,
          c.value_dim,
          c.bfloat16,
          c.interval_mask,
          c.query_rows,
          c.key_columns,
          c.stages,
          c.warps,
          c.min_blocks,
          c.key_warps,
          c.user_score};
}

KernelRequest forward_request(const ConfigKey& key, const Architecture& architecture, const char* file,
                              const char* kernel) {
  const AttentionForwardConfig c = mma_forward_config(key);
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  KernelRequest request;
  request.entry_file = file;
  request.config_text = message(
      "#include \"attention/attention_forward_config.h\"\nnamespace warploom {\n"
      "inline constexpr AttentionForwardConfig kConfig = {.score = ScoreKind::",
      name_of(c.score), ", .bias = BiasKind::", bias_name(c.bias), ", .softcap = ", truth(c.softcap),
      ", .head_dim = ", c.head_dim, ", .value_dim = ", c.value_dim, ", .bfloat16 = ", truth(c.bfloat16),
      ", .interval_mask = ", truth(c.interval_mask), ", .query_rows = ", c.query_rows,
      ", .key_columns = ", c.key_columns, ", .stages = ", c.stages, ", .warps = ", c.warps,
      ", .min_blocks = ", c.min_blocks, ", .key_warps = ", c.key_warps, user_score_member(c.user_score),
      "};\n}  // namespace warploom\n", user_score_text(c.user_score));
  request.kernel_name = kernel;
  request.architecture = architecture;
  return request;
}

KernelVariant forward_variant(const KernelFamily& family, const ConfigKey& key, const char* pass) {
  const AttentionForwardConfig c = mma_forward_config(key);
  std::string name =
      message(c.score == ScoreKind::silu ? "hstu " : "softmax ", pass, user_score_name(c.user_score), " D", c.head_dim);
  if (c.value_dim != c.head_dim) name += " Dv" + std::to_string(c.value_dim);
  name += c.bfloat16 ? " bf16" : " fp16";
  if (c.bias != BiasKind::none) name += std::string(" bias ") + bias_name(c.bias);
  if (c.softcap) name += " softcap";
  if (c.interval_mask) name += " intervals";
  return {&family, key, name, c.head_dim, c.bfloat16, c.interval_mask};
}

std::vector<AttentionForwardConfig> forward_configs_asked(int dim, bool also_rare) {
  std::vector<AttentionForwardConfig> result;
  AttentionForwardConfig asked;
  asked.head_dim = asked.value_dim = dim;
  for (const ScoreKind score : {ScoreKind::silu, ScoreKind::softmax}) {
    for (const BiasKind bias : {BiasKind::none, BiasKind::rows16, BiasKind::rows32, BiasKind::bucketed}) {
      for (const bool softcap : {false, true}) {
        const bool rare = bias != BiasKind::none || softcap;
        if (rare && !also_rare) continue;
        if (softcap && (score == ScoreKind::silu || bias == BiasKind::rows32 || bias == BiasKind::bucketed)) continue;
        for (const bool bfloat16 : {true, false}) {
          for (const bool interval_mask : {false, true}) {
            if (rare && !bfloat16 && interval_mask) continue;
            asked.score = score;
            asked.bias = bias;
            asked.softcap = softcap;
            asked.bfloat16 = bfloat16;
            asked.interval_mask = interval_mask;
            result.push_back(asked);
          }
        }
      }
    }
  }
  return result;
}

Result<AttentionForwardConfig> choose_config(const AttentionForwardConfig& asked, const DeviceInfo& device) {
  const int max_dim = table_class(asked);
  for (const Tile& tile : tiles_of(asked)) {
    if (tile.max_dim != max_dim || tile.from_major > device.major) continue;
    const AttentionForwardConfig config = config_of(tile, asked);
    if (fits(config, device)) return config;
  }
  return Status::runtime_error(message(device.name, " gives a block ", device.shared_bytes_per_block,
                                       " bytes of shared memory, too little for head dimensions ", asked.head_dim,
                                       " and ", asked.value_dim, "; sm_80 and newer GPUs have enough"));
}

const KernelFamily kMmaForward = {"attention_forward (mma.sync)",
                                  "kernels/attention/attention_forward_mma.cu",
                                  request_of,
                                  variants_of,
                                  variant_of,
                                  nullptr,
                                  [](const ConfigKey& key, const std::string& message) {
                                    return user_score_failure(mma_forward_config(key).user_score, message);
                                  }};

AttentionForwardConfig mma_forward_config(const ConfigKey& key) {
  return {static_cast<ScoreKind>(key[0]),
          static_cast<BiasKind>(key[1]),
          key[2] != 0,
          key[3],
          key[4],
          key[5] != 0,
          key[6] != 0,
          key[7],
          key[8],
          key[9],
          key[10],
          key[11],
          key[12],
          key[13]};
}

AttentionForwardConfig forward_config_asked(const warploom_attention& call) {
  AttentionForwardConfig asked;
  asked.score = call.op == WARPLOOM_SOFTMAX ? ScoreKind::softmax : ScoreKind::silu;
  asked.bias = bias_kind(call);
  asked.softcap = call.softcap != 0;
  asked.head_dim = static_cast<int>(call.head_dim);
  asked.value_dim = static_cast<int>(call.value_dim);
  asked.bfloat16 = call.dtype == WARPLOOM_BFLOAT16;
  asked.interval_mask = has_interval_mask(call);
  asked.user_score = user_score_number(call);
  return asked;
}

Status plan_mma_forward(const warploom_attention& call, const DeviceInfo& device, GpuPlan& plan) {
  const Result<AttentionForwardConfig> config = choose_config(forward_config_asked(call), device);
  if (!config.ok()) return config.status();
  PlannedLaunch& launch = plan.add_launch(kMmaForward, key_of(*config));
  launch.threads = config->warps * 32;
  launch.shared_bytes = shared_map(*config).bytes;
  AttentionCall& params =
      config->user_score != 0 ? start_user_params<UserScoreCall>(call, launch) : launch.start_params<AttentionCall>();
  fill_device_call(call, params);
  params.queries_elsewhere = plan.queries_elsewhere;
  params.schedule = schedule_of(call, effective_max_seqlen_q(call), config->query_rows, config->min_blocks, device);
  launch.ctas = call.total_q == 0 ? 0 : params.schedule.items();
  plan.describe = describe_plan;
  return check_grid(launch.ctas, config->query_rows);
}

}  // namespace warploom::gpu
