// The GEMM's compile-time configuration, shared-memory map, order of tiles and parameters: what host and kernel agree
// on.
#pragma once

#include "geometry/host_device.h"
#include "geometry/swizzle.h"
#include "pipeline/trace_records.h"
#include "ptx/tensor_map.h"

namespace warploom {

enum class GemmType : int { float16, bfloat16, float32, float8_e4m3 };

WARPLOOM_HD constexpr int gemm_type_bytes(GemmType type) {
  return type == GemmType::float32 ? 4 : type == GemmType::float8_e4m3 ? 1 : 2;
}

/// Everything that changes the generated code, nothing else. It is the compile key. With `few_rows` it is
/// gemm_few_rows.cu's, else gemm_sm90.cu's.
struct GemmConfig {
  GemmType input = GemmType::bfloat16;   ///< A and B; not float32
  GemmType output = GemmType::bfloat16;  ///< not float8_e4m3
  int tile_rows = 128;                   ///< of D, a CTA's
  int tile_columns = 256;                ///< up to 256; a multiple of 64 where D is staged, else of 16
  int stages = 4;                        ///< slots of the ring, each with `panels` panels of A and of B; at least 2
  int consumers = 2;                     ///< warpgroups
  bool ping_pong = false;  ///< each consumer has whole tiles, in turns; else they share the rows of a tile
  int multicast = 1;       ///< CTAs of a cluster, below one another, that load B together (see shares_a)
  int split = 1;           ///< CTAs of a cluster that share out K and add up through shared memory
  int staging_panels = 2;  ///< 64-column panels of a consumer's tile that are staged for the store at a time
  bool bias = false;       ///< added to every row, before the activation
  bool silu = false;
  bool residual = false;                   ///< beta * C is added at the end
  trace::Level trace = trace::Level::off;  ///< which marks of pipeline/trace.h record
  int panels = 1;                          ///< columns of A and B in a slot, in panels of 128 bytes
  /// The CTAs of a multicasting cluster stand side by side and load A together. They begin at different columns of K,
  /// so that not all CTAs want the same part of A at the same time.
  bool shares_a = false;
  /// Operands go straight to registers, `stages` steps ahead; `consumers` warpgroups, all of which load. tile_rows is a
  /// multiple of 8, tile_columns of 16.
  bool few_rows = false;
};

/// Columns of A and B in a slot.
WARPLOOM_HD constexpr int gemm_depth(const GemmConfig& config) {
  return config.panels * geometry::kPanelRowBytes / gemm_type_bytes(config.input);
}
/// Whether every slot's sums are added to others in registers: the tensor core adds up 8-bit products with some 14 bits
/// only (docs/gemm.md).
WARPLOOM_HD constexpr bool gemm_promotes(const GemmConfig& config) {
  return config.input == GemmType::float8_e4m3;
}
/// The type of the bias: of A where that has 16 bits, else of D, and bfloat16 where that is float.
WARPLOOM_HD constexpr GemmType gemm_bias_type(const GemmConfig& config) {
  if (config.input != GemmType::float8_e4m3) return config.input;
  return config.output == GemmType::float32 ? GemmType::bfloat16 : config.output;
}
WARPLOOM_HD constexpr int gemm_threads(const GemmConfig& config) {
  return (config.consumers + (config.few_rows ? 0 : 1)) * 128;
}
/// CTAs of the kernel for few rows on an SM: each at most half of its registers.
WARPLOOM_HD constexpr int few_rows_at_once(const GemmConfig& config) {
  return gemm_threads(config) <= 256 ? 2 : 1;
}
/// Warps that mark: the producer, one of each consumer, and one that watches loads land.
WARPLOOM_HD constexpr int gemm_strips(const GemmConfig& config) {
  return config.consumers + 2;
}
/// Rows of a consumer's part of a tile.
WARPLOOM_HD constexpr int gemm_consumer_rows(const GemmConfig& config) {
  return config.ping_pong ? config.tile_rows : config.tile_rows / config.consumers;
}
WARPLOOM_HD constexpr int gemm_cluster(const GemmConfig& config) {
  return config.multicast * config.split;
}
/// CTAs of a cluster below one another and beside one another, of which each has a tile of its own.
WARPLOOM_HD constexpr int gemm_cluster_rows(const GemmConfig& config) {
  return config.shares_a ? 1 : config.multicast;
}
WARPLOOM_HD constexpr int gemm_cluster_columns(const GemmConfig& config) {
  return config.shares_a ? config.multicast : 1;
}
/// Rows of A that a CTA loads at a time, of a product with so many: what lies below them is not read, and what the
/// tensor core makes of the memory there is not stored. Shares are whole groups of eight rows, as the swizzle has them.
WARPLOOM_HD constexpr int gemm_loaded_rows(const GemmConfig& config, int rows) {
  const int most = rows < config.tile_rows ? rows : config.tile_rows;
  return config.shares_a ? (most + 8 * config.multicast - 1) / (8 * config.multicast) * 8 : most;
}
/// The same of B.
WARPLOOM_HD constexpr int gemm_loaded_columns(const GemmConfig& config) {
  return config.tile_columns / gemm_cluster_rows(config);
}
/// What lands in a CTA's slot.
WARPLOOM_HD constexpr int gemm_slot_loads(const GemmConfig& config, int rows) {
  return config.panels * geometry::kPanelRowBytes *
         (gemm_loaded_rows(config, rows) * gemm_cluster_columns(config) + config.tile_columns);
}
/// Whether D leaves through shared memory and TMA, which cuts rows off at multiples of 16 bytes only; else straight
/// from the registers. A sum over a cluster and float outputs always do.
WARPLOOM_HD constexpr bool gemm_staged(const GemmConfig& config) {
  return config.staging_panels > 0;
}

/// Byte offsets in dynamic shared memory, whose base is a multiple of 1024.
struct GemmSharedMap {
  int slot = 0;  ///< of stage 0: A, then B
  int a_bytes = 0, slot_bytes = 0;
  int staging = 0;  ///< D on its way out (and C on its way in), for each consumer
  int staging_panel_bytes = 0, staging_bytes = 0;
  int barriers = 0;  ///< full and empty of every stage, then one a consumer for C
  int bytes = 0;
};

WARPLOOM_HD constexpr GemmSharedMap shared_map(const GemmConfig& config) {
  GemmSharedMap map;
  map.a_bytes = config.panels * config.tile_rows * geometry::kPanelRowBytes;
  map.slot_bytes = map.a_bytes + config.panels * config.tile_columns * geometry::kPanelRowBytes;
  map.staging = map.slot + config.stages * map.slot_bytes;
  map.staging_panel_bytes = gemm_consumer_rows(config) * geometry::kPanelRowBytes;
  map.staging_bytes = gemm_staged(config) ? config.staging_panels * map.staging_panel_bytes : 0;
  map.barriers = map.staging + config.consumers * map.staging_bytes;
  map.bytes = map.barriers + (2 * config.stages + config.consumers) * 8;
  return map;
}

/// A tile of D, in tiles; those of a multicasting cluster count as one.
struct GemmTile {
  int row = 0, column = 0, batch = 0;
};

/// The order of tiles. CTAs that run side by side work in a band of rows, column after column, so that what they read
/// of A and B fits in L2 many times over.
struct GemmSchedule {
  int row_tiles = 0, column_tiles = 0, batches = 0;
  int band = 1;  ///< row tiles

  WARPLOOM_HD constexpr int tiles() const { return row_tiles * column_tiles * batches; }

  /// Tile `index`, 0 <= index < tiles(): every tile exactly once.
  WARPLOOM_HD constexpr GemmTile tile(int index) const {
    const int of_batch = row_tiles * column_tiles;
    const int batch = index / of_batch;
    const int inside = index - batch * of_batch;
    const int first_row = inside / (band * column_tiles) * band;
    const int in_band = inside - first_row * column_tiles;
    const int rows = row_tiles - first_row < band ? row_tiles - first_row : band;
    return {first_row + in_band % rows, in_band / rows, batch};
  }
};

/// What becomes of the sums: D = act(alpha scale_a scale_b A B^T + bias) + beta C. Strides in elements.
struct GemmEnds {
  void* out_data = nullptr;
  const void* residual_data = nullptr;
  const void* bias = nullptr;      ///< (columns), of gemm_bias_type
  const float* scale_a = nullptr;  ///< of 8-bit A and B; null: 1
  const float* scale_b = nullptr;
  long long out_row_stride = 0, out_batch_stride = 0;
  long long residual_row_stride = 0, residual_batch_stride = 0;
  int rows = 0, columns = 0;
  float alpha = 1, beta = 0;
};

/// The argument of gemm_sm90.cu.
struct GemmParams : GemmEnds {
  ptx::TensorMap a, b;           ///< (depth, rows, batch)
  ptx::TensorMap out;            ///< (columns, rows, batch); where D is staged
  ptx::TensorMap residual;       ///< the same of C
  int steps = 1;                 ///< slots of K, of all CTAs that share it out
  int first_k = 0;               ///< beyond A's columns for an empty K, where TMA reads zeros
  int a_batch = 0, b_batch = 0;  ///< 1 when the operand has a batch dimension of its own
  GemmSchedule schedule;
  int clusters = 0;    ///< of the grid
  int slot_loads = 0;  ///< bytes, gemm_slot_loads
  int share = 0;       ///< rows of A, gemm_loaded_rows
  trace::Sheet sheet;
};

/// The argument of gemm_few_rows.cu. Strides in elements.
struct FewRowsParams : GemmEnds {
  const void* a = nullptr;
  const void* b = nullptr;
  long long a_row_stride = 0, a_batch_stride = 0, b_row_stride = 0, b_batch_stride = 0;
  int depth = 0;  ///< a multiple of 8
  GemmSchedule schedule;
};

}  // namespace warploom
