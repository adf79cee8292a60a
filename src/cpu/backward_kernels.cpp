// The backward pass of one unit: some keys of one key head, against every row block that sees them. Keys are the vector
// axis, as in the forward pass: S and dP come from K^T and V^T, dK and dV are summed transposed, dQ row by row.
//
//     dP = dO V^T (/ N)    HSTU: dZ = dP slope(Z)    softmax: dZ = P (dP - rowsum(dO O))
//     dQ = dZ (alpha K)    dK = dZ^T (alpha Q)       dV = P^T dO (/ N)
#include "cpu/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "cpu/backward_plan.h"
#include "cpu/bias_gradient-inl.h"
#include "cpu/products-inl.h"
#include "cpu/read_ahead.h"
#include "cpu/score_program-inl.h"
#include "cpu/scores-inl.h"
#include "cpu/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace warploom::cpu::HWY_NAMESPACE {
namespace {

/// A unit's working set. [keys] arrays hold the chunk tile after tile; strides: padded dimensions, transposed kKeyTile.
struct BackwardTile {
  int64_t d, dv;
  float *keys, *keys_transposed, *values_transposed;  // K is scaled by alpha, K^T is not
  float *dk, *dv_sum;                                 // transposed
  float* rows;                                        // a tile of K or V, of dK or dV, on its way to or from transposed
  float *q, *dq, *dout, *out;                         // a row block; Q scaled by alpha, dO divided by N
  float *scores, *gradient, *bias, *cap_slope;        // S, then P; dP, then dZ
  int* buckets;
  float *lse, *delta;
};

BackwardTile carve(const Plan& plan, Scratch& scratch) {
  scratch.restart();
  const warploom_attention& call = *plan.info.call;
  BackwardTile t;
  t.d = padded_dim(call.head_dim);
  t.dv = padded_dim(call.value_dim);
  const auto chunk_d = static_cast<size_t>(plan.chunk_keys * t.d),
             chunk_dv = static_cast<size_t>(plan.chunk_keys * t.dv);
  t.keys = scratch.take(chunk_d);
  t.keys_transposed = scratch.take(chunk_d);
  t.values_transposed = scratch.take(chunk_dv);
  t.dk = scratch.take(chunk_d);
  t.dv_sum = scratch.take(chunk_dv);
  t.rows = scratch.take(static_cast<size_t>(kKeyTile * std::max(t.d, t.dv)));
  t.q = scratch.take(static_cast<size_t>(kRowBlock * t.d));
  t.dq = scratch.take(static_cast<size_t>(kRowBlock * t.d));
  t.dout = scratch.take(static_cast<size_t>(kRowBlock * t.dv));
  t.out = scratch.take(static_cast<size_t>(kRowBlock * t.dv));
  t.scores = scratch.take(kRowBlock * kKeyTile);
  t.gradient = scratch.take(kRowBlock * kKeyTile);
  t.bias = scratch.take(kRowBlock * kKeyTile);
  t.cap_slope = scratch.take(kRowBlock * kKeyTile);
  t.buckets = scratch.take<int>(kRowBlock * kKeyTile);
  t.lse = scratch.take(kRowBlock);
  t.delta = scratch.take(kRowBlock);
  return t;
}

/// One key head of one sequence, as a unit sees it.
struct KeyHead {
  const Plan& plan;
  BackwardState& state;
  const BackwardUnit& unit;
  int64_t b;
  int64_t key_head;
  const Sequence& s;
  Interval keys;             ///< of the chunk
  const BackwardUnit* next;  ///< what this thread does after the unit; null: not known
  const warploom_attention& call() const { return *plan.info.call; }
  int tiles() const { return (keys.end - keys.begin + kKeyTile - 1) / kKeyTile; }
  Interval tile(int n) const {
    return {keys.begin + n * kKeyTile, geometry::min_of(keys.begin + (n + 1) * kKeyTile, keys.end)};
  }
};

void load_transposed(const BackwardTile& t, const RowsView& view, Interval keys, int64_t dim, int64_t stride,
                     float* to) {
  const int count = keys.end - keys.begin, padded = vectors_of(count) * kLanes;
  load_rows(view, keys.begin, count, static_cast<int>(dim), t.rows, stride);
  fill(t.rows + count * stride, (padded - count) * stride, 0.0f);
  transpose(t.rows, stride, padded, static_cast<int>(dim), to, kKeyTile);
}

void load_chunk(const BackwardTile& t, const KeyHead& head) {
  const warploom_attention& call = head.call();
  const RowsView k = rows_view(call, call.k, head.b, head.s.first_k, head.key_head);
  const RowsView v = rows_view(call, call.v, head.b, head.s.first_k, head.key_head);
  for (int n = 0; n < head.tiles(); ++n) {
    const Interval keys = head.tile(n);
    load_transposed(t, k, keys, call.head_dim, t.d, t.keys_transposed + n * kKeyTile * t.d);
    load_transposed(t, v, keys, call.value_dim, t.dv, t.values_transposed + n * kKeyTile * t.dv);
    float* scaled = t.keys + n * kKeyTile * t.d;
    load_rows(k, keys.begin, keys.end - keys.begin, static_cast<int>(call.head_dim), scaled, t.d);
    for (int j = 0; j < keys.end - keys.begin; ++j) {
      scale_row(scaled + j * t.d, static_cast<int>(call.head_dim), head.plan.info.alpha);
    }
  }
  fill(t.dk, head.tiles() * kKeyTile * t.d, 0.0f);
  fill(t.dv_sum, head.tiles() * kKeyTile * t.dv, 0.0f);
}

void store_transposed(const BackwardTile& t, const RowsView& view, Interval keys, int64_t dim, const float* from) {
  const int dims = vectors_of(dim) * kLanes;
  transpose(from, kKeyTile, dims, keys.end - keys.begin, t.rows, dims);
  for (int j = keys.begin; j < keys.end; ++j) {
    store_row(t.rows + static_cast<int64_t>(j - keys.begin) * dims, static_cast<int>(dim), view.dtype, view.row(j));
  }
}

void clear_rows(const RowsView& view, int64_t begin, int64_t end, int64_t dim) {
  for (int64_t i = begin; i < end; ++i) std::memset(view.row(i), 0, static_cast<size_t>(dim * dtype_bytes(view.dtype)));
}

/// dK and dV of the chunk; the last chunk clears the slot's unused rows.
void store_chunk(const BackwardTile& t, const KeyHead& head, bool last) {
  const warploom_attention& call = head.call();
  const Sequence& s = head.s;
  if (s.slot_k == 0) return;
  const RowsView dk = rows_view(call, call.dk, head.b, s.first_k, head.key_head);
  const RowsView dv = rows_view(call, call.dv, head.b, s.first_k, head.key_head);
  for (int n = 0; n < head.tiles(); ++n) {
    store_transposed(t, dk, head.tile(n), call.head_dim, t.dk + n * kKeyTile * t.d);
    store_transposed(t, dv, head.tile(n), call.value_dim, t.dv_sum + n * kKeyTile * t.dv);
  }
  if (!last) return;
  clear_rows(dk, s.seqlen_k(), s.slot_k, call.head_dim);
  clear_rows(dv, s.seqlen_k(), s.slot_k, call.value_dim);
}

/// Q, dO and, per row, what turns scores into gradients, of rows first .. first+rows-1 of one query head.
void load_row_block(const BackwardTile& t, const KeyHead& head, int64_t query_head, int first, int rows) {
  const F f;
  const warploom_attention& call = head.call();
  const CallInfo& info = head.plan.info;
  const Sequence& s = head.s;
  const int d = static_cast<int>(call.head_dim), dv = static_cast<int>(call.value_dim);
  load_rows(rows_view(call, call.q, head.b, s.first_q, query_head), first, rows, d, t.q, t.d);
  load_rows(rows_view(call, call.dout, head.b, s.first_q, query_head), first, rows, dv, t.dout, t.dv);
  for (int i = 0; i < rows; ++i) scale_row(t.q + i * t.d, d, info.alpha);
  if (!info.softmax) {
    for (int i = 0; i < rows; ++i) {
      const float divisor = call.divisor_rows != nullptr ? call.divisor_rows[s.first_q + first + i] : info.divisor;
      scale_row(t.dout + i * t.dv, dv, 1.0f / divisor);
    }
    return;
  }
  load_rows(rows_view(call, call.out, head.b, s.first_q, query_head), first, rows, dv, t.out, t.dv);
  const float* lse = lse_rows(call, head.b, s.first_q, query_head) + first;
  for (int i = 0; i < rows; ++i) {
    Vec sum = hn::Zero(f);
    for (int x = 0; x < dv; x += kLanes) {
      sum = hn::MulAdd(hn::LoadU(f, t.dout + i * t.dv + x), hn::LoadU(f, t.out + i * t.dv + x), sum);
    }
    t.delta[i] = hn::GetLane(hn::SumOfLanes(f, sum));
    t.lse[i] = lse[i];
  }
}

/// Scores to P and dP to dZ.
void silu_gradient(const BackwardTile& t, ScorePart part) {
  const F f;
  for (int i = part.rows.begin; i < part.rows.end; ++i) {
    for (int v = part.first_vector(); v < part.end_vector(); ++v) {
      const int at = i * kKeyTile + v * kLanes;
      const Vec z = hn::LoadU(f, t.scores + at);
      const ValueAndSlope p = silu_and_slope(z);
      const auto masked = hn::Eq(z, hn::Set(f, kMasked));  // dP may be NaN there
      hn::StoreU(p.value, f, t.scores + at);
      hn::StoreU(hn::IfThenZeroElse(masked, hn::Mul(hn::LoadU(f, t.gradient + at), p.slope)), f, t.gradient + at);
    }
  }
}

/// The same with a user's function.
void score_gradient(const CallInfo& info, const BackwardTile& t, ScorePart part) {
  const F f;
  ScoreInterpreter interpreter(info.score->gradient_program, info.score_parameters);
  const int first = part.first_vector() * kLanes, count = part.end_vector() * kLanes - first;
  for (int i = part.rows.begin; i < part.rows.end; ++i) {
    float* row = t.scores + i * kKeyTile + first;
    float* dz = t.gradient + i * kKeyTile + first;
    interpreter.run(row, count);
    const float *p = interpreter.result(0), *slope = interpreter.result(1);
    for (int x = 0; x < count; x += kLanes) {
      const auto hidden = is_hidden(hn::LoadU(f, row + x));
      hn::StoreU(hn::IfThenZeroElse(hidden, hn::LoadU(f, p + x)), f, row + x);
      hn::StoreU(hn::IfThenZeroElse(hidden, hn::Mul(hn::LoadU(f, dz + x), hn::LoadU(f, slope + x))), f, dz + x);
    }
  }
}

void softmax_gradient(const BackwardTile& t, ScorePart part, bool capped) {
  const F f;
  for (int i = part.rows.begin; i < part.rows.end; ++i) {
    const Vec lse = hn::Set(f, t.lse[i]), delta = hn::Set(f, t.delta[i]);
    for (int v = part.first_vector(); v < part.end_vector(); ++v) {
      const int at = i * kKeyTile + v * kLanes;
      const Vec z = hn::LoadU(f, t.scores + at);
      const auto masked = hn::Eq(z, hn::Set(f, kMasked));
      const Vec p = hn::IfThenZeroElse(masked, exp(hn::Sub(z, lse)));
      Vec dz = hn::Mul(p, hn::Sub(hn::LoadU(f, t.gradient + at), delta));
      if (capped) dz = hn::Mul(dz, hn::LoadU(f, t.cap_slope + at));
      hn::StoreU(p, f, t.scores + at);
      hn::StoreU(hn::IfThenZeroElse(masked, dz), f, t.gradient + at);
    }
  }
}

/// dQ += dZ (alpha K) over the keys that take part.
void add_to_dq(const BackwardTile& t, const float* keys, int vectors, ScorePart part, const Live* live) {
  const int rows = part.rows.end - part.rows.begin;
  Interval run = {part.columns.begin, live == nullptr ? part.columns.end : part.columns.begin};
  if (live != nullptr) run = next_run(live->keys, run, part.columns.end);
  for (; !run.empty(); run = live != nullptr ? next_run(live->keys, run, part.columns.end) : Interval{}) {
    product<Layout::rows>({t.gradient + part.rows.begin * kKeyTile + run.begin, kKeyTile},
                          {keys + run.begin * t.d, t.d}, t.dq + part.rows.begin * t.d, t.d, rows, vectors,
                          run.end - run.begin, true);
  }
}

/// dV^T += dO^T P and dK^T += (alpha Q)^T dZ over the rows that take part.
void add_to_dk_dv(const BackwardTile& t, const warploom_attention& call, int tile, int first_vector, int end_vector,
                  const bool* live_rows, int rows) {
  const int left = first_vector * kLanes, vectors = end_vector - first_vector;
  float* dk = t.dk + tile * kKeyTile * t.d + left;
  float* dv = t.dv_sum + tile * kKeyTile * t.dv + left;
  for (Interval run = next_run(live_rows, {}, rows); !run.empty(); run = next_run(live_rows, run, rows)) {
    const int at = run.begin * kKeyTile + left, depth = run.end - run.begin;
    product<Layout::columns>({t.dout + run.begin * t.dv, t.dv}, {t.scores + at, kKeyTile}, dv, kKeyTile,
                             static_cast<int>(call.value_dim), vectors, depth, true);
    product<Layout::columns>({t.q + run.begin * t.d, t.d}, {t.gradient + at, kKeyTile}, dk, kKeyTile,
                             static_cast<int>(call.head_dim), vectors, depth, true);
  }
}

/// One row block against one key tile: dQ of the block and dK, dV of the tile grow; dZ is left in t.gradient, whole
/// when true is returned (zeros where nothing is seen).
bool tile_gradients(const BackwardTile& t, const KeyHead& head, const BiasView& bias, const RowIntervals& seen,
                    int tile, TilePlace place, int rows, int steps_a_row, ReadAhead& ahead) {
  const CallInfo& info = head.plan.info;
  const warploom_attention& call = head.call();
  ScorePart parts[kRowBlock / kStrip];
  const int count = score_parts(seen, {0, rows}, head.tile(tile), 0, parts);
  if (count == 0) return false;
  // A full part that ends the block may be its last strip alone, after strips that see nothing.
  const bool whole = parts[0].kind == TileKind::full && parts[0].rows.begin == 0 && parts[0].rows.end == rows;
  if (!whole) {
    fill(t.scores, kRowBlock * kKeyTile, 0.0f);
    fill(t.gradient, kRowBlock * kKeyTile, 0.0f);
  }
  const bool biased = bias.kind != WARPLOOM_NO_BIAS, capped = info.softcap != 0;
  Live live;
  for (bool& row : live.rows) row = false;
  int first_vector = kKeyTile, end_vector = 0;
  for (int n = 0; n < count; ++n) {
    const ScorePart part = parts[n];
    const int left = part.first_vector() * kLanes, vectors = part.end_vector() - part.first_vector();
    const int first = part.rows.begin, part_rows = part.rows.end - first, at = first * kKeyTile + left;
    product<Layout::rows>({t.q + first * t.d, t.d}, {t.keys_transposed + tile * kKeyTile * t.d + left, kKeyTile},
                          t.scores + at, kKeyTile, part_rows, vectors, static_cast<int>(call.head_dim), false);
    product<Layout::rows>({t.dout + first * t.dv, t.dv},
                          {t.values_transposed + tile * kKeyTile * t.dv + left, kKeyTile}, t.gradient + at, kKeyTile,
                          part_rows, vectors, static_cast<int>(call.value_dim), false);
    ahead.advance(part_rows * steps_a_row / 2);
    if (biased) load_bias(info, head.s, bias, place, part, t.bias, t.buckets);
    const bool some = finish_scores(info, seen, place, part, biased ? t.bias : nullptr, t.scores,
                                    capped ? t.cap_slope : nullptr, live);
    if (!some) std::fill(live.rows + first, live.rows + part.rows.end, true);
    if (info.softmax) {
      softmax_gradient(t, part, capped);
    } else if (info.score != nullptr) {
      score_gradient(info, t, part);
    } else {
      silu_gradient(t, part);
    }
    add_to_dq(t, t.keys + tile * kKeyTile * t.d, vectors_of(call.head_dim), part, some ? &live : nullptr);
    first_vector = geometry::min_of(first_vector, part.first_vector());
    end_vector = geometry::max_of(end_vector, part.end_vector());
  }
  add_to_dk_dv(t, call, tile, first_vector, end_vector, live.rows, rows);
  ahead.advance(rows * steps_a_row / 2);
  return true;
}

/// Adds the block's part of dQ in its turn: the first chunk that sees the rows writes, the others add, the last one of
/// a 16-bit dq rounds. False when the call has failed.
bool add_rows(const BackwardTile& t, const KeyHead& head, const RowIntervals& seen, int64_t query_head, int first,
              int rows) {
  const warploom_attention& call = head.call();
  const int dim = static_cast<int>(call.head_dim), chunk = head.unit.chunk;
  const RowsView dq = rows_view(call, call.dq, head.b, head.s.first_q, query_head);
  const int last_before = seen.last_column_before(head.keys.begin);
  const bool first_part = last_before < 0, last_part = seen.next_column(head.keys.end) == geometry::kUnbounded;
  if (first_part && last_part) {
    for (int i = 0; i < rows; ++i) store_row(t.dq + i * t.d, dim, dq.dtype, dq.row(first + i));
    return true;
  }
  if (!head.state.wait_turn(head.b, query_head, first / kRowBlock,
                            last_before < 0 ? -1 : last_before / head.plan.chunk_keys)) {
    return false;
  }
  const bool in_place = dq.dtype == WARPLOOM_FLOAT32;
  float* sums = in_place ? nullptr : head.state.query_sums(head.b, query_head);
  if (!in_place && sums == nullptr) return false;
  for (int i = 0; i < rows; ++i) {
    float* part = t.dq + i * t.d;
    float* sum = in_place ? reinterpret_cast<float*>(dq.row(first + i)) : sums + (first + i) * t.d;
    if (!first_part) {
      for (int x = 0; x < dim; ++x) part[x] += sum[x];
    }
    if (!in_place && last_part) {
      store_row(part, dim, dq.dtype, dq.row(first + i));
    } else {
      store_row(part, dim, WARPLOOM_FLOAT32, sum);
    }
  }
  head.state.end_turn(head.b, query_head, first / kRowBlock, chunk);
  return true;
}

/// Row blocks of one query head against the chunk. False when the call has failed.
bool query_head_gradients(BackwardTile& t, const KeyHead& head, int64_t query_head, bool last_head,
                          BiasGradientSink& sink) {
  const warploom_attention& call = head.call();
  const Sequence& s = head.s;
  const bool first_chunk = head.unit.chunk == 0;
  const BiasView bias = bias_view(head.plan.info, head.b, query_head);
  thread_local RowIntervals seen;
  const int blocks = (s.seqlen_q() + kRowBlock - 1) / kRowBlock;
  int block = next_row_block(head.plan.info, s, head.keys, 0);
  ReadAhead ahead;
  look_ahead(head.plan, {head.b, head.key_head, query_head, head.keys, block, last_head, head.next}, ahead);
  for (; block < blocks; block = next_row_block(head.plan.info, s, head.keys, block + 1)) {
    const int first = block * kRowBlock, rows = geometry::min_of(kRowBlock, s.seqlen_q() - first);
    seen.build(call, s, query_head, first, rows);
    if (seen.next_column(head.keys.begin) >= head.keys.end) {
      if (first_chunk && seen.next_column(0) == geometry::kUnbounded) {
        clear_rows(rows_view(call, call.dq, head.b, s.first_q, query_head), first, first + rows, call.head_dim);
      }
      continue;
    }
    load_row_block(t, head, query_head, first, rows);
    fill(t.dq, rows * t.d, 0.0f);
    const int last_tile = (seen.last_column_before(head.keys.end) - head.keys.begin) / kKeyTile;
    for (int tile = 0; tile <= last_tile; ++tile) {
      const TilePlace place = {first, head.tile(tile).begin, 0};
      if (tile_gradients(t, head, bias, seen, tile, place, rows, kBackwardStepsARow / (last_tile + 1), ahead)) {
        sink.add(t.gradient, t.buckets, place, rows, head.tile(tile).end - head.tile(tile).begin);
      }
    }
    if (!add_rows(t, head, seen, query_head, first, rows)) return false;
  }
  if (first_chunk && s.slot_q > s.seqlen_q()) {
    clear_rows(rows_view(call, call.dq, head.b, s.first_q, query_head), s.seqlen_q(), s.slot_q, call.head_dim);
  }
  return true;
}

void run_unit(const Plan& plan, BackwardState& state, size_t unit_index, const BackwardUnit* next, Scratch& scratch) {
  const CallInfo& info = plan.info;
  const warploom_attention& call = *info.call;
  const BackwardUnit& unit = plan.backward[unit_index];
  BackwardTile t = carve(plan, scratch);
  BiasGradientSink sink(plan, unit, scratch);
  for (int64_t b = unit.first_sequence; b < unit.first_sequence + unit.sequences; ++b) {
    const Sequence& s = info.sequences[static_cast<size_t>(b)];
    const Interval keys = chunk_of_keys(plan, unit, b);
    if (unit.chunk > 0 && keys.empty()) continue;  // a shorter sequence than the unit's longest
    for (int64_t key_head = unit.first_key_head; key_head < unit.first_key_head + unit.key_heads; ++key_head) {
      const KeyHead head = {plan, state, unit, b, key_head, s, keys, next};
      if (!keys.empty()) load_chunk(t, head);
      const int64_t end_head = (key_head + 1) * info.query_groups;
      for (int64_t n = key_head * info.query_groups; n < end_head; ++n) {
        sink.begin_head(b, n);
        if (!query_head_gradients(t, head, n, n + 1 == end_head, sink)) return;
        if (call.dtype != WARPLOOM_FLOAT32) state.release_query_sums(b, n);
      }
      store_chunk(t, head, keys.end >= s.seqlen_k());
    }
  }
  sink.finish(state, unit_index);
}

}  // namespace

void backward(const Plan& plan, BackwardState& state, size_t begin, size_t end, Scratch& scratch) {
  for (size_t unit = begin; unit < end && !state.failed(); ++unit)
    run_unit(plan, state, unit, unit + 1 < end ? &plan.backward[unit + 1] : nullptr, scratch);
}

}  // namespace warploom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/targets.h"

namespace warploom::cpu {

bool add_backward_kernels(int64_t target, Kernels& kernels) {
#define WARPLOOM_ADD(space) kernels.backward = space::backward
  WARPLOOM_FOR_TARGET(target, WARPLOOM_ADD);
#undef WARPLOOM_ADD
}

}  // namespace warploom::cpu
#endif
