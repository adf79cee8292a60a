#include "gpu/gemm_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "gpu/reference_device.h"
#include "gpu/tensor_map.h"
#include "problem/gemm.h"
#include "problem/message.h"

namespace warploom::gpu {
namespace {

constexpr GemmType k8 = GemmType::float8_e4m3;
/// The tiles that were measured to be worth having (docs/gemm.md). Without the staging of D where it cannot be.
constexpr std::array<GemmConfig, 16> kTable = {{
    {.tile_rows = 8, .tile_columns = 16, .stages = 8, .consumers = 2, .staging_panels = 0, .few_rows = true},
    {.tile_rows = 16, .tile_columns = 16, .stages = 4, .consumers = 2, .staging_panels = 0, .few_rows = true},
    {.tile_rows = 64,
     .tile_columns = 32,
     .stages = 8,
     .consumers = 1,
     .multicast = 2,
     .staging_panels = 0,
     .panels = 2,
     .shares_a = true},
    {.tile_rows = 128, .tile_columns = 256, .stages = 3, .multicast = 2, .staging_panels = 4},
    {.tile_rows = 128, .tile_columns = 256, .stages = 3, .staging_panels = 4},
    {.tile_rows = 128, .tile_columns = 128, .stages = 5, .ping_pong = true, .multicast = 2, .staging_panels = 2},
    {.tile_rows = 128, .tile_columns = 128, .stages = 5, .ping_pong = true, .staging_panels = 2},
    {.tile_rows = 64, .tile_columns = 64, .stages = 8, .consumers = 1, .split = 2, .staging_panels = 0},
    {.tile_rows = 128, .tile_columns = 64, .stages = 8, .split = 2, .staging_panels = 0},
    {.tile_rows = 128, .tile_columns = 64, .stages = 8, .multicast = 2, .staging_panels = 0},
    {.tile_rows = 128, .tile_columns = 128, .stages = 6, .split = 2, .staging_panels = 0},
    // 8-bit operands: sums of the slots before take as many registers as the accumulators.
    {.input = k8, .tile_rows = 128, .tile_columns = 192, .stages = 4, .multicast = 2, .staging_panels = 3},
    {.input = k8, .tile_rows = 128, .tile_columns = 192, .stages = 4, .staging_panels = 3},
    {.input = k8, .tile_rows = 128, .tile_columns = 128, .stages = 5, .multicast = 2, .staging_panels = 2},
    {.input = k8, .tile_rows = 128, .tile_columns = 128, .stages = 5, .staging_panels = 2},
    {.input = k8, .tile_rows = 128, .tile_columns = 64, .stages = 8, .split = 2, .staging_panels = 0},
}};

/// Whether calls choose the kernel for few rows, and clusters that share A.
constexpr bool kServesFewRows = true, kSharesA = true;

// The model's rates, an H200's. Tensor core and L2 are those of an SM.
constexpr double kBytesMultipliedPerClock = 4096;  // multiply-adds times the bytes of a value
constexpr double kL2BytesPerClock = 64;            // an SM's load path; large products were seen to take 48
constexpr double kMemoryBytesPerClock = 2400;      // of the whole GPU: 4.3 TB/s at 1.75 GHz
constexpr double kNarrowFactor = 1.12;             // 128 columns a wgmma: more reads of A for each product
constexpr double kStartCycles = 3000;              // launch, barriers, first loads
constexpr double kStartCyclesOfFewRows = 1500;     // no tensor map, no barrier
constexpr double kSumCycles = 3000;                // adding up over a cluster
constexpr double kStoreCyclesPerValue = 8;         // of a thread's accumulators, plain
constexpr double kDirectCyclesPerValue = 16;
constexpr double kSiluCyclesPerValue = 32;
constexpr double kEpilogueCycles = 500;
/// Row tiles that CTAs work on side by side (gemm/gemm_config.h).
constexpr int kBandTiles = 16;

int64_t rounded_up(int64_t value, int64_t step) {
  return (value + step - 1) / step;
}

/// Of a 16-bit C or D.
bool aligned(const warploom_matrix& m, int64_t rows, int64_t batch) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && (rows <= 1 || m.row_stride % 8 == 0) &&
         (batch <= 1 || m.batch_stride % 8 == 0);
}

/// Whether D can leave by TMA, and C come by it.
bool can_stage(const warploom_gemm& call) {
  return call.out_dtype != WARPLOOM_FLOAT32 && call.columns % 8 == 0 && aligned(call.out, call.rows, call.batch) &&
         (call.c.data == nullptr || (aligned(call.c, call.rows, call.batch) && call.c.batch_stride >= 0 &&
                                     (call.batch == 1 || call.c.batch_stride > 0)));
}

GemmType type_of(uint32_t dtype) {
  switch (dtype) {
    case WARPLOOM_FLOAT32:
      return GemmType::float32;
    case WARPLOOM_FLOAT16:
      return GemmType::float16;
    case WARPLOOM_FLOAT8_E4M3:
      return GemmType::float8_e4m3;
    default:
      return GemmType::bfloat16;
  }
}

/// Slots of K; one of zeros for an empty K.
int64_t steps_of(const warploom_gemm& call, const GemmConfig& config) {
  return std::max<int64_t>(1, rounded_up(call.depth, gemm_depth(config)));
}

GemmCandidate judged(const GemmConfig& config, const warploom_gemm& call, const DeviceInfo& device) {
  GemmCandidate result;
  result.config = config;
  const int cluster = gemm_cluster(config);
  const int64_t steps = rounded_up(steps_of(call, config), config.split);
  result.tiles = rounded_up(call.rows, config.tile_rows * gemm_cluster_rows(config)) *
                 rounded_up(call.columns, config.tile_columns * gemm_cluster_columns(config)) * call.batch;
  const int at_once = config.few_rows ? few_rows_at_once(config) * device.sm_count : device.sm_count / cluster;
  result.waves = rounded_up(result.tiles, std::max(1, at_once));

  // A slot holds as many bytes whatever the type.
  const double slot_row_bytes = config.panels * geometry::kPanelRowBytes;
  const double products = static_cast<double>(config.tile_rows) * config.tile_columns * slot_row_bytes;
  const double tensor = products / kBytesMultipliedPerClock * (config.tile_columns < 256 ? kNarrowFactor : 1);
  const double loaded_rows =
      gemm_loaded_rows(config, static_cast<int>(std::min<int64_t>(config.tile_rows, call.rows))) +
      gemm_loaded_columns(config);
  const double l2 = loaded_rows * slot_row_bytes / kL2BytesPerClock;
  result.limiter = tensor >= l2 ? "tensor core" : "loads from L2";
  const double main_loop = static_cast<double>(steps) * std::max(tensor, l2);
  const double values =
      config.few_rows ? 1 : gemm_consumer_rows(config) / 64.0 * config.tile_columns / 2;  // of a thread
  const double epilogue =
      kEpilogueCycles + values * ((gemm_staged(config) ? kStoreCyclesPerValue : kDirectCyclesPerValue) +
                                  (config.silu ? kSiluCyclesPerValue : 0));
  result.tile_cycles =
      config.ping_pong ? std::max(main_loop, (main_loop + epilogue) / config.consumers) : main_loop + epilogue;
  // Tiles of few rows follow one another too far apart to find B in L2.
  const double times_b = config.few_rows ? static_cast<double>(rounded_up(call.rows, config.tile_rows)) : 1;
  const double values_moved = static_cast<double>(call.rows) * static_cast<double>(call.depth) +
                              static_cast<double>(call.columns) * static_cast<double>(call.depth) * times_b;
  const double results_moved = static_cast<double>(call.rows) * static_cast<double>(call.columns) *
                               (call.c.data != nullptr ? 2 : 1) * gemm_value_bytes(call.out_dtype);
  result.memory_cycles = (values_moved * gemm_value_bytes(call.dtype) + results_moved) *
                         static_cast<double>(call.batch) / kMemoryBytesPerClock;
  result.cycles = (config.few_rows ? kStartCyclesOfFewRows : kStartCycles) +
                  std::max(static_cast<double>(result.waves) * result.tile_cycles, result.memory_cycles) +
                  (config.ping_pong ? epilogue : 0) + (config.split > 1 ? kSumCycles : 0);
  return result;
}

ConfigKey key_of(const GemmConfig& c) {
  return {static_cast<int>(c.input),
          static_cast<int>(c.output),
          c.tile_rows,
          c.tile_columns,
          c.stages,
          c.consumers,
          c.ping_pong,
          c.multicast,
          c.split,
          c.staging_panels,
          c.bias,
          c.silu,
          c.residual,
          static_cast<int>(c.trace),
          c.panels,
          c.shares_a,
          c.few_rows};
}

const char* type_name(GemmType type) {
  constexpr const char* kNames[] = {"float16", "bfloat16", "float32", "float8_e4m3"};
  return kNames[static_cast<int>(type)];
}
const char* short_name(GemmType type) {
  constexpr const char* kNames[] = {"fp16", "bf16", "fp32", "fp8"};
  return kNames[static_cast<int>(type)];
}

KernelRequest request_of(const ConfigKey& key, const Architecture& architecture) {
  const GemmConfig c = gemm_config(key);
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  KernelRequest request;
  request.entry_file = c.few_rows ? "gemm/gemm_few_rows.cu" : "gemm/gemm_sm90.cu";
  request.config_text =
      message("#include \"gemm/gemm_config.h\"\nnamespace warploom {\ninline constexpr GemmConfig kConfig = {",
              ".input = GemmType::", type_name(c.input), ", .output = GemmType::", type_name(c.output),
              ", .tile_rows = ", c.tile_rows, ", .tile_columns = ", c.tile_columns, ", .stages = ", c.stages,
              ", .consumers = ", c.consumers, ", .ping_pong = ", truth(c.ping_pong), ", .multicast = ", c.multicast,
              ", .split = ", c.split, ", .staging_panels = ", c.staging_panels, ", .bias = ", truth(c.bias),
              ", .silu = ", truth(c.silu), ", .residual = ", truth(c.residual), ", .trace = trace::Level{",
              static_cast<int>(c.trace), "}, .panels = ", c.panels, ", .shares_a = ", truth(c.shares_a),
              ", .few_rows = ", truth(c.few_rows), "};\n}  // namespace warploom\n");
  request.kernel_name = "gemm";
  request.architecture = architecture;
  return request;
}

std::string name_of(const GemmConfig& c) {
  return message(
      "gemm ", c.few_rows ? "few rows " : "", c.tile_rows, "x", c.tile_columns, c.ping_pong ? " ping-pong" : "",
      c.multicast > 1 ? message(c.shares_a ? " multicast of A " : " multicast ", c.multicast) : "",
      c.split > 1 ? message(" split ", c.split) : "", c.split == 1 && !gemm_staged(c) && !c.few_rows ? " direct" : "",
      " ", short_name(c.input), " to ", type_name(c.output), c.bias ? " bias" : "", c.silu ? " silu" : "",
      c.residual ? " residual" : "", c.trace != trace::Level::off ? " traced" : "");
}

const KernelFamily& family_of(const GemmConfig& config) {
  return config.few_rows ? kGemmFewRows : kGemm;
}

KernelVariant variant_of(const ConfigKey& key) {
  const GemmConfig config = gemm_config(key);
  return {&family_of(config), key, name_of(config), 0, config.input == GemmType::bfloat16, false};
}

template <bool FewRows>
std::vector<KernelVariant> variants_of(const DeviceInfo& device, bool whole_table) {
  std::vector<KernelVariant> result;
  if (device.major != 9) return result;
  const auto add = [&](GemmConfig config, GemmType input, GemmType output, bool direct, bool epilogue, bool residual) {
    config.input = input;
    config.output = output;
    config.bias = config.silu = epilogue;
    config.residual = residual;
    if (direct) config.staging_panels = 0;
    result.push_back(variant_of(key_of(config)));
  };
  for (const GemmConfig& row : kTable) {
    if (row.few_rows != FewRows) continue;
    for (const GemmType output : {GemmType::bfloat16, GemmType::float16}) {
      const GemmType input = row.input == k8 ? k8 : output;
      for (const bool epilogue : {false, true}) add(row, input, output, false, epilogue, false);
      if (!whole_table) continue;
      add(row, input, output, false, true, true);
      if (row.ping_pong) continue;
      if (row.staging_panels > 0) add(row, input, output, true, true, true);
      if (row.input == k8 && output == GemmType::float16) continue;  // float32 outputs are the same
      add(row, input, GemmType::float32, true, true, true);
      add(row, input, GemmType::float32, true, false, false);
    }
  }
  return result;
}

/// rows x columns, a box of a panel by box_rows.
TensorMapShape map_shape(TensorMapElement element, const warploom_matrix& matrix, int64_t batch, int64_t rows,
                         int64_t columns, int box_rows) {
  const bool batched = batch > 1 && matrix.batch_stride != 0;
  TensorMapShape shape;
  shape.element = element;
  shape.rank = 3;
  shape.dims = {static_cast<uint64_t>(std::max<int64_t>(1, columns)), static_cast<uint64_t>(rows),
                static_cast<uint64_t>(batched ? batch : 1)};
  constexpr uint64_t unused = 16;
  const auto value_bytes = static_cast<uint64_t>(bytes_of(element));
  shape.strides = {0, rows > 1 ? static_cast<uint64_t>(matrix.row_stride) * value_bytes : unused,
                   batched ? static_cast<uint64_t>(matrix.batch_stride) * value_bytes : unused};
  shape.box = {static_cast<uint32_t>(geometry::kPanelRowBytes / bytes_of(element)), static_cast<uint32_t>(box_rows), 1};
  shape.swizzle = TensorMapSwizzle::bytes_128;
  return shape;
}

int strips_of(const ConfigKey& key) {
  return gemm_strips(gemm_config(key));
}

void attach_trace(PlannedLaunch& launch, trace::Level level, const trace::Sheet& sheet) {
  GemmConfig config = gemm_config(launch.config);
  config.trace = level;
  launch.config = key_of(config);
  launch.params_as<GemmParams>().sheet = sheet;
}

constexpr TraceHooks kTraceHooks = {"product", strips_of, attach_trace};

/// What follows the sums.
void set_ends(const warploom_gemm& call, GemmEnds& ends) {
  ends.out_data = call.out.data;
  ends.residual_data = call.c.data;
  ends.bias = call.bias;
  ends.scale_a = call.scale_a;
  ends.scale_b = call.scale_b;
  ends.out_row_stride = call.out.row_stride;
  ends.out_batch_stride = call.out.batch_stride;
  ends.residual_row_stride = call.c.row_stride;
  ends.residual_batch_stride = call.c.batch_stride;
  ends.rows = static_cast<int>(call.rows);
  ends.columns = static_cast<int>(call.columns);
  ends.alpha = static_cast<float>(call.alpha);
  ends.beta = static_cast<float>(call.beta);
}

Status encode(const Driver& driver, const char* name, const TensorMapShape& shape, const void* data,
              ptx::TensorMap& map) {
  const Result<ptx::TensorMap> encoded = encode_tensor_map(driver, name, shape, reinterpret_cast<DevicePointer>(data));
  if (!encoded.ok()) return encoded.status();
  map = *encoded;
  return {};
}

}  // namespace

const KernelFamily kGemm = {"gemm (wgmma)", "kernels/gemm/gemm_sm90.cu", request_of, variants_of<false>, variant_of,
                            &kTraceHooks};
const KernelFamily kGemmFewRows = {"gemm (few rows)", "kernels/gemm/gemm_few_rows.cu", request_of, variants_of<true>,
                                   variant_of};

GemmConfig gemm_config(const ConfigKey& key) {
  GemmConfig c;
  c.input = static_cast<GemmType>(key[0]);
  c.output = static_cast<GemmType>(key[1]);
  c.tile_rows = key[2];
  c.tile_columns = key[3];
  c.stages = key[4];
  c.consumers = key[5];
  c.ping_pong = key[6] != 0;
  c.multicast = key[7];
  c.split = key[8];
  c.staging_panels = key[9];
  c.bias = key[10] != 0;
  c.silu = key[11] != 0;
  c.residual = key[12] != 0;
  c.trace = static_cast<trace::Level>(key[13]);
  c.panels = key[14];
  c.shares_a = key[15] != 0;
  c.few_rows = key[16] != 0;
  return c;
}

std::vector<GemmCandidate> gemm_candidates(const warploom_gemm& call, const DeviceInfo& device) {
  std::vector<GemmCandidate> result;
  const GemmType input = type_of(call.dtype);
  for (GemmConfig config : kTable) {
    if ((config.input == k8) != (input == k8)) continue;
    if ((config.few_rows && !kServesFewRows) || (config.shares_a && !kSharesA)) continue;
    config.input = input;
    config.output = type_of(call.out_dtype);
    config.bias = call.bias != nullptr;
    config.silu = call.activation == WARPLOOM_SILU;
    config.residual = call.c.data != nullptr && call.beta != 0;
    if (!can_stage(call)) {
      // Two blocks of accumulators and the addresses of direct stores are more than the registers hold.
      if (config.ping_pong) continue;
      config.staging_panels = 0;
    }
    if (config.few_rows) {
      if (call.depth % 8 != 0) continue;  // chunks of 16 bytes that end inside a row
    } else if (shared_map(config).bytes > device.shared_bytes_per_block) {
      continue;
    }
    // Every CTA that shares in K has a step of it.
    if (config.split > steps_of(call, config)) continue;
    result.push_back(judged(config, call, device));
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const GemmCandidate& x, const GemmCandidate& y) { return x.cycles < y.cycles; });
  return result;
}

Status plan_gemm(const warploom_gemm& call, const DeviceInfo& device, GpuPlan& plan) {
  if (device.major != 9) {
    return Status::runtime_error(message(device.name, " has compute capability ", device.major, ".", device.minor,
                                         "; the matrix product needs 9.0 (Hopper). Multiply with torch.matmul"));
  }
  return plan_gemm(call, device, gemm_candidates(call, device).front(), plan);
}

Status plan_gemm(const warploom_gemm& call, const DeviceInfo& device, const GemmCandidate& chosen, GpuPlan& plan) {
  plan.architecture = compile_architecture(device);
  const GemmConfig& config = chosen.config;
  PlannedLaunch& launch = plan.add_launch(family_of(config), key_of(config));
  launch.threads = gemm_threads(config);
  launch.shared_bytes = config.few_rows ? 0 : shared_map(config).bytes;
  launch.ctas = 0;
  if (chosen.tiles > std::numeric_limits<int>::max() / 4) {
    return Status::runtime_error(
        message("the product has ", chosen.tiles, " tiles, more than one launch takes; split it"));
  }
  const int cluster_rows = gemm_cluster_rows(config);
  const GemmSchedule schedule = {
      static_cast<int>(rounded_up(call.rows, config.tile_rows * cluster_rows)),
      static_cast<int>(rounded_up(call.columns, config.tile_columns * gemm_cluster_columns(config))),
      static_cast<int>(call.batch), std::max(1, kBandTiles / cluster_rows)};
  if (config.few_rows) {
    FewRowsParams& params = launch.start_params<FewRowsParams>();
    if (chosen.tiles == 0) return {};
    set_ends(call, params);
    params.a = call.a.data;
    params.b = call.b.data;
    params.a_row_stride = call.a.row_stride;
    params.a_batch_stride = call.a.batch_stride;
    params.b_row_stride = call.b.row_stride;
    params.b_batch_stride = call.b.batch_stride;
    params.depth = static_cast<int>(call.depth);
    params.schedule = schedule;
    launch.ctas = chosen.tiles;
    return {};
  }
  GemmParams& params = launch.start_params<GemmParams>();
  if (chosen.tiles == 0) return {};
  set_ends(call, params);
  params.schedule = schedule;
  const int cluster = gemm_cluster(config);
  const int at_once = std::max(1, device.sm_count / cluster);
  // A cluster that shares out K computes one tile; the others take tile after tile.
  params.clusters = static_cast<int>(config.split > 1 ? chosen.tiles : std::min<long long>(chosen.tiles, at_once));
  launch.ctas = static_cast<long long>(params.clusters) * cluster;
  params.steps = static_cast<int>(steps_of(call, config));
  params.share = gemm_loaded_rows(config, static_cast<int>(call.rows));
  params.slot_loads = gemm_slot_loads(config, static_cast<int>(call.rows));
  params.first_k = call.depth == 0 ? gemm_depth(config) : 0;
  params.a_batch = call.a.batch_stride != 0;
  params.b_batch = call.b.batch_stride != 0;
  return {};
}

Status encode_gemm_maps(const warploom_gemm& call, const Driver& driver, PlannedLaunch& launch) {
  const GemmConfig config = gemm_config(launch.config);
  if (config.few_rows) return {};
  GemmParams& params = launch.params_as<GemmParams>();
  const auto element = [](GemmType type) {
    return type == k8                   ? TensorMapElement::uint8
           : type == GemmType::bfloat16 ? TensorMapElement::bfloat16
                                        : TensorMapElement::float16;
  };
  const TensorMapElement in = element(config.input);
  // Of an empty K nothing is read, but a map has an address: any aligned one.
  const auto* nothing = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(call.out.data) & ~uintptr_t{15});
  const warploom_matrix none{};
  const bool empty = call.depth == 0;
  Status status = encode(driver, "a",
                         empty ? map_shape(in, none, 1, 1, 1, params.share)
                               : map_shape(in, call.a, call.batch, call.rows, call.depth, params.share),
                         empty ? nothing : call.a.data, params.a);
  if (!status.ok()) return status;
  const int b_rows = gemm_loaded_columns(config);
  status = encode(driver, "b",
                  empty ? map_shape(in, none, 1, 1, 1, b_rows)
                        : map_shape(in, call.b, call.batch, call.columns, call.depth, b_rows),
                  empty ? nothing : call.b.data, params.b);
  if (!status.ok() || !gemm_staged(config)) return status;
  const TensorMapElement out = element(config.output);
  const int out_rows = gemm_consumer_rows(config);
  status = encode(driver, "out", map_shape(out, call.out, call.batch, call.rows, call.columns, out_rows), call.out.data,
                  params.out);
  if (!status.ok() || !config.residual) return status;
  return encode(driver, "c", map_shape(out, call.c, call.batch, call.rows, call.columns, out_rows), call.c.data,
                params.residual);
}

std::string describe_gemm(const warploom_gemm& call, const DeviceInfo& device, const GpuPlan& plan) {
  const PlannedLaunch& launch = plan.launches[0];
  const GemmConfig config = gemm_config(launch.config);
  const GemmSchedule& schedule =
      config.few_rows ? launch.params_as<FewRowsParams>().schedule : launch.params_as<GemmParams>().schedule;
  nlohmann::json json;
  json["backend"] = "cuda";
  json["device"] = device.name;
  json["architecture"] = to_string(plan.architecture);
  json["kernel"] = message(launch.family->name, ", ", launch.family->source);
  json["config"] = {{"tile_rows", config.tile_rows},
                    {"tile_columns", config.tile_columns},
                    {"stages", config.stages},
                    {"consumers", config.consumers},
                    {"operands", config.few_rows ? "straight to registers" : "by TMA through shared memory"},
                    {"order", config.ping_pong ? "ping-pong" : "cooperative"},
                    {"multicast", config.multicast},
                    {"shared_operand", config.multicast == 1 ? ""
                                       : config.shares_a     ? "a"
                                                             : "b"},
                    {"split", config.split},
                    {"stores", gemm_staged(config) ? "through shared memory and TMA" : "from registers"},
                    {"bias", config.bias},
                    {"silu", config.silu},
                    {"residual", config.residual}};
  json["launch"] = {{"ctas", launch.ctas}, {"threads", launch.threads}, {"shared_memory_bytes", launch.shared_bytes}};
  json["schedule"] = {{"row_tiles", schedule.row_tiles},
                      {"column_tiles", schedule.column_tiles},
                      {"batches", schedule.batches},
                      {"band", schedule.band}};
  nlohmann::json rows = nlohmann::json::array();
  for (const GemmCandidate& each : gemm_candidates(call, device)) {
    rows.push_back({{"kernel", name_of(each.config)},
                    {"tiles", each.tiles},
                    {"waves", each.waves},
                    {"tile_cycles", each.tile_cycles},
                    {"memory_cycles", each.memory_cycles},
                    {"cycles", each.cycles},
                    {"limiter", each.limiter}});
  }
  json["candidates"] = rows;
  json["why"] = "the candidate with the fewest cycles by the model of docs/gemm.md";
  return json.dump();
}

}  // namespace warploom::gpu
