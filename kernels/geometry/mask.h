// Which columns a row sees: the one definition that every back end, kernel and test uses (docs/attention.md, section
// 4).
//
// A sequence is ordered [contexts | history | targets]. Rows are counted in key coordinates, r = i + (Lk - Lq), so that
// the last query row sits beside the last key. For a tile of rows and a tile of columns the functions below say in
// constant time which columns are seen by any row (the tiles to load) and whether all of them are (no masking needed).
#pragma once

#include "geometry/host_device.h"

namespace warploom::geometry {

/// Window side without a limit. Lengths of one sequence stay below it, so sums of two never overflow an int.
inline constexpr int kUnbounded = 1 << 30;

WARPLOOM_HD constexpr int min_of(int a, int b) {
  return a < b ? a : b;
}
WARPLOOM_HD constexpr int max_of(int a, int b) {
  return a > b ? a : b;
}

/// Half-open range [begin, end) of rows or columns; empty when end <= begin.
struct Interval {
  int begin = 0;
  int end = 0;
  WARPLOOM_HD constexpr bool empty() const { return end <= begin; }
  WARPLOOM_HD constexpr bool contains(int x) const { return begin <= x && x < end; }
  WARPLOOM_HD constexpr bool covers(Interval other) const {
    return other.empty() || (begin <= other.begin && other.end <= end);
  }
};

WARPLOOM_HD constexpr Interval intersect(Interval a, Interval b) {
  return {max_of(a.begin, b.begin), min_of(a.end, b.end)};
}

/// The mask of one sequence. 0 <= num_contexts, num_targets; their sum <= seqlen_k; targets and contexts need right =
/// 0.
struct SequenceMask {
  int seqlen_q = 0;
  int seqlen_k = 0;
  int left = kUnbounded;   ///< [0, kUnbounded]
  int right = kUnbounded;  ///< [0, kUnbounded]
  int num_contexts = 0;
  int num_targets = 0;
  int target_group_size = 1;
  bool target_window_from_history_end = false;

  WARPLOOM_HD constexpr int offset() const { return seqlen_k - seqlen_q; }
  WARPLOOM_HD constexpr int history_end() const { return seqlen_k - num_targets; }
  WARPLOOM_HD constexpr int group_start(int r) const {
    return history_end() + (r - history_end()) / target_group_size * target_group_size;
  }
};

/// What one row sees: two disjoint intervals in ascending order, inside [0, seqlen_k), not touching. Either may be
/// empty.
struct VisibleColumns {
  Interval first, second;
  WARPLOOM_HD constexpr bool contains(int column) const { return first.contains(column) || second.contains(column); }
};

/// r: the row in key coordinates, below seqlen_k; may be negative.
WARPLOOM_HD constexpr VisibleColumns visible_columns(const SequenceMask& mask, int r) {
  const int history_end = mask.history_end();
  if (r >= history_end) {  // a target
    const int from = max_of(0, (mask.target_window_from_history_end ? history_end : r) - mask.left);
    const int start = mask.group_start(r);
    if (from >= history_end) return {{start, r + 1}, {}};
    if (start == history_end) return {{from, r + 1}, {}};
    return {{from, history_end}, {start, r + 1}};
  }
  if (0 <= r && r < mask.num_contexts) return {{0, history_end}, {}};
  return {{max_of(0, r - mask.left), max_of(0, min_of(mask.seqlen_k, r + mask.right + 1))}, {}};
}

/// The rows of a tile by kind, in key coordinates. Rows of one kind see sets that change steadily from row to row, so
/// the first and the last row of a segment bound what all of them see.
struct RowSegments {
  Interval before;  ///< r < 0: more queries than keys
  Interval contexts;
  Interval history;
  Interval targets;
};

/// rows: query rows (i), clipped to [0, seqlen_q).
WARPLOOM_HD constexpr RowSegments row_segments(const SequenceMask& mask, Interval rows) {
  const int offset = mask.offset();
  const Interval r = {max_of(rows.begin, 0) + offset, min_of(rows.end, mask.seqlen_q) + offset};
  const int history_end = mask.history_end();
  return {intersect(r, {-kUnbounded, 0}), intersect(r, {0, mask.num_contexts}),
          intersect(r, {mask.num_contexts, history_end}), intersect(r, {history_end, mask.seqlen_k})};
}

/// A union of intervals; they may overlap, touch or be empty.
struct Ranges {
  static constexpr int kMaxParts = 5;
  Interval parts[kMaxParts];

  WARPLOOM_HD constexpr bool intersects(Interval x) const {
    for (const Interval& part : parts) {
      if (!intersect(part, x).empty()) return true;
    }
    return false;
  }
  WARPLOOM_HD constexpr bool empty() const {
    for (const Interval& part : parts) {
      if (!part.empty()) return false;
    }
    return true;
  }
  /// The smallest interval that holds all members.
  WARPLOOM_HD constexpr Interval hull() const {
    Interval all = {kUnbounded, 0};
    for (const Interval& part : parts) {
      if (!part.empty()) all = {min_of(all.begin, part.begin), max_of(all.end, part.end)};
    }
    return all;
  }
  /// The first tile of `size` at or after `tile` that holds a member; kUnbounded when there is none.
  WARPLOOM_HD constexpr int next_tile(int tile, int size) const {
    int next = kUnbounded;
    for (const Interval& part : parts) {
      const int candidate = max_of(tile, part.begin / size);
      if (!part.empty() && candidate * size < part.end) next = min_of(next, candidate);
    }
    return next;
  }
  /// The last tile of `size` before `tile` that holds a member; -1 when there is none.
  WARPLOOM_HD constexpr int last_tile(int tile, int size) const {
    int last = -1;
    for (const Interval& part : parts) {
      const int candidate = min_of(tile - 1, (part.end - 1) / size);
      if (!part.empty() && (candidate + 1) * size > part.begin) last = max_of(last, candidate);
    }
    return last;
  }
  /// The first run of neighbouring tiles, at or after `tile`, that all hold members: [begin, end) in tiles, empty when
  /// there is none.
  WARPLOOM_HD constexpr Interval next_run(int tile, int size) const {
    const int begin = next_tile(tile, size);
    if (begin == kUnbounded) return {};
    int end = begin + 1;
    for (int pass = 0; pass < kMaxParts; ++pass) {  // each pass may append the parts that the one before it reached
      for (const Interval& part : parts) {
        if (!part.empty() && part.begin / size <= end) end = max_of(end, (part.end + size - 1) / size);
      }
    }
    return {begin, end};
  }
};

/// Exactly the columns that at least one of the query rows sees.
WARPLOOM_HD constexpr Ranges visible_to_any(const SequenceMask& mask, Interval rows) {
  const RowSegments segment = row_segments(mask, rows);
  const Interval all = {0, mask.seqlen_k};
  const int history_end = mask.history_end();
  Ranges seen;
  // Neighbouring rows' windows overlap or touch, so the union of a segment of them is one interval.
  if (!segment.before.empty()) {
    seen.parts[0] = intersect(all, {segment.before.begin - mask.left, segment.before.end + mask.right});
  }
  if (!segment.contexts.empty()) seen.parts[1] = {0, history_end};
  if (!segment.history.empty()) {
    seen.parts[2] = intersect(all, {segment.history.begin - mask.left, segment.history.end + mask.right});
  }
  if (!segment.targets.empty()) {
    const int origin = mask.target_window_from_history_end ? history_end : segment.targets.begin;
    seen.parts[3] = {max_of(0, origin - mask.left), history_end};
    seen.parts[4] = {mask.group_start(segment.targets.begin), segment.targets.end};
  }
  return seen;
}

/// Whether every one of the query rows (those below seqlen_q) sees every one of the columns.
WARPLOOM_HD constexpr bool visible_to_all(const SequenceMask& mask, Interval rows, Interval columns) {
  if (columns.begin < 0 || columns.end > mask.seqlen_k) return false;
  const RowSegments segment = row_segments(mask, rows);
  const int history_end = mask.history_end();
  const auto all_windows_cover = [&](Interval r) {
    return r.empty() || Interval{r.end - 1 - mask.left, r.begin + mask.right + 1}.covers(columns);
  };
  if (!all_windows_cover(segment.before) || !all_windows_cover(segment.history)) return false;
  if (!segment.contexts.empty() && columns.end > history_end) return false;
  if (!segment.targets.empty()) {
    const int last = segment.targets.end - 1;
    const Interval in_history = intersect(columns, {0, history_end});
    const Interval in_targets = intersect(columns, {history_end, mask.seqlen_k});
    const int origin = mask.target_window_from_history_end ? history_end : last;
    if (!Interval{origin - mask.left, history_end}.covers(in_history)) return false;
    if (!Interval{mask.group_start(last), segment.targets.begin + 1}.covers(in_targets)) return false;
  }
  return true;
}

/// Columns that every one of the query rows (those below seqlen_q) sees: one interval, and all of them but for those of
/// the targets' own groups. What it covers needs no masking, at the price of two comparisons a tile.
WARPLOOM_HD constexpr Interval columns_of_all(const SequenceMask& mask, Interval rows) {
  const RowSegments segment = row_segments(mask, rows);
  const int history_end = mask.history_end();
  Interval common = {0, mask.seqlen_k};
  const auto narrow_to_windows = [&](Interval r) {
    if (!r.empty()) common = intersect(common, {r.end - 1 - mask.left, r.begin + mask.right + 1});
  };
  narrow_to_windows(segment.before);
  narrow_to_windows(segment.history);
  if (!segment.contexts.empty()) common = intersect(common, {0, history_end});
  if (!segment.targets.empty()) {
    const int origin = mask.target_window_from_history_end ? history_end : segment.targets.end - 1;
    common = intersect(common, {origin - mask.left, history_end});
  }
  return common;
}

/// Which part of seeing_any's result has the context rows.
inline constexpr int kContextRows = 1;

/// Exactly the query rows (i) that see at least one of the columns: the key side, for backward.
WARPLOOM_HD constexpr Ranges seeing_any(const SequenceMask& mask, Interval columns) {
  const Interval seen = intersect(columns, {0, mask.seqlen_k});
  Ranges rows;
  if (seen.empty()) return rows;
  const int offset = mask.offset();
  const int history_end = mask.history_end();
  const auto to_query_rows = [&](Interval r) { return Interval{max_of(r.begin, offset) - offset, r.end - offset}; };
  const Interval windows = {seen.begin - mask.right, seen.end + mask.left};
  rows.parts[0] = to_query_rows(intersect(windows, {-kUnbounded, 0}));
  if (seen.begin < history_end) rows.parts[kContextRows] = to_query_rows({0, mask.num_contexts});
  rows.parts[2] = to_query_rows(intersect(windows, {mask.num_contexts, history_end}));
  const Interval in_history = intersect(seen, {0, history_end});
  if (!in_history.empty()) {
    const bool from_end = mask.target_window_from_history_end;
    const int last =
        from_end ? (in_history.end > history_end - mask.left ? mask.seqlen_k : 0) : in_history.end + mask.left;
    rows.parts[3] = to_query_rows(intersect({history_end, last}, {history_end, mask.seqlen_k}));
  }
  const Interval in_targets = intersect(seen, {history_end, mask.seqlen_k});
  if (!in_targets.empty()) {
    const int groups_end = min_of(mask.seqlen_k, mask.group_start(in_targets.end - 1) + mask.target_group_size);
    rows.parts[4] = to_query_rows({in_targets.begin, groups_end});
  }
  return rows;
}

enum class TileKind { empty, partial, full };

/// A tile of query rows against a tile of columns: nothing visible, some, or all of it.
WARPLOOM_HD constexpr TileKind classify(const SequenceMask& mask, Interval rows, Interval columns) {
  if (!visible_to_any(mask, rows).intersects(columns)) return TileKind::empty;
  return visible_to_all(mask, rows, columns) ? TileKind::full : TileKind::partial;
}

}  // namespace warploom::geometry
