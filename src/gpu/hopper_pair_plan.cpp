#include "gpu/hopper_pair_plan.h"

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

/// Whether the plan is ever taken.
constexpr bool kTakesPairs = true;

constexpr int kMaxHeadDim = 256;
constexpr int kThreads = 3 * 128;  // two consumers and the producer

/// One row of the tile table, for heads up to max_dim wide.
struct Tile {
  int max_dim;
  int stages, dout_stages, slope_stages;
};
constexpr std::array kTiles = {
    Tile{192, 3, 2, 2},
    Tile{256, 2, 2, 1},
};

HopperBackwardPairConfig with_tile(const HopperBackwardPairConfig& wanted) {
  HopperBackwardPairConfig config = wanted;
  const int wider = std::max(config.head_dim, config.value_dim);
  const Tile& tile = *std::find_if(kTiles.begin(), kTiles.end(), [&](const Tile& row) { return wider <= row.max_dim; });
  config.stages = tile.stages;
  config.dout_stages = tile.dout_stages;
  config.slope_stages = tile.slope_stages;
  return config;
}

ConfigKey key_of(const HopperBackwardPairConfig& c) {
  return {c.head_dim,    c.value_dim,    c.softmax,    c.interval_mask, c.stages,
          c.dout_stages, c.slope_stages, c.scaled_key, c.splits_scores, static_cast<int>(c.trace)};
}

KernelRequest request_of(const ConfigKey& key, const Architecture& architecture) {
  const HopperBackwardPairConfig c = hopper_pair_config(key);
  KernelRequest request;
  request.entry_file = "attention/attention_backward_pair_hopper.cu";
  request.config_text = message(
      "#include \"attention/hopper_backward_pair_config.h\"\nnamespace warploom {\ninline constexpr "
      "HopperBackwardPairConfig kConfig = {.head_dim = ",
      c.head_dim, ", .value_dim = ", c.value_dim, ", .softmax = ", truth(c.softmax),
      ", .interval_mask = ", truth(c.interval_mask), ", .stages = ", c.stages, ", .dout_stages = ", c.dout_stages,
      ", .slope_stages = ", c.slope_stages, ", .scaled_key = ", truth(c.scaled_key),
      ", .splits_scores = ", truth(c.splits_scores), ", .trace = trace::Level{", static_cast<int>(c.trace),
      "}};\n}  // namespace warploom\n");
  request.kernel_name = "attention_backward_pair_hopper";
  request.architecture = architecture;
  return request;
}

KernelVariant variant_of(const ConfigKey& key) {
  const HopperBackwardPairConfig c = hopper_pair_config(key);
  const char* const traced = c.trace != trace::Level::off ? " traced" : "";
  return backward_variant_of(kHopperBackwardPair, key, score_name(c.softmax, false) + " backward pair hopper" + traced,
                             c.head_dim, c.value_dim, /*bfloat16=*/true, c.interval_mask);
}

HopperBackwardPairConfig config_of(const warploom_attention& call) {
  HopperBackwardPairConfig config;
  config.head_dim = static_cast<int>(call.head_dim);
  config.value_dim = static_cast<int>(call.value_dim);
  config.softmax = call.op == WARPLOOM_SOFTMAX;
  config.interval_mask = has_interval_mask(call);
  config.scaled_key = bfloat16_carries_half_alpha(call);
  config.splits_scores = call.divisor_rows == nullptr;
  return with_tile(config);
}

std::vector<KernelVariant> variants_of(const DeviceInfo& device, bool /*whole_table*/) {
  std::vector<KernelVariant> result;
  if (device.major != 9) return result;
  for (int dim = kMaxOnePassDim + 8; dim <= kMaxHeadDim; dim += 8) {
    HopperBackwardPairConfig config;
    config.head_dim = config.value_dim = dim;
    for (const int bits : {0, 1, 2, 3, 4, 6, 8, 12}) {
      config.softmax = (bits & 1) != 0;
      config.interval_mask = (bits & 2) != 0;
      config.splits_scores = (bits & 4) == 0;
      config.scaled_key = (bits & 8) != 0;
      const bool is_end = dim == 192 || dim == 256;
      if (bits > 1 && !is_end) continue;
      result.push_back(variant_of(key_of(with_tile(config))));
    }
  }
  return result;
}

void attach_trace(PlannedLaunch& launch, trace::Level level, const trace::Sheet& sheet) {
  HopperBackwardPairConfig config = hopper_pair_config(launch.config);
  config.trace = level;
  launch.config = key_of(config);
  launch.params_as<HopperBackwardParams>().sheet = sheet;
}

constexpr TraceHooks kTraceHooks = {"backward", [](const ConfigKey&) { return kBackwardPairStrips; }, attach_trace};

void describe_plan(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device,
                   nlohmann::json& json) {
  const auto* main = std::find_if(plan.launches.begin(), plan.launches.begin() + plan.launch_count,
                                  [](const PlannedLaunch& launch) { return launch.family == &kHopperBackwardPair; });
  const HopperBackwardPairConfig c = hopper_pair_config(main->config);
  const geometry::Schedule& schedule = main->params_as<HopperBackwardParams>().backward.call.schedule;
  json["config"] = {{"head_dim", c.head_dim},
                    {"value_dim", c.value_dim},
                    {"dtype", "bfloat16"},
                    {"score", score_name(c.softmax, false)},
                    {"mask", c.interval_mask ? "intervals" : "sequence"},
                    {"cluster", kClusterCtas},
                    {"key_rows", kPairKeyRows},
                    {"query_rows", kPairQueryRows},
                    {"stages", c.stages},
                    {"dout_stages", c.dout_stages},
                    {"slope_stages", c.slope_stages},
                    {"scaled_key", c.scaled_key},
                    {"splits_scores", c.splits_scores}};
  json["schedule"] = {{"key_tiles", schedule.query_tiles},
                      {"items", schedule.items()},
                      {"pairs_in_group", schedule.pairs_in_group},
                      {"order", "first key tile first"},
                      {"handed_out", "one at a time to a cluster, from a device counter"}};
  json["dq"] = "added in float32 in memory, half of the columns by either CTA; sums cleared before, converted after";
  json["limiter"] = {{"name", "shared memory beside the tensor core"},
                     {"why", message("each visible pair costs ", 2 * (3 * call.head_dim + 2 * call.value_dim),
                                     " FLOPs, and S and dP read both operands from shared memory")}};
  json["why"] = message("a wide head: two CTAs exchange dS, so that dQ is added once for 128 keys; ", device.name,
                        " has wgmma, TMA and clusters");
}

}  // namespace

const KernelFamily kHopperBackwardPair = {"attention_backward_pair (wgmma, TMA, clusters)",
                                          "kernels/attention/attention_backward_pair_hopper.cu",
                                          request_of,
                                          variants_of,
                                          variant_of,
                                          &kTraceHooks};

HopperBackwardPairConfig hopper_pair_config(const ConfigKey& key) {
  return {key[0], key[1], key[2] != 0, key[3] != 0, key[4],
          key[5], key[6], key[7] != 0, key[8] != 0, static_cast<trace::Level>(key[9])};
}

bool pair_serves(const warploom_attention& call) {
  return kTakesPairs && (call.flags & WARPLOOM_DETERMINISTIC) == 0 && call.head_dim > kMaxOnePassDim &&
         call.dtype == WARPLOOM_BFLOAT16 && call.softcap == 0 && call.bias.kind == WARPLOOM_NO_BIAS;
}

Status plan_hopper_pair(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda, GpuPlan& plan) {
  const HopperBackwardPairConfig config = config_of(call);
  const BackwardParams common = backward_params(call);
  if (config.softmax) {
    if (Status status = add_row_terms(call, common, plan); !status.ok()) return status;
  }
  PlannedLaunch& launch = plan.add_launch(kHopperBackwardPair, key_of(config));
  launch.threads = kThreads;
  launch.shared_bytes = shared_map(config).bytes;
  // It waits for the row terms, and only for them: HSTU's follows what it does not wait for.
  launch.overlaps_previous = config.softmax && call.total_q > 0;
  if (Status status = start_hopper_backward(call, cuda, common, kPairQueryRows, kPairKeyRows, launch); !status.ok()) {
    return status;
  }
  constexpr int kItemKeys = kClusterCtas * kPairKeyRows;
  geometry::Schedule& schedule = launch.params_as<HopperBackwardParams>().backward.call.schedule;
  DeviceInfo clusters = device;  // each of them takes the items that elsewhere an SM does
  clusters.sm_count /= kClusterCtas;
  schedule = key_schedule(call, kItemKeys, clusters);
  if (Status status = check_grid(schedule.items() * kClusterCtas, kItemKeys); !status.ok()) return status;
  launch.ctas = std::min<long long>(schedule.items(), clusters.sm_count) * kClusterCtas;
  plan.describe = describe_plan;
  BackwardParams of_sums = common;
  if (config.scaled_key) of_sums.score_factor /= 0.5f * common.call.alpha;  // K has carried it into them
  if (Status status = add_dq_sums(call, of_sums, device, /*vector_reduction=*/true, kPairQueryRows, plan);
      !status.ok()) {
    return status;
  }
  plan.launches[static_cast<std::size_t>(plan.launch_count - 1)].overlaps_previous = true;
  place_scratch(call, {kPairQueryRows, /*clears=*/false, /*converts=*/false}, plan);
  return {};
}

}  // namespace warploom::gpu
