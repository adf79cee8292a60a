// Where the score gradients of a unit go when the bias wants them. Compiled once per target.
//
//     dense, packed, not broadcast   each tile is written where it belongs, after the unit cleared its columns
//     dense, packed, summed          a float32 buffer of the unit's columns, written at the end of the unit
//     bucketed                       along diagonals and by bucket into the unit's small tables, merged in unit order
#if defined(WARPLOOM_CPU_BIAS_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARPLOOM_CPU_BIAS_GRADIENT_INL_H_
#undef WARPLOOM_CPU_BIAS_GRADIENT_INL_H_
#else
#define WARPLOOM_CPU_BIAS_GRADIENT_INL_H_
#endif

#include <algorithm>

#include "cpu/backward_plan.h"
#include "cpu/scores-inl.h"
#include "cpu/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace warploom::cpu::HWY_NAMESPACE {
namespace {

class BiasGradientSink {
 public:
  BiasGradientSink(const Plan& plan, const BackwardUnit& unit, Scratch& scratch)
      : plan_(plan),
        call_(*plan.info.call),
        unit_(unit),
        gradient_(bias_gradient(call_)),
        first_column_(static_cast<int64_t>(unit.chunk) * plan.chunk_keys),
        scale_(plan.info.bias_scale) {
    const int64_t heads = unit.key_heads * plan.info.query_groups;
    if (gradient_.summed()) {
      rows_ = bias_rows(plan.info, unit.first_sequence);
      const int64_t floats = (gradient_.over_heads ? 1 : heads) * rows_ * plan.chunk_keys;
      sums_ = scratch.take(static_cast<size_t>(floats));
      fill(sums_, floats, 0.0f);
    }
    const warploom_bias& bias = call_.bias;
    if (bias.position_grad != nullptr) {
      const int seqlen_k = plan.info.sequences[static_cast<size_t>(unit.first_sequence)].seqlen_k();
      tables_.position_entries = std::min<int64_t>(bias.num_positions, std::max(1, seqlen_k));
      tables_.position.assign(static_cast<size_t>(heads * tables_.position_entries), 0.0);
    }
    if (bias.time_grad != nullptr) tables_.time.assign(static_cast<size_t>(heads * bias.num_times), 0.0);
  }

  /// What follows belongs to query head n of sequence b.
  void begin_head(int64_t b, int64_t n) {
    b_ = b;
    head_ = n;
    if (gradient_.wanted && !gradient_.summed()) clear_columns(b, n);
  }

  /// dZ of one tile: rows of kKeyTile, zeros where nothing is seen.
  void add(const float* dz, const int* buckets, TilePlace place, int rows, int columns) {
    if (gradient_.wanted) add_values(dz, place, rows, columns);
    if (!tables_.position.empty()) add_positions(dz, place, rows, columns);
    if (!tables_.time.empty()) add_times(dz, buckets, rows, columns);
  }

  void finish(BackwardState& state, size_t unit_index) {
    if (gradient_.summed()) store_sums();
    if (!tables_.position.empty() || !tables_.time.empty()) state.merge_tables(unit_index, std::move(tables_));
  }

 private:
  int64_t pitch(int64_t b) const {
    if (call_.bias.kind == WARPLOOM_DENSE_BIAS) return call_.bias.num_columns;
    return packed_pitch(plan_.info.sequences[static_cast<size_t>(b)].slot_k, call_.bias.dtype);
  }

  /// Where (row, column 0) of the gradient lies.
  char* gradient_row(int64_t b, int64_t n, int64_t row) const {
    const warploom_bias& bias = call_.bias;
    int64_t at = (bias.heads == 1 ? 0 : n) * bias.grad_head_stride;
    if (bias.kind == WARPLOOM_DENSE_BIAS) {
      at += (bias.batch == 1 ? 0 : b) * bias.grad_batch_stride + row * bias.grad_row_stride;
    } else {
      at += plan_.info.packed_offsets[static_cast<size_t>(b)] + row * pitch(b);
    }
    return static_cast<char*>(bias.grad) + at * dtype_bytes(bias.dtype);
  }

  /// The last chunk's columns reach to the end of the bias's rows.
  int64_t end_column(int64_t b) const {
    const int64_t end = first_column_ + plan_.chunk_keys;
    return unit_.chunk + 1 == unit_.chunks ? pitch(b) : std::min(pitch(b), end);
  }

  void clear_columns(int64_t b, int64_t n) const {
    const int bytes = dtype_bytes(call_.bias.dtype);
    const int64_t columns = end_column(b) - first_column_;
    if (columns <= 0) return;
    for (int64_t row = 0; row < bias_rows(plan_.info, b); ++row) {
      std::memset(gradient_row(b, n, row) + first_column_ * bytes, 0, static_cast<size_t>(columns * bytes));
    }
  }

  void add_values(const float* dz, TilePlace place, int rows, int columns) const {
    const F f;
    const int shift = plan_.info.bias_rows_by_key ? plan_.info.sequences[static_cast<size_t>(b_)].mask.offset() : 0;
    const Vec scale = hn::Set(f, scale_);
    for (int i = 0; i < rows; ++i) {
      const int64_t row = int64_t{place.first_row} + i + shift;
      if (row < 0) continue;  // before the first key: no entry
      const float* from = dz + i * kKeyTile;
      if (gradient_.summed()) {
        const int64_t slice = gradient_.over_heads ? 0 : head_ - unit_.first_key_head * plan_.info.query_groups;
        float* to = sums_ + (slice * rows_ + row) * plan_.chunk_keys + (place.first_key - first_column_);
        for (int x = 0; x < columns; x += kLanes) {
          hn::StoreU(hn::MulAdd(scale, hn::LoadU(f, from + x), hn::LoadU(f, to + x)), f, to + x);
        }
      } else {
        float scaled[kKeyTile];
        for (int x = 0; x < kKeyTile; x += kLanes) hn::StoreU(hn::Mul(scale, hn::LoadU(f, from + x)), f, scaled + x);
        char* to = gradient_row(b_, head_, row) + int64_t{place.first_key} * dtype_bytes(call_.bias.dtype);
        store_row(scaled, columns, call_.bias.dtype, to);
      }
    }
  }

  void store_sums() const {
    const int64_t b = unit_.first_sequence;
    const int bytes = dtype_bytes(call_.bias.dtype);
    const int64_t columns = end_column(b) - first_column_;
    const int64_t summed = std::min<int64_t>(columns, plan_.chunk_keys);
    if (columns <= 0) return;
    const int64_t slices = gradient_.over_heads ? 1 : unit_.key_heads * plan_.info.query_groups;
    for (int64_t slice = 0; slice < slices; ++slice) {
      for (int64_t row = 0; row < rows_; ++row) {
        char* to = gradient_row(b, unit_.first_key_head * plan_.info.query_groups + slice, row) + first_column_ * bytes;
        store_row(sums_ + (slice * rows_ + row) * plan_.chunk_keys, static_cast<int>(summed), call_.bias.dtype, to);
        std::memset(to + summed * bytes, 0, static_cast<size_t>((columns - summed) * bytes));
      }
    }
  }

  int64_t head_in_unit() const { return head_ - unit_.first_key_head * plan_.info.query_groups; }

  void add_positions(const float* dz, TilePlace place, int rows, int columns) {
    const F f;
    float diagonals[kDiagonals] = {};
    for (int i = 0; i < rows; ++i) {
      float* to = diagonals + kRowBlock - 1 - i;
      for (int x = 0; x < columns; x += kLanes) {
        hn::StoreU(hn::Add(hn::LoadU(f, to + x), hn::LoadU(f, dz + i * kKeyTile + x)), f, to + x);
      }
    }
    const int offset = plan_.info.sequences[static_cast<size_t>(b_)].mask.offset();
    double* table = tables_.position.data() + head_in_unit() * tables_.position_entries;
    for (int x = 0; x < kDiagonals; ++x) {
      // A diagonal past what the sequence reaches has seen nothing.
      const int64_t at = position_of_diagonal(x, offset, place, call_.bias.num_positions);
      table[std::min(at, tables_.position_entries - 1)] +=
          static_cast<double>(scale_) * static_cast<double>(diagonals[x]);
    }
  }

  void add_times(const float* dz, const int* buckets, int rows, int columns) {
    const F f;
    const I i32;
    double* table = tables_.time.data() + head_in_unit() * call_.bias.num_times;
    for (int i = 0; i < rows; ++i) {
      const float* row = dz + i * kKeyTile;
      const int* row_buckets = buckets + i * kKeyTile;
      for (int x = 0; x < columns; x += kLanes) {
        const Vec values = hn::LoadU(f, row + x);
        if (hn::AllTrue(f, hn::Eq(values, hn::Zero(f)))) continue;  // not seen: the buckets may not be there
        const IntVec bucket = hn::LoadU(i32, row_buckets + x);
        const int one = row_buckets[x];
        if (x + kLanes <= columns && hn::AllTrue(i32, hn::Eq(bucket, hn::Set(i32, one)))) {
          table[one] += static_cast<double>(scale_) * static_cast<double>(hn::GetLane(hn::SumOfLanes(f, values)));
          continue;
        }
        for (int y = x; y < std::min(x + kLanes, columns); ++y) {
          if (row[y] != 0) table[row_buckets[y]] += static_cast<double>(scale_) * static_cast<double>(row[y]);
        }
      }
    }
  }

  const Plan& plan_;
  const warploom_attention& call_;
  const BackwardUnit& unit_;
  BiasGradient gradient_;
  int64_t first_column_;
  float scale_;
  int64_t b_ = 0, head_ = 0;
  int64_t rows_ = 0;
  float* sums_ = nullptr;
  TableSums tables_;
};

}  // namespace
}  // namespace warploom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WARPLOOM_CPU_BIAS_GRADIENT_INL_H_
