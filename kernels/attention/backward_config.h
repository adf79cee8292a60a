// The backward kernels' compile-time configurations, shared-memory maps and arguments: what host and kernels agree on.
#pragma once

#include "attention/call.h"
#include "attention/kinds.h"
#include "geometry/host_device.h"
#include "geometry/mask.h"
#include "geometry/swizzle.h"

namespace warploom {

/// The kernel that walks query tiles beside a tile of keys. Everything that changes the generated code, nothing else:
/// it is the compile key.
struct BackwardConfig {
  int head_dim = 64;     ///< D, a multiple of 8 up to 256
  int value_dim = 64;    ///< Dv, likewise
  bool bfloat16 = true;  ///< else float16
  bool softmax = false;  ///< else HSTU
  bool softcap = false;  ///< of softmax
  bool interval_mask = false;
  BiasKind bias = BiasKind::none;
  /// Of a dense or packed bias: written as it comes, nothing of it is broadcast. Of tables: added in global memory.
  bool bias_gradient = false;
  bool bias_aligned = true;       ///< rows of it and of its gradient start at multiples of 16 bytes
  bool accumulate_dq = true;      ///< else dQ is the work of another kernel
  bool vector_reduction = false;  ///< sm_90 on: four floats a reduction
  int query_rows = 64;            ///< of a tile; 32, 64 or 128
  int key_rows = 128;             ///< of a CTA; a multiple of 32
  int key_blocks = 1;    ///< blocks of 16 keys that a warp owns; the warps left over share their head dimensions
  int dq_row_warps = 2;  ///< warps along the rows of dQ; the others share its columns
  int stages = 2;        ///< tiles of Q and dO in shared memory, 1 or 2
  int warps = 8;
  int min_blocks = 1;  ///< CTAs that an SM must hold: bounds the registers
  int user_score = 0;  ///< HSTU: a user's function instead of silu: the host's number of it, for the kernel any but 0
};

WARPLOOM_HD constexpr int key_groups(const BackwardConfig& config) {
  return config.key_rows / (16 * config.key_blocks);
}
/// Warps that own the same keys: each computes the scores of a part of the queries and sums a part of the columns.
WARPLOOM_HD constexpr int warps_of_group(const BackwardConfig& config) {
  return config.warps / key_groups(config);
}

/// Bytes of shared memory for R: of each warp its own part of a tile.
WARPLOOM_HD constexpr int bias_bytes(const BackwardConfig& config) {
  const int queries = config.query_rows / warps_of_group(config), keys = 16 * config.key_blocks;
  switch (config.bias) {
    case BiasKind::rows16:  // each row has 16 bytes more than the tile
      return config.warps * queries * (2 * keys + 16);
    case BiasKind::rows32:
      return config.warps * queries * (4 * keys + 16);
    case BiasKind::bucketed:
      return kStagedTimesBytes + config.warps * (bucketed_warp_bytes(queries, keys) +
                                                 (config.bias_gradient ? table_totals_warp_bytes(queries, keys) : 0));
    default:
      return 0;
  }
}
/// Whether it writes a gradient for each pair.
WARPLOOM_HD constexpr bool writes_bias_gradient(const BackwardConfig& config) {
  return config.bias_gradient && config.bias != BiasKind::bucketed;
}

/// Byte offsets in dynamic shared memory.
struct BackwardSharedMap {
  int key = 0;    ///< K, later dK
  int value = 0;  ///< V, later dV
  int query = 0;  ///< one tile a stage
  int dout = 0;
  int query_bytes = 0;  ///< of one stage
  int dout_bytes = 0;
  int probabilities = 0;   ///< P as (key, query), when several warps share their keys
  int score_gradient = 0;  ///< dS as (key, query)
  int score_bytes = 0;     ///< of one buffer of either
  int row_terms = 0;       ///< what the score function reads of each query row, row_terms_bytes a stage
  int row_terms_bytes = 0;
  int visible = 0;  ///< for each key the bits of the queries that see it, visible_bytes a stage
  int visible_bytes = 0;
  int whole = 0;        ///< for each 32 queries whether they see all keys, one int each, a stage after the other
  int tiles = 0;        ///< the latest QueryTiles, a ring
  int maxima = 0;       ///< float16: two floats a warp
  int bias = 0;         ///< bias_bytes
  int work = 0;         ///< what the CTA works on
  int bias_places = 0;  ///< where R and its gradient lie
  int walk = 0;         ///< the ranges of a sequence mask, or one int a warp
  int bytes = 0;
  static constexpr int work_bytes = 96;
  static constexpr int bias_places_bytes = 112;
  static constexpr int tile_bytes = 8;
  static constexpr int kept_tiles = 4;
};

WARPLOOM_HD constexpr BackwardSharedMap shared_map(const BackwardConfig& config) {
  BackwardSharedMap map;
  const bool shared_keys = warps_of_group(config) > 1;
  const int score_buffers = config.accumulate_dq ? 2 : shared_keys ? 1 : 0;
  const int int_bytes = static_cast<int>(sizeof(int));
  const int query_words = config.query_rows / 32;
  map.query_bytes = geometry::tile_bytes(config.query_rows, config.head_dim);
  map.dout_bytes = geometry::tile_bytes(config.query_rows, config.value_dim);
  map.score_bytes = geometry::tile_bytes(config.key_rows, config.query_rows);
  map.row_terms_bytes = config.query_rows * (config.softmax ? 2 : 1) * static_cast<int>(sizeof(float));
  map.visible_bytes = config.key_rows * query_words * int_bytes;
  map.value = map.key + geometry::tile_bytes(config.key_rows, config.head_dim);
  map.query = map.value + geometry::tile_bytes(config.key_rows, config.value_dim);
  map.dout = map.query + config.stages * map.query_bytes;
  map.probabilities = map.dout + config.stages * map.dout_bytes;
  map.score_gradient = map.probabilities + (shared_keys ? map.score_bytes : 0);
  map.row_terms = map.score_gradient + score_buffers * map.score_bytes;
  map.visible = map.row_terms + config.stages * map.row_terms_bytes;
  map.bias = map.visible + config.stages * map.visible_bytes;
  map.work = map.bias + bias_bytes(config);
  map.bias_places = map.work + map.work_bytes;
  map.tiles = map.bias_places + (config.bias == BiasKind::none ? 0 : map.bias_places_bytes);
  map.whole = map.tiles + map.kept_tiles * map.tile_bytes;
  map.maxima = map.whole + config.stages * query_words * int_bytes;
  map.walk = map.maxima + (config.bfloat16 ? 0 : 2 * config.warps * static_cast<int>(sizeof(float)));
  map.bytes = map.walk + (config.interval_mask ? config.warps * int_bytes : static_cast<int>(sizeof(geometry::Ranges)));
  return map;
}

/// The kernel that walks key tiles beside a tile of query rows and computes dQ alone.
struct BackwardDqConfig {
  int head_dim = 64;
  int value_dim = 64;
  bool bfloat16 = true;
  bool softmax = false;
  bool softcap = false;
  bool interval_mask = false;
  BiasKind bias = BiasKind::none;
  int key_columns = 64;  ///< of a tile; a multiple of 32
  int stages = 2;        ///< K and V tiles in shared memory; at most 2 with a bias
  int warps = 4;         ///< each owns 16 of the query rows
  int min_blocks = 1;
  int user_score = 0;  ///< as in BackwardConfig
};

/// Bytes of shared memory for R beside tiles of query rows, 16 a warp.
WARPLOOM_HD constexpr int bias_bytes(BiasKind bias, int warps, int key_columns) {
  switch (bias) {
    case BiasKind::rows16:
      return 16 * warps * (2 * key_columns + 16);
    case BiasKind::rows32:
      return 16 * warps * (4 * key_columns + 16);
    case BiasKind::bucketed:
      return kStagedTimesBytes + warps * bucketed_warp_bytes(key_columns, 16);
    default:
      return 0;
  }
}

struct BackwardDqSharedMap {
  int query = 0;  ///< Q, later dQ
  int dout = 0;
  int key = 0;  ///< one tile a stage
  int value = 0;
  int key_bytes = 0;  ///< of one stage
  int value_bytes = 0;
  int bias = 0;
  int work = 0;
  int bias_places = 0;  ///< where R lies
  int rows = 0;         ///< what each lane's row sees, row_bytes a thread
  int tile_numbers = 0;
  int walk = 0;
  int bytes = 0;
  static constexpr int work_bytes = 96;
  static constexpr int bias_places_bytes = 56;
  static constexpr int row_bytes = 16;
};

WARPLOOM_HD constexpr BackwardDqSharedMap shared_map(const BackwardDqConfig& config) {
  BackwardDqSharedMap map;
  const int query_rows = 16 * config.warps;
  const int int_bytes = static_cast<int>(sizeof(int));
  map.key_bytes = geometry::tile_bytes(config.key_columns, config.head_dim);
  map.value_bytes = geometry::tile_bytes(config.key_columns, config.value_dim);
  map.dout = map.query + geometry::tile_bytes(query_rows, config.head_dim);
  map.key = map.dout + geometry::tile_bytes(query_rows, config.value_dim);
  map.value = map.key + config.stages * map.key_bytes;
  map.bias = map.value + config.stages * map.value_bytes;
  map.work = map.bias + bias_bytes(config.bias, config.warps, config.key_columns);
  map.bias_places = map.work + map.work_bytes;
  map.rows = map.bias_places + (config.bias == BiasKind::none ? 0 : map.bias_places_bytes);
  map.tile_numbers = map.rows + config.warps * 32 * map.row_bytes;
  map.walk = map.tile_numbers + config.stages * int_bytes;
  map.bytes = map.walk + (config.interval_mask ? config.warps * int_bytes : static_cast<int>(sizeof(geometry::Ranges)));
  return map;
}

/// The kernels before and after: softmax's row terms, and dQ from its sums.
struct BackwardRowTermsConfig {
  int value_dim = 64;
  bool bfloat16 = true;
};
struct BackwardDqSumsConfig {
  int head_dim = 64;
  bool bfloat16 = true;
  bool vector_reduction = false;  ///< as in the BackwardConfig that made the sums
  int query_rows = 64;            ///< likewise
};
inline constexpr int kRowTermsThreads = 256;
inline constexpr int kDqSumsThreads = 128;

/// Lanes that share a row of the row terms: a power of two.
WARPLOOM_HD constexpr int lanes_of_row(const BackwardRowTermsConfig& config) {
  return config.value_dim <= 64 ? 8 : config.value_dim <= 128 ? 16 : 32;
}

/// What softmax's backward pass reads of a query row besides its tensors.
struct alignas(8) SoftmaxRowTerms {
  float lse;    ///< +inf for a row that sees nothing, whose probabilities are 0
  float delta;  ///< row sum of dO * O
};

/// The gradient of a bias beyond what the main kernel writes (attention/backward_bias_config.h).
struct BiasSums {
  int sequences = 1, heads = 1;         ///< that the gradient tells apart
  int row_tiles = 1, column_tiles = 1;  ///< stored: tiles of the gradient; bucketed: row_tiles block diagonals
  int time_passes = 1;                  ///< bucketed
  float* position_gradient = nullptr;   ///< (heads or 1, num_positions); null: not wanted
  float* time_gradient = nullptr;       ///< (heads or 1, num_times)
  int position_heads = 1, time_heads = 1;
  long long record_bytes = 0;  ///< bucketed, by a kernel of its own: of scratch memory
  float* records = nullptr;    ///< TableRecords
  /// Bucketed, added by the main kernel: scratch memory, cleared before; the position table's and then the time
  /// table's.
  long long position_totals = 0, time_totals = 0;
  float* totals = nullptr;
};

/// The argument of every backward kernel.
struct BackwardParams {
  AttentionCall call;
  Tensor dquery, dkey, dvalue;
  float score_factor = 1;        ///< of dQ and dK: what their dS lacks (attention/backward_score.h)
  float probability_factor = 1;  ///< of dV
  float bias_factor = 1;         ///< of dR: what dS lacks
  BiasCall bias_gradient;        ///< where it lies, as for the bias itself
  BiasSums bias_sums;
  SoftmaxRowTerms* row_terms = nullptr;  ///< scratch, (heads, total_q)
  /// Scratch: sums of dQ before its factor, in the order of the mma's accumulators (dq_sums_offset).
  float* dq_sums = nullptr;
};

/// Query tiles of dq_sums: a tile never holds rows of two sequences.
WARPLOOM_HD constexpr long long dq_tiles(long long total_q, int sequences, int query_rows) {
  return total_q / query_rows + sequences + 1;
}
/// The first float of tile `tile` of a sequence's head.
WARPLOOM_HD constexpr long long dq_sums_offset(long long first_q, int sequence, int tile, int heads, int head,
                                               int query_rows, int head_dim) {
  return ((first_q / query_rows + sequence + tile) * heads + head) * query_rows * head_dim;
}

}  // namespace warploom
