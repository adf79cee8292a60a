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

/// Everything that changes the generated code, nothing else. It is the compile key.
struct GemmConfig {
  GemmType input = GemmType::bfloat16;   ///< A and B; not float32
  GemmType output = GemmType::bfloat16;  ///< not float8_e4m3
  int tile_rows = 128;                   ///< of D, a CTA's
  int tile_columns = 256;                ///< a multiple of 64 up to 256
  int stages = 4;                        ///< slots of the ring, each with one panel of A and of B; at least 2
  int consumers = 2;                     ///< warpgroups
  bool ping_pong = false;  ///< each consumer has whole tiles, in turns; else they share the rows of a tile
  int multicast = 1;       ///< CTAs of a cluster, below one another, that load B together
  int split = 1;           ///< CTAs of a cluster that share out K and add up through shared memory
  int staging_panels = 2;  ///< 64-column panels of a consumer's tile that are staged for the store at a time
  bool bias = false;       ///< added to every row, before the activation
  bool silu = false;
  bool residual = false;                   ///< beta * C is added at the end
  trace::Level trace = trace::Level::off;  ///< which marks of pipeline/trace.h record
};

/// Columns of A and B in a slot: one panel, rows of 128 bytes.
WARPLOOM_HD constexpr int gemm_depth(const GemmConfig& config) {
  return geometry::kPanelRowBytes / gemm_type_bytes(config.input);
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
  return (config.consumers + 1) * 128;
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
  map.a_bytes = config.tile_rows * geometry::kPanelRowBytes;
  map.slot_bytes = map.a_bytes + config.tile_columns * geometry::kPanelRowBytes;
  map.staging = map.slot + config.stages * map.slot_bytes;
  map.staging_panel_bytes = gemm_consumer_rows(config) * geometry::kPanelRowBytes;
  map.staging_bytes = gemm_staged(config) ? config.staging_panels * map.staging_panel_bytes : 0;
  map.barriers = map.staging + config.consumers * map.staging_bytes;
  map.bytes = map.barriers + (2 * config.stages + config.consumers) * 8;
  return map;
}

/// A tile of D, in tiles; the rows of a multicasting cluster count as one.
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

/// The kernel's one argument: D = act(alpha scale_a scale_b A B^T + bias) + beta C. Strides in elements.
struct GemmParams {
  ptx::TensorMap a, b;      ///< (depth, rows, batch)
  ptx::TensorMap out;       ///< (columns, rows, batch); where D is staged
  ptx::TensorMap residual;  ///< the same of C
  void* out_data = nullptr;
  const void* residual_data = nullptr;
  const void* bias = nullptr;      ///< (columns), of gemm_bias_type
  const float* scale_a = nullptr;  ///< of 8-bit A and B; null: 1
  const float* scale_b = nullptr;
  long long out_row_stride = 0, out_batch_stride = 0;
  long long residual_row_stride = 0, residual_batch_stride = 0;
  int rows = 0, columns = 0;
  int steps = 1;                 ///< slots of K, of all CTAs that share it out
  int first_k = 0;               ///< beyond A's columns for an empty K, where TMA reads zeros
  int a_batch = 0, b_batch = 0;  ///< 1 when the operand has a batch dimension of its own
  float alpha = 1, beta = 0;
  GemmSchedule schedule;
  int clusters = 0;  ///< of the grid
  trace::Sheet sheet;
};

}  // namespace warploom
