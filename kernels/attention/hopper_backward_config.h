// The Hopper backward kernels that walk query tiles beside a tile of keys: compile-time configuration, shared-memory
// map and parameters, what host and kernels agree on.
#pragma once

#include "attention/backward_config.h"
#include "attention/bucketed_layout.h"
#include "geometry/host_device.h"
#include "geometry/swizzle.h"
#include "pipeline/trace_records.h"
#include "ptx/tensor_map.h"

namespace warploom {

/// Everything that changes the generated code, nothing else. It is the compile key.
struct HopperBackwardConfig {
  int head_dim = 64;     ///< D, a multiple of 8
  int value_dim = 64;    ///< Dv, likewise
  bool bfloat16 = true;  ///< else float16
  bool softmax = false;  ///< else HSTU
  bool softcap = false;  ///< of softmax
  bool interval_mask = false;
  bool accumulate_dq = true;  ///< else dQ is the work of another kernel
  int consumers = 2;          ///< warpgroups
  int key_rows = 128;         ///< of a work item, a multiple of 64
  int query_rows = 64;        ///< of a tile, a multiple of 64
  int stages = 2;             ///< tiles of Q and dO in shared memory: 1, 2 or 4
  /// HSTU in bfloat16 with a power of two for alpha / 2: K is multiplied by it where it lies, which is exact, and not
  /// every score.
  bool scaled_key = false;
  /// P is made before dP is there (bfloat16 without a softcap or divisors by row): consumers take registers for it that
  /// a producer without lists of intervals or a bias can spare.
  bool splits_scores = false;
  bool stored_bias = false;    ///< dense or packed, in tiles beside those of Q
  bool bias_gradient = false;  ///< and its gradient, nothing of which is broadcast
  bool bias_float32 = false;   ///< both are; else of q's type
  /// Rows of R are copied as they lie, one by one: they begin anywhere, are packed, or float32. Else TMA brings tiles.
  bool bias_rows = false;
  /// Likewise the gradient, which is stored from registers. Else TMA stores the tiles of dS that dQ is computed from,
  /// which float16 with its exponents has not, nor who leaves dQ to another kernel.
  bool gradient_rows = false;
  trace::Level trace = trace::Level::off;  ///< which marks of pipeline/trace.h record
  /// The sums for dQ are cleared beside the products, by a warp of the producer, else before.
  bool clears_sums = false;
  bool converts_sums = false;    ///< clears_sums: and become dQ there, by another one, else afterwards
  bool table_bias = false;       ///< bucketed: a warp of the producer lays out what a tile needs of its tables
  bool table_gradients = false;  ///< and sums for their gradients are added in global memory
  /// HSTU, bias_gradient by tiles, whose factor is a power of two: V is multiplied by it where it lies, so that dP and
  /// dS have it, and not every slope.
  bool scaled_value = false;
  /// clears_sums, bfloat16 without intervals: CTAs add to each tile of the sums in the order of their keys, a warp of
  /// the producer for the consumers (hopper_backward_order.h), so that dQ is repeatable bit for bit.
  bool orders_sums = false;
  int experiment = 0;
};

/// Work items on their way from the scheduler to the consumers; a power of two, like every ring's slots.
inline constexpr int kBackwardItemSlots = 2;

/// The rings, and the products that are committed together, by the numbers that marks name them with.
struct BackwardMarks {
  static constexpr int tiles = 0;      ///< Q and dO
  static constexpr int residents = 1;  ///< K and V
  static constexpr int items = 2;
  static constexpr int scores = 3;  ///< dS, from each consumer to both

  static constexpr int score_products = 0;     ///< S and dP; S alone where they are split
  static constexpr int slope_product = 1;      ///< dP there
  static constexpr int gradient_products = 2;  ///< dV and dK; dV alone in steps of 64 queries that overlap
  static constexpr int key_product = 3;        ///< dK there
  static constexpr int query_product = 4;      ///< dQ
};
/// Whether dV and dK are committed one by one (attention/hopper_backward_steps.h).
WARPLOOM_HD constexpr bool commits_gradients_apart(const HopperBackwardConfig& config) {
  return config.bfloat16 && config.accumulate_dq && config.query_rows == 64;
}
/// Warps that mark: the first of each consumer, then scheduler and loader.
WARPLOOM_HD constexpr int trace_strips(const HopperBackwardConfig& config) {
  return config.consumers + 2;
}

/// What the loader tells about a query tile, beside its rows.
struct QueryTileNote {
  int flags;
  int dq_tile;  ///< its number among the sums for dQ, (tile, head)
};
inline constexpr int kQueryTileSeen = 1;    ///< there is a tile; else the item sees none, and this is all of it
inline constexpr int kQueryTileMasked = 2;  ///< some query of it does not see some key
inline constexpr int kQueryTileLast = 4;    ///< of the item

/// Where the tile's part of a bias's gradient goes; row: of the map, which may be negative.
struct BiasTileNote {
  int row, head;
};

/// Bytes of what hopper_backward_tables.h keeps of an item's keys, of a tile of queries beside them, and a warp.
WARPLOOM_HD constexpr int key_buckets_bytes(int keys) {
  return 4 * (kMostTimes + 3) + 9 * keys;
}
WARPLOOM_HD constexpr int query_buckets_bytes(int keys, int queries) {
  return 2 * 4 * window_pitch(keys, queries) + 12 * queries + 4 * keys / 16 + 16;
}
WARPLOOM_HD constexpr int table_sums_bytes(int queries) {
  return 4 * 32 * 32 + 4 * 32 * queries / 8 + 4 * 6 * 32 + 16;
}

/// Byte offsets in dynamic shared memory, whose base is a multiple of 1024.
struct HopperBackwardSharedMap {
  int key = 0;
  int value = 0;
  int query = 0;  ///< one tile a stage
  int dout = 0;
  int query_bytes = 0;  ///< of one stage
  int dout_bytes = 0;
  int scores = 0;          ///< two (query, key) tiles of P or dS
  int score_bytes = 0;     ///< of one
  int bias = 0;            ///< one (query, key) tile of R a stage; bias_rows: with room for what rows begin after
  int bias_bytes = 0;      ///< of one stage
  int bias_row_bytes = 0;  ///< bias_rows: from row to row
  /// Of each query the factor 1 / divisor, or softmax's lse log2(e); then softmax's -delta, of each pair of queries
  /// twice: the four values of an accumulator.
  int row_terms = 0;
  int row_terms_bytes = 0;  ///< of one stage
  int visible = 0;          ///< of 32 keys after the other: for each query the bits of the keys that it sees
  int visible_bytes = 0;    ///< of one stage
  int barriers = 0;         ///< of the items, K and V, the tiles, the scores; the request, the landing, the sums
  int notes = 0;            ///< one QueryTileNote a stage
  int exponents = 0;        ///< float16: of each warp's part of a dS tile the power of two that it was divided by
  int sums = 0;             ///< converts_sums, orders_sums: a tile of dQ's sums on its way
  int converted = 0;        ///< and the Work that it belongs to
  int bias_notes = 0;       ///< gradient_rows: one BiasTileNote a stage
  int bias_shifts = 0;      ///< bias_rows: of each stage the bytes from a multiple of 16 to the tile's first row
  int items = 0;            ///< kBackwardItemSlots, item_bytes each
  int tables = 0;           ///< table_bias: BucketedTables,
  int table_items = 0;      ///< a KeyBuckets an item slot,
  int table_tiles = 0;      ///< a QueryBuckets a stage,
  int table_tile_bytes = 0;
  int table_sums = 0;  ///< and for gradients a TableSums a consumers' warp
  int bytes = 0;
  static constexpr int item_bytes = 160;
  static constexpr int work_bytes = 96;
  static constexpr int barrier_bytes = 8;
};

WARPLOOM_HD constexpr int key_slots(const HopperBackwardConfig& config) {
  return (config.experiment & 1024) != 0 && config.query_rows == 128 && config.accumulate_dq &&
                 !config.orders_sums
             ? 2
             : 1;
}

WARPLOOM_HD constexpr HopperBackwardSharedMap shared_map(const HopperBackwardConfig& config) {
  HopperBackwardSharedMap map;
  map.query_bytes = geometry::tile_bytes(config.query_rows, config.head_dim);
  map.dout_bytes = geometry::tile_bytes(config.query_rows, config.value_dim);
  map.score_bytes = geometry::tile_bytes(config.query_rows, config.key_rows);
  map.row_terms_bytes = config.query_rows * (config.softmax ? 3 : 1) * static_cast<int>(sizeof(float));
  map.visible_bytes = config.key_rows / 32 * config.query_rows * static_cast<int>(sizeof(int));
  map.value = map.key + geometry::tile_bytes(config.key_rows, config.head_dim);
  const int slots = key_slots(config);
  map.query = map.key + slots * (map.value + geometry::tile_bytes(config.key_rows, config.value_dim));
  map.dout = map.query + config.stages * map.query_bytes;
  map.scores = map.dout + config.stages * map.dout_bytes;
  map.bias = map.scores + 2 * map.score_bytes;
  map.bias_row_bytes = config.bias_rows ? config.key_rows * (config.bias_float32 ? 4 : 2) + geometry::kChunkBytes : 0;
  map.bias_bytes = config.bias_rows ? config.query_rows * map.bias_row_bytes : config.stored_bias ? map.score_bytes : 0;
  map.sums = map.bias + config.stages * map.bias_bytes;
  const int sums_bytes = config.query_rows / (config.orders_sums ? 1 : slots) * config.head_dim * static_cast<int>(sizeof(float));
  map.row_terms = map.sums + (config.converts_sums || config.orders_sums ? sums_bytes : 0);
  map.visible = map.row_terms + config.stages * map.row_terms_bytes;
  map.barriers = map.visible + config.stages * map.visible_bytes;
  map.notes =
      map.barriers + map.barrier_bytes * (2 * (kBackwardItemSlots + slots + config.stages + 2) + 2 +
                                          (config.clears_sums ? kBackwardItemSlots : 0) + (config.orders_sums ? 2 : 0));
  map.exponents = map.notes + config.stages * static_cast<int>(sizeof(QueryTileNote));
  const int warps = config.bfloat16 ? 0 : 4 * config.consumers;
  map.bias_notes = map.exponents + 2 * warps * static_cast<int>(sizeof(int));
  const int bias_notes = config.gradient_rows ? config.stages : 0;
  map.bias_shifts = map.bias_notes + bias_notes * static_cast<int>(sizeof(BiasTileNote));
  const int bias_shifts = config.bias_rows ? config.stages : 0;
  map.items = (map.bias_shifts + bias_shifts * static_cast<int>(sizeof(int)) + 15) / 16 * 16;
  map.converted = map.items + kBackwardItemSlots * map.item_bytes;
  map.tables = map.converted + (config.converts_sums ? map.work_bytes : 0);
  map.table_items = map.tables + (config.table_bias ? kBucketedTablesBytes : 0);
  map.table_tiles = map.table_items + (config.table_bias ? kBackwardItemSlots * key_buckets_bytes(config.key_rows) : 0);
  map.table_tile_bytes = config.table_bias ? query_buckets_bytes(config.key_rows, config.query_rows) : 0;
  map.table_sums = map.table_tiles + config.stages * map.table_tile_bytes;
  const int part_warps = config.table_bias ? config.key_rows / 16 : 0;
  map.bytes = map.table_sums + part_warps * table_sums_bytes(config.query_rows);
  return map;
}

/// The sums for dQ on their way (hopper_backward_sums.h), beside two more of the counters: the next tile to clear and
/// the next item to convert. Device integers, 0 before the kernel.
struct SumsProgress {
  unsigned* cleared = nullptr;  ///< clears_sums, of each tile of dq_sums: not 0 when it has been cleared
  unsigned* done = nullptr;     ///< converts_sums, of each sequence and key head: its items that are done
  unsigned tiles = 0;           ///< of dq_sums, each of one head
  unsigned ahead = 0;           ///< so many of them are cleared beyond those of an item's sequence
  /// The tiles of query rows, in the order in which they become dQ. None: dQ is made of them by the next kernel.
  geometry::Schedule queries;
  float factor = 1;  ///< of dQ: what its sums lack
};

/// The one argument of every Hopper backward kernel but the ones before and after (BackwardParams).
struct HopperBackwardParams {
  /// Dimensions (columns, rows, heads, sequences of a dense batch), boxes of 64 columns x one tile's rows, 128-byte
  /// swizzle. What lies outside is read as 0.
  ptx::TensorMap query, dout, key, value;
  BackwardParams backward;
  /// Two device integers, 0 before and after the kernel: the next work item, and the CTAs that are done.
  unsigned* counters = nullptr;
  /// Of R and of its gradient, stored_bias and bias_gradient only: (columns, rows, heads, sequences), boxes as of Q.
  ptx::TensorMap bias, bias_gradient;
  trace::Sheet sheet;
  SumsProgress sums;  ///< one pass only
};

}  // namespace warploom
