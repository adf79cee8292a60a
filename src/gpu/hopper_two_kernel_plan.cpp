#include "gpu/hopper_two_kernel_plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "gpu/backward_around.h"
#include "gpu/device_call.h"
#include "gpu/hopper_backward_plan.h"
#include "gpu/hopper_forward_plan.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kConsumerRows = 64;
constexpr int kWarpgroupThreads = 128;

/// One row of a tile table, for heads up to max_dim wide. Measured on an H200 (docs/performance-log.md).
struct KeysTile {
  static constexpr bool intervals = true;
  int max_dim;
  int query_rows, stages;
};
constexpr std::array kKeysTiles = {
    KeysTile{192, 64, 3},
    KeysTile{256, 48, 3},
};

struct DqTile {
  int max_dim;
  bool intervals;  ///< also under an interval mask, whose lists take registers
  int consumers, key_columns, stages, value_stages;
  bool turns, sums_at_once;
};
constexpr std::array kDqTiles = {
    DqTile{64, true, 2, 128, 2, 2, true, false},  DqTile{128, true, 2, 96, 2, 2, true, false},
    DqTile{192, false, 2, 80, 2, 2, true, false}, DqTile{256, false, 2, 64, 2, 1, true, true},
    DqTile{256, true, 2, 48, 2, 2, true, true},
};

template <typename Table, typename Config>
const auto& tile_of(const Table& tiles, const Config& config) {
  const int wider = std::max(config.head_dim, config.value_dim);
  return *std::find_if(tiles.begin(), tiles.end(), [&](const auto& tile) {
    return wider <= tile.max_dim && (tile.intervals || !config.interval_mask);
  });
}

/// The part of a configuration that the call decides.
template <typename Config>
Config config_of(const warploom_attention& call) {
  const HopperBackwardConfig known = hopper_backward_config_of(call);
  Config config;
  config.head_dim = known.head_dim;
  config.value_dim = known.value_dim;
  config.bfloat16 = known.bfloat16;
  config.softmax = known.softmax;
  config.softcap = known.softcap;
  config.interval_mask = known.interval_mask;
  return config;
}

template <typename Config>
std::string members_of(const Config& c) {
  return message(".head_dim = ", c.head_dim, ", .value_dim = ", c.value_dim, ", .bfloat16 = ", truth(c.bfloat16),
                 ", .softmax = ", truth(c.softmax), ", .softcap = ", truth(c.softcap),
                 ", .interval_mask = ", truth(c.interval_mask));
}

template <typename Config>
std::string trace_member(const Config& c) {
  return message(", .trace = trace::Level{", static_cast<int>(c.trace), "}");
}
template <typename Config>
const char* traced_name(const Config& c) {
  return c.trace != trace::Level::off ? " traced" : "";
}

/// Makes a launch the variant of this key, traced.
void attach_trace(PlannedLaunch& launch, const ConfigKey& key, const trace::Sheet& sheet) {
  launch.config = key;
  launch.params_as<HopperBackwardParams>().sheet = sheet;
}

KernelRequest request_for(const char* file, const char* kernel, const char* header, const char* type,
                          const std::string& members, const Architecture& architecture) {
  KernelRequest request;
  request.entry_file = file;
  request.config_text = message("#include \"attention/", header, "\"\nnamespace warploom {\ninline constexpr ", type,
                                " kConfig = {", members, "};\n}  // namespace warploom\n");
  request.kernel_name = kernel;
  request.architecture = architecture;
  return request;
}

/// The head dimensions at the ends of the tile table's rows: most calls take kernels of one pass.
template <typename Config, typename Table, typename Add>
void list_variants(const Table& tiles, Add add) {
  for (int dim = 8; dim <= kMaxHeadDim; dim += 8) {
    Config plain;
    plain.head_dim = plain.value_dim = dim;
    const int end_of_row = tile_of(tiles, plain).max_dim;
    if (dim != end_of_row && dim != end_of_row - 8) continue;
    for (const bool softmax : {false, true}) {
      plain.softmax = softmax;
      add(plain);
      for (const int bits : {1, 2, 3, 4, 5, 6, 7}) {
        Config other = plain;
        other.bfloat16 = (bits & 1) == 0;
        other.interval_mask = (bits & 2) != 0;
        other.softcap = (bits & 4) != 0;
        const bool narrow = dim <= kMaxOnePassDim;
        const bool served = softmax ? !other.softcap || narrow || !other.interval_mask
                                    : !other.softcap && (narrow || other.bfloat16 || !other.interval_mask);
        if (served) add(other);
      }
    }
  }
}

// --- dK and dV ---------------------------------------------------------------------------------------------------

ConfigKey key_of(const HopperBackwardKeysConfig& c) {
  return {c.head_dim,   c.value_dim, c.bfloat16,
          c.softmax,    c.softcap,   c.interval_mask,
          c.query_rows, c.stages,    static_cast<int>(c.trace)};
}

KernelRequest keys_request(const ConfigKey& key, const Architecture& architecture) {
  const HopperBackwardKeysConfig c = hopper_keys_config(key);
  return request_for(
      "attention/attention_backward_keys_hopper.cu", "attention_backward_keys_hopper", "hopper_backward_keys_config.h",
      "HopperBackwardKeysConfig",
      message(members_of(c), ", .query_rows = ", c.query_rows, ", .stages = ", c.stages, trace_member(c)),
      architecture);
}

KernelVariant keys_variant(const ConfigKey& key) {
  const HopperBackwardKeysConfig c = hopper_keys_config(key);
  return backward_variant_of(kHopperBackwardKeys, key,
                             score_name(c.softmax, c.softcap) + " backward keys hopper" + traced_name(c), c.head_dim,
                             c.value_dim, c.bfloat16, c.interval_mask);
}

std::vector<KernelVariant> keys_variants(const DeviceInfo& device, bool /*whole_table*/) {
  std::vector<KernelVariant> result;
  if (device.major != 9) return result;
  list_variants<HopperBackwardKeysConfig>(kKeysTiles, [&](const HopperBackwardKeysConfig& wanted) {
    if (wanted.head_dim <= kMaxOnePassDim) return;  // the one-pass kernel without its dQ
    result.push_back(keys_variant(key_of(choose_hopper_keys_config(wanted))));
  });
  return result;
}

constexpr TraceHooks kKeysTrace = {"keys", [](const ConfigKey&) { return kBackwardKeysStrips; },
                                   [](PlannedLaunch& launch, trace::Level level, const trace::Sheet& sheet) {
                                     HopperBackwardKeysConfig config = hopper_keys_config(launch.config);
                                     config.trace = level;
                                     attach_trace(launch, key_of(config), sheet);
                                   }};

// --- dQ ----------------------------------------------------------------------------------------------------------

ConfigKey key_of(const HopperBackwardDqConfig& c) {
  return {c.head_dim,     c.value_dim,
          c.bfloat16,     c.softmax,
          c.softcap,      c.interval_mask,
          c.consumers,    c.key_columns,
          c.stages,       c.value_stages,
          c.turns,        c.sums_at_once,
          c.scaled_query, static_cast<int>(c.trace)};
}

KernelRequest dq_request(const ConfigKey& key, const Architecture& architecture) {
  const HopperBackwardDqConfig c = hopper_dq_config(key);
  return request_for("attention/attention_backward_dq_hopper.cu", "attention_backward_dq_hopper",
                     "hopper_backward_dq_config.h", "HopperBackwardDqConfig",
                     message(members_of(c), ", .consumers = ", c.consumers, ", .key_columns = ", c.key_columns,
                             ", .stages = ", c.stages, ", .value_stages = ", c.value_stages,
                             ", .turns = ", truth(c.turns), ", .sums_at_once = ", truth(c.sums_at_once),
                             ", .scaled_query = ", truth(c.scaled_query), trace_member(c)),
                     architecture);
}

KernelVariant dq_variant(const ConfigKey& key) {
  const HopperBackwardDqConfig c = hopper_dq_config(key);
  return backward_variant_of(kHopperBackwardDq, key,
                             score_name(c.softmax, c.softcap) + " backward dq hopper" + traced_name(c), c.head_dim,
                             c.value_dim, c.bfloat16, c.interval_mask);
}

std::vector<KernelVariant> dq_variants(const DeviceInfo& device, bool /*whole_table*/) {
  std::vector<KernelVariant> result;
  if (device.major != 9) return result;
  list_variants<HopperBackwardDqConfig>(kDqTiles, [&](const HopperBackwardDqConfig& wanted) {
    HopperBackwardDqConfig config = choose_hopper_dq_config(wanted);
    result.push_back(dq_variant(key_of(config)));
    config.scaled_query = true;
    const bool may_scale = config.bfloat16 && !config.softmax && !config.interval_mask;
    if (may_scale) result.push_back(dq_variant(key_of(config)));
  });
  return result;
}

constexpr TraceHooks kDqTrace = {"dq", [](const ConfigKey& key) { return trace_strips(hopper_dq_config(key)); },
                                 [](PlannedLaunch& launch, trace::Level level, const trace::Sheet& sheet) {
                                   HopperBackwardDqConfig config = hopper_dq_config(launch.config);
                                   config.trace = level;
                                   attach_trace(launch, key_of(config), sheet);
                                 }};

// --- the plan ----------------------------------------------------------------------------------------------------

void describe_plan(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device,
                   nlohmann::json& json) {
  // The last two launches: dK and dV, dQ.
  const PlannedLaunch& keys_launch = plan.launches[static_cast<std::size_t>(plan.launch_count - 2)];
  const PlannedLaunch& dq_launch = plan.launches[static_cast<std::size_t>(plan.launch_count - 1)];
  const HopperBackwardDqConfig dq = hopper_dq_config(dq_launch.config);
  const auto schedule = [](const PlannedLaunch& launch, const char* order) -> nlohmann::json {
    const geometry::Schedule& s = launch.params_as<HopperBackwardParams>().backward.call.schedule;
    return {{"tiles", s.query_tiles},
            {"items", s.items()},
            {"pairs_in_group", s.pairs_in_group},
            {"order", order},
            {"handed_out", "one at a time, from a device counter"}};
  };
  json["config"] = {{"head_dim", dq.head_dim},
                    {"value_dim", dq.value_dim},
                    {"dtype", dq.bfloat16 ? "bfloat16" : "float16"},
                    {"score", score_name(dq.softmax, dq.softcap)},
                    {"mask", dq.interval_mask ? "intervals" : "sequence"}};
  if (keys_launch.family == &kHopperBackwardKeys) {
    const HopperBackwardKeysConfig keys = hopper_keys_config(keys_launch.config);
    json["keys"] = {{"key_rows", kBackwardKeyRows}, {"query_rows", keys.query_rows}, {"stages", keys.stages}};
  } else {
    const HopperBackwardConfig keys = hopper_backward_config(keys_launch.config);
    json["keys"] = {{"key_rows", keys.key_rows},
                    {"query_rows", keys.query_rows},
                    {"stages", keys.stages},
                    {"scaled_key", keys.scaled_key}};
  }
  json["keys"]["schedule"] = schedule(keys_launch, "first key tile first");
  json["dq"] = {{"query_rows", dq.consumers * kConsumerRows},
                {"key_columns", dq.key_columns},
                {"stages", dq.stages},
                {"value_stages", dq.value_stages},
                {"turns", dq.turns},
                {"sums_at_once", dq.sums_at_once},
                {"scaled_query", dq.scaled_query},
                {"schedule", schedule(dq_launch, "last query tile first")}};
  json["limiter"] = {{"name", "tensor core"},
                     {"why", message("each visible pair costs ", 2 * (4 * call.head_dim + 3 * call.value_dim),
                                     " FLOPs, S and dP being computed in both kernels")}};
  json["why"] =
      message((call.flags & WARPLOOM_DETERMINISTIC) != 0 ? "the call asks to be deterministic" : "a wide head",
              ": dQ by a kernel of its own needs no sums in memory, and every sum has a fixed order; ", device.name,
              " has wgmma and TMA");
}

Status set_schedule(const geometry::Schedule& schedule, int tile_rows, bool has_rows, const DeviceInfo& device,
                    PlannedLaunch& launch) {
  launch.params_as<HopperBackwardParams>().backward.call.schedule = schedule;
  const long long items = has_rows ? schedule.items() : 0;
  launch.ctas = std::min<long long>(items, device.sm_count);
  return check_grid(items, tile_rows);
}

/// dK and dV: of heads that the one-pass kernel takes, by that kernel without its dQ.
Status add_keys(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda,
                const BackwardParams& common, GpuPlan& plan) {
  int key_rows = kBackwardKeyRows, query_rows = 0;
  PlannedLaunch* launch = nullptr;
  if (std::max(call.head_dim, call.value_dim) <= kMaxOnePassDim) {
    HopperBackwardConfig config = hopper_backward_config_of(call);
    config.accumulate_dq = false;
    config = choose_hopper_backward_config(config);
    key_rows = config.key_rows;
    query_rows = config.query_rows;
    launch = &plan.add_launch(kHopperBackward, hopper_backward_key(config));
    launch->threads = (config.consumers + 1) * kWarpgroupThreads;
    launch->shared_bytes = shared_map(config).bytes;
  } else {
    HopperBackwardKeysConfig config = choose_hopper_keys_config(config_of<HopperBackwardKeysConfig>(call));
    query_rows = config.query_rows;
    launch = &plan.add_launch(kHopperBackwardKeys, key_of(config));
    launch->threads = 3 * kWarpgroupThreads;  // two consumers, the producer
    launch->shared_bytes = shared_map(config).bytes;
  }
  if (Status status = start_hopper_backward(call, cuda, common, query_rows, key_rows, *launch); !status.ok()) {
    return status;
  }
  return set_schedule(key_schedule(call, key_rows, device), key_rows, call.total_k > 0, device, *launch);
}

Status add_dq(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda,
              const BackwardParams& common, GpuPlan& plan) {
  HopperBackwardDqConfig config = choose_hopper_dq_config(config_of<HopperBackwardDqConfig>(call));
  config.scaled_query = bfloat16_carries_half_alpha(call);
  PlannedLaunch& launch = plan.add_launch(kHopperBackwardDq, key_of(config));
  launch.threads = (config.consumers + 1) * kWarpgroupThreads;
  launch.shared_bytes = shared_map(config).bytes;
  if (Status status = start_hopper_backward(call, cuda, common, kConsumerRows, config.key_columns, launch);
      !status.ok()) {
    return status;
  }
  const int query_rows = config.consumers * kConsumerRows;
  return set_schedule(hopper_query_schedule(call, query_rows, device), query_rows, call.total_q > 0, device, launch);
}

}  // namespace

const KernelFamily kHopperBackwardKeys = {"attention_backward_keys (wgmma, TMA)",
                                          "kernels/attention/attention_backward_keys_hopper.cu",
                                          keys_request,
                                          keys_variants,
                                          keys_variant,
                                          &kKeysTrace};
const KernelFamily kHopperBackwardDq = {"attention_backward_dq (wgmma, TMA)",
                                        "kernels/attention/attention_backward_dq_hopper.cu",
                                        dq_request,
                                        dq_variants,
                                        dq_variant,
                                        &kDqTrace};

HopperBackwardKeysConfig choose_hopper_keys_config(const HopperBackwardKeysConfig& wanted) {
  HopperBackwardKeysConfig config = wanted;
  const KeysTile& tile = tile_of(kKeysTiles, config);
  config.query_rows = tile.query_rows;
  config.stages = tile.stages;
  return config;
}

HopperBackwardDqConfig choose_hopper_dq_config(const HopperBackwardDqConfig& wanted) {
  HopperBackwardDqConfig config = wanted;
  const DqTile& tile = tile_of(kDqTiles, config);
  config.consumers = tile.consumers;
  config.key_columns = tile.key_columns;
  config.stages = tile.stages;
  config.value_stages = tile.value_stages;
  config.turns = tile.turns;
  config.sums_at_once = tile.sums_at_once && config.bfloat16;  // float16 scales dQ before
  return config;
}

HopperBackwardKeysConfig hopper_keys_config(const ConfigKey& key) {
  return {key[0],      key[1],      key[2] != 0,
          key[3] != 0, key[4] != 0, key[5] != 0,
          key[6],      key[7],      static_cast<trace::Level>(key[8])};
}

HopperBackwardDqConfig hopper_dq_config(const ConfigKey& key) {
  return {key[0], key[1], key[2] != 0, key[3] != 0,  key[4] != 0,  key[5] != 0,  key[6],
          key[7], key[8], key[9],      key[10] != 0, key[11] != 0, key[12] != 0, static_cast<trace::Level>(key[13])};
}

bool two_kernels_serve(const warploom_attention& call) {
  if (call.bias.kind != WARPLOOM_NO_BIAS) return false;
  if (std::max(call.head_dim, call.value_dim) <= kMaxOnePassDim) return true;
  // With lists of intervals, the softcap and HSTU's exponents would spill.
  if (call.op == WARPLOOM_SOFTMAX) return call.softcap == 0 || !has_interval_mask(call);
  return call.dtype == WARPLOOM_BFLOAT16 || !has_interval_mask(call);
}

bool takes_two_kernels(const warploom_attention& call) {
  return std::max(call.head_dim, call.value_dim) > kMaxOnePassDim ||
         ((call.flags & WARPLOOM_DETERMINISTIC) != 0 && !orders_sums(call));
}

Status plan_hopper_two_kernels(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda,
                               GpuPlan& plan) {
  const BackwardParams common = backward_params(call);
  if (call.op == WARPLOOM_SOFTMAX) {
    if (Status status = add_row_terms(call, common, plan); !status.ok()) return status;
  }
  if (Status status = add_keys(call, device, cuda, common, plan); !status.ok()) return status;
  if (Status status = add_dq(call, device, cuda, common, plan); !status.ok()) return status;
  place_scratch(call, {}, plan);
  plan.scratch_left_cleared = plan.scratch_bytes == plan.cleared_bytes;  // only the counters
  plan.describe = describe_plan;
  return {};
}

}  // namespace warploom::gpu
