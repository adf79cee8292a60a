// Rows that will be needed soon, fetched into the second-level cache a few at a time between products. The rows of one
// head lie apart in memory, where the hardware's prefetcher does not follow. Nothing is read: a row may as well turn
// out not to be needed.
#pragma once

#include <initializer_list>

#include "cpu/plan.h"

namespace warploom::cpu {

class ReadAhead {
 public:
  struct Rows {
    RowsView view;
    int64_t dim = 0;
  };

  /// Starts anew; what is added from here on is fetched in the course of `work` steps, in the order of adding.
  void restart(int64_t work) {
    count_ = next_ = 0;
    lines_ = fetched_ = done_ = 0;
    work_ = work;
  }

  /// Rows [begin, end) of up to kViews tensors, row by row. At most kParts calls.
  void add(std::initializer_list<Rows> tensors, int64_t begin, int64_t end) {
    if (begin >= end) return;
    Part& part = parts_[count_++];
    part.views = 0;
    part.lines_a_row = 0;
    part.rows = end - begin;
    for (const auto& [view, dim] : tensors) {
      const int64_t bytes = dim * dtype_bytes(view.dtype);
      part.view[part.views++] = {view.row(begin), view.stride, bytes};
      part.lines_a_row += (bytes + kLine - 1) / kLine;
    }
    lines_ += part.rows * part.lines_a_row;
  }

  /// Some steps are done: fetches their share.
  void advance(int64_t steps) {
    done_ += steps;
    while (next_ < count_ && fetched_ * work_ < lines_ * done_) {
      Part& part = parts_[next_];
      for (int v = 0; v < part.views; ++v) {
        View& view = part.view[v];
        for (int64_t x = 0; x < view.bytes; x += kLine) __builtin_prefetch(view.row + x, 0, kSecondLevel);
        view.row += view.stride;
      }
      fetched_ += part.lines_a_row;
      if (--part.rows == 0) ++next_;
    }
  }

 private:
  static constexpr int kParts = 4, kViews = 3;
  static constexpr int64_t kLine = 64;
  static constexpr int kSecondLevel = 2;  // the first level is full of the tiles that are being computed
  struct View {
    const char* row;
    int64_t stride, bytes;
  };
  struct Part {
    View view[kViews];
    int views;
    int64_t lines_a_row, rows;
  };
  Part parts_[kParts];
  int count_ = 0, next_ = 0;
  int64_t lines_ = 0, fetched_ = 0, done_ = 0, work_ = 1;
};

/// What follows a key tile of an item: the keys of the next one or, after the last (next_keys empty), the rows that the
/// item writes and what the next item (null: not known) begins with. The caller has restarted `ahead`.
void look_ahead(const Plan& plan, const ForwardItem& item, const ForwardItem* next, geometry::Interval next_keys,
                ReadAhead& ahead);

/// Where a backward unit is: some keys of a key head of a sequence, about to be visited by a query head's rows.
struct BackwardPlace {
  int64_t sequence, key_head, query_head;
  geometry::Interval keys;
  int first_block;                ///< the first row block that sees the keys
  bool last_head;                 ///< no query head of the key head is left
  const BackwardUnit* next_unit;  ///< null: not known
};

/// Steps of ReadAhead that a query row of a backward unit takes.
inline constexpr int kBackwardStepsARow = 4;

/// What follows the first row block of a query head: its other rows, then the next query head's first ones or the rows
/// that the unit writes at its end and what the next unit begins with.
void look_ahead(const Plan& plan, const BackwardPlace& place, ReadAhead& ahead);

}  // namespace warploom::cpu
