// What the rows of one tile see, as intervals of key columns per row: the form in which the kernels apply every mask.
#pragma once

#include <vector>

#include "geometry/mask.h"
#include "problem/sequence.h"

namespace warploom::cpu {

/// Rows 0 .. rows-1 of a tile; row i sees the union of [begin(n, i), end(n, i)), n < count, clipped to [0, seqlen_k).
/// The intervals of a row are disjoint, do not touch and come first; the rest are empty ([0, 0)).
class RowIntervals {
 public:
  /// Query rows first_row .. first_row+rows-1 of sequence s (all below seqlen_q), head n of q.
  void build(const warploom_attention& call, const Sequence& s, int64_t head, int first_row, int rows);

  int rows() const { return rows_; }
  int count() const { return count_; }
  int begin(int n, int row) const { return begin_[n * rows_ + row]; }
  int end(int n, int row) const { return end_[n * rows_ + row]; }

  /// Whether rows [rows.begin, rows.end) see none, some or all of the columns.
  geometry::TileKind classify(geometry::Interval rows, geometry::Interval columns) const;
  /// The smallest interval that holds every one of `columns` that one of the rows sees.
  geometry::Interval hull(geometry::Interval rows, geometry::Interval columns) const;
  /// The first column >= column that a row sees; kUnbounded when there is none.
  int next_column(int column) const;
  /// The last column < limit that a row sees; -1 when there is none.
  int last_column_before(int limit) const;
  bool row_is_empty(int row) const;

 private:
  void build_from_rules(const geometry::SequenceMask& mask, int first_row);
  void build_from_list(const int* pairs, int intervals, int seqlen_k);

  int rows_ = 0;
  int count_ = 0;
  std::vector<int> begin_, end_;            // [count][rows]
  std::vector<geometry::Interval> sorted_;  // one row of a list while it is put in order
  geometry::Interval common_;               // columns that every row's first interval holds
};

}  // namespace warploom::cpu
