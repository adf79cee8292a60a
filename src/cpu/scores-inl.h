// What happens to a tile of scores between Q K^T and the score function: bias, softcap, mask. Compiled once per target.
//
// A masked score is written as -inf, which silu and exp turn into exactly 0 (functions-inl.h), so the score functions
// know no masks; where a user's function stands for silu, as a mark of its own (kHiddenScore). Which keys and rows of
// the tile take part at all is kept in Live: products run over those alone, so that a NaN in something that nobody sees
// enters no sum.
#if defined(WARPLOOM_CPU_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLOOM_CPU_SCORES_INL_H_
#undef WARPLOOM_CPU_SCORES_INL_H_
#else
#define WARPLOOM_CPU_SCORES_INL_H_
#endif

#include <limits>

#include "cpu/functions-inl.h"
#include "cpu/row_intervals.h"

HWY_BEFORE_NAMESPACE();
namespace warploom::cpu::HWY_NAMESPACE {
namespace {

using geometry::Interval;
using geometry::TileKind;

constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// Part of a score tile: rows `rows` of the row block, keys first_key + columns, each row kKeyTile scores.
struct ScorePart {
  Interval rows;     ///< within the row block
  Interval columns;  ///< within the key tile; those that some row sees
  TileKind kind;
  int first_vector() const { return columns.begin / kLanes; }
  int end_vector() const { return vectors_of(columns.end); }
};

/// Rows of the row block and keys of the key tile that take part.
struct Live {
  bool keys[kKeyTile];
  bool rows[kRowBlock];
};

/// The next run of set flags in [x.end, limit); empty at the end.
HWY_INLINE Interval next_run(const bool* flags, Interval x, int limit) {
  int begin = x.end;
  while (begin < limit && !flags[begin]) ++begin;
  int end = begin;
  while (end < limit && flags[end]) ++end;
  return {begin, end};
}

/// Where a tile lies.
struct TilePlace {
  int first_row;     ///< the sequence's query row of the row block's row 0
  int first_key;     ///< its key of the tile's column 0
  int interval_row;  ///< the row block's row 0 in the RowIntervals
};

/// The buckets of one row's keys. keys and row: timestamps relative to one of them, so small that differences fit an
/// int.
HWY_NOINLINE void small_buckets(const TimeBuckets& index, const int* keys, int row, int first_vector, int end_vector,
                                int* buckets) {
  const I i;
  const F f;
  const IntVec t = hn::Set(i, row);
  const IntVec coarse = hn::Set(i, 1 << 24);
  for (int x = first_vector * kLanes; x < end_vector * kLanes; x += kLanes) {
    const IntVec d = hn::Abs(hn::Sub(t, hn::LoadU(i, keys + x)));
    // As TimeBuckets::bucket does: no rounding up into the next cell.
    const IntVec exact = hn::IfThenElse(hn::Lt(d, coarse), d, hn::AndNot(hn::Set(i, 0x7f), d));
    const IntVec bits = hn::BitCast(i, hn::ConvertTo(f, exact));
    const IntVec cell = hn::Sub(hn::ShiftRight<TimeBuckets::kCellShift>(bits), hn::Set(i, TimeBuckets::kCellBase));
    IntVec bucket = hn::GatherIndex(i, index.cells(), hn::Max(cell, hn::Zero(i)));
    for (int step = 0; step < index.steps(); ++step) {
      const auto beyond = hn::Gt(hn::GatherIndex(i, index.small_thresholds(), bucket), d);
      bucket = hn::Add(bucket, hn::Add(hn::Set(i, 1), hn::VecFromMask(i, beyond)));
    }
    hn::StoreU(bucket, i, buckets + x);
  }
}

/// Time buckets of a part of a tile: buckets[row][key]. timestamps: of the sequence's key 0.
HWY_NOINLINE void time_buckets(const TimeBuckets& index, const int64_t* timestamps, int offset, TilePlace place,
                               ScorePart part, int columns_end, int* buckets) {
  const int64_t* key_times = timestamps + place.first_key;
  const int64_t* row_times = timestamps + place.first_row + offset;
  constexpr uint64_t kSmall = uint64_t{1} << 30;
  const int64_t origin = key_times[part.columns.begin];
  int keys[kKeyTile];
  bool small = true;
  int lowest = std::numeric_limits<int>::max(), highest = std::numeric_limits<int>::min();
  for (int x = part.first_vector() * kLanes; x < part.end_vector() * kLanes; ++x) {
    const int64_t t = key_times[geometry::min_of(x, columns_end - 1)];
    small &= TimeBuckets::distance(t, origin) < kSmall;
    keys[x] = small ? static_cast<int>(t - origin) : 0;
    lowest = geometry::min_of(lowest, keys[x]);
    highest = geometry::max_of(highest, keys[x]);
  }
  for (int i = part.rows.begin; i < part.rows.end; ++i) {
    int* row = buckets + i * kKeyTile;
    if (!small || TimeBuckets::distance(row_times[i], origin) >= kSmall) {
      for (int x = part.first_vector() * kLanes; x < columns_end; ++x) {
        row[x] = index.bucket(TimeBuckets::distance(row_times[i], key_times[x]));
      }
      continue;
    }
    const int t = static_cast<int>(row_times[i] - origin);
    // Buckets widen with distance, so most rows far from a tile have one bucket for all of it.
    if (t >= highest || t <= lowest) {
      const int near = index.bucket(static_cast<uint64_t>(t >= highest ? t - highest : lowest - t));
      const int far = index.bucket(static_cast<uint64_t>(t >= highest ? t - lowest : highest - t));
      if (near == far) {
        for (int x = part.first_vector() * kLanes; x < part.end_vector() * kLanes; ++x) row[x] = near;
        continue;
      }
    }
    small_buckets(index, keys, t, part.first_vector(), part.end_vector(), row);
  }
}

/// The position table along a tile's diagonals: window[x] belongs to keys x - (kRowBlock - 1 - i) of row i.
constexpr int kDiagonals = kRowBlock + kKeyTile;

HWY_INLINE int position_of_diagonal(int diagonal, int offset, TilePlace place, int64_t num_positions) {
  const int distance = place.first_row + offset + (kRowBlock - 1) - place.first_key - diagonal;
  return static_cast<int>(distance < 0 ? 0 : distance < num_positions ? distance : num_positions - 1);
}

/// R of a part of a tile, float32: bias[row][key]; buckets[row][key] when there is a time table. Columns from seqlen_k
/// on hold anything.
HWY_NOINLINE void load_bias(const CallInfo& info, const Sequence& s, const BiasView& view, TilePlace place,
                            ScorePart part, float* bias, int* buckets) {
  const F f;
  const int columns_end = geometry::min_of(part.end_vector() * kLanes, s.seqlen_k() - place.first_key);
  if (view.kind != WARPLOOM_BUCKETED_BIAS) {
    const int begin = part.first_vector() * kLanes;
    for (int i = part.rows.begin; i < part.rows.end; ++i) {
      const int64_t row = int64_t{place.first_row} + i + view.row_shift;
      float* to = bias + i * kKeyTile + begin;
      if (row < 0) {  // before the first key: rows by key index have no entry for it
        fill(to, columns_end - begin, 0.0f);
        continue;
      }
      const int64_t element = row * view.row_stride + place.first_key + begin;
      load_row(view.values + element * dtype_bytes(view.dtype), view.dtype, columns_end - begin, to);
    }
    return;
  }
  const int offset = s.mask.offset();
  float window[kDiagonals];
  if (view.position != nullptr) {
    for (int x = 0; x < kDiagonals; ++x)
      window[x] = view.position[position_of_diagonal(x, offset, place, view.num_positions)];
  }
  if (view.time != nullptr) time_buckets(info.time_buckets, view.timestamps, offset, place, part, columns_end, buckets);
  for (int i = part.rows.begin; i < part.rows.end; ++i) {
    float* row = bias + i * kKeyTile;
    for (int x = part.first_vector() * kLanes; x < part.end_vector() * kLanes; x += kLanes) {
      Vec value = hn::Zero(f);
      if (view.position != nullptr) value = hn::LoadU(f, window + x + kRowBlock - 1 - i);
      if (view.time != nullptr) {
        if (x + kLanes <= columns_end) {
          value = hn::Add(value, hn::GatherIndex(f, view.time, hn::LoadU(I(), buckets + i * kKeyTile + x)));
        } else {
          float last[kLanes] = {};
          for (int y = x; y < columns_end; ++y) last[y - x] = view.time[buckets[i * kKeyTile + y]];
          value = hn::Add(value, hn::LoadU(f, last));
        }
      }
      hn::StoreU(value, f, row + x);
    }
  }
}

/// Adds the bias, applies the softcap and writes info.hidden_score where nothing is seen. scores hold alpha Q K^T; bias
/// null: none; cap_slope (softcap only) takes the softcap's slope or is null.
template <bool kBiased>
HWY_NOINLINE void finish_scores_as(const CallInfo& info, const RowIntervals& seen, TilePlace place, ScorePart part,
                                   const float* bias, float* scores, float* cap_slope, Live& live) {
  const F f;
  const I i32;
  const Vec scale = hn::Set(f, info.bias_scale);
  const Vec masked = hn::Set(f, kMasked);
  const Vec hidden = hn::BitCast(f, hn::Set(U(), info.hidden_score));
  const bool partial = part.kind == TileKind::partial;
  for (int i = part.rows.begin; i < part.rows.end; ++i) live.rows[i] = false;
  for (int v = part.first_vector(); v < part.end_vector(); ++v) {
    const IntVec column = hn::Add(hn::Iota(i32, 0), hn::Set(i32, place.first_key + v * kLanes));
    IntVec any = hn::Zero(i32);
    for (int i = part.rows.begin; i < part.rows.end; ++i) {
      float* at = scores + i * kKeyTile + v * kLanes;
      Vec z = hn::LoadU(f, at);
      IntVec visible = hn::Set(i32, -1);
      if (partial) {
        visible = hn::Zero(i32);
        for (int n = 0; n < seen.count(); ++n) {
          const auto after = hn::Gt(column, hn::Set(i32, seen.begin(n, place.interval_row + i) - 1));
          const auto before = hn::Lt(column, hn::Set(i32, seen.end(n, place.interval_row + i)));
          visible = hn::Or(visible, hn::VecFromMask(i32, hn::And(after, before)));
        }
      }
      if (kBiased) {
        const Vec r = hn::LoadU(f, bias + i * kKeyTile + v * kLanes);
        visible = hn::AndNot(hn::VecFromMask(i32, hn::RebindMask(i32, hn::Eq(r, masked))), visible);
        z = hn::MulAdd(scale, r, z);
      }
      if (info.softcap != 0) {
        const ValueAndSlope t = tanh_and_slope(hn::Div(z, hn::Set(f, info.softcap)));
        z = hn::Mul(hn::Set(f, info.softcap), t.value);
        if (cap_slope != nullptr) hn::StoreU(t.slope, f, cap_slope + i * kKeyTile + v * kLanes);
      }
      const auto keep = hn::MaskFromVec(hn::BitCast(f, visible));
      live.rows[i] |= !hn::AllFalse(f, keep);
      any = hn::Or(any, visible);
      hn::StoreU(hn::IfThenElse(keep, z, hidden), f, at);
    }
    HWY_ALIGN int lanes[kLanes];
    hn::Store(any, i32, lanes);
    for (int x = 0; x < kLanes; ++x) live.keys[v * kLanes + x] = lanes[x] != 0;
  }
}

/// True when Live was filled in; else every row and key of the part takes part.
HWY_INLINE bool finish_scores(const CallInfo& info, const RowIntervals& seen, TilePlace place, ScorePart part,
                              const float* bias, float* scores, float* cap_slope, Live& live) {
  if (bias != nullptr) {
    finish_scores_as<true>(info, seen, place, part, bias, scores, cap_slope, live);
    return true;
  }
  if (part.kind == TileKind::full && info.softcap == 0) return false;
  finish_scores_as<false>(info, seen, place, part, bias, scores, cap_slope, live);
  return true;
}

/// The parts of a row block against a key tile: the whole block when it sees all of the tile, else strips of kStrip
/// rows, each with the hull of the columns it sees. Returns their number; parts that see nothing are left out.
HWY_NOINLINE int score_parts(const RowIntervals& seen, Interval rows, Interval columns, int block_row,
                             ScorePart* parts) {
  const int width = columns.end - columns.begin;
  if (width == kKeyTile && seen.classify(rows, columns) == TileKind::full) {
    parts[0] = {{rows.begin - block_row, rows.end - block_row}, {0, width}, TileKind::full};
    return 1;
  }
  int count = 0;
  for (int first = rows.begin; first < rows.end; first += kStrip) {
    const Interval strip = {first, geometry::min_of(first + kStrip, rows.end)};
    const TileKind kind = seen.classify(strip, columns);
    if (kind == TileKind::empty) continue;
    const Interval hull = seen.hull(strip, columns);
    // A tile that ends with the sequence has columns that belong to nobody beside full ones.
    parts[count++] = {{strip.begin - block_row, strip.end - block_row},
                      {hull.begin - columns.begin, hull.end - columns.begin},
                      kind == TileKind::full && width == kKeyTile ? TileKind::full : TileKind::partial};
  }
  return count;
}

}  // namespace
}  // namespace warploom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WARPLOOM_CPU_SCORES_INL_H_
