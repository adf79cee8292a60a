// The compile-time configuration and the shared-memory map of the Hopper kernel that computes dQ: what host and kernel
// agree on.
#pragma once

#include "attention/hopper_backward_config.h"
#include "geometry/host_device.h"
#include "geometry/swizzle.h"

namespace warploom {

/// Everything that changes the generated code, nothing else. It is the compile key.
struct HopperBackwardDqConfig {
  int head_dim = 64;     ///< D, a multiple of 8 up to 256
  int value_dim = 64;    ///< Dv, likewise
  bool bfloat16 = true;  ///< else float16
  bool softmax = false;  ///< else HSTU
  bool softcap = false;  ///< of softmax
  bool interval_mask = false;
  bool stored_bias = false;   ///< dense or packed, of q's type: each thread reads its elements from memory
  int consumers = 2;          ///< warpgroups of 64 query rows, 1 to 4
  int key_columns = 64;       ///< of a tile; a multiple of 16
  int stages = 2;             ///< of the K ring: 1, 2 or 4
  int value_stages = 1;       ///< of the V ring
  bool turns = true;          ///< consumers use the tensor core in turns (ping-pong)
  bool sums_at_once = false;  ///< dQ's product before the next turn, beside the other consumer's, instead of in it
  /// HSTU in bfloat16 with a power of two for alpha / 2: Q is multiplied by it where it lies, which is exact, and not
  /// every score.
  bool scaled_query = false;
  trace::Level trace = trace::Level::off;  ///< which marks of pipeline/trace.h record
};

/// The rings and the products by the numbers that marks name them with.
struct BackwardDqMarks {
  static constexpr int keys = 0, values = 1, items = 2;
  static constexpr int queries = 3;  ///< of the first consumer, Q with dO; each has a ring of its own

  static constexpr int score_product = 0;  ///< S
  static constexpr int slope_product = 1;  ///< dP
  static constexpr int query_product = 2;  ///< dQ
};
/// Warps that mark: the first of each consumer, then scheduler, loader of K and V, loader of Q and dO.
WARPLOOM_HD constexpr int trace_strips(const HopperBackwardDqConfig& config) {
  return config.consumers + 3;
}

/// Byte offsets in dynamic shared memory, whose base is a multiple of 1024.
struct HopperBackwardDqSharedMap {
  int query = 0;  ///< one tile of 64 rows a consumer
  int dout = 0;
  int key = 0;  ///< one tile a stage
  int value = 0;
  int query_bytes = 0;  ///< of one consumer
  int dout_bytes = 0;
  int key_bytes = 0;  ///< of one stage
  int value_bytes = 0;
  int terms = 0;     ///< what the score function reads of each row, 8 bytes
  int items = 0;     ///< item_slots, item_bytes each
  int barriers = 0;  ///< full and empty: items, Q with dO of each consumer, K, V; then the loader's request for an item
  int notes = 0;     ///< a KeyTileNote a stage of K
  int bytes = 0;
  static constexpr int item_slots = 2;
  static constexpr int item_bytes = 256;
  static constexpr int note_bytes = 8;
};

WARPLOOM_HD constexpr HopperBackwardDqSharedMap shared_map(const HopperBackwardDqConfig& config) {
  constexpr int kRows = 64;  // of a warpgroup
  HopperBackwardDqSharedMap map;
  map.query_bytes = geometry::tile_bytes(kRows, config.head_dim);
  map.dout_bytes = geometry::tile_bytes(kRows, config.value_dim);
  map.key_bytes = geometry::tile_bytes(config.key_columns, config.head_dim);
  map.value_bytes = geometry::tile_bytes(config.key_columns, config.value_dim);
  map.dout = map.query + config.consumers * map.query_bytes;
  map.key = map.dout + config.consumers * map.dout_bytes;
  map.value = map.key + config.stages * map.key_bytes;
  map.terms = map.value + config.value_stages * map.value_bytes;
  map.items = map.terms + config.consumers * kRows * 8;
  map.barriers = map.items + map.item_slots * map.item_bytes;
  map.notes = map.barriers + 2 * 8 * (map.item_slots + config.consumers + config.stages + config.value_stages) + 8;
  map.bytes = map.notes + config.stages * map.note_bytes;
  return map;
}

}  // namespace warploom
