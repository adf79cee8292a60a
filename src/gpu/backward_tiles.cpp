#include "gpu/backward_tiles.h"

#include <algorithm>
#include <array>

#include "problem/message.h"

namespace warploom::gpu {
namespace {

/// One row of the table of the kernel that walks query tiles, for heads up to max_dim wide.
struct Tile {
  int max_dim;
  bool intervals;  ///< also under an interval mask, whose lists take registers
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

/// The same of the kernel that computes dQ alone.
struct DqTile {
  static constexpr bool intervals = true;
  int max_dim;
  int key_columns, stages, warps, min_blocks;
};
constexpr std::array kDqTiles = {
    DqTile{64, 64, 2, 4, 2},  DqTile{64, 64, 2, 4, 1},  DqTile{128, 64, 2, 8, 1}, DqTile{128, 32, 2, 4, 1},
    DqTile{256, 32, 2, 8, 1}, DqTile{256, 32, 2, 4, 1}, DqTile{256, 32, 2, 2, 1},
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
    if (tile.max_dim != max_dim || (base.interval_mask && !tile.intervals)) continue;
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
    const bool serves = tile.max_dim == max_dim && (tile.intervals || !base.interval_mask);
    if (serves && !is_chosen) result.push_back(config);
  }
  return result;
}

}  // namespace

Result<BackwardConfig> choose_backward_tile(const BackwardConfig& base, const DeviceInfo& device) {
  return choose(kTiles, base, device);
}

Result<BackwardDqConfig> choose_backward_dq_tile(const BackwardDqConfig& base, const DeviceInfo& device) {
  return choose(kDqTiles, base, device);
}

std::vector<BackwardConfig> backward_tiles(const BackwardConfig& base, const DeviceInfo& device, bool whole_table) {
  return rows(kTiles, base, device, whole_table);
}

std::vector<BackwardDqConfig> backward_dq_tiles(const BackwardDqConfig& base, const DeviceInfo& device,
                                                bool whole_table) {
  return rows(kDqTiles, base, device, whole_table);
}

}  // namespace warploom::gpu
