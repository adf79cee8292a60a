#include "gpu/hopper_backward_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
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

/// Narrow heads where float16 with its exponents takes registers too, as a softcap does where dQ is left to another
/// kernel, or a bias's tiles shared memory.
constexpr Tile kRoomyNarrowTile = {64, 2, 128, 64, 4};

/// The same where those are of float32.
constexpr Tile kFloat32BiasTile = {64, 2, 128, 64, 2};

/// Of a CTA on Hopper.
constexpr int kMostSharedBytes = 227 * 1024;

const Tile& tile_of(const HopperBackwardConfig& config) {
  const int wider = std::max(config.head_dim, config.value_dim);
  if (config.bias_float32 && wider <= kFloat32BiasTile.max_dim) return kFloat32BiasTile;
  const bool lacks_room =
      !config.bfloat16 || config.stored_bias || config.table_bias || (config.softcap && !config.accumulate_dq);
  if (lacks_room && wider <= kRoomyNarrowTile.max_dim) return kRoomyNarrowTile;
  return *std::find_if(kTiles.begin(), kTiles.end(), [&](const Tile& tile) { return wider <= tile.max_dim; });
}

/// Biases whose rows no tensor map describes: they begin anywhere, or are packed. And those whose gradient is stored
/// from registers: it lies like that, or is of float16 or float32.
constexpr bool kTakesBiasRows = true, kTakesGradientRows = true;
/// Bucketed ones, and the gradients of their tables.
constexpr bool kTakesTables = true;

bool has_stored_bias(const warploom_attention& call) {
  return call.bias.kind == WARPLOOM_DENSE_BIAS || call.bias.kind == WARPLOOM_PACKED_BIAS;
}
/// Tiles by TMA are of q's type.
bool may_have_maps(const warploom_attention& call) {
  return call.bias.kind == WARPLOOM_DENSE_BIAS && call.bias.dtype == call.dtype;
}
bool has_bias_map(const warploom_attention& call) {
  return may_have_maps(call) && is_mappable(bias_map(call, geometry::kPanelColumns), bias_tensor(call.bias));
}
/// TMA stores whole 16 bytes, also at the end of a row.
bool has_gradient_map(const warploom_attention& call) {
  return may_have_maps(call) && bias_gradient_columns(call) % geometry::kChunkValues == 0 &&
         is_mappable(bias_gradient_map(call, geometry::kPanelColumns), bias_gradient_tensor(call.bias));
}

/// Whether products of bfloat16 with it are exact: a power of two, far from the ends of the format's range.
bool bfloat16_carries(float factor) {
  int exponent = 0;
  return std::fabs(std::frexp(factor, &exponent)) == 0.5f && std::abs(exponent) <= 32;
}

/// Default buckets only: of others several may lie in a cell (attention/bias_time_cells.h). (float16 with its
/// exponents, a softcap, and softmax of wide heads would spill.)
bool serves_tables(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  const bool is_wide = std::max(call.head_dim, call.value_dim) > 64, softmax = call.op == WARPLOOM_SOFTMAX;
  return kTakesTables && std::max(call.head_dim, call.value_dim) <= kMaxOnePassDim && call.dtype == WARPLOOM_BFLOAT16 &&
         !(softmax && (is_wide || call.softcap != 0)) && call.heads == call.key_heads &&
         (call.flags & WARPLOOM_DETERMINISTIC) == 0 &&
         (bias.time == nullptr || (bias.num_times <= kMostTimes && bias.time_bucket == nullptr));
}

/// Softmax in bfloat16 of wide heads, with rows of a bias and of its gradient, or with the former beside intervals.
bool would_spill(const HopperBackwardConfig& c) {
  return c.softmax && c.bfloat16 && std::max(c.head_dim, c.value_dim) > 64 && c.bias_rows &&
         (c.gradient_rows || (c.bias_gradient && c.interval_mask));
}

/// Whether the kernel can add the call's bias and write its gradient. (A softcap beside it would spill.)
bool serves_bias(const warploom_attention& call) {
  if (call.bias.kind == WARPLOOM_NO_BIAS) return true;
  if (call.bias.kind == WARPLOOM_BUCKETED_BIAS) return serves_tables(call);
  if (!has_stored_bias(call) || (call.op == WARPLOOM_SOFTMAX && call.softcap != 0)) return false;
  const HopperBackwardConfig config = hopper_backward_config_of(call);
  if (would_spill(config)) return false;
  return (kTakesBiasRows || !config.bias_rows) && (kTakesGradientRows || !config.gradient_rows) &&
         shared_map(choose_hopper_backward_config(config)).bytes <= kMostSharedBytes;
}

int strips_of(const ConfigKey& key) {
  return trace_strips(hopper_backward_config(key));
}

void attach_trace(PlannedLaunch& launch, trace::Level level, const trace::Sheet& sheet) {
  HopperBackwardConfig config = hopper_backward_config(launch.config);
  config.trace = level;
  launch.config = hopper_backward_key(config);
  launch.params_as<HopperBackwardParams>().sheet = sheet;
}

constexpr TraceHooks kTraceHooks = {"backward", strips_of, attach_trace};

constexpr std::size_t kCounterBytes = 256;  // at most four counters a main kernel; what follows stays aligned

/// What becomes of dQ's sums beside the products (hopper_backward_sums.h), and not before and after them.
constexpr bool kClearsSums = true;
constexpr bool kConvertsSums = true;
/// Whether deterministic calls add to them in order (hopper_backward_order.h); else two kernels take them.
constexpr bool kOrdersSums = true;
/// Wider heads are as fast in two kernels.
constexpr int kMostOrderedDim = 64;

KernelRequest request_of(const ConfigKey& key, const Architecture& architecture) {
  return hopper_backward_request("attention/attention_backward_hopper.cu", "attention_backward_hopper",
                                 hopper_backward_config(key), architecture);
}

KernelVariant variant_of(const ConfigKey& key) {
  const HopperBackwardConfig c = hopper_backward_config(key);
  const std::string bias = std::string(c.stored_bias ? " bias" : "") + (c.bias_float32 ? " float32" : "") +
                           (c.bias_rows ? " by rows" : "") + (c.bias_gradient ? " with gradient" : "") +
                           (c.gradient_rows ? " by rows" : "") + (c.table_bias ? " bucketed bias" : "") +
                           (c.table_gradients ? " with gradients" : "");
  const char* const traced = c.trace != trace::Level::off ? " traced" : "";
  return backward_variant_of(kHopperBackward, key,
                             score_name(c.softmax, c.softcap) + " backward hopper" + bias + traced, c.head_dim,
                             c.value_dim, c.bfloat16, c.interval_mask);
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
      for (const int bits : {0, 1, 2, 4}) {
        HopperBackwardConfig ordered = plain;
        ordered.orders_sums = true;
        ordered.scaled_key = bits == 1;
        ordered.splits_scores = bits == 2;
        ordered.softcap = bits == 4;
        if (softmax ? !ordered.scaled_key : !ordered.softcap) add(ordered);
      }
      for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}) {
        HopperBackwardConfig other = plain;
        other.accumulate_dq = (bits & 8) == 0;  // deterministic calls' dK and dV
        other.bfloat16 = (bits & 1) == 0;
        other.interval_mask = (bits & 2) != 0;
        other.softcap = (bits & 4) != 0;
        if (!other.softcap || softmax) add(other);
      }
      // TMA's tiles of R, then its rows, with a gradient of either kind; float16; float32 beside either.
      for (const int bits : {0, 1, 2, 3, 4, 6, 8, 9, 10, 12, 14, 24, 26, 48, 49, 56, 58, 88, 89, 90, 120, 121}) {
        HopperBackwardConfig biased = plain;
        biased.bias_rows = (bits & 8) != 0;
        biased.gradient_rows = (bits & 16) != 0 && (bits & 1) == 0;
        biased.bfloat16 = (bits & 32) == 0;
        biased.bias_float32 = (bits & 64) != 0;
        if (biased.bias_float32 && dim > kFloat32BiasTile.max_dim) continue;
        biased.stored_bias = true;
        biased.bias_gradient = (bits & 1) == 0;
        biased.interval_mask = (bits & 2) != 0;
        if (would_spill(biased)) continue;
        biased.scaled_key = (bits & 4) != 0;
        if (biased.scaled_key && softmax) continue;
        biased.scaled_value = biased.scaled_key && biased.bias_gradient && !biased.gradient_rows && biased.bfloat16;
        add(biased);
        biased.splits_scores = true;
        if (choose_hopper_backward_config(biased).splits_scores) add(biased);
      }
      // Tables, with the gradients that take more registers; what is only read once.
      for (const int bits : {0, 2, 4, 5}) {
        HopperBackwardConfig tables = plain;
        tables.table_bias = tables.splits_scores = true;
        tables.table_gradients = (bits & 1) == 0;
        tables.interval_mask = (bits & 2) != 0;
        tables.scaled_key = (bits & 4) != 0;
        if (dim == end_of_row && !(softmax && (dim > 64 || tables.scaled_key))) add(tables);
      }
    }
  }
  return result;
}

/// Tiles of dQ's sums, each of one head.
long long sum_tiles(const warploom_attention& call, int query_rows) {
  return dq_tiles(call.total_q, static_cast<int>(call.batch), query_rows) * call.heads;
}

bool is_around(const PlannedLaunch& launch) {
  return launch.family == &kBackwardRowTerms || launch.family == &kBackwardDqSums ||
         launch.family == &kMmaBackwardBias || launch.family == &kBackwardTableTotals;
}

/// Places in scratch memory become addresses.
void bind(GpuPlan& plan, DevicePointer scratch) {
  const auto place = [scratch]<typename T>(T*& offset) {
    offset = reinterpret_cast<T*>(scratch + reinterpret_cast<DevicePointer>(offset));
  };
  for (int n = 0; n < plan.launch_count; ++n) {
    PlannedLaunch& launch = plan.launches[static_cast<std::size_t>(n)];
    BackwardParams& params =
        is_around(launch) ? launch.params_as<BackwardParams>() : launch.params_as<HopperBackwardParams>().backward;
    place(params.dq_sums);
    place(params.row_terms);
    place(params.bias_sums.totals);
    if (is_around(launch)) continue;
    HopperBackwardParams& main = launch.params_as<HopperBackwardParams>();
    place(main.counters);
    place(main.sums.cleared);
    place(main.sums.done);
  }
}

/// Whether a kernel that can make dQ of its sums does so. Among sequences of many lengths narrow heads lost 8 % by it.
bool converts_in_kernel(const warploom_attention& call, const HopperBackwardConfig& config) {
  const bool is_jagged = call.total_q < call.batch * effective_max_seqlen_q(call);
  return config.converts_sums && (!is_jagged || std::max(config.head_dim, config.value_dim) > kTiles[0].max_dim);
}

/// What the kernel is told of dQ's sums beside its products. factor: what they lack.
Status fill_sums(const warploom_attention& call, const DeviceInfo& device, const HopperBackwardConfig& config,
                 float factor, HopperBackwardParams& params) {
  SumsProgress& sums = params.sums;
  const geometry::Schedule& keys = params.backward.call.schedule;
  const long long tiles = sum_tiles(call, config.query_rows);
  const long long pairs = std::max(1LL, static_cast<long long>(call.batch * call.key_heads));
  sums.tiles = static_cast<unsigned>(tiles);
  // As many as the next group of pairs has.
  sums.ahead = static_cast<unsigned>(std::min(tiles, tiles * keys.pairs_in_group / pairs + 1));
  sums.factor = factor;
  if (!converts_in_kernel(call, config)) return check_grid(tiles, config.query_rows);
  sums.queries = schedule_of(call, effective_max_seqlen_q(call), config.query_rows, /*ctas_of_sm=*/1, device);
  sums.queries.pairs_in_group =
      static_cast<int>(std::min<long long>(static_cast<long long>(keys.pairs_in_group) * call.heads / call.key_heads,
                                           static_cast<long long>(sums.queries.sequences) * sums.queries.heads));
  sums.queries.first_to_last = true;
  return check_grid(std::max(tiles, sums.queries.items()), config.query_rows);
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
                    {"bias", c.table_bias     ? "tables"
                             : !c.stored_bias ? "none"
                             : c.bias_rows    ? "row by row"
                                              : "tiles"},
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
  json["dq"] = message(
      "added in float32 in memory, one tile late", c.orders_sums ? ", in the order of the keys" : "", "; sums cleared ",
      c.clears_sums ? "ahead of the items that add to them" : "before", ", converted ",
      main->params_as<HopperBackwardParams>().sums.queries.items() > 0 ? "behind these" : "by a kernel of its own");
  if (c.stored_bias || c.table_bias) json["bias_gradient"] = bias_gradient_text(bias_gradient_by(call));
  json["limiter"] = {
      {"name", "score function beside the tensor core"},
      {"why", message("a step of a consumer is 64 x ", c.query_rows, " scores: ", c.query_rows / 2,
                      " a thread, each one special function and about nine more instructions, beside ",
                      2 * (3 * call.head_dim + 2 * call.value_dim), " FLOPs a score on the tensor core")}};
  json["why"] = message("the tile table's row for heads up to ", tile_of(c).max_dim, " on ", device.name,
                        ": wgmma and TMA; GPUs before or after Hopper, tensors that a tensor map cannot describe and "
                        "some calls with a bias take mma.sync");
}

}  // namespace

const KernelFamily kHopperBackward = {"attention_backward (wgmma, TMA)",
                                      "kernels/attention/attention_backward_hopper.cu",
                                      request_of,
                                      variants_of,
                                      variant_of,
                                      &kTraceHooks};

HopperBackwardConfig choose_hopper_backward_config(const HopperBackwardConfig& wanted) {
  HopperBackwardConfig config = wanted;
  const Tile& tile = tile_of(config);
  config.consumers = tile.consumers;
  config.key_rows = tile.key_rows;
  config.query_rows = tile.query_rows;
  config.stages = tile.stages;
  // Beside a bias wide heads have no registers for it.
  const bool has_bias = wanted.stored_bias || wanted.table_bias;
  const bool has_registers = !has_bias || std::max(wanted.head_dim, wanted.value_dim) <= 64;
  config.splits_scores = wanted.splits_scores && wanted.bfloat16 && !wanted.softcap && !wanted.interval_mask &&
                         has_registers && wanted.accumulate_dq && tile.query_rows == 64 && !wanted.orders_sums;
  // The gradient of a dense bias is written by the warp that would clear, and takes the memory's time; tables are laid
  // out by that warp.
  config.clears_sums = kClearsSums && wanted.accumulate_dq && !has_bias;
  config.orders_sums = wanted.orders_sums && config.clears_sums;
  // Softmax's softcap in float16 has no registers for it.
  config.converts_sums =
      kConvertsSums && config.clears_sums && !config.orders_sums && (config.bfloat16 || !config.softcap);
  return config;
}

ConfigKey hopper_backward_key(const HopperBackwardConfig& c) {
  return {c.head_dim,
          c.value_dim,
          c.bfloat16,
          c.softmax,
          c.softcap,
          c.interval_mask,
          c.accumulate_dq,
          c.consumers,
          c.key_rows,
          c.query_rows,
          c.stages,
          c.scaled_key,
          c.splits_scores,
          c.stored_bias,
          c.bias_gradient,
          c.bias_float32,
          c.bias_rows,
          c.gradient_rows,
          static_cast<int>(c.trace),
          c.clears_sums,
          c.converts_sums,
          c.table_bias,
          c.table_gradients,
          c.scaled_value,
          c.orders_sums,
          c.experiment};
}

HopperBackwardConfig hopper_backward_config(const ConfigKey& key) {
  return {key[0],
          key[1],
          key[2] != 0,
          key[3] != 0,
          key[4] != 0,
          key[5] != 0,
          key[6] != 0,
          key[7],
          key[8],
          key[9],
          key[10],
          key[11] != 0,
          key[12] != 0,
          key[13] != 0,
          key[14] != 0,
          key[15] != 0,
          key[16] != 0,
          key[17] != 0,
          static_cast<trace::Level>(key[18]),
          key[19] != 0,
          key[20] != 0,
          key[21] != 0,
          key[22] != 0,
          key[23] != 0,
          key[24] != 0,
          key[25]};
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
      ", .stored_bias = ", truth(c.stored_bias), ", .bias_gradient = ", truth(c.bias_gradient),
      ", .bias_float32 = ", truth(c.bias_float32), ", .bias_rows = ", truth(c.bias_rows),
      ", .gradient_rows = ", truth(c.gradient_rows), ", .trace = trace::Level{", static_cast<int>(c.trace),
      "}, .clears_sums = ", truth(c.clears_sums), ", .converts_sums = ", truth(c.converts_sums),
      ", .table_bias = ", truth(c.table_bias), ", .table_gradients = ", truth(c.table_gradients),
      ", .scaled_value = ", truth(c.scaled_value), ", .orders_sums = ", truth(c.orders_sums), ", .experiment = ", c.experiment, "};\n}  // namespace warploom\n");
  request.kernel_name = kernel;
  request.architecture = architecture;
  return request;
}

bool orders_sums(const warploom_attention& call) {
  return kOrdersSums && kClearsSums && (call.flags & WARPLOOM_DETERMINISTIC) != 0 &&
         std::max(call.head_dim, call.value_dim) <= (std::getenv("WARPLOOM_ORD") ? std::atoi(std::getenv("WARPLOOM_ORD")) : kMostOrderedDim) && call.dtype == WARPLOOM_BFLOAT16 &&
         call.bias.kind == WARPLOOM_NO_BIAS && !has_interval_mask(call) && !has_score_function(call);
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
  config.stored_bias = has_stored_bias(call);
  config.table_bias = call.bias.kind == WARPLOOM_BUCKETED_BIAS;
  config.table_gradients = bias_gradient_by(call) == BiasGradientBy::totals;
  config.bias_gradient = bias_gradient_by(call) == BiasGradientBy::main_kernel;
  config.bias_float32 = config.stored_bias && call.bias.dtype == WARPLOOM_FLOAT32;
  config.bias_rows = config.stored_bias && !has_bias_map(call);
  config.orders_sums = orders_sums(call);
  if (const char* x = std::getenv("WARPLOOM_X")) config.experiment = std::atoi(x);
  config.gradient_rows = config.stored_bias && config.bias_gradient && !(config.bfloat16 && has_gradient_map(call));
  config.scaled_value = config.bias_gradient && !config.gradient_rows && !config.softmax && config.bfloat16 &&
                        bfloat16_carries(bias_gradient_factor(call, backward_params(call).call.bias));
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
  if (!has_stored_bias(call)) {
    if (call.head_dim > 64 || call.value_dim > 64) return {};
    if (Status status = encode_map(cuda, "dk", key_map(call, call.dk, call.head_dim, 64), call.dk, params.bias); !status.ok()) return status;
    return encode_map(cuda, "dv", key_map(call, call.dv, call.value_dim, 64), call.dv, params.bias_gradient);
  }
  if (has_bias_map(call)) {
    if (Status status = encode_map(cuda, "bias", bias_map(call, query_rows), bias_tensor(call.bias), params.bias);
        !status.ok()) {
      return status;
    }
  }
  if (bias_gradient_by(call) != BiasGradientBy::main_kernel || !has_gradient_map(call)) return {};
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
  double to_share = (std::getenv("WARPLOOM_SHARE") ? std::atof(std::getenv("WARPLOOM_SHARE")) : 2.0) * device.sm_count / std::max(1, schedule.query_tiles);
  if (const char* x = std::getenv("WARPLOOM_DEPTH"); x && orders_sums(call)) to_share = std::max(to_share, device.sm_count / std::atof(x));
  const double groups = std::max(1.0, std::round(pairs / std::max(in_l2, to_share)));
  schedule.pairs_in_group = std::max(1, static_cast<int>(std::ceil(pairs / groups)));
  return schedule;
}

void place_scratch(const warploom_attention& call, const ScratchUse& use, GpuPlan& plan) {
  const std::size_t integer = sizeof(unsigned), cleared = kCounterBytes;
  const std::size_t done =
      cleared + (use.clears ? static_cast<std::size_t>(sum_tiles(call, use.query_rows)) : 0) * integer;
  const std::size_t done_end =
      done + (use.converts ? static_cast<std::size_t>(call.batch * call.key_heads) : 0) * integer;
  const auto aligned = [](std::size_t bytes) { return (bytes + kCounterBytes - 1) / kCounterBytes * kCounterBytes; };
  const std::size_t totals = aligned(done_end);
  const std::size_t sums = aligned(totals + use.totals);
  const std::size_t terms = sums + (use.query_rows > 0 ? dq_sums_bytes(call, use.query_rows) : 0);
  plan.cleared_bytes = use.clears ? sums : terms;
  plan.scratch_bytes = terms + row_terms_bytes(call);
  plan.bind_scratch = bind;
  std::size_t counters = 0;
  for (int n = 0; n < plan.launch_count; ++n) {
    PlannedLaunch& launch = plan.launches[static_cast<std::size_t>(n)];
    BackwardParams& params =
        is_around(launch) ? launch.params_as<BackwardParams>() : launch.params_as<HopperBackwardParams>().backward;
    params.dq_sums = reinterpret_cast<float*>(sums);
    params.row_terms = reinterpret_cast<SoftmaxRowTerms*>(terms);
    params.bias_sums.totals = reinterpret_cast<float*>(totals);
    if (is_around(launch)) continue;
    HopperBackwardParams& main = launch.params_as<HopperBackwardParams>();
    main.counters = reinterpret_cast<unsigned*>(counters);
    main.sums.cleared = reinterpret_cast<unsigned*>(cleared);
    main.sums.done = reinterpret_cast<unsigned*>(done);
    counters += 2 * integer;
  }
}

bool hopper_backward_serves(const warploom_attention& call, const DeviceInfo& device, const Driver* cuda) {
  if (device.major != 9 || (cuda != nullptr && cuda->cuTensorMapEncodeTiled == nullptr)) return false;
  if (call.pass != WARPLOOM_BACKWARD || !serves_bias(call) || has_score_function(call)) return false;
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
  const bool stores_tiles = config.bias_gradient && !config.gradient_rows;
  if (stores_tiles) common.bias_gradient.num_columns = bias_gradient_columns(call);
  if (config.softmax) {
    if (Status status = add_row_terms(call, common, plan); !status.ok()) return status;
  }
  if (bias_gradient_by(call) == BiasGradientBy::sums) {
    if (Status status = add_bias_sums(call, device, common, plan); !status.ok()) return status;
  }
  // Where the gradient's tiles are dS's, dS has the gradient's factor already; a factor of 0 leaves all of them 0.
  if (stores_tiles && common.bias_factor != 0) common.score_factor /= common.bias_factor;
  PlannedLaunch& launch = plan.add_launch(kHopperBackward, hopper_backward_key(config));
  launch.threads = (config.consumers + 1) * 128;
  launch.shared_bytes = shared_map(config).bytes;
  // It waits for the row terms, and only for them: HSTU's follows what it does not wait for.
  launch.overlaps_previous = kOverlapsLaunches && config.softmax && call.total_q > 0;
  if (Status status = start_hopper_backward(call, cuda, common, config.query_rows, config.key_rows, launch);
      !status.ok()) {
    return status;
  }
  geometry::Schedule& schedule = launch.params_as<HopperBackwardParams>().backward.call.schedule;
  schedule = key_schedule(call, config.key_rows, device);
  if (Status status = check_grid(schedule.items(), config.key_rows); !status.ok()) return status;
  launch.ctas = std::min<long long>(schedule.items(), device.sm_count);
  plan.describe = describe_plan;
  BackwardParams of_sums = common;
  if (config.scaled_key) of_sums.score_factor /= 0.5f * common.call.alpha;  // K has carried it into them
  if (config.clears_sums) {
    Status status = fill_sums(call, device, config, of_sums.score_factor, launch.params_as<HopperBackwardParams>());
    if (!status.ok()) return status;
  }
  if (!converts_in_kernel(call, config)) {
    Status status = add_dq_sums(call, of_sums, device, /*vector_reduction=*/true, config.query_rows, plan);
    if (!status.ok()) return status;
    plan.launches[static_cast<std::size_t>(plan.launch_count - 1)].overlaps_previous = kOverlapsLaunches;
  }
  if (config.table_gradients) {
    if (Status status = add_bias_sums(call, device, common, plan); !status.ok()) return status;
  }
  const std::size_t totals = config.table_gradients ? table_totals_bytes(common) : 0;
  place_scratch(call, {config.query_rows, config.clears_sums, config.converts_sums, totals}, plan);
  return {};
}

}  // namespace warploom::gpu
