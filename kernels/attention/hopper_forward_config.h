// The Hopper forward kernel's compile-time configuration, shared-memory map and parameters: what host and kernel agree
// on.
#pragma once

#include "attention/call.h"
#include "attention/kinds.h"
#include "geometry/host_device.h"
#include "geometry/mask.h"
#include "geometry/swizzle.h"
#include "ptx/tensor_map.h"

namespace warploom {

/// Everything that changes the generated code, nothing else. It is the compile key.
struct HopperForwardConfig {
  ScoreKind score = ScoreKind::silu;
  int head_dim = 64;     ///< D, a multiple of 8 up to 256
  int value_dim = 64;    ///< Dv, likewise
  bool bfloat16 = true;  ///< else float16
  bool softcap = false;  ///< softmax
  bool interval_mask = false;
  bool dense_bias =
      false;              ///< R in q's type, whose rows a tensor map describes; not with an interval mask or a softcap
  int consumers = 2;      ///< warpgroups of 64 query rows, 1 to 4
  int key_columns = 128;  ///< of a tile; a multiple of 16
  int stages = 2;         ///< of the K ring and of the V ring: 1, 2 or 4
  int query_stages = 2;   ///< 2: the next item's first S is issued beside this one's last P V
  bool turns = true;      ///< consumers use the tensor core in turns (ping-pong)
  /// HSTU in bfloat16 with a power of two for alpha / 2: Q is multiplied by it where it lies, which is exact, and not
  /// every score.
  bool scaled_query = false;
};

inline constexpr int kWarpgroupRows = 64;
inline constexpr int kMaxConsumers = 4;
/// Work items on their way from the scheduler to the consumers; a power of two, like every ring's slots.
inline constexpr int kItemSlots = 4;

/// Registers a thread after setmaxnreg, by number of consumers: their sum over the CTA is what it got at launch.
struct RegisterBudget {
  int producer, consumer;
};
inline constexpr RegisterBudget kRegisterBudgets[] = {{0, 0}, {56, 256}, {40, 232}, {32, 160}, {32, 112}};

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
  int bias = 0;         ///< a tile a stage and consumer
  int query_bytes = 0;  ///< of one warpgroup's tile
  int key_bytes = 0;    ///< of one stage
  int value_bytes = 0;
  int output = 0;      ///< 16 rows of 64 columns of O a warp
  int bias_bytes = 0;  ///< of one consumer's tile
  int barriers = 0;    ///< full and empty: items, Q, K, V; then one an item: the loader has come to it
  int notes = 0;       ///< one KeyTileNote a stage
  int items = 0;       ///< kItemSlots, item_bytes each
  int rows = 0;        ///< sequence masks: what each row of an item sees, kItemSlots times
  int bytes = 0;
  static constexpr int item_bytes = 256;
};

WARPLOOM_HD constexpr HopperForwardSharedMap shared_map(const HopperForwardConfig& config) {
  HopperForwardSharedMap map;
  map.query_bytes = geometry::tile_bytes(kWarpgroupRows, config.head_dim);
  map.key_bytes = geometry::tile_bytes(config.key_columns, config.head_dim);
  map.value_bytes = geometry::tile_bytes(config.key_columns, config.value_dim);
  map.key = map.query + config.query_stages * config.consumers * map.query_bytes;
  map.value = map.key + config.stages * map.key_bytes;
  map.bias_bytes = config.dense_bias ? geometry::tile_bytes(kWarpgroupRows, config.key_columns) : 0;
  map.bias = map.value + config.stages * map.value_bytes;
  map.output = map.bias + config.stages * config.consumers * map.bias_bytes;
  map.barriers = map.output + config.consumers * geometry::tile_bytes(kWarpgroupRows, 1);
  map.notes = map.barriers + 2 * 8 * (kItemSlots + config.query_stages + 2 * config.stages) + 8 * kItemSlots;
  map.items = map.notes + (config.stages * static_cast<int>(sizeof(KeyTileNote)) + 15) / 16 * 16;
  map.rows = map.items + kItemSlots * map.item_bytes;
  const int rows = config.interval_mask ? 0 : kItemSlots * config.consumers * kWarpgroupRows;
  map.bytes = map.rows + rows * static_cast<int>(sizeof(geometry::VisibleColumns));
  return map;
}

/// The kernel's one argument.
struct HopperForwardParams {
  /// Dimensions (columns, rows, heads, sequences of a dense batch), boxes of 64 columns x one tile's rows, 128-byte
  /// swizzle. What lies outside is read as 0.
  ptx::TensorMap query, key, value;
  ptx::TensorMap bias;  ///< dense_bias; tiles of 64 rows
  AttentionCall call;
  /// Two device integers, 0 before and after the kernel: the next work item, and the CTAs that are done.
  unsigned* counters = nullptr;
};

}  // namespace warploom
