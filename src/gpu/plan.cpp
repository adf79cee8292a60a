#include "gpu/plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom::gpu {
namespace {

/// One row of the tile table, for heads up to max_dim wide.
struct Tile {
  int max_dim;
  int from_major;  ///< compute capability: older code generators need more registers than the row leaves
  int query_rows, key_columns;
  int narrow_key_columns;  ///< under an interval mask or in float16, whose lists and exponents take registers
  int stages, warps, min_blocks;
};

/// Rows of one max_dim in order of preference: the first whose min_blocks CTAs fit an SM's shared memory is taken. The
/// first row of each was measured on an H200 (docs/performance-log.md); the others serve smaller shared memories, the
/// last one every device from sm_80 on (99 KiB a block).
constexpr std::array kTiles = {
    Tile{56, 8, 128, 32, 32, 2, 4, 3},  Tile{56, 8, 64, 32, 32, 2, 4, 3},   Tile{64, 9, 128, 64, 32, 2, 4, 3},
    Tile{64, 8, 128, 32, 32, 2, 4, 3},  Tile{64, 8, 64, 32, 32, 2, 4, 3},   Tile{128, 8, 128, 64, 32, 2, 4, 2},
    Tile{128, 8, 128, 32, 32, 2, 4, 2}, Tile{128, 8, 64, 32, 32, 2, 4, 1},  Tile{192, 8, 128, 64, 64, 2, 8, 1},
    Tile{192, 8, 64, 32, 32, 2, 4, 1},  Tile{256, 8, 128, 64, 64, 2, 8, 1}, Tile{256, 8, 64, 32, 32, 2, 4, 1},
};

constexpr int kMaxHeadDim = 256;
/// The driver keeps this much shared memory of every CTA for itself (CUDA C++ Programming Guide, compute capability 8.x
/// on).
constexpr int kReservedSharedBytes = 1024;
/// CTAs of one group of heads, in times of what the GPU holds at once. Smaller groups keep K and V in L2 but leave a
/// part of the last wave idle; measured on an H200, 8 waves lose nothing to either.
constexpr int kWavesOfGroup = 8;

HstuForwardConfig config_of(const Tile& tile, int head_dim, int value_dim, bool bfloat16, bool interval_mask) {
  HstuForwardConfig config;
  config.head_dim = head_dim;
  config.value_dim = value_dim;
  config.bfloat16 = bfloat16;
  config.interval_mask = interval_mask;
  config.query_rows = tile.query_rows;
  config.key_columns = interval_mask || !bfloat16 ? tile.narrow_key_columns : tile.key_columns;
  config.stages = tile.stages;
  config.warps = tile.warps;
  config.min_blocks = tile.min_blocks;
  return config;
}

int table_class(int head_dim, int value_dim) {
  const int wider = std::max(head_dim, value_dim);
  for (const Tile& tile : kTiles) {
    if (wider <= tile.max_dim) return tile.max_dim;
  }
  return 0;
}

bool fits(const HstuForwardConfig& config, const DeviceInfo& device) {
  const int bytes = shared_map(config).bytes;
  return bytes <= device.shared_bytes_per_block &&
         config.min_blocks * (bytes + kReservedSharedBytes) <= device.shared_bytes_per_sm;
}

TensorStrides strides_of(const warploom_attention& call, const warploom_tensor& tensor) {
  return {is_dense(call) ? tensor.batch_stride : 0, tensor.row_stride, tensor.head_stride};
}

int clamp_to_unbounded(int64_t side) {
  return static_cast<int>(std::min<int64_t>(side, geometry::kUnbounded));
}

geometry::Schedule schedule_of(const warploom_attention& call, const HstuForwardConfig& config,
                               const DeviceInfo& device) {
  geometry::Schedule schedule;
  // Even an empty batch gets one tile: rows after the last sequence are written as 0.
  const int64_t longest = std::max<int64_t>(1, effective_max_seqlen_q(call));
  schedule.query_tiles = static_cast<int>((longest + config.query_rows - 1) / config.query_rows);
  // A jagged batch has one more sequence, the rows after the last one.
  schedule.sequences = static_cast<int>(call.batch) + (is_dense(call) ? 0 : 1);
  schedule.heads = static_cast<int>(call.heads);
  schedule.first_tile_is_long = call.num_contexts != nullptr || call.num_contexts_all > 0;
  const int64_t pairs = std::max<int64_t>(1, int64_t{schedule.sequences} * schedule.heads);
  const int64_t at_once = int64_t{device.sm_count} * config.min_blocks;
  const int64_t in_group = (kWavesOfGroup * at_once + schedule.query_tiles - 1) / schedule.query_tiles;
  schedule.pairs_in_group = static_cast<int>(std::min(in_group, pairs));
  return schedule;
}

}  // namespace

Status check_served(const warploom_attention& call) {
  const auto not_yet = [](const char* what) {
    return Status::runtime_error(message(what,
                                         " does not run on a GPU yet; HSTU attention forward without a bias does. "
                                         "Move the tensors to the CPU, which serves everything"));
  };
  if (call.op == WARPLOOM_SOFTMAX) return not_yet("softmax attention");
  if (call.bias.kind != WARPLOOM_NO_BIAS) return not_yet("HSTU attention with a bias");
  if (call.pass == WARPLOOM_BACKWARD) return not_yet("the backward pass of HSTU attention");
  return {};
}

Architecture compile_architecture(const DeviceInfo& device) {
  return device.architecture(/*specific=*/device.major == 9);
}

Result<HstuForwardConfig> choose_config(int head_dim, int value_dim, bool bfloat16, bool interval_mask,
                                        const DeviceInfo& device) {
  const int max_dim = table_class(head_dim, value_dim);
  for (const Tile& tile : kTiles) {
    if (tile.max_dim != max_dim || tile.from_major > device.major) continue;
    const HstuForwardConfig config = config_of(tile, head_dim, value_dim, bfloat16, interval_mask);
    if (fits(config, device)) return config;
  }
  return Status::runtime_error(message(device.name, " gives a block ", device.shared_bytes_per_block,
                                       " bytes of shared memory, too little for head dimensions ", head_dim, " and ",
                                       value_dim, "; sm_80 and newer GPUs have enough"));
}

Result<HstuForwardPlan> plan_hstu_forward(const warploom_attention& call, const DeviceInfo& device) {
  if (device.major < 8) {
    return Status::runtime_error(message(device.name, " has compute capability ", device.major, ".", device.minor,
                                         "; the kernels need 8.0 or newer. Move the tensors to the CPU"));
  }
  Result<HstuForwardConfig> config = choose_config(static_cast<int>(call.head_dim), static_cast<int>(call.value_dim),
                                                   call.dtype == WARPLOOM_BFLOAT16, has_interval_mask(call), device);
  if (!config.ok()) return config.status();

  HstuForwardPlan plan;
  plan.config = *config;
  plan.architecture = compile_architecture(device);
  plan.shared_bytes = shared_map(plan.config).bytes;
  plan.threads = plan.config.warps * 32;

  HstuForwardParams& p = plan.params;
  p.query = call.q.data;
  p.key = call.k.data;
  p.value = call.v.data;
  p.out = call.out.data;
  p.query_strides = strides_of(call, call.q);
  p.key_strides = strides_of(call, call.k);
  p.value_strides = strides_of(call, call.v);
  p.out_strides = strides_of(call, call.out);
  p.cu_seqlens_q = call.cu_seqlens_q;
  p.cu_seqlens_q_64 = call.cu_seqlens_q_dtype == WARPLOOM_INT64;
  p.cu_seqlens_k = call.cu_seqlens_k;
  p.cu_seqlens_k_64 = call.cu_seqlens_k_dtype == WARPLOOM_INT64;
  if (call.cu_seqlens_k == nullptr) {
    p.cu_seqlens_k = p.cu_seqlens_q;
    p.cu_seqlens_k_64 = p.cu_seqlens_q_64;
  }
  p.seqused_q = call.seqused_q;
  p.seqused_k = call.seqused_k;
  p.seqused_q_all = call.seqused_q_all;
  p.seqused_k_all = call.seqused_k_all;
  p.num_contexts = call.num_contexts;
  p.num_targets = call.num_targets;
  p.num_contexts_all = call.num_contexts_all;
  p.num_targets_all = call.num_targets_all;
  p.target_window_from_history_end = (call.flags & WARPLOOM_WINDOW_FROM_HISTORY_END) != 0;
  if (is_dense(call)) {
    p.seqlen_q = static_cast<int>(call.max_seqlen_q);
    p.seqlen_k = static_cast<int>(call.max_seqlen_k);
  }
  p.total_q = call.total_q;
  p.left = clamp_to_unbounded(call.left);
  p.right = clamp_to_unbounded(call.right);
  p.target_group_size = clamp_to_unbounded(call.target_group_size);
  p.intervals = call.intervals;
  p.num_intervals = static_cast<int>(call.num_intervals);
  p.interval_head_stride = call.interval_heads > 1 ? call.total_q * call.num_intervals * 2 : 0;
  p.sequences = static_cast<int>(call.batch);
  p.heads_per_key_head = static_cast<int>(call.heads / call.key_heads);
  p.half_alpha = static_cast<float>(effective_alpha(call) / 2);
  p.divisor_rows = call.divisor_rows;
  p.inverse_divisor = call.divisor_rows != nullptr ? 1.0f : static_cast<float>(1.0 / effective_divisor(call));
  p.schedule = schedule_of(call, plan.config, device);

  plan.ctas = call.total_q == 0 ? 0 : p.schedule.items();
  if (plan.ctas > std::numeric_limits<int>::max()) {
    return Status::runtime_error(message("the batch has ", plan.ctas, " tiles of ", plan.config.query_rows,
                                         " query rows; one launch takes 2147483647. Split the batch"));
  }
  return plan;
}

KernelRequest kernel_request(const HstuForwardConfig& config, const Architecture& architecture) {
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  KernelRequest request;
  request.entry_file = "attention/hstu_forward_mma.cu";
  request.config_text = message(
      "#include \"attention/hstu_forward_config.h\"\nnamespace warploom {\ninline constexpr HstuForwardConfig kConfig "
      "= {",
      ".head_dim = ", config.head_dim, ", .value_dim = ", config.value_dim, ", .bfloat16 = ", truth(config.bfloat16),
      ", .interval_mask = ", truth(config.interval_mask), ", .query_rows = ", config.query_rows,
      ", .key_columns = ", config.key_columns, ", .stages = ", config.stages, ", .warps = ", config.warps,
      ", .min_blocks = ", config.min_blocks, "};\n}  // namespace warploom\n");
  request.kernel_name = "hstu_forward";
  request.architecture = architecture;
  return request;
}

std::string describe(const HstuForwardPlan& plan, const warploom_attention& call, const DeviceInfo& device) {
  const HstuForwardConfig& c = plan.config;
  const geometry::Schedule& schedule = plan.params.schedule;
  const double products_flops = 2.0 * static_cast<double>(call.head_dim + call.value_dim);  // a (row, column) pair
  const double key_bytes = 2.0 * static_cast<double>(call.head_dim + call.value_dim) / c.query_rows;
  nlohmann::json json;
  json["backend"] = "cuda";
  json["device"] = device.name;
  json["kernel"] = "hstu_forward (mma.sync), kernels/attention/hstu_forward_mma.cu";
  json["architecture"] = to_string(plan.architecture);
  json["config"] = {{"head_dim", c.head_dim},
                    {"value_dim", c.value_dim},
                    {"dtype", c.bfloat16 ? "bfloat16" : "float16"},
                    {"mask", c.interval_mask ? "intervals" : "sequence"},
                    {"query_rows", c.query_rows},
                    {"key_columns", c.key_columns},
                    {"stages", c.stages},
                    {"warps", c.warps},
                    {"min_blocks", c.min_blocks}};
  json["shared_memory_bytes"] = plan.shared_bytes;
  json["registers_limit"] = std::min(255, 65536 / (plan.threads * c.min_blocks) / 8 * 8);
  json["launch"] = {{"ctas", plan.ctas}, {"threads", plan.threads}};
  json["schedule"] = {
      {"query_tiles", schedule.query_tiles},
      {"pairs_in_group", schedule.pairs_in_group},
      {"order", schedule.first_tile_is_long ? "context tile first, then last to first" : "last query tile first"}};
  json["scratch_bytes"] = 0;
  json["limiter"] = {{"name", "tensor core and special functions"},
                     {"why", message("each visible pair costs ", products_flops, " FLOPs and ", key_bytes,
                                     " bytes of K and V from L2, shared by the ", c.query_rows,
                                     " rows of a tile: far above the memory's balance")}};
  json["why"] =
      message("the tile table's first row for heads up to ", table_class(c.head_dim, c.value_dim), " whose ",
              c.min_blocks, " CTA(s) fit the ", device.shared_bytes_per_sm, " bytes of shared memory of an SM");
  return json.dump();
}

Result<DeviceInfo> reference_device(const Architecture& architecture) {
  // CUDA C++ Programming Guide, "Technical specifications per compute capability", and the vendor's pages for L2 and
  // SMs.
  struct Known {
    int major, minor;
    const char* name;
    int sms, block_kib, sm_kib, l2_mib;
  };
  constexpr std::array<Known, 6> kKnown = {{{8, 0, "A100", 108, 163, 164, 40},
                                            {8, 6, "RTX 3090", 82, 99, 100, 6},
                                            {8, 9, "RTX 4090", 128, 99, 100, 72},
                                            {9, 0, "H200", 132, 227, 228, 50},
                                            {10, 0, "B200", 148, 227, 228, 126},
                                            {12, 0, "RTX 5090", 170, 99, 100, 96}}};
  for (const Known& known : kKnown) {
    if (known.major != architecture.major || known.minor != architecture.minor) continue;
    DeviceInfo device;
    device.name = known.name;
    device.major = known.major;
    device.minor = known.minor;
    device.sm_count = known.sms;
    device.shared_bytes_per_block = known.block_kib * 1024;
    device.shared_bytes_per_sm = known.sm_kib * 1024;
    device.registers_per_sm = 65536;
    device.l2_bytes = known.l2_mib * 1024 * 1024;
    return device;
  }
  return Status::invalid_value(message("architecture ", to_string(architecture),
                                       " is not known; use sm_80, sm_86, sm_89, sm_90a, sm_100 or sm_120"));
}

std::vector<HstuForwardConfig> configurations(const DeviceInfo& device, bool whole_table) {
  std::vector<HstuForwardConfig> result;
  for (int dim = 8; dim <= kMaxHeadDim; dim += 8) {
    const int max_dim = table_class(dim, dim);
    // The table's other rows are compiled at their widest and for an odd number of chunks.
    const bool end_of_range = dim == max_dim || dim == max_dim - 8;
    for (const bool bfloat16 : {true, false}) {
      for (const bool interval_mask : {false, true}) {
        const Result<HstuForwardConfig> chosen = choose_config(dim, dim, bfloat16, interval_mask, device);
        if (chosen.ok()) result.push_back(*chosen);
        if (!whole_table || !end_of_range) continue;
        for (const Tile& tile : kTiles) {
          const HstuForwardConfig config = config_of(tile, dim, dim, bfloat16, interval_mask);
          if (tile.max_dim == max_dim && tile.from_major <= device.major &&
              !(chosen.ok() && members(config) == members(*chosen)))
            result.push_back(config);
        }
      }
    }
  }
  return result;
}

}  // namespace warploom::gpu
