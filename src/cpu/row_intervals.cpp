#include "cpu/row_intervals.h"

#include <algorithm>

#include "geometry/interval_mask.h"

namespace warploom::cpu {

using geometry::Interval;
using geometry::TileKind;

void RowIntervals::build(const warploom_attention& call, const Sequence& s, int64_t head, int first_row, int rows) {
  rows_ = rows;
  if (!has_interval_mask(call)) {
    build_from_rules(s.mask, first_row);
  } else {
    const int64_t list_head = call.interval_heads == 1 ? 0 : head;
    const int64_t row = list_head * call.total_q + s.first_q + first_row;
    build_from_list(call.intervals + row * call.num_intervals * 2, static_cast<int>(call.num_intervals), s.seqlen_k());
  }
  common_ = {0, count_ > 0 ? geometry::kUnbounded : 0};
  for (int i = 0; i < rows_ && count_ > 0; ++i) common_ = geometry::intersect(common_, {begin(0, i), end(0, i)});
}

void RowIntervals::build_from_rules(const geometry::SequenceMask& mask, int first_row) {
  count_ = mask.num_targets > 0 ? 2 : 1;  // only targets see two separate intervals
  begin_.resize(static_cast<size_t>(count_) * rows_);
  end_.resize(begin_.size());
  for (int i = 0; i < rows_; ++i) {
    const geometry::VisibleColumns seen = geometry::visible_columns(mask, first_row + i + mask.offset());
    const bool first_empty = seen.first.empty();
    const Interval first = first_empty ? seen.second : seen.first;
    const Interval second = first_empty ? seen.first : seen.second;
    begin_[i] = first.empty() ? 0 : first.begin;
    end_[i] = first.empty() ? 0 : first.end;
    if (count_ == 2) {
      begin_[rows_ + i] = second.empty() ? 0 : second.begin;
      end_[rows_ + i] = second.empty() ? 0 : second.end;
    }
  }
}

void RowIntervals::build_from_list(const int* pairs, int intervals, int seqlen_k) {
  begin_.assign(static_cast<size_t>(intervals) * rows_, 0);
  end_.assign(begin_.size(), 0);
  count_ = 0;
  for (int i = 0; i < rows_; ++i) {
    const geometry::RowIntervals row = {pairs + static_cast<int64_t>(i) * intervals * 2, intervals, seqlen_k};
    sorted_.clear();
    for (int n = 0; n < intervals; ++n) {
      if (const Interval part = row.at(n); !part.empty()) sorted_.push_back(part);
    }
    std::sort(sorted_.begin(), sorted_.end(), [](Interval a, Interval b) { return a.begin < b.begin; });
    int kept = -1;
    for (const Interval part : sorted_) {
      if (kept >= 0 && part.begin <= end_[kept * rows_ + i]) {
        end_[kept * rows_ + i] = std::max(end_[kept * rows_ + i], part.end);
      } else {
        ++kept;
        begin_[kept * rows_ + i] = part.begin;
        end_[kept * rows_ + i] = part.end;
      }
    }
    count_ = std::max(count_, kept + 1);
  }
}

TileKind RowIntervals::classify(Interval rows, Interval columns) const {
  if (common_.covers(columns)) return TileKind::full;
  bool any = false, all = true;
  for (int i = rows.begin; i < rows.end; ++i) {
    bool covered = false;
    for (int n = 0; n < count_; ++n) {
      const Interval part = {begin(n, i), end(n, i)};
      any |= !geometry::intersect(part, columns).empty();
      covered |= part.covers(columns);
    }
    all &= covered;
  }
  if (!any) return TileKind::empty;
  return all ? TileKind::full : TileKind::partial;
}

Interval RowIntervals::hull(Interval rows, Interval columns) const {
  Interval result = {columns.end, columns.begin};
  for (int n = 0; n < count_; ++n) {
    for (int i = rows.begin; i < rows.end; ++i) {
      const Interval part = geometry::intersect({begin(n, i), end(n, i)}, columns);
      if (part.empty()) continue;
      result = {std::min(result.begin, part.begin), std::max(result.end, part.end)};
    }
  }
  return result;
}

int RowIntervals::next_column(int column) const {
  int next = geometry::kUnbounded;
  for (size_t x = 0; x < static_cast<size_t>(count_) * rows_; ++x) {
    if (end_[x] > column && begin_[x] < end_[x]) next = std::min(next, std::max(begin_[x], column));
  }
  return next;
}

int RowIntervals::last_column_before(int limit) const {
  int last = -1;
  for (size_t x = 0; x < static_cast<size_t>(count_) * rows_; ++x) {
    if (begin_[x] < limit && begin_[x] < end_[x]) last = std::max(last, std::min(end_[x], limit) - 1);
  }
  return last;
}

bool RowIntervals::row_is_empty(int row) const {
  for (int n = 0; n < count_; ++n) {
    if (begin(n, row) < end(n, row)) return false;
  }
  return true;
}

}  // namespace warploom::cpu
