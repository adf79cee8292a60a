#include "gpu/mma_forward_plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "gpu/device_call.h"
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

ConfigKey key_of(const HstuForwardConfig& c) {
  return {c.head_dim,    c.value_dim, c.bfloat16, c.interval_mask, c.query_rows,
          c.key_columns, c.stages,    c.warps,    c.min_blocks};
}

KernelRequest request_of(const ConfigKey& key, const Architecture& architecture) {
  const HstuForwardConfig config = mma_forward_config(key);
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

KernelVariant variant_of(const ConfigKey& key) {
  const HstuForwardConfig config = mma_forward_config(key);
  std::string name = "hstu forward D" + std::to_string(config.head_dim);
  if (config.value_dim != config.head_dim) name += " Dv" + std::to_string(config.value_dim);
  name += std::string(config.bfloat16 ? " bf16" : " fp16") + (config.interval_mask ? " intervals" : "");
  return {&kMmaForward, key, name, config.head_dim, config.bfloat16, config.interval_mask};
}

std::vector<KernelVariant> variants_of(const DeviceInfo& device, bool whole_table) {
  std::vector<KernelVariant> result;
  for (int dim = 8; dim <= kMaxHeadDim; dim += 8) {
    const int max_dim = table_class(dim, dim);
    // The table's other rows are compiled at their widest and for an odd number of chunks.
    const bool end_of_range = dim == max_dim || dim == max_dim - 8;
    for (const bool bfloat16 : {true, false}) {
      for (const bool interval_mask : {false, true}) {
        const Result<HstuForwardConfig> chosen = choose_config(dim, dim, bfloat16, interval_mask, device);
        if (chosen.ok()) result.push_back(variant_of(key_of(*chosen)));
        if (!whole_table || !end_of_range) continue;
        for (const Tile& tile : kTiles) {
          const ConfigKey key = key_of(config_of(tile, dim, dim, bfloat16, interval_mask));
          if (tile.max_dim == max_dim && tile.from_major <= device.major && !(chosen.ok() && key == key_of(*chosen)))
            result.push_back(variant_of(key));
        }
      }
    }
  }
  return result;
}

void describe_plan(const GpuPlan& plan, const warploom_attention& call, const DeviceInfo& device,
                   nlohmann::json& json) {
  const PlannedLaunch& launch = plan.launches[0];
  const HstuForwardConfig c = mma_forward_config(launch.config);
  const geometry::Schedule& schedule = launch.params_as<AttentionCall>().schedule;
  const double products_flops = 2.0 * static_cast<double>(call.head_dim + call.value_dim);  // a (row, column) pair
  const double key_bytes = 2.0 * static_cast<double>(call.head_dim + call.value_dim) / c.query_rows;
  json["config"] = {{"head_dim", c.head_dim},
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
  json["why"] =
      message("the tile table's first row for heads up to ", table_class(c.head_dim, c.value_dim), " whose ",
              c.min_blocks, " CTA(s) fit the ", device.shared_bytes_per_sm, " bytes of shared memory of an SM");
}

}  // namespace

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

const KernelFamily kMmaForward = {"hstu_forward (mma.sync)", "kernels/attention/hstu_forward_mma.cu", request_of,
                                  variants_of, variant_of};

HstuForwardConfig mma_forward_config(const ConfigKey& key) {
  return {key[0], key[1], key[2] != 0, key[3] != 0, key[4], key[5], key[6], key[7], key[8]};
}

Status plan_mma_forward(const warploom_attention& call, const DeviceInfo& device, GpuPlan& plan) {
  const Result<HstuForwardConfig> config =
      choose_config(static_cast<int>(call.head_dim), static_cast<int>(call.value_dim), call.dtype == WARPLOOM_BFLOAT16,
                    has_interval_mask(call), device);
  if (!config.ok()) return config.status();
  PlannedLaunch& launch = plan.add_launch(kMmaForward, key_of(*config));
  launch.threads = config->warps * 32;
  launch.shared_bytes = shared_map(*config).bytes;
  AttentionCall& params = launch.start_params<AttentionCall>();
  fill_device_call(call, params);
  params.schedule = schedule_of(call, effective_max_seqlen_q(call), config->query_rows, config->min_blocks, device);
  launch.ctas = call.total_q == 0 ? 0 : params.schedule.items();
  plan.describe = describe_plan;
  return check_grid(launch.ctas, config->query_rows);
}

}  // namespace warploom::gpu
