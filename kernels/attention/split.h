// Attention of short queries against long keys, split along the keys: what the kernel that computes parts
// (attention_forward_split.cu), the one that adds them up (attention_combine.cu) and the host agree on.
//
// A sequence's keys are cut into chunks. Each chunk gives every query row a part of O in float32, summed from nothing,
// and the parts are added up in the order of the chunks. Which keys a chunk has follows from the sequence's own lengths
// alone; how many CTAs share the chunks of a sequence is free. So no bit of a result depends on the other sequences, on
// max_seqlen or on the GPU's size.
//
// All query heads that share a key head are rows of one tile when that is possible ("packed"): row n of a sequence is
// head n mod packed_heads of query row n / packed_heads, and K and V are read once for all of them.
#pragma once

#include "attention/call.h"
#include "geometry/mask.h"

namespace warploom {

/// A row's part of O is in units of 2^base. sum: softmax: of its probabilities, in the same units; silu: not 0. A row
/// that sees nothing of the chunk has the sum 0, and its part is not written.
struct alignas(8) PartTerms {
  float base, sum;
};

inline constexpr int kMostChunks = 256;
inline constexpr int kChunkUnit = 64;  ///< a chunk is a multiple of this many keys, which every key tile divides
inline constexpr int kFewestChunkKeys = 256;
inline constexpr int kChunksInAnyCase = 8;
/// A part costs as much as the row it belongs to has columns, written and read again: 32 keys a row keep that near a
/// sixteenth of the traffic of K and V. A CTA has no more rows than kRowTile.
inline constexpr int kChunkKeysOfRow = 32;
inline constexpr int kRowTile = 64;

/// What the keys of a sequence are cut into.
struct Chunks {
  int keys;  ///< of a chunk; the last one may have fewer
  int count;
};

/// rows: of the sequence in one head or packed group of heads; groups: of these there are. Together they need some
/// kMostChunks CTAs to fill a large GPU: more chunks than give that many are of no use. For the price of parts fewer
/// will do, but for kChunksInAnyCase.
WARPLOOM_HD constexpr Chunks chunks_of(long long rows, int groups, int seqlen_k) {
  const auto divided = [](long long a, long long b) { return (a + b - 1) / b; };
  const long long row_tiles = divided(rows, kRowTile) * groups;
  const long long for_gpu = divided(seqlen_k * row_tiles, kMostChunks);
  const long long for_parts = (rows < kRowTile ? rows : kRowTile) * kChunkKeysOfRow;
  const long long few = divided(seqlen_k, kChunksInAnyCase);
  long long keys = for_parts < few ? for_parts : few;
  if (keys < for_gpu) keys = for_gpu;
  if (keys > seqlen_k) keys = seqlen_k;
  if (keys < kFewestChunkKeys) keys = kFewestChunkKeys;
  keys = divided(keys, kChunkUnit) * kChunkUnit;
  return {static_cast<int>(keys), static_cast<int>(divided(seqlen_k, keys))};
}

/// Where the parts of a sequence lie: behind room for those of the sequences before it, counted so that the host knows
/// the sum without knowing lengths. A row has at most kMostChunks parts. And a sequence has at most kChunksInAnyCase +
/// 1 parts a row, or one row of parts for every kChunkKeysOfRow keys, times its row tiles: the sum of both is enough.
struct PartSlots {
  bool by_keys = false;  ///< the second of the two bounds
  int queries_each = 0;  ///< query rows that a sequence has room for; 0: as many as its slot
  int row_tiles = 1;     ///< of the sequence with the most rows that is split

  /// Rows of parts before a sequence (of one head or packed group of heads), behind `sequences` others with so many
  /// query rows and keys.
  WARPLOOM_HD constexpr long long before(long long sequences, long long queries, long long keys,
                                         int packed_heads) const {
    const long long rows = (queries_each > 0 ? sequences * queries_each : queries) * packed_heads;
    if (!by_keys) return rows * kMostChunks;
    return rows * (kChunksInAnyCase + 1) + keys * row_tiles / kChunkKeysOfRow + sequences;
  }
};

/// The argument of both kernels. The schedule's query tiles are row_tiles x splits.
struct SplitCall {
  AttentionCall call;
  PartTerms* terms = nullptr;  ///< one a row of parts
  float* parts = nullptr;      ///< value_dim a row of parts
  PartSlots slots;
  int packed_heads = 1;
  int row_tiles = 1;  ///< of the longest sequence
  int splits = 1;     ///< CTAs that share the chunks of a row tile
  /// This launch's sequences: those with so many rows (packed), and at most so many query rows.
  long long fewest_rows = 1, most_rows = 0;
  int most_queries = 0;
  long long most_split_rows = 0;  ///< more than the call says there are: such a sequence has one chunk
  int queries_at_once = 1;        ///< combine: query rows of a sequence that are in the grid
  int rows_of_cta = 1;            ///< combine: query rows, each with one head, of a CTA; at most its warps
  long long combined_rows = 0;    ///< combine: those of the grid
};

/// The parts of one sequence and head, or packed group of heads.
struct Parts {
  long long first;  ///< row of terms and parts
  long long rows;   ///< of a chunk
  int chunks, chunk_keys;

  WARPLOOM_HD constexpr long long row(int chunk, long long n) const { return first + chunk * rows + n; }
};

/// group: the number of the head or packed group of heads. slot_q: its query rows; first_q, first_k: those and the keys
/// of the sequences before it.
WARPLOOM_HD constexpr Parts parts_of(const SplitCall& p, int sequence, int group, long long slot_q, long long first_q,
                                     long long first_k, int seqlen_k) {
  const int groups = p.call.schedule.heads;
  Parts parts{};
  parts.rows = slot_q * p.packed_heads;
  Chunks chunks = chunks_of(parts.rows, groups, seqlen_k);
  if (parts.rows > p.most_split_rows) {
    chunks = {(seqlen_k + kChunkUnit - 1) / kChunkUnit * kChunkUnit, seqlen_k > 0 ? 1 : 0};
  }
  parts.chunk_keys = chunks.keys;
  parts.chunks = chunks.count;
  parts.first = p.slots.before(sequence, first_q, first_k, p.packed_heads) * groups +
                static_cast<long long>(group) * parts.chunks * parts.rows;
  return parts;
}

}  // namespace warploom
