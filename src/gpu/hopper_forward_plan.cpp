#include "gpu/hopper_forward_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "gpu/attention_maps.h"
#include "gpu/device_call.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

/// One row of the tile table, for heads up to max_dim wide.
struct Tile {
  int max_dim;
  int consumers, key_columns, stages, query_stages;
};

/// Measured on an H200 (docs/performance-log.md). Narrow heads want many warps to hide the activation, wide ones the
/// registers of two consumers, and so do
/// interval masks, whose lists take some, and the softcap.
constexpr std::array kTiles = {
    Tile{64, 4, 64, 4, 2},
    Tile{128, 2, 128, 2, 2},
    Tile{192, 2, 96, 2, 1},
    Tile{256, 2, 64, 2, 1},
};

constexpr int kMaxHeadDim = 256;
constexpr int kElementBytes = 2;
/// Scaling Q costs more than it saves above.
constexpr int kMaxScaledDim = 128;

constexpr Tile kRoomyNarrowTile = {64, 2, 128, 2, 2};

/// Biases whose rows warps of the producer copy, instead of those alone that a tensor map describes.
constexpr bool kCopiesBiases = true;
/// Bucketed biases.
constexpr bool kComputesBiases = true;

/// With a bias in q's type that a tensor map describes, the tiles of which lie beside those of K. What R takes of L2's
/// bandwidth bounds these kernels, so a third stage is worth more than a second Q.
constexpr std::array kMappedBiasTiles = {
    Tile{64, 3, 64, 3, 2},
    Tile{128, 2, 64, 3, 1},
    Tile{192, 2, 64, 2, 1},
    Tile{256, 2, 48, 2, 1},
};
/// With one whose rows are copied.
constexpr std::array kCopiedBiasTiles = {
    Tile{64, 3, 64, 2, 2},
    Tile{128, 2, 64, 2, 2},
    Tile{192, 2, 64, 2, 1},
    Tile{256, 2, 48, 2, 1},
};
/// With one in float32.
constexpr std::array kFloatBiasTiles = {
    Tile{64, 3, 64, 2, 2},
    Tile{128, 2, 64, 2, 2},
    Tile{192, 2, 48, 2, 1},
    Tile{256, 2, 32, 2, 1},
};
/// With a bucketed one, which takes a little of shared memory. Two warps take turns with its stages.
constexpr std::array kBucketedTiles = {
    Tile{64, 3, 64, 4, 2},
    Tile{128, 2, 64, 4, 1},
    Tile{192, 2, 64, 2, 1},
    Tile{256, 2, 48, 2, 1},
};

const std::array<Tile, kTiles.size()>& tiles_of(HopperBias bias) {
  switch (bias) {
    case HopperBias::none:
      return kTiles;
    case HopperBias::float_rows:
      return kFloatBiasTiles;
    case HopperBias::bucketed:
      return kBucketedTiles;
    case HopperBias::tensor_map:
      return kMappedBiasTiles;
    default:
      return kCopiedBiasTiles;
  }
}

const Tile& tile_of(const HopperForwardConfig& config) {
  const int wider = std::max(config.head_dim, config.value_dim);
  if ((config.interval_mask || config.softcap) && wider <= kRoomyNarrowTile.max_dim) return kRoomyNarrowTile;
  const std::array<Tile, kTiles.size()>& tiles = tiles_of(config.bias);
  return *std::find_if(tiles.begin(), tiles.end(), [&](const Tile& tile) { return wider <= tile.max_dim; });
}

/// Softmax with heads of up to 128, HSTU with those of up to 64: both products of a step are issued together, and the
/// consumers alternate by themselves (docs/hopper.md). The softcap lacks the registers.
bool is_faster_without_turns(const HopperForwardConfig& config) {
  const bool is_softmax = config.score == ScoreKind::softmax;
  const int most = is_softmax ? kTiles[1].max_dim : kTiles[0].max_dim;
  return config.bias == HopperBias::none && !config.softcap && (is_softmax || !config.interval_mask) &&
         std::max(config.head_dim, config.value_dim) <= most;
}

bool has_mapped_bias(const warploom_attention& call) {
  return call.bias.kind == WARPLOOM_DENSE_BIAS && call.bias.dtype == call.dtype &&
         is_mappable(bias_map(call, kWarpgroupRows), bias_tensor(call.bias));
}

/// How the kernel gets the bias. aligned: the rows of a stored one are whole 16 bytes.
HopperBias bias_of(const warploom_attention& call, bool aligned) {
  if (call.bias.kind == WARPLOOM_NO_BIAS) return HopperBias::none;
  if (call.bias.kind == WARPLOOM_BUCKETED_BIAS) return HopperBias::bucketed;
  if (has_mapped_bias(call)) return HopperBias::tensor_map;
  if (call.bias.dtype == WARPLOOM_FLOAT32) return HopperBias::float_rows;
  return aligned ? HopperBias::rows : HopperBias::shifted_rows;
}

/// As the kernel's text has it, and as `explain` shows it.
struct BiasNames {
  const char *constant, *name;
};
BiasNames names_of(HopperBias bias) {
  constexpr std::array kNames = {BiasNames{"none", "none"},
                                 BiasNames{"tensor_map", "dense, by TMA"},
                                 BiasNames{"rows", "rows, copied"},
                                 BiasNames{"shifted_rows", "rows that begin anywhere, copied"},
                                 BiasNames{"float_rows", "float32 rows, copied"},
                                 BiasNames{"bucketed", "bucketed"}};
  return kNames[static_cast<std::size_t>(bias)];
}

HopperForwardConfig config_of(const warploom_attention& call, bool bias_aligned) {
  HopperForwardConfig config;
  config.score = call.op == WARPLOOM_SOFTMAX ? ScoreKind::softmax : ScoreKind::silu;
  config.head_dim = static_cast<int>(call.head_dim);
  config.value_dim = static_cast<int>(call.value_dim);
  config.bfloat16 = call.dtype == WARPLOOM_BFLOAT16;
  config.softcap = call.op == WARPLOOM_SOFTMAX && call.softcap > 0;
  config.interval_mask = has_interval_mask(call);
  config.bias = bias_of(call, bias_aligned);
  // With tables one multiply-add makes a score of Q K^T and R.
  config.scaled_query =
      config.bias != HopperBias::bucketed && call.head_dim <= kMaxScaledDim && bfloat16_carries_half_alpha(call);
  return config;
}

ConfigKey key_of(const HopperForwardConfig& c) {
  return {static_cast<int>(c.score),
          c.head_dim,
          c.value_dim,
          c.bfloat16,
          c.softcap,
          c.interval_mask,
          static_cast<int>(c.bias),
          c.consumers,
          c.key_columns,
          c.stages,
          c.query_stages,
          c.turns,
          c.scaled_query,
          static_cast<int>(c.trace)};
}

KernelRequest request_of(const ConfigKey& key, const Architecture& architecture) {
  const HopperForwardConfig config = hopper_forward_config(key);
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  KernelRequest request;
  request.entry_file = "attention/attention_forward_hopper.cu";
  request.config_text = message(
      "#include \"attention/hopper_forward_config.h\"\nnamespace warploom {\ninline constexpr HopperForwardConfig "
      "kConfig = {",
      ".score = ScoreKind::", config.score == ScoreKind::softmax ? "softmax" : "silu",
      ", .head_dim = ", config.head_dim, ", .value_dim = ", config.value_dim, ", .bfloat16 = ", truth(config.bfloat16),
      ", .softcap = ", truth(config.softcap), ", .interval_mask = ", truth(config.interval_mask),
      ", .bias = HopperBias::", names_of(config.bias).constant, ", .consumers = ", config.consumers,
      ", .key_columns = ", config.key_columns, ", .stages = ", config.stages, ", .query_stages = ", config.query_stages,
      ", .turns = ", truth(config.turns), ", .scaled_query = ", truth(config.scaled_query), ", .trace = trace::Level{",
      static_cast<int>(config.trace), "}};\n}  // namespace warploom\n");
  request.kernel_name = "attention_forward_hopper";
  request.architecture = architecture;
  return request;
}

KernelVariant variant_of(const ConfigKey& key) {
  const HopperForwardConfig c = hopper_forward_config(key);
  std::string name = std::string(c.score == ScoreKind::softmax ? "softmax" : "hstu") + " forward hopper D" +
                     std::to_string(c.head_dim);
  if (c.value_dim != c.head_dim) name += " Dv" + std::to_string(c.value_dim);
  name += std::string(c.bfloat16 ? " bf16" : " fp16") + (c.softcap ? " softcap" : "") +
          (c.interval_mask ? " intervals" : "") +
          (c.bias == HopperBias::none ? "" : std::string(" bias ") + names_of(c.bias).constant) +
          (c.trace != trace::Level::off ? " traced" : "");
  return {&kHopperForward, key, name, c.head_dim, c.bfloat16, c.interval_mask};
}

/// Every head dimension with both score functions; everything else at the ends of the tile table's rows.
std::vector<KernelVariant> variants_of(const DeviceInfo& device, bool /*whole_table*/) {
  std::vector<KernelVariant> result;
  if (device.major != 9) return result;
  const auto add = [&](const HopperForwardConfig& wanted) {
    const Result<HopperForwardConfig> config = choose_hopper_config(wanted, device);
    if (config.ok()) result.push_back(variant_of(key_of(*config)));
  };
  for (int dim = 8; dim <= kMaxHeadDim; dim += 8) {
    HopperForwardConfig plain;
    plain.head_dim = plain.value_dim = dim;
    for (const ScoreKind score : {ScoreKind::silu, ScoreKind::softmax}) {
      plain.score = score;
      add(plain);
      const int end_of_row = tile_of(plain).max_dim;
      if (dim != end_of_row && dim != end_of_row - 8) continue;
      HopperForwardConfig other = plain;
      other.interval_mask = true;
      add(other);
      other.bfloat16 = false;
      add(other);
      other.interval_mask = false;
      add(other);
      for (const HopperForwardConfig& base : {plain, other}) {
        HopperForwardConfig biased = base;
        for (const HopperBias bias : {HopperBias::tensor_map, HopperBias::rows, HopperBias::shifted_rows,
                                      HopperBias::float_rows, HopperBias::bucketed}) {
          biased.bias = bias;
          add(biased);
        }
      }
      other = plain;
      other.softcap = score == ScoreKind::softmax;
      other.scaled_query = score == ScoreKind::silu;
      if (other.softcap || dim <= kMaxScaledDim) add(other);
    }
  }
  return result;
}

struct MapShapes {
  TensorMapShape query, key, value;
};

/// Whether the kernel can add the call's bias: not beside an interval mask or a softcap, nor from a time table that is
/// larger than the staged one or has thresholds of the caller's, which may stand closer than the default ones.
bool serves_bias(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  if (bias.kind == WARPLOOM_NO_BIAS) return true;
  if (has_interval_mask(call) || (call.op == WARPLOOM_SOFTMAX && call.softcap > 0)) return false;
  if (bias.kind != WARPLOOM_BUCKETED_BIAS) return kCopiesBiases || has_mapped_bias(call);
  return kComputesBiases && (bias.time == nullptr || (bias.num_times <= kMostTimes && bias.time_bucket == nullptr));
}

MapShapes map_shapes(const warploom_attention& call, int key_columns) {
  return {query_map(call, call.q, call.head_dim, kWarpgroupRows), key_map(call, call.k, call.head_dim, key_columns),
          key_map(call, call.v, call.value_dim, key_columns)};
}

int strips_of(const ConfigKey& key) {
  return trace_strips(hopper_forward_config(key));
}

void attach_trace(PlannedLaunch& launch, trace::Level level, const trace::Sheet& sheet) {
  HopperForwardConfig config = hopper_forward_config(launch.config);
  config.trace = level;
  launch.config = key_of(config);
  launch.params_as<HopperForwardParams>().sheet = sheet;
}

constexpr TraceHooks kTraceHooks = {"forward", strips_of, attach_trace};

void bind_counters(GpuPlan& plan, DevicePointer scratch) {
  plan.launches[0].params_as<HopperForwardParams>().counters = reinterpret_cast<unsigned*>(scratch);
}

void describe_plan(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device,
                   nlohmann::json& json) {
  const PlannedLaunch& launch = plan.launches[0];
  const HopperForwardConfig c = hopper_forward_config(launch.config);
  const geometry::Schedule& schedule = launch.params_as<HopperForwardParams>().call.schedule;
  json["config"] = {{"head_dim", c.head_dim},
                    {"value_dim", c.value_dim},
                    {"dtype", c.bfloat16 ? "bfloat16" : "float16"},
                    {"mask", c.interval_mask ? "intervals" : "sequence"},
                    {"bias", names_of(c.bias).name},
                    {"consumers", c.consumers},
                    {"query_rows", c.consumers * kWarpgroupRows},
                    {"key_columns", c.key_columns},
                    {"stages", c.stages},
                    {"query_stages", c.query_stages},
                    {"turns", c.turns}};
  const RegisterBudget budget = register_budget(c);
  json["registers"] = {{"producer", budget.producer}, {"consumer", budget.consumer}};
  json["schedule"] = {
      {"query_tiles", schedule.query_tiles},
      {"items", schedule.items()},
      {"pairs_in_group", schedule.pairs_in_group},
      {"order", schedule.first_tile_is_long ? "context tile first, then last to first" : "last query tile first"},
      {"handed_out", "one at a time, from a device counter"}};
  json["limiter"] = {
      {"name", c.score == ScoreKind::softmax ? "exponentials beside the tensor core" : "silu beside the tensor core"},
      {"why", message("a step of a consumer is ", kWarpgroupRows, " x ", c.key_columns,
                      " scores: ", kWarpgroupRows * c.key_columns / 128,
                      " a thread, each one special function and about three more ", "instructions, beside ",
                      2 * (call.head_dim + call.value_dim), " FLOPs a score on the tensor core")}};
  json["why"] = message(
      "the tile table's row for heads up to ", tile_of(c).max_dim, " on ", device.name,
      ": wgmma and TMA; GPUs before or after Hopper, tensors that a tensor map cannot "
      "describe, biases beside interval masks or a softcap, and long or own lists of time buckets take mma.sync");
}

}  // namespace

const KernelFamily kHopperForward = {"attention_forward (wgmma, TMA)",
                                     "kernels/attention/attention_forward_hopper.cu",
                                     request_of,
                                     variants_of,
                                     variant_of,
                                     &kTraceHooks};

Result<HopperForwardConfig> choose_hopper_config(const HopperForwardConfig& wanted, const DeviceInfo& device) {
  HopperForwardConfig config = wanted;
  const Tile& tile = tile_of(config);
  config.consumers = tile.consumers;
  config.key_columns = tile.key_columns;
  config.stages = tile.stages;
  config.query_stages = tile.query_stages;
  config.turns = !is_faster_without_turns(config);
  if (shared_map(config).bytes <= device.shared_bytes_per_block) return config;
  return Status::runtime_error(message(device.name, " gives a block ", device.shared_bytes_per_block,
                                       " bytes of shared memory, too little for head dimensions ", config.head_dim,
                                       " and ", config.value_dim));
}

HopperForwardConfig hopper_forward_config(const ConfigKey& key) {
  return {static_cast<ScoreKind>(key[0]),
          key[1],
          key[2],
          key[3] != 0,
          key[4] != 0,
          key[5] != 0,
          static_cast<HopperBias>(key[6]),
          key[7],
          key[8],
          key[9],
          key[10],
          key[11] != 0,
          key[12] != 0,
          static_cast<trace::Level>(key[13])};
}

bool bfloat16_carries_half_alpha(const warploom_attention& call) {
  int exponent = 0;
  const float half_alpha = static_cast<float>(effective_alpha(call)) / 2;
  // Far from the ends of bfloat16's range, so that products with ordinary values stay exact.
  return call.op == WARPLOOM_HSTU && call.dtype == WARPLOOM_BFLOAT16 &&
         std::fabs(std::frexp(half_alpha, &exponent)) == 0.5f && std::abs(exponent) <= 16;
}

geometry::Schedule hopper_query_schedule(const warploom_attention& call, int query_rows, const DeviceInfo& device) {
  constexpr double kShareOfL2 = 0.7;
  constexpr int kSmsOfPair = 4;
  geometry::Schedule schedule = schedule_of(call, effective_max_seqlen_q(call), query_rows, /*ctas_of_sm=*/1, device);
  const double pairs = static_cast<double>(schedule.sequences) * schedule.heads;
  const double key_rows =
      is_dense(call) ? static_cast<double>(call.batch * call.max_seqlen_k) : static_cast<double>(call.total_k);
  const double bytes =
      key_rows * static_cast<double>(call.key_heads * (call.head_dim + call.value_dim)) * kElementBytes;
  const double in_l2 = kShareOfL2 * device.l2_bytes / (bytes / pairs);
  const double groups = std::max(1.0, std::round(pairs / std::max<double>(in_l2, device.sm_count / kSmsOfPair)));
  schedule.pairs_in_group = static_cast<int>(std::ceil(pairs / groups));
  return schedule;
}

bool hopper_forward_serves(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda) {
  if (device.major != 9 || (cuda != nullptr && cuda->cuTensorMapEncodeTiled == nullptr)) return false;
  if (call.pass != WARPLOOM_FORWARD || !serves_bias(call) || has_score_function(call)) return false;
  const MapShapes shapes = map_shapes(call, /*key_columns=*/geometry::kPanelColumns);
  return is_mappable(shapes.query, call.q) && is_mappable(shapes.key, call.k) && is_mappable(shapes.value, call.v);
}

Status plan_hopper_forward(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda,
                           GpuPlan& plan) {
  AttentionCall device_call{};
  fill_device_call(call, device_call);
  const Result<HopperForwardConfig> config = choose_hopper_config(config_of(call, device_call.bias.aligned), device);
  if (!config.ok()) return config.status();
  PlannedLaunch& launch = plan.add_launch(kHopperForward, key_of(*config));
  launch.threads = (config->consumers + 1) * 128;
  launch.shared_bytes = shared_map(*config).bytes;
  HopperForwardParams& params = launch.start_params<HopperForwardParams>();
  const MapShapes shapes = map_shapes(call, config->key_columns);
  if (Status status = encode_map(cuda, "q", shapes.query, call.q, params.query); !status.ok()) return status;
  if (Status status = encode_map(cuda, "k", shapes.key, call.k, params.key); !status.ok()) return status;
  if (Status status = encode_map(cuda, "v", shapes.value, call.v, params.value); !status.ok()) return status;
  if (config->bias == HopperBias::tensor_map) {
    const Status status = encode_map(cuda, "bias", bias_map(call, kWarpgroupRows), bias_tensor(call.bias), params.bias);
    if (!status.ok()) return status;
  }
  params.call = device_call;
  params.call.queries_elsewhere = plan.queries_elsewhere;
  const int query_rows = config->consumers * kWarpgroupRows;
  params.call.schedule = hopper_query_schedule(call, query_rows, device);
  const long long items = params.call.schedule.items();
  launch.ctas = std::min<long long>(items, device.sm_count);
  plan.scratch_bytes = plan.cleared_bytes = 2 * sizeof(unsigned);
  plan.scratch_left_cleared = true;
  plan.bind_scratch = bind_counters;
  plan.describe = describe_plan;
  return check_grid(items, query_rows);
}

}  // namespace warploom::gpu
