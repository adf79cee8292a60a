// Interval masks: per query row a list of half-open column intervals, any number, in any order, empty, overlapping or
// running past the sequence (docs/attention.md, section 4). The row-wise pieces that the kernels and the CPU build
// tiles from.
#pragma once

#include "geometry/mask.h"

namespace warploom::geometry {

/// The intervals of one row: count pairs [begin, end), clipped to [0, seqlen_k) when they are read.
struct RowIntervals {
  const int* pairs = nullptr;
  int count = 0;
  int seqlen_k = 0;

  WARPLOOM_HD constexpr Interval at(int n) const { return intersect({pairs[2 * n], pairs[2 * n + 1]}, {0, seqlen_k}); }

  WARPLOOM_HD constexpr bool contains(int column) const {
    for (int n = 0; n < count; ++n) {
      if (at(n).contains(column)) return true;
    }
    return false;
  }

  /// The first visible column at or after `column`; kUnbounded when there is none.
  WARPLOOM_HD constexpr int next_column(int column) const {
    int next = kUnbounded;
    for (int n = 0; n < count; ++n) {
      const Interval part = at(n);
      if (!part.empty() && column < part.end) next = min_of(next, max_of(column, part.begin));
    }
    return next;
  }

  WARPLOOM_HD constexpr bool intersects(Interval columns) const { return next_column(columns.begin) < columns.end; }

  /// Whether the union of the intervals holds every one of the columns.
  WARPLOOM_HD constexpr bool covers(Interval columns) const {
    int reached = columns.begin;
    while (reached < columns.end) {
      int further = reached;
      for (int n = 0; n < count; ++n) {
        const Interval part = at(n);
        if (part.begin <= reached) further = max_of(further, part.end);
      }
      if (further == reached) return false;
      reached = further;
    }
    return true;
  }
};

}  // namespace warploom::geometry
