// The Hopper forward kernel's compile-time configuration, shared-memory map and parameters: what host and kernel agree
// on.
#pragma once

#include "attention/bucketed_layout.h"
#include "attention/call.h"
#include "attention/kinds.h"
#include "geometry/host_device.h"
#include "geometry/mask.h"
#include "geometry/swizzle.h"
#include "pipeline/trace_records.h"
#include "ptx/tensor_map.h"

namespace warploom {

/// How R comes to the consumers.
enum class HopperBias : int {
  none,
  tensor_map,    ///< dense, in q's type, rows that a tensor map describes: by TMA, beside K
  rows,          ///< in q's type, rows of whole 16 bytes (packed): copied by two warps of the producer
  shifted_rows,  ///< in q's type, rows that begin anywhere: likewise
  float_rows,    ///< in float32, rows that begin anywhere: likewise
  bucketed,      ///< from tables, which warps of the producer lay out for each key tile
};
/// Whether warps of the producer copy R row by row.
WARPLOOM_HD constexpr bool is_copied(HopperBias bias) {
  return bias == HopperBias::rows || bias == HopperBias::shifted_rows || bias == HopperBias::float_rows;
}

/// Everything that changes the generated code, nothing else. It is the compile key.
struct HopperForwardConfig {
  ScoreKind score = ScoreKind::silu;
  int head_dim = 64;     ///< D, a multiple of 8 up to 256
  int value_dim = 64;    ///< Dv, likewise
  bool bfloat16 = true;  ///< else float16
  bool softcap = false;  ///< softmax
  bool interval_mask = false;
  HopperBias bias = HopperBias::none;  ///< not with an interval mask or a softcap
  int consumers = 2;                   ///< warpgroups of 64 query rows, 1 to 4
  int key_columns = 128;               ///< of a tile; a multiple of 16
  int stages = 2;                      ///< of the K ring and of the V ring: 1 to 4
  int query_stages = 2;                ///< 2: the next item's first S is issued beside this one's last P V
  bool turns = true;                   ///< consumers use the tensor core in turns (ping-pong)
  /// HSTU in bfloat16 with a power of two for alpha / 2: Q is multiplied by it where it lies, which is exact, and not
  /// every score.
  bool scaled_query = false;
  trace::Level trace = trace::Level::off;  ///< which marks of pipeline/trace.h record
};

inline constexpr int kWarpgroupRows = 64;
inline constexpr int kMaxConsumers = 4;
/// Work items on their way from the scheduler to the consumers; a power of two, like every ring's slots.
inline constexpr int kItemSlots = 4;

/// The rings by the numbers that marks name them with; a product has the number of the ring that it reads.
struct ForwardMarks {
  static constexpr int keys = 0, values = 1, queries = 2, items = 3;
};
/// Warps that mark: the first of each consumer, then scheduler and loader.
WARPLOOM_HD constexpr int trace_strips(const HopperForwardConfig& config) {
  return config.consumers + 2;
}

/// Registers a thread after setmaxnreg, by number of consumers: their sum over the CTA is what it got at launch.
struct RegisterBudget {
  int producer, consumer;
};
WARPLOOM_HD constexpr RegisterBudget register_budget(const HopperForwardConfig& config) {
  constexpr RegisterBudget kBudgets[] = {{0, 0}, {56, 256}, {40, 232}, {32, 160}, {32, 112}};
  constexpr RegisterBudget kWithBias[] = {{0, 0}, {56, 256}, {56, 224}, {56, 152}, {32, 112}};
  const bool brings = is_copied(config.bias) || config.bias == HopperBias::bucketed;
  return brings ? kWithBias[config.consumers] : kBudgets[config.consumers];
}

/// What the producer tells about a key tile, beside the tile itself.
struct KeyTileNote {
  int first_column;
  unsigned char kinds[kMaxConsumers];  ///< what it is to a consumer: a sum of the following
  /// kPlainTile: of so many tiles from this one on, at least; else 0.
  unsigned short plain_tiles[kMaxConsumers];
};
inline constexpr int kPlainTile = 0;
inline constexpr int kMaskedTile = 1;  ///< a row does not see all of it
inline constexpr int kUnseenTile = 2;  ///< no row sees any of it
inline constexpr int kLastTile = 4;    ///< of the item
inline constexpr int kEndTile = 8;     ///< there is no item: everybody stops

/// Byte offsets in dynamic shared memory, whose base is a multiple of 1024.
struct HopperForwardSharedMap {
  int query = 0;  ///< query_stages x consumers tiles of 64 rows
  int key = 0;    ///< one tile a stage
  int value = 0;
  int bias = 0;         ///< stages x bias_stage_bytes
  int query_bytes = 0;  ///< of one warpgroup's tile
  int key_bytes = 0;    ///< of one stage
  int value_bytes = 0;
  int output = 0;      ///< 16 rows of 64 columns of O a warp
  int bias_bytes = 0;  ///< stored R: of one consumer's tile
  int bias_stage_bytes = 0;
  int bias_items = 0;   ///< bucketed: kItemSlots x BucketedItem
  int bias_tables = 0;  ///< bucketed: BucketedTables; copied rows: BiasRows for each warp that copies
  int barriers = 0;     ///< full and empty: items, Q, K, V; then one an item: the loader has come to it
  int notes = 0;        ///< one KeyTileNote a stage
  int items = 0;        ///< kItemSlots, item_bytes each
  int rows = 0;         ///< sequence masks: what each row of an item sees, kItemSlots times
  int bytes = 0;
  static constexpr int item_bytes = 256;
};

/// Bytes of one consumer's tile of a stored R: as TMA lays it out, or rows of a chunk of 16 bytes more each
/// (bias_rows.h).
WARPLOOM_HD constexpr int bias_bytes(const HopperForwardConfig& config) {
  switch (config.bias) {
    case HopperBias::none:
    case HopperBias::bucketed:
      return 0;
    case HopperBias::tensor_map:
      return geometry::tile_bytes(kWarpgroupRows, config.key_columns);
    case HopperBias::float_rows:
      return kWarpgroupRows * (4 * config.key_columns + geometry::kChunkBytes);
    default:
      return kWarpgroupRows * (2 * config.key_columns + geometry::kChunkBytes);
  }
}

/// Warps that copy rows, and what each keeps of where they lie.
inline constexpr int kCopyingWarps = 2;
inline constexpr int kBiasRowsBytes = 64;

/// Warps that lay out a bucketed bias, every other key tile each: one would take longer for a tile than the consumers.
inline constexpr int kBucketedWarps = 2;

/// A bucketed bias (hopper_bucketed.h).
WARPLOOM_HD constexpr int bucketed_tile_bytes(int query_rows, int key_columns) {
  return 2 * 4 * window_pitch(query_rows, key_columns) + 12 * key_columns + 4 * query_rows / 16;
}
WARPLOOM_HD constexpr int bucketed_item_bytes(int query_rows) {
  return 16 * kTimeCells + 4 * (kMostTimes + 3) + 9 * query_rows;
}

WARPLOOM_HD constexpr HopperForwardSharedMap shared_map(const HopperForwardConfig& config) {
  HopperForwardSharedMap map;
  map.query_bytes = geometry::tile_bytes(kWarpgroupRows, config.head_dim);
  map.key_bytes = geometry::tile_bytes(config.key_columns, config.head_dim);
  map.value_bytes = geometry::tile_bytes(config.key_columns, config.value_dim);
  map.key = map.query + config.query_stages * config.consumers * map.query_bytes;
  map.value = map.key + config.stages * map.key_bytes;
  const bool bucketed = config.bias == HopperBias::bucketed;
  const int query_rows = config.consumers * kWarpgroupRows;
  map.bias_bytes = bias_bytes(config);
  map.bias_stage_bytes =
      bucketed ? bucketed_tile_bytes(query_rows, config.key_columns) : config.consumers * map.bias_bytes;
  map.bias = map.value + config.stages * map.value_bytes;
  map.output = (map.bias + config.stages * map.bias_stage_bytes + 1023) / 1024 * 1024;
  map.bias_items = map.output + config.consumers * geometry::tile_bytes(kWarpgroupRows, 1);
  map.bias_tables = map.bias_items + (bucketed ? kItemSlots * bucketed_item_bytes(query_rows) : 0);
  map.barriers = map.bias_tables + (bucketed                 ? kBucketedTablesBytes
                                    : is_copied(config.bias) ? kCopyingWarps * kBiasRowsBytes
                                                             : 0);
  map.notes = map.barriers + 2 * 8 * (kItemSlots + config.query_stages + 2 * config.stages) + 8 * kItemSlots;
  map.items = map.notes + (config.stages * static_cast<int>(sizeof(KeyTileNote)) + 15) / 16 * 16;
  map.rows = map.items + kItemSlots * map.item_bytes;
  const int rows = config.interval_mask ? 0 : kItemSlots * query_rows;
  map.bytes = map.rows + rows * static_cast<int>(sizeof(geometry::VisibleColumns));
  return map;
}

/// The kernel's one argument.
struct HopperForwardParams {
  /// Dimensions (columns, rows, heads, sequences of a dense batch), boxes of 64 columns x one tile's rows, 128-byte
  /// swizzle. What lies outside is read as 0.
  ptx::TensorMap query, key, value;
  ptx::TensorMap bias;  ///< HopperBias::tensor_map; tiles of 64 rows
  AttentionCall call;
  /// Two device integers, 0 before and after the kernel: the next work item, and the CTAs that are done.
  unsigned* counters = nullptr;
  trace::Sheet sheet;
};

}  // namespace warploom
