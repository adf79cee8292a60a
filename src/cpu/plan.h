// How a call is cut into work: the plan that run() follows and explain() prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/time_buckets.h"
#include "expression/functions.h"
#include "expression/parse.h"
#include "problem/sequence.h"

namespace warploom::cpu {

inline constexpr int kKeyTile = 64;   ///< keys of a score tile; the vector axis
inline constexpr int kRowBlock = 32;  ///< query rows of a score tile
inline constexpr int kStrip = 8;      ///< query rows that share a hull of columns in a partial tile
inline constexpr int kMaxQueryTile = 128;

/// Columns of scratch rows: head dimensions rounded up to the widest vector of any target.
constexpr int64_t padded_dim(int64_t dim) {
  return (dim + 15) / 16 * 16;
}

/// The key tile that holds a column; empty when the column is past the sequence's keys.
inline geometry::Interval key_tile(const Sequence& s, int column) {
  const int begin = column / kKeyTile * kKeyTile;
  return {begin, geometry::min_of(begin + kKeyTile, s.seqlen_k())};
}

/// How a score that nobody sees is marked where a user's function takes the place of silu: a NaN that no operation
/// makes, as such a function may be anything at -inf.
inline constexpr uint32_t kHiddenScore = 0x7fc5a7e1u;
/// Elsewhere: -inf, which silu and exp turn into 0.
inline constexpr uint32_t kMinusInfinityBits = 0xff800000u;

/// What a call asks for, resolved once.
struct CallInfo {
  const warploom_attention* call = nullptr;
  bool softmax = false;
  float alpha = 1;
  float softcap = 0;
  float divisor = 1;                                 ///< HSTU without divisor_rows
  float bias_scale = 1;                              ///< what R is multiplied by before it is added to alpha Q K^T
  const expression::ScoreFunction* score = nullptr;  ///< HSTU: null: silu
  float score_parameters[expression::kMaxParameters] = {};
  uint32_t hidden_score = kMinusInfinityBits;
  int64_t query_groups = 1;  ///< query heads that share a key head
  bool bias_rows_by_key = false;
  std::vector<Sequence> sequences;
  std::vector<int64_t> packed_offsets;  ///< packed bias: where each sequence starts
  TimeBuckets time_buckets;
};

/// Part of one head's query rows of one sequence. Blank items (rows that exist but are not used, of every head) are
/// zeroed.
struct ForwardItem {
  int64_t sequence = 0;  ///< B for the rows after the last sequence
  int64_t first_row = 0;
  int64_t rows = 0;
  int32_t head = 0;
  bool blank = false;
};

/// Part of the keys of one key head of one sequence; with a bias gradient summed over heads or sequences, of all of
/// them.
struct BackwardUnit {
  int32_t first_sequence = 0, sequences = 1;
  int32_t first_key_head = 0, key_heads = 1;
  int32_t chunk = 0;   ///< keys [chunk * chunk_keys, ...)
  int32_t chunks = 1;  ///< of the unit's (longest) sequence
};

struct Plan {
  CallInfo info;
  int threads = 1;
  double visible_pairs = 0;  ///< (row, column) pairs in visible tiles, all heads; an upper estimate for interval masks
  std::vector<ForwardItem> blanks;  ///< rows to clear, both passes; cut for forward, whole for backward
  int query_tile = kMaxQueryTile;
  std::vector<ForwardItem> forward;
  int chunk_keys = kKeyTile;
  std::vector<BackwardUnit> backward;
  std::vector<size_t> shares = {0};  ///< a thread takes items or units [shares[n], shares[n + 1]) at once
  size_t thread_scratch = 0;         ///< floats, each thread
  size_t shared_scratch = 0;         ///< bytes, the call
};

/// The plan of a validated call. Nothing in it that decides a result's bits depends on the number of threads.
Plan make_plan(const warploom_attention& call);

/// Threads for that much work: what was asked for (0: the default), fewer when it does not repay so many.
int threads_for(double multiply_adds, int asked);

/// Consecutive items or units, and what they cost.
struct Piece {
  size_t count = 0;
  int64_t cost = 0;
};

/// Fills in the plan's shares: neighbouring pieces up to what a share may cost. A piece that costs more is taken apart
/// into shares of a single item each.
void cut_shares(const std::vector<Piece>& pieces, Plan& plan);

/// Scratch floats a thread needs for one item.
size_t forward_scratch(const warploom_attention& call, int query_tile);

/// The bias that one head of one sequence sees, as the kernels read it.
struct BiasView {
  uint32_t kind = WARPLOOM_NO_BIAS;
  // dense and packed
  uint32_t dtype = WARPLOOM_FLOAT32;
  const char* values = nullptr;  ///< row 0
  int64_t row_stride = 0;        ///< elements
  int row_shift = 0;             ///< bias row = query row i + row_shift; a negative row has no bias
  // bucketed
  const float* position = nullptr;
  int64_t num_positions = 0;
  const float* time = nullptr;
  const int64_t* timestamps = nullptr;  ///< of the sequence's key 0
};

BiasView bias_view(const CallInfo& info, int64_t b, int64_t head);

/// The rows of one head of one sequence in a (rows, heads, dim) tensor.
struct RowsView {
  char* data = nullptr;
  int64_t stride = 0;  ///< bytes
  uint32_t dtype = WARPLOOM_FLOAT32;
  char* row(int64_t i) const { return data + i * stride; }
};

/// b may be B: the rows after the last sequence, first_row says where they start.
RowsView rows_view(const warploom_attention& call, const warploom_tensor& tensor, int64_t b, int64_t first_row,
                   int64_t head);

/// The LSE of row 0 of one head of one sequence.
float* lse_rows(const warploom_attention& call, int64_t b, int64_t first_row, int64_t head);

}  // namespace warploom::cpu
