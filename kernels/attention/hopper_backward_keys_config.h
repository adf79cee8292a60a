// The compile-time configuration and the shared-memory map of the Hopper kernel that computes dK and dV: what host and
// kernel agree on.
#pragma once

#include "attention/hopper_backward_config.h"
#include "geometry/host_device.h"
#include "geometry/swizzle.h"

namespace warploom {

/// Everything that changes the generated code, nothing else. It is the compile key.
struct HopperBackwardKeysConfig {
  int head_dim = 64;     ///< D, a multiple of 8 up to 256
  int value_dim = 64;    ///< Dv, likewise
  bool bfloat16 = true;  ///< else float16
  bool softmax = false;  ///< else HSTU
  bool softcap = false;  ///< of softmax
  bool interval_mask = false;
  bool stored_bias = false;                ///< dense or packed, of q's type: each thread reads its elements from memory
  bool bias_gradient = false;              ///< and writes those of its gradient, nothing of which is broadcast
  int query_rows = 64;                     ///< of a tile; a multiple of 16 up to 64
  int stages = 2;                          ///< of the Q ring and of the dO ring: 2 to 4
  trace::Level trace = trace::Level::off;  ///< which marks of pipeline/trace.h record
};

/// The rings, and the products that are committed together, by the numbers that marks name them with.
struct BackwardKeysMarks {
  static constexpr int queries = 0, douts = 1;
  static constexpr int keys = 2, values = 3;
  static constexpr int items = 4;
  static constexpr int handoffs = 5;  ///< of consumer 0, then of consumer 1; numbered like the tiles

  static constexpr int score_products = 0;                  ///< S and dP
  static constexpr int value_product = 1, key_product = 2;  ///< dV, of consumer 0; dK, of consumer 1
};
/// Warps that mark: the first of each consumer, then scheduler, loader of K and Q, loader of V and dO.
inline constexpr int kBackwardKeysStrips = 5;

/// Rows of a key tile: those of one wgmma.
inline constexpr int kBackwardKeyRows = 64;

/// What a loader tells about a query tile, beside the tile itself. flags: as in QueryTileNote.
struct QueryTilePlace {
  int first_query, head;
  int rows;  ///< that the sequence has from the first on, also beyond the tile
  int flags;
};

/// Byte offsets in dynamic shared memory, whose base is a multiple of 1024.
struct HopperBackwardKeysSharedMap {
  int key = 0;
  int value = 0;
  int query = 0;  ///< one tile a stage
  int dout = 0;
  int handoff = 0;    ///< a tile for each consumer: dS^T that it hands to the other one, or P^T
  int terms = 0;      ///< what the score function reads of each row: of Q's stages, then of dO's
  int exponents = 0;  ///< float16: one int a warp of a consumer, of what it hands on
  int barriers = 0;   ///< full and empty: items, K, V, Q, dO; then the loader's request for an item
  int notes = 0;      ///< a QueryTilePlace a stage of Q, then of dO
  int biases = 0;     ///< stored_bias: a BiasPlace a stage of Q
  int items = 0;      ///< kSlots, item_bytes each
  int key_bytes = 0;  ///< of one tile
  int value_bytes = 0;
  int query_bytes = 0;
  int dout_bytes = 0;
  int terms_bytes = 0;    ///< of one stage
  int handoff_bytes = 0;  ///< of one consumer
  int bytes = 0;
  static constexpr int item_slots = 4;
  static constexpr int item_bytes = 192;
  static constexpr int bias_place_bytes = 64;
};

WARPLOOM_HD constexpr HopperBackwardKeysSharedMap shared_map(const HopperBackwardKeysConfig& config) {
  HopperBackwardKeysSharedMap map;
  map.key_bytes = geometry::tile_bytes(kBackwardKeyRows, config.head_dim);
  map.value_bytes = geometry::tile_bytes(kBackwardKeyRows, config.value_dim);
  map.query_bytes = geometry::tile_bytes(config.query_rows, config.head_dim);
  map.dout_bytes = geometry::tile_bytes(config.query_rows, config.value_dim);
  map.terms_bytes = config.query_rows * static_cast<int>(sizeof(float));
  map.handoff_bytes = geometry::tile_bytes(kBackwardKeyRows, config.query_rows);
  map.value = map.key + map.key_bytes;
  map.query = map.value + map.value_bytes;
  map.dout = map.query + config.stages * map.query_bytes;
  map.handoff = map.dout + config.stages * map.dout_bytes;
  map.terms = map.handoff + 2 * map.handoff_bytes;
  map.items = map.terms + 2 * config.stages * map.terms_bytes;
  map.exponents = map.items + map.item_slots * map.item_bytes;
  map.barriers = map.exponents + 2 * 4 * static_cast<int>(sizeof(int));
  map.notes = map.barriers + 2 * 8 * (map.item_slots + 2 + 2 * config.stages) + 8;
  map.biases = map.notes + 2 * config.stages * static_cast<int>(sizeof(QueryTilePlace));
  map.bytes = map.biases + (config.stored_bias ? config.stages * map.bias_place_bytes : 0);
  return map;
}

}  // namespace warploom
