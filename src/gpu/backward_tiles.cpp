#include "gpu/backward_tiles.h"

#include <algorithm>
#include <array>
#include <span>

#include "problem/message.h"

namespace warploom::gpu {
namespace {

/// One row of the table of the kernel that walks query tiles, for heads up to max_dim wide.
struct Tile {
  int max_dim;
  bool spare;  ///< has registers to spare: for what takes some, such as the lists of an interval mask
  int query_rows, key_rows, key_blocks, dq_row_warps, stages, warps, min_blocks;
};

/// Rows of one max_dim in order of preference: the first whose min_blocks CTAs fit an SM's shared memory is taken; the
/// last one serves every device from sm_80 on (99 KiB a block). docs/performance-log.md has the measurements.
constexpr std::array kTiles = {
    Tile{64, true, 32, 128, 2, 2, 2, 4, 2},   Tile{64, true, 32, 128, 2, 2, 2, 4, 1},
    Tile{128, false, 64, 128, 2, 2, 2, 8, 1}, Tile{128, false, 64, 128, 1, 2, 2, 8, 1},
    Tile{128, true, 32, 128, 1, 2, 2, 8, 1},  Tile{128, true, 32, 64, 1, 2, 2, 4, 1},
    Tile{256, false, 64, 64, 2, 2, 2, 8, 1},  Tile{256, true, 32, 64, 1, 2, 2, 8, 1},
    Tile{256, true, 32, 32, 1, 2, 1, 4, 1},
};

/// With a bias, whose part of a tile takes registers, as float16's exponents do beside a user's function: more warps
/// that own 16 keys each.
constexpr std::array kBiasedTiles = {
    Tile{64, false, 32, 128, 2, 2, 2, 4, 2}, Tile{64, true, 64, 128, 1, 2, 2, 8, 1},
    Tile{64, true, 32, 64, 1, 2, 2, 4, 1},   Tile{128, false, 64, 128, 1, 2, 2, 8, 1},
    Tile{128, true, 32, 128, 1, 2, 2, 8, 1}, Tile{128, true, 32, 64, 1, 2, 2, 4, 1},
    Tile{256, false, 64, 64, 2, 2, 2, 8, 1}, Tile{256, true, 32, 64, 1, 2, 2, 8, 1},
    Tile{256, true, 32, 32, 1, 2, 1, 4, 1},
};

/// With a user's function beside a bias or float16's exponents, as nobody knows how many registers it takes: little of
/// a tile a warp.
constexpr std::array kFunctionTiles = {
    Tile{128, true, 32, 64, 1, 2, 2, 8, 1},
    Tile{128, true, 32, 64, 1, 2, 1, 8, 1},
    Tile{256, true, 32, 64, 1, 2, 2, 8, 1},
    Tile{256, true, 32, 32, 1, 2, 1, 4, 1},
};

/// The same of the kernel that computes dQ alone.
struct DqTile {
  int max_dim;
  int key_columns, stages, warps, min_blocks;
};
constexpr std::array kDqTiles = {
    DqTile{64, 64, 2, 4, 2},  DqTile{64, 64, 2, 4, 1},  DqTile{128, 64, 2, 8, 1}, DqTile{128, 32, 2, 4, 1},
    DqTile{256, 32, 2, 8, 1}, DqTile{256, 32, 2, 4, 1}, DqTile{256, 32, 2, 2, 1}, DqTile{256, 32, 1, 2, 1},
};

/// The same of the kernel that sums the gradient of a bias.
struct BiasTile {
  int max_dim;
  bool spare;
  int key_columns, min_blocks;
};
constexpr std::array kBiasTiles = {
    BiasTile{64, false, 64, 3}, BiasTile{64, true, 64, 2},  BiasTile{64, true, 64, 1},  BiasTile{128, false, 64, 3},
    BiasTile{128, true, 64, 2}, BiasTile{128, true, 64, 1}, BiasTile{256, true, 64, 1}, BiasTile{256, true, 32, 1},
};

/// The driver keeps this much shared memory of every CTA for itself (CUDA C++ Programming Guide, compute capability 8.x
/// on).
constexpr int kReservedSharedBytes = 1024;

template <typename Config>
bool fits(const Config& config, const DeviceInfo& device) {
  const int bytes = shared_map(config).bytes;
  return bytes <= device.shared_bytes_per_block &&
         config.min_blocks * (bytes + kReservedSharedBytes) <= device.shared_bytes_per_sm;
}

BackwardConfig config_of(const Tile& tile, BackwardConfig config, const DeviceInfo& device) {
  config.vector_reduction = device.major >= 9;
  config.query_rows = tile.query_rows;
  config.key_rows = tile.key_rows;
  config.key_blocks = tile.key_blocks;
  config.dq_row_warps = tile.dq_row_warps;
  config.stages = tile.stages;
  config.warps = tile.warps;
  config.min_blocks = tile.min_blocks;
  return config;
}

BackwardDqConfig config_of(const DqTile& tile, BackwardDqConfig config, const DeviceInfo&) {
  config.key_columns = tile.key_columns;
  config.stages = tile.stages;
  config.warps = tile.warps;
  config.min_blocks = tile.min_blocks;
  return config;
}

BackwardBiasConfig config_of(const BiasTile& tile, BackwardBiasConfig config, const DeviceInfo&) {
  config.key_columns = tile.key_columns;
  config.warps = tile.key_columns / 16;
  config.min_blocks = tile.min_blocks;
  return config;
}

/// Whether the row's registers serve the configuration.
bool serves(const Tile& tile, const BackwardConfig& config, const DeviceInfo& device) {
  const bool wide_bias = config.bias == BiasKind::rows32 || config.bias == BiasKind::bucketed;
  // Columns that no power of two divides take registers where a bias does.
  const bool odd = config.bias != BiasKind::none && (config.head_dim % 64 != 0 || config.value_dim % 64 != 0);
  // A 16-bit bias whose gradient is written element by element, beside softmax's terms.
  const bool elementwise =
      config.bias == BiasKind::rows16 && config.softmax && !config.bias_aligned && !config.accumulate_dq;
  const bool needs = config.interval_mask || config.user_score != 0 || odd ||
                     (wide_bias && (config.softmax || config.head_dim <= 64)) || elementwise ||
                     // Older code generators need more of them.
                     (config.bias == BiasKind::bucketed && (tile.max_dim > 128 || device.major < 9)) ||
                     // float16's exponents need P and dS together, while tables take dS.
                     (config.bias == BiasKind::bucketed && config.bias_gradient && !config.bfloat16);
  return tile.spare || !needs;
}
bool serves(const DqTile&, const BackwardDqConfig&, const DeviceInfo&) {
  return true;
}
bool serves(const BiasTile& tile, const BackwardBiasConfig& config, const DeviceInfo& device) {
  // Sums of a stored bias stay in registers beside the scores. Older code generators need more of them.
  const bool needs = config.interval_mask || config.softcap || config.user_score != 0 || !config.bfloat16 ||
                     config.bias != BiasKind::bucketed || device.major < 9;
  return tile.spare || !needs;
}

template <typename Table>
int table_class(const Table& tiles, int head_dim, int value_dim) {
  const int wider = std::max(head_dim, value_dim);
  for (const auto& tile : tiles) {
    if (wider <= tile.max_dim) return tile.max_dim;
  }
  return 0;
}

template <typename Config, typename Table>
Result<Config> choose(const Table& tiles, const Config& base, const DeviceInfo& device) {
  const int max_dim = table_class(tiles, base.head_dim, base.value_dim);
  for (const auto& tile : tiles) {
    if (tile.max_dim != max_dim || !serves(tile, base, device)) continue;
    const Config config = config_of(tile, base, device);
    if (fits(config, device)) return config;
  }
  return Status::runtime_error(message(device.name, " gives a block ", device.shared_bytes_per_block,
                                       " bytes of shared memory, too little for head dimensions ", base.head_dim,
                                       " and ", base.value_dim, "; sm_80 and newer GPUs have enough"));
}

template <typename Config, typename Table>
std::vector<Config> rows(const Table& tiles, const Config& base, const DeviceInfo& device, bool whole_table) {
  std::vector<Config> result;
  const Result<Config> chosen = choose(tiles, base, device);
  if (chosen.ok()) result.push_back(*chosen);
  const int max_dim = table_class(tiles, base.head_dim, base.value_dim);
  if (!whole_table || base.head_dim != max_dim) return result;  // at their widest
  for (const auto& tile : tiles) {
    const Config config = config_of(tile, base, device);
    const bool is_chosen = chosen.ok() && shared_map(config).bytes == shared_map(*chosen).bytes &&
                           config.min_blocks == chosen->min_blocks && config.warps == chosen->warps;
    if (tile.max_dim == max_dim && serves(tile, base, device) && !is_chosen) result.push_back(config);
  }
  return result;
}

std::span<const Tile> tiles_of(const BackwardConfig& base) {
  const bool biased = base.bias != BiasKind::none;
  if (base.user_score != 0 && (biased || !base.bfloat16)) return kFunctionTiles;
  return !biased ? std::span<const Tile>(kTiles) : std::span<const Tile>(kBiasedTiles);
}

}  // namespace

Result<BackwardConfig> choose_backward_tile(const BackwardConfig& base, const DeviceInfo& device) {
  return choose(tiles_of(base), base, device);
}

Result<BackwardBiasConfig> choose_backward_bias_tile(const BackwardBiasConfig& base, const DeviceInfo& device) {
  return choose(kBiasTiles, base, device);
}

Result<BackwardDqConfig> choose_backward_dq_tile(const BackwardDqConfig& base, const DeviceInfo& device) {
  return choose(kDqTiles, base, device);
}

std::vector<BackwardConfig> backward_tiles(const BackwardConfig& base, const DeviceInfo& device, bool whole_table) {
  return rows(tiles_of(base), base, device, whole_table);
}

std::vector<BackwardBiasConfig> backward_bias_tiles(const BackwardBiasConfig& base, const DeviceInfo& device,
                                                    bool whole_table) {
  return rows(kBiasTiles, base, device, whole_table);
}

std::vector<BiasedScore> biased_scores(bool whole_table) {
  std::vector<BiasedScore> result;
  for (const int dim : {64, 128, 256}) {
    for (const BiasKind bias : {BiasKind::rows16, BiasKind::rows32, BiasKind::bucketed}) {
      result.push_back({dim, false, false, true, false, bias});
      result.push_back({dim, true, false, true, false, bias});
      if (!whole_table) continue;
      // What takes registers: the lists of an interval mask, float16's exponents, the cap.
      result.push_back({dim, false, false, true, true, bias});
      result.push_back({dim, true, true, false, false, bias});
    }
  }
  return result;
}

std::vector<BackwardDqConfig> backward_dq_tiles(const BackwardDqConfig& base, const DeviceInfo& device,
                                                bool whole_table) {
  return rows(kDqTiles, base, device, whole_table);
}

}  // namespace warploom::gpu
