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
  int stages = 2;  ///< of the Q ring and of the dO ring: 2 or 4
};

/// Rows of a key tile and of a query tile: those of one wgmma.
inline constexpr int kBackwardTileRows = 64;

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
  int handoff = 0;           ///< a tile for each consumer: dS^T that it hands to the other one, or P^T
  int terms = 0;             ///< what the score function reads of each row: of Q's stages, then of dO's
  int exponents = 0;         ///< float16: one int a warp of a consumer, of what it hands on
  int barriers = 0;          ///< full and empty: items, K, V, Q, dO; then the loader's request for an item
  int notes = 0;             ///< a QueryTilePlace a stage of Q, then of dO
  int items = 0;             ///< kSlots, item_bytes each
  int head_tile_bytes = 0;   ///< of one tile of K or Q
  int value_tile_bytes = 0;  ///< of V or dO
  int bytes = 0;
  static constexpr int item_slots = 4;
  static constexpr int terms_bytes = kBackwardTileRows * 4;  ///< of one stage
  static constexpr int item_bytes = 192;
  static constexpr int handoff_bytes = geometry::tile_bytes(kBackwardTileRows, kBackwardTileRows);
};

WARPLOOM_HD constexpr HopperBackwardKeysSharedMap shared_map(const HopperBackwardKeysConfig& config) {
  HopperBackwardKeysSharedMap map;
  map.head_tile_bytes = geometry::tile_bytes(kBackwardTileRows, config.head_dim);
  map.value_tile_bytes = geometry::tile_bytes(kBackwardTileRows, config.value_dim);
  map.value = map.key + map.head_tile_bytes;
  map.query = map.value + map.value_tile_bytes;
  map.dout = map.query + config.stages * map.head_tile_bytes;
  map.handoff = map.dout + config.stages * map.value_tile_bytes;
  map.terms = map.handoff + 2 * map.handoff_bytes;
  map.items = map.terms + 2 * config.stages * map.terms_bytes;
  map.exponents = map.items + map.item_slots * map.item_bytes;
  map.barriers = map.exponents + 2 * 4 * static_cast<int>(sizeof(int));
  map.notes = map.barriers + 2 * 8 * (map.item_slots + 2 + 2 * config.stages) + 8;
  map.bytes = map.notes + 2 * config.stages * static_cast<int>(sizeof(QueryTilePlace));
  return map;
}

}  // namespace warploom
