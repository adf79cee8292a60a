// What host and kernels agree on for the gradient of a bias where it is more than the main kernel's to write.
#pragma once

#include "attention/backward_config.h"

namespace warploom {

/// The kernel that sums dS over what the gradient does not tell apart: sequences and heads that share a dense or packed
/// bias, pairs that share an entry of a table. Its tiles are square.
struct BackwardBiasConfig {
  int head_dim = 64;
  int value_dim = 64;
  bool bfloat16 = true;
  bool softmax = false;
  bool softcap = false;
  bool interval_mask = false;
  BiasKind bias = BiasKind::rows16;
  int key_columns = 64;  ///< 16 * warps
  int warps = 4;
  int min_blocks = 1;
  int user_score = 0;  ///< as in BackwardConfig
};

/// Entries of a table of times that a CTA sums; a larger table takes several passes.
inline constexpr int kTimesOfPass = 256;
/// Buckets whose sums of a warp's lanes fit two pieces of 2 KiB.
inline constexpr int kBucketsAtOnce = 32;

struct BackwardBiasSharedMap {
  int query = 0;
  int dout = 0;
  int key = 0;
  int value = 0;
  int bias = 0;   ///< what the provider needs; stored: dR on its way out
  int times = 0;  ///< bucketed: kTimesOfPass sums a warp
  int work = 0;
  int bias_places = 0;
  int steps = 0;  ///< a bit for each of `threads` steps
  int bytes = 0;
  static constexpr int work_bytes = 96;
  static constexpr int bias_places_bytes = 56;
};

WARPLOOM_HD constexpr BackwardBiasSharedMap shared_map(const BackwardBiasConfig& config) {
  BackwardBiasSharedMap map;
  const int rows = 16 * config.warps;
  const bool bucketed = config.bias == BiasKind::bucketed;
  map.dout = map.query + geometry::tile_bytes(rows, config.head_dim);
  map.key = map.dout + geometry::tile_bytes(rows, config.value_dim);
  map.value = map.key + geometry::tile_bytes(config.key_columns, config.head_dim);
  map.bias = map.value + geometry::tile_bytes(config.key_columns, config.value_dim);
  map.times = map.bias + bias_bytes(config.bias, config.warps, config.key_columns);
  map.work = map.times + (bucketed ? config.warps * kTimesOfPass * static_cast<int>(sizeof(float)) : 0);
  map.bias_places = map.work + map.work_bytes;
  map.steps = map.bias_places + map.bias_places_bytes;
  map.bytes = map.steps + config.warps * static_cast<int>(sizeof(unsigned));
  return map;
}

/// Parts of a block diagonal, a CTA each: the main one is long, and its tiles hold the most buckets.
inline constexpr int kDiagonalParts = 4;

/// A part of a block diagonal: the tiles whose query tile minus key tile is `behind`.
struct DiagonalPart {
  int query_tiles, key_tiles;
  int behind, part;

  /// Block diagonal number n of a sequence with tiles on both sides: the main one first, it is the longest.
  WARPLOOM_HD static constexpr int behind_of(int query_tiles, int n) {
    return n < query_tiles ? n : query_tiles - 1 - n;
  }
  /// How many there are.
  WARPLOOM_HD constexpr int diagonals() const { return query_tiles + key_tiles - 1; }

  /// Tiles of the whole diagonal before a part.
  WARPLOOM_HD constexpr int before(int part_) const {
    const int tiles = geometry::min_of(query_tiles, key_tiles + behind) - geometry::max_of(0, behind);
    return (tiles * part_ + kDiagonalParts - 1) / kDiagonalParts;
  }
  WARPLOOM_HD constexpr int steps() const { return before(part + 1) - before(part); }
  WARPLOOM_HD constexpr int query_tile(int step) const { return geometry::max_of(0, behind) + before(part) + step; }
  WARPLOOM_HD constexpr int key_tile(int step) const { return query_tile(step) - behind; }
};

/// A record of sums: one for each part of each block diagonal of each sequence and head. The block diagonal k of a
/// sequence holds the tiles whose query tile minus key tile is k + 1 - (key tiles).
struct TableRecord {
  int diagonals = 0;  ///< 2 * tile - 1 sums: x belongs to r - j = that of the tile's first pair + tile - 1 - x
  int first = 0;      ///< the sum of all pairs of the table's first entry
  int last = 0;       ///< of its last one
  int times = 0;      ///< num_times
  int floats = 0;
};
WARPLOOM_HD constexpr TableRecord table_record(int tile, int num_times) {
  TableRecord record;
  record.first = record.diagonals + 2 * tile - 1;
  record.last = record.first + 1;
  record.times = record.last + 1;
  record.floats = record.times + num_times;
  return record;
}
/// Records of a batch: at least as many as there are parts of block diagonals.
WARPLOOM_HD constexpr long long table_records(long long total_q, long long total_k, int sequences, int tile,
                                              int heads) {
  return (total_q / tile + total_k / tile + 2ll * sequences + 2) * kDiagonalParts * heads;
}
WARPLOOM_HD constexpr long long table_record_index(long long first_q, long long first_k, int sequence, int diagonal,
                                                   int part, int head, int tile, int heads) {
  return ((first_q / tile + first_k / tile + 2ll * sequence + diagonal) * kDiagonalParts + part) * heads + head;
}

/// The kernel that adds up the records.
struct BackwardTableSumsConfig {
  int tile = 64;
};
inline constexpr int kTableSumsThreads = 128;

/// The kernel that comes instead where the main kernel has added up the tables' gradients.
struct BackwardTableTotalsConfig {
  int threads = 256;
};

}  // namespace warploom
