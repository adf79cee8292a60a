// The compile-time configuration and the shared-memory map of the Hopper kernel for wide heads that differentiates in
// one pass with two CTAs a work item: what host and kernel agree on.
#pragma once

#include "attention/hopper_backward_config.h"
#include "geometry/host_device.h"
#include "geometry/swizzle.h"

namespace warploom {

/// Everything that changes the generated code, nothing else. It is the compile key. bfloat16 only.
struct HopperBackwardPairConfig {
  int head_dim = 256;    ///< D, a multiple of 8 up to 256, with Dv or alone over 128
  int value_dim = 256;   ///< Dv, likewise
  bool softmax = false;  ///< else HSTU
  bool interval_mask = false;
  int stages = 2;        ///< of the Q ring
  int dout_stages = 2;   ///< of the dO ring
  int slope_stages = 1;  ///< of dS
  /// HSTU with a power of two for alpha / 2: K is multiplied by it where it lies, which is exact, and not every score.
  bool scaled_key = false;
  /// P is made before dP is there: not with divisors by row.
  bool splits_scores = true;
  trace::Level trace = trace::Level::off;  ///< which marks of pipeline/trace.h record
};

/// The rings, and the products that are committed together, by the numbers that marks name them with.
struct BackwardPairMarks {
  static constexpr int queries = 0, douts = 1;
  static constexpr int keys = 2, values = 3;
  static constexpr int items = 4;
  static constexpr int own_slopes = 5, other_slopes = 6;  ///< dS of this CTA's keys, and of the other's

  static constexpr int score_product = 0, slope_product = 1;  ///< S, dP
  static constexpr int value_product = 2;                     ///< dV
  static constexpr int key_product = 3, query_product = 4;    ///< dK, dQ
};
/// Warps that mark: the first of each consumer, then scheduler, loader of K and Q, loader of V and dO.
inline constexpr int kBackwardPairStrips = 5;

/// Rows of a CTA's keys, and of a tile of queries: those of one wgmma.
inline constexpr int kPairKeyRows = 64, kPairQueryRows = 64;
inline constexpr int kClusterCtas = 2;

/// What the loader tells about a query tile. flags: as in QueryTileNote.
struct PairTileNote {
  int flags;
  int rows;     ///< that the sequence has from the tile's first on, also beyond it
  int dq_tile;  ///< its number among the sums for dQ
};

/// Panels of the head that a CTA sums dQ for: of four two, of three one and a half.
WARPLOOM_HD constexpr int pair_sum_panels(const HopperBackwardPairConfig&) {
  return 2;
}

/// Byte offsets in dynamic shared memory, whose base is a multiple of 1024.
struct HopperBackwardPairSharedMap {
  int key = 0;
  int value = 0;
  int other_key = 0;  ///< the other CTA's keys, of the panels that this one sums dQ for
  int query = 0;      ///< one tile a stage
  int dout = 0;
  int slopes = 0;  ///< a stage: dS^T of this CTA's keys, then of the other's; keys along the rows
  int row_terms =
      0;            ///< of each query: the factor 1 / divisor, or softmax's lse log2(e), and behind all of those -delta
  int visible = 0;  ///< of 32 keys after the other: for each query the bits of the keys that it sees
  int items = 0;    ///< item_slots, item_bytes each
  int mail = 0;     ///< the next item's number, letter_bytes: as it goes; then as it comes
  int barriers = 0;
  int notes = 0;  ///< one PairTileNote a stage
  int key_bytes = 0;
  int value_bytes = 0;
  int other_key_bytes = 0;
  int query_bytes = 0;  ///< of one stage
  int dout_bytes = 0;
  int row_terms_bytes = 0;
  int visible_bytes = 0;
  int bytes = 0;
  static constexpr int slope_bytes = kPairKeyRows * geometry::kPanelRowBytes;  ///< of one CTA's keys
  static constexpr int item_slots = 2;
  static constexpr int item_bytes = 160;
  static constexpr int letter_bytes = 16;
};

WARPLOOM_HD constexpr HopperBackwardPairSharedMap shared_map(const HopperBackwardPairConfig& config) {
  HopperBackwardPairSharedMap map;
  map.key_bytes = geometry::tile_bytes(kPairKeyRows, config.head_dim);
  map.value_bytes = geometry::tile_bytes(kPairKeyRows, config.value_dim);
  map.other_key_bytes = pair_sum_panels(config) * kPairKeyRows * geometry::kPanelRowBytes;
  map.query_bytes = geometry::tile_bytes(kPairQueryRows, config.head_dim);
  map.dout_bytes = geometry::tile_bytes(kPairQueryRows, config.value_dim);
  map.row_terms_bytes = kPairQueryRows * (config.softmax ? 2 : 1) * static_cast<int>(sizeof(float));
  map.visible_bytes = kPairKeyRows / 32 * kPairQueryRows * static_cast<int>(sizeof(int));
  map.value = map.key + map.key_bytes;
  map.other_key = map.value + map.value_bytes;
  map.query = map.other_key + map.other_key_bytes;
  map.dout = map.query + config.stages * map.query_bytes;
  map.slopes = map.dout + config.dout_stages * map.dout_bytes;
  map.row_terms = map.slopes + config.slope_stages * 2 * map.slope_bytes;
  map.visible = map.row_terms + config.stages * map.row_terms_bytes;
  map.items = map.visible + config.stages * map.visible_bytes;
  map.mail = map.items + map.item_slots * map.item_bytes;
  map.barriers = map.mail + 2 * map.letter_bytes;
  map.notes =
      map.barriers + 8 * (2 * (map.item_slots + 2 + config.stages + config.dout_stages) + 3 * config.slope_stages + 3);
  map.bytes = map.notes + config.stages * static_cast<int>(sizeof(PairTileNote));
  return map;
}

}  // namespace warploom
