// The Hopper backward kernels that walk query tiles beside a tile of keys: compile-time configuration, shared-memory
// map and parameters, what host and kernels agree on.
#pragma once

#include "attention/backward_config.h"
#include "geometry/host_device.h"
#include "geometry/swizzle.h"
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
  bool dense_bias = false;     ///< of q's type, bfloat16, in tiles by TMA beside those of Q
  bool bias_gradient = false;  ///< and its gradient, nothing of which is broadcast
};

/// Work items on their way from the scheduler to the consumers; a power of two, like every ring's slots.
inline constexpr int kBackwardItemSlots = 2;

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

/// Byte offsets in dynamic shared memory, whose base is a multiple of 1024.
struct HopperBackwardSharedMap {
  int key = 0;
  int value = 0;
  int query = 0;  ///< one tile a stage
  int dout = 0;
  int query_bytes = 0;  ///< of one stage
  int dout_bytes = 0;
  int scores = 0;           ///< two (query, key) tiles of P or dS
  int score_bytes = 0;      ///< of one
  int bias = 0;             ///< one (query, key) tile of R a stage
  int bias_bytes = 0;       ///< of one stage
  int zeros = 0;            ///< bias_gradient: a panel of a tile, for the places that nothing is visible in
  int row_terms = 0;        ///< of each query: softmax's SoftmaxRowTerms, else the factor 1 / divisor
  int row_terms_bytes = 0;  ///< of one stage
  int visible = 0;          ///< of 32 keys after the other: for each query the bits of the keys that it sees
  int visible_bytes = 0;    ///< of one stage
  int barriers = 0;         ///< of the items, K and V, the tiles, the scores; the request and the landing
  int notes = 0;            ///< one QueryTileNote a stage
  int exponents = 0;        ///< float16: of each warp's part of a dS tile the power of two that it was divided by
  int bias_notes = 0;       ///< bias_gradient: one BiasTileNote a stage, then one a score tile and consumer
  int items = 0;            ///< kBackwardItemSlots, item_bytes each
  int bytes = 0;
  static constexpr int item_bytes = 160;
  static constexpr int barrier_bytes = 8;
};

WARPLOOM_HD constexpr HopperBackwardSharedMap shared_map(const HopperBackwardConfig& config) {
  HopperBackwardSharedMap map;
  map.query_bytes = geometry::tile_bytes(config.query_rows, config.head_dim);
  map.dout_bytes = geometry::tile_bytes(config.query_rows, config.value_dim);
  map.score_bytes = geometry::tile_bytes(config.query_rows, config.key_rows);
  map.row_terms_bytes = config.query_rows * (config.softmax ? 2 : 1) * static_cast<int>(sizeof(float));
  map.visible_bytes = config.key_rows / 32 * config.query_rows * static_cast<int>(sizeof(int));
  map.value = map.key + geometry::tile_bytes(config.key_rows, config.head_dim);
  map.query = map.value + geometry::tile_bytes(config.key_rows, config.value_dim);
  map.dout = map.query + config.stages * map.query_bytes;
  map.scores = map.dout + config.stages * map.dout_bytes;
  map.bias = map.scores + 2 * map.score_bytes;
  map.bias_bytes = config.dense_bias ? map.score_bytes : 0;
  map.zeros = map.bias + config.stages * map.bias_bytes;
  map.row_terms =
      map.zeros + (config.bias_gradient ? geometry::tile_bytes(config.query_rows, geometry::kPanelColumns) : 0);
  map.visible = map.row_terms + config.stages * map.row_terms_bytes;
  map.barriers = map.visible + config.stages * map.visible_bytes;
  map.notes = map.barriers + map.barrier_bytes * (2 * (kBackwardItemSlots + 1 + config.stages + 2) + 2);
  map.exponents = map.notes + config.stages * static_cast<int>(sizeof(QueryTileNote));
  const int warps = config.bfloat16 ? 0 : 4 * config.consumers;
  map.bias_notes = map.exponents + 2 * warps * static_cast<int>(sizeof(int));
  const int bias_notes = config.bias_gradient ? config.stages + 2 * config.consumers : 0;
  map.items = (map.bias_notes + bias_notes * static_cast<int>(sizeof(BiasTileNote)) + 15) / 16 * 16;
  map.bytes = map.items + kBackwardItemSlots * map.item_bytes;
  return map;
}

/// The one argument of every Hopper backward kernel but the ones before and after (BackwardParams).
struct HopperBackwardParams {
  /// Dimensions (columns, rows, heads, sequences of a dense batch), boxes of 64 columns x one tile's rows, 128-byte
  /// swizzle. What lies outside is read as 0.
  ptx::TensorMap query, dout, key, value;
  BackwardParams backward;
  /// Two device integers, 0 before and after the kernel: the next work item, and the CTAs that are done.
  unsigned* counters = nullptr;
  /// Of R and of its gradient, dense_bias and bias_gradient only: (columns, rows, heads, sequences), boxes as of Q.
  ptx::TensorMap bias, bias_gradient;
};

}  // namespace warploom
