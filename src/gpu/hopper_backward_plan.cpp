#include "gpu/hopper_backward_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "gpu/attention_maps.h"
#include "gpu/backward_around.h"
#include "gpu/backward_bias_plan.h"
#include "gpu/device_call.h"
#include "gpu/hopper_forward_plan.h"
#include "gpu/hopper_two_kernel_plan.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

/// One row of the tile table, for heads up to max_dim wide.
struct Tile {
  int max_dim;
  int consumers, key_rows, query_rows, stages;
};

/// Measured on an H200 (docs/performance-log.md).
constexpr std::array kTiles = {
    Tile{64, 2, 128, 128, 2},
    Tile{128, 2, 128, 64, 2},
};

/// Softmax: wgmma cuts its sums off where mma.sync keeps a little more, and an exponent of tens of thousands, as
/// alpha x head_dim may make it, turns that into percents of P. Such calls are left to mma.sync.
constexpr double kMaxExponentScale = 1000;

/// Narrow heads where float16 with its exponents takes registers too, or a bias's tiles shared memory.
constexpr Tile kRoomyNarrowTile = {64, 2, 128, 64, 4};

const Tile& tile_of(const HopperBackwardConfig& config) {
  const int wider = std::max(config.head_dim, config.value_dim);
  if ((!config.bfloat16 || config.dense_bias) && wider <= kRoomyNarrowTile.max_dim) return kRoomyNarrowTile;
  return *std::find_if(kTiles.begin(), kTiles.end(), [&](const Tile& tile) { return wider <= tile.max_dim; });
}

/// Whether the kernel can add the call's bias and write its gradient: none, or a dense one in bfloat16 that tensor maps
/// describe. (A softcap beside it would spill.)
bool serves_bias(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  if (bias.kind == WARPLOOM_NO_BIAS) return true;
  constexpr int kAnyRows = geometry::kPanelColumns;
  if (bias.kind != WARPLOOM_DENSE_BIAS || bias.dtype != WARPLOOM_BFLOAT16 || call.dtype != WARPLOOM_BFLOAT16 ||
      (call.op == WARPLOOM_SOFTMAX && call.softcap != 0) || !is_mappable(bias_map(call, kAnyRows), bias_tensor(bias))) {
    return false;
  }
  // TMA stores whole 16 bytes, also at the end of a row.
  return bias_gradient_by(call) != BiasGradientBy::main_kernel ||
         (bias.num_columns % geometry::kChunkValues == 0 &&
          is_mappable(bias_gradient_map(call, kAnyRows), bias_gradient_tensor(bias)));
}

constexpr std::size_t kCounterBytes = 256;  // two counters a main kernel; what follows stays aligned

KernelRequest request_of(const ConfigKey& key, const Architecture& architecture) {
  return hopper_backward_request("attention/attention_backward_hopper.cu", "attention_backward_hopper",
                                 hopper_backward_config(key), architecture);
}

KernelVariant variant_of(const ConfigKey& key) {
  const HopperBackwardConfig c = hopper_backward_config(key);
  const std::string bias = c.dense_bias ? c.bias_gradient ? " dense bias with gradient" : " dense bias" : "";
  return backward_variant_of(kHopperBackward, key, score_name(c.softmax, c.softcap) + " backward hopper" + bias,
                             c.head_dim, c.value_dim, c.bfloat16, c.interval_mask);
}

/// Every head dimension with both score functions; everything else at the ends of the tile table's rows.
std::vector<KernelVariant> variants_of(const DeviceInfo& device, bool /*whole_table*/) {
  std::vector<KernelVariant> result;
  if (device.major != 9) return result;
  const auto add = [&](const HopperBackwardConfig& wanted) {
    result.push_back(variant_of(hopper_backward_key(choose_hopper_backward_config(wanted))));
  };
  for (int dim = 8; dim <= kMaxOnePassDim; dim += 8) {
    HopperBackwardConfig plain;
    plain.head_dim = plain.value_dim = dim;
    const int end_of_row = tile_of(plain).max_dim;
    for (const bool softmax : {false, true}) {
      plain.softmax = softmax;
      add(plain);
      for (const int bits : {1, 2, 3}) {
        HopperBackwardConfig quicker = plain;
        quicker.scaled_key = (bits & 1) != 0;
        quicker.splits_scores = (bits & 2) != 0;
        if (quicker.scaled_key && softmax) continue;
        if (!quicker.splits_scores || choose_hopper_backward_config(quicker).splits_scores) add(quicker);
      }
      if (dim != end_of_row && dim != end_of_row - 8) continue;
      for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}) {
        HopperBackwardConfig other = plain;
        other.accumulate_dq = (bits & 8) == 0;  // deterministic calls' dK and dV
        other.bfloat16 = (bits & 1) == 0;
        other.interval_mask = (bits & 2) != 0;
        other.softcap = (bits & 4) != 0;
        if (!other.softcap || softmax) add(other);
      }
      for (const int bits : {0, 1, 2, 3, 4, 6}) {
        HopperBackwardConfig biased = plain;
        biased.dense_bias = true;
        biased.bias_gradient = (bits & 1) == 0;
        biased.interval_mask = (bits & 2) != 0;
        biased.scaled_key = (bits & 4) != 0;
        if (biased.scaled_key && softmax) continue;
        add(biased);
        biased.splits_scores = true;
        if (choose_hopper_backward_config(biased).splits_scores) add(biased);
      }
    }
  }
  return result;
}

void bind(GpuPlan& plan, DevicePointer scratch) {
  auto* const base = reinterpret_cast<char*>(scratch);
  auto* const sums = reinterpret_cast<float*>(base);
  auto* counters = reinterpret_cast<unsigned*>(base + plan.cleared_bytes - kCounterBytes);
  auto* const terms = reinterpret_cast<SoftmaxRowTerms*>(base + plan.cleared_bytes);
  for (int n = 0; n < plan.launch_count; ++n) {
    PlannedLaunch& launch = plan.launches[static_cast<std::size_t>(n)];
    const bool is_around =
        launch.family == &kBackwardRowTerms || launch.family == &kBackwardDqSums || launch.family == &kMmaBackwardBias;
    BackwardParams& params =
        is_around ? launch.params_as<BackwardParams>() : launch.params_as<HopperBackwardParams>().backward;
    params.dq_sums = sums;
    params.row_terms = terms;
    if (is_around) continue;
    launch.params_as<HopperBackwardParams>().counters = counters;
    counters += 2;
  }
}

void describe_plan(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device,
                   nlohmann::json& json) {
  const auto* main = std::find_if(plan.launches.begin(), plan.launches.begin() + plan.launch_count,
                                  [](const PlannedLaunch& launch) { return launch.family == &kHopperBackward; });
  const HopperBackwardConfig c = hopper_backward_config(main->config);
  const geometry::Schedule& schedule = main->params_as<HopperBackwardParams>().backward.call.schedule;
  json["config"] = {{"head_dim", c.head_dim},
                    {"value_dim", c.value_dim},
                    {"dtype", c.bfloat16 ? "bfloat16" : "float16"},
                    {"score", score_name(c.softmax, c.softcap)},
                    {"mask", c.interval_mask ? "intervals" : "sequence"},
                    {"bias", c.dense_bias ? "dense" : "none"},
                    {"consumers", c.consumers},
                    {"key_rows", c.key_rows},
                    {"query_rows", c.query_rows},
                    {"stages", c.stages},
                    {"scaled_key", c.scaled_key},
                    {"splits_scores", c.splits_scores}};
  json["schedule"] = {{"key_tiles", schedule.query_tiles},
                      {"items", schedule.items()},
                      {"pairs_in_group", schedule.pairs_in_group},
                      {"order", "first key tile first"},
                      {"handed_out", "one at a time, from a device counter"}};
  json["dq"] = "added in float32 in memory, one tile late, then converted";
  if (c.dense_bias) json["bias_gradient"] = bias_gradient_text(bias_gradient_by(call));
  json["limiter"] = {
      {"name", "score function beside the tensor core"},
      {"why", message("a step of a consumer is 64 x ", c.query_rows, " scores: ", c.query_rows / 2,
                      " a thread, each one special function and about nine more instructions, beside ",
                      2 * (3 * call.head_dim + 2 * call.value_dim), " FLOPs a score on the tensor core")}};
  json["why"] = message("the tile table's row for heads up to ", tile_of(c).max_dim, " on ", device.name,
                        ": wgmma and TMA; GPUs before or after Hopper, tensors that a tensor map cannot describe and "
                        "most calls with a bias take mma.sync");
}

}  // namespace

const KernelFamily kHopperBackward = {"attention_backward (wgmma, TMA)",
                                      "kernels/attention/attention_backward_hopper.cu", request_of, variants_of,
                                      variant_of};

HopperBackwardConfig choose_hopper_backward_config(const HopperBackwardConfig& wanted) {
  HopperBackwardConfig config = wanted;
  const Tile& tile = tile_of(config);
  config.consumers = tile.consumers;
  config.key_rows = tile.key_rows;
  config.query_rows = tile.query_rows;
  config.stages = tile.stages;
  // Beside a bias wide heads have no registers for it.
  const bool has_registers = !wanted.dense_bias || std::max(wanted.head_dim, wanted.value_dim) <= 64;
  config.splits_scores = wanted.splits_scores && wanted.bfloat16 && !wanted.softcap && !wanted.interval_mask &&
                         has_registers && wanted.accumulate_dq && tile.query_rows == 64;
  return config;
}

ConfigKey hopper_backward_key(const HopperBackwardConfig& c) {
  return {c.head_dim,      c.value_dim,     c.bfloat16,      c.softmax,    c.softcap,
          c.interval_mask, c.accumulate_dq, c.consumers,     c.key_rows,   c.query_rows,
          c.stages,        c.scaled_key,    c.splits_scores, c.dense_bias, c.bias_gradient};
}

HopperBackwardConfig hopper_backward_config(const ConfigKey& key) {
  return {key[0], key[1], key[2] != 0, key[3] != 0,  key[4] != 0,  key[5] != 0,  key[6] != 0, key[7],
          key[8], key[9], key[10],     key[11] != 0, key[12] != 0, key[13] != 0, key[14] != 0};
}

KernelRequest hopper_backward_request(const char* file, const char* kernel, const HopperBackwardConfig& c,
                                      const Architecture& architecture) {
  KernelRequest request;
  request.entry_file = file;
  request.config_text = message(
      "#include \"attention/hopper_backward_config.h\"\nnamespace warploom {\ninline constexpr HopperBackwardConfig "
      "kConfig = {",
      ".head_dim = ", c.head_dim, ", .value_dim = ", c.value_dim, ", .bfloat16 = ", truth(c.bfloat16),
      ", .softmax = ", truth(c.softmax), ", .softcap = ", truth(c.softcap),
      ", .interval_mask = ", truth(c.interval_mask), ", .accumulate_dq = ", truth(c.accumulate_dq),
      ", .consumers = ", c.consumers, ", .key_rows = ", c.key_rows, ", .query_rows = ", c.query_rows,
      ", .stages = ", c.stages, ", .scaled_key = ", truth(c.scaled_key), ", .splits_scores = ", truth(c.splits_scores),
      ", .dense_bias = ", truth(c.dense_bias), ", .bias_gradient = ", truth(c.bias_gradient),
      "};\n}  // namespace warploom\n");
  request.kernel_name = kernel;
  request.architecture = architecture;
  return request;
}

HopperBackwardConfig hopper_backward_config_of(const warploom_attention& call) {
  HopperBackwardConfig config;
  config.head_dim = static_cast<int>(call.head_dim);
  config.value_dim = static_cast<int>(call.value_dim);
  config.bfloat16 = call.dtype == WARPLOOM_BFLOAT16;
  config.softmax = call.op == WARPLOOM_SOFTMAX;
  config.softcap = config.softmax && call.softcap != 0;
  config.interval_mask = has_interval_mask(call);
  config.scaled_key = bfloat16_carries_half_alpha(call);
  config.splits_scores = call.divisor_rows == nullptr;
  config.dense_bias = call.bias.kind == WARPLOOM_DENSE_BIAS;
  config.bias_gradient = bias_gradient_by(call) == BiasGradientBy::main_kernel;
  return config;
}

Status start_hopper_backward(const warploom_attention& call, const Driver* cuda, const BackwardParams& common,
                             int query_rows, int key_rows, PlannedLaunch& launch) {
  HopperBackwardParams& params = launch.start_params<HopperBackwardParams>();
  params.backward = common;
  struct Map {
    const char* name;
    TensorMapShape shape;
    const warploom_tensor& tensor;
    ptx::TensorMap& target;
  };
  for (const Map& map : {Map{"q", query_map(call, call.q, call.head_dim, query_rows), call.q, params.query},
                         Map{"dout", query_map(call, call.dout, call.value_dim, query_rows), call.dout, params.dout},
                         Map{"k", key_map(call, call.k, call.head_dim, key_rows), call.k, params.key},
                         Map{"v", key_map(call, call.v, call.value_dim, key_rows), call.v, params.value}}) {
    if (Status status = encode_map(cuda, map.name, map.shape, map.tensor, map.target); !status.ok()) return status;
  }
  if (call.bias.kind != WARPLOOM_DENSE_BIAS) return {};
  if (Status status = encode_map(cuda, "bias", bias_map(call, query_rows), bias_tensor(call.bias), params.bias);
      !status.ok()) {
    return status;
  }
  if (bias_gradient_by(call) != BiasGradientBy::main_kernel) return {};
  return encode_map(cuda, "bias gradient", bias_gradient_map(call, query_rows), bias_gradient_tensor(call.bias),
                    params.bias_gradient);
}

geometry::Schedule key_schedule(const warploom_attention& call, int key_rows, const DeviceInfo& device) {
  constexpr double kShareOfL2 = 0.32;
  geometry::Schedule schedule = schedule_of(call, longest_keys(call), key_rows, /*ctas_of_sm=*/1, device);
  schedule.heads = static_cast<int>(call.key_heads);
  schedule.first_to_last = true;
  const int pairs = static_cast<int>(call.batch) * schedule.heads;  // rows that are nobody's make no work
  // Of q and dout 2 bytes an element, of dQ's sums 4.
  const double bytes = static_cast<double>(call.total_q * call.heads * (6 * call.head_dim + 2 * call.value_dim));
  const double in_l2 = kShareOfL2 * device.l2_bytes / std::max(1.0, bytes / std::max(1, pairs));
  // Fewer than two items a CTA in a group, or a smaller last group, leave CTAs without work at the end, where long
  // items have begun late: a third of the time at worst.
  const double to_share = 2.0 * device.sm_count / std::max(1, schedule.query_tiles);
  const double groups = std::max(1.0, std::round(pairs / std::max(in_l2, to_share)));
  schedule.pairs_in_group = std::max(1, static_cast<int>(std::ceil(pairs / groups)));
  return schedule;
}

void place_scratch(const warploom_attention& call, std::size_t sums_bytes, GpuPlan& plan) {
  plan.cleared_bytes = sums_bytes + kCounterBytes;
  plan.scratch_bytes = plan.cleared_bytes + row_terms_bytes(call);
  plan.bind_scratch = bind;
}

bool hopper_backward_serves(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda) {
  if (device.major != 9 || (cuda != nullptr && cuda->cuTensorMapEncodeTiled == nullptr)) return false;
  if (call.pass != WARPLOOM_BACKWARD || !serves_bias(call)) return false;
  if (takes_two_kernels(call) && !two_kernels_serve(call)) return false;
  if (call.op == WARPLOOM_SOFTMAX &&
      std::fabs(effective_alpha(call)) * static_cast<double>(call.head_dim) > kMaxExponentScale) {
    return false;
  }
  constexpr int kAnyRows = geometry::kPanelColumns;
  return is_mappable(query_map(call, call.q, call.head_dim, kAnyRows), call.q) &&
         is_mappable(query_map(call, call.dout, call.value_dim, kAnyRows), call.dout) &&
         is_mappable(key_map(call, call.k, call.head_dim, kAnyRows), call.k) &&
         is_mappable(key_map(call, call.v, call.value_dim, kAnyRows), call.v);
}

Status plan_hopper_backward(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda,
                            GpuPlan& plan) {
  const HopperBackwardConfig config = choose_hopper_backward_config(hopper_backward_config_of(call));
  BackwardParams common = backward_params(call);
  if (Status status = fill_bias_gradient(call, device, common); !status.ok()) return status;
  if (config.softmax) {
    if (Status status = add_row_terms(call, common, plan); !status.ok()) return status;
  }
  if (bias_gradient_by(call) == BiasGradientBy::sums) {
    if (Status status = add_bias_sums(call, device, common, plan); !status.ok()) return status;
  }
  // Where the kernel writes the bias's gradient, dS has that one's factor already; a factor of 0 leaves all of them 0.
  if (config.bias_gradient && common.bias_factor != 0) common.score_factor /= common.bias_factor;
  PlannedLaunch& launch = plan.add_launch(kHopperBackward, hopper_backward_key(config));
  launch.threads = (config.consumers + 1) * 128;
  launch.shared_bytes = shared_map(config).bytes;
  if (Status status = start_hopper_backward(call, cuda, common, config.query_rows, config.key_rows, launch);
      !status.ok()) {
    return status;
  }
  geometry::Schedule& schedule = launch.params_as<HopperBackwardParams>().backward.call.schedule;
  schedule = key_schedule(call, config.key_rows, device);
  if (Status status = check_grid(schedule.items(), config.key_rows); !status.ok()) return status;
  launch.ctas = std::min<long long>(schedule.items(), device.sm_count);
  place_scratch(call, dq_sums_bytes(call, config.query_rows), plan);
  plan.describe = describe_plan;
  BackwardParams of_sums = common;
  if (config.scaled_key) of_sums.score_factor /= 0.5f * common.call.alpha;  // K has carried it into them
  return add_dq_sums(call, of_sums, device, /*vector_reduction=*/true, config.query_rows, plan);
}

}  // namespace warploom::gpu
