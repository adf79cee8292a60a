// The forward pass of one work item: some query rows of one head of one sequence, against every key tile that they see.
// Keys are the vector axis: S[row][key] from K^T, O[row][dim] from V. HSTU: attention.md section 2; softmax: section 3,
// with the running maximum and sum of online softmax.
#include "cpu/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "cpu/products-inl.h"
#include "cpu/read_ahead.h"
#include "cpu/score_program-inl.h"
#include "cpu/scores-inl.h"
#include "cpu/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace warploom::cpu::HWY_NAMESPACE {
namespace {

/// One item's working set in scratch; strides of Q, O and V are the padded dimensions, of the others kKeyTile.
struct ForwardTile {
  int64_t d, dv;
  float *q, *out;
  float *keys, *keys_transposed, *values;
  float *scores, *bias;
  int* buckets;
  float* maximum;  // softmax: per row, of the scores so far
  float* sums;     // softmax: per row and lane, of exp(score - maximum)
};

ForwardTile carve(const warploom_attention& call, int64_t rows, Scratch& scratch) {
  scratch.restart();
  ForwardTile t;
  t.d = padded_dim(call.head_dim);
  t.dv = padded_dim(call.value_dim);
  t.q = scratch.take(static_cast<size_t>(rows * t.d));
  t.out = scratch.take(static_cast<size_t>(rows * t.dv));
  t.keys = scratch.take(static_cast<size_t>(kKeyTile * t.d));
  t.keys_transposed = scratch.take(static_cast<size_t>(kKeyTile * t.d));
  t.values = scratch.take(static_cast<size_t>(kKeyTile * t.dv));
  t.scores = scratch.take(kRowBlock * kKeyTile);
  t.bias = scratch.take(kRowBlock * kKeyTile);
  t.buckets = scratch.take<int>(kRowBlock * kKeyTile);
  t.maximum = scratch.take(static_cast<size_t>(rows));
  t.sums = scratch.take(static_cast<size_t>(rows * kLanes));
  return t;
}

/// K^T and V of keys first .. first+count-1; the rest of the tile up to a whole vector is zeros.
void load_key_tile(const ForwardTile& t, const warploom_attention& call, const RowsView& k, const RowsView& v,
                   int first, int count) {
  load_rows(k, first, count, static_cast<int>(call.head_dim), t.keys, t.d);
  load_rows(v, first, count, static_cast<int>(call.value_dim), t.values, t.dv);
  const int padded = vectors_of(count) * kLanes;
  fill(t.keys + count * t.d, (padded - count) * t.d, 0.0f);
  transpose(t.keys, t.d, padded, static_cast<int>(call.head_dim), t.keys_transposed, kKeyTile);
}

void silu_rows(ScorePart part, float* scores) {
  const F f;
  for (int i = part.rows.begin; i < part.rows.end; ++i) {
    float* row = scores + i * kKeyTile;
    for (int v = part.first_vector(); v < part.end_vector(); ++v) {
      hn::StoreU(silu(hn::LoadU(f, row + v * kLanes)), f, row + v * kLanes);
    }
  }
}

/// The same with a user's function.
void score_rows(const CallInfo& info, ScorePart part, float* scores) {
  const F f;
  ScoreInterpreter interpreter(info.score->value_program, info.score_parameters);
  const int first = part.first_vector() * kLanes, count = part.end_vector() * kLanes - first;
  for (int i = part.rows.begin; i < part.rows.end; ++i) {
    float* row = scores + i * kKeyTile + first;
    interpreter.run(row, count);
    const float* p = interpreter.result(0);
    for (int x = 0; x < count; x += kLanes) {
      hn::StoreU(hn::IfThenZeroElse(is_hidden(hn::LoadU(f, row + x)), hn::LoadU(f, p + x)), f, row + x);
    }
  }
}

/// exp(score - running maximum); when a row's maximum grows, what it has summed so far shrinks to match.
void softmax_rows(const ForwardTile& t, ScorePart part, int block_row) {
  const F f;
  for (int i = part.rows.begin; i < part.rows.end; ++i) {
    float* row = t.scores + i * kKeyTile;
    Vec highest = hn::Set(f, kMasked);
    for (int v = part.first_vector(); v < part.end_vector(); ++v)
      highest = hn::Max(hn::LoadU(f, row + v * kLanes), highest);
    float& maximum = t.maximum[block_row + i];
    float* sums = t.sums + static_cast<int64_t>(block_row + i) * kLanes;
    const float tile_maximum = hn::GetLane(hn::MaxOfLanes(f, highest));
    if (tile_maximum > maximum) {
      if (maximum != kMasked) {
        const float shrink = std::exp(maximum - tile_maximum);
        scale_row(t.out + (block_row + i) * t.dv, static_cast<int>(t.dv), shrink);
        scale_row(sums, kLanes, shrink);
      }
      maximum = tile_maximum;
    }
    const Vec base = hn::Set(f, maximum == kMasked ? 0.0f : maximum);
    Vec sum = hn::LoadU(f, sums);
    for (int v = part.first_vector(); v < part.end_vector(); ++v) {
      const Vec p = exp(hn::Sub(hn::LoadU(f, row + v * kLanes), base));
      sum = hn::Add(sum, p);
      hn::StoreU(p, f, row + v * kLanes);
    }
    hn::StoreU(sum, f, sums);
  }
}

/// O += P V over the keys that take part.
void add_to_output(const ForwardTile& t, int dim_vectors, ScorePart part, int block_row, const Live* live) {
  const int rows = part.rows.end - part.rows.begin;
  float* out = t.out + (block_row + part.rows.begin) * t.dv;
  const auto add = [&](int begin, int end) HWY_ATTR {
    product<Layout::rows>({t.scores + part.rows.begin * kKeyTile + begin, kKeyTile}, {t.values + begin * t.dv, t.dv},
                          out, t.dv, rows, dim_vectors, end - begin, true);
  };
  if (live == nullptr) {
    add(part.columns.begin, part.columns.end);
    return;
  }
  Interval run = {0, part.columns.begin};
  while (run = next_run(live->keys, run, part.columns.end), !run.empty()) add(run.begin, run.end);
}

void write_rows(const CallInfo& info, const ForwardItem& item, const Sequence& s, const ForwardTile& t,
                const RowIntervals& seen) {
  const F f;
  const warploom_attention& call = *info.call;
  const int dim = static_cast<int>(call.value_dim);
  const RowsView out = rows_view(call, call.out, item.sequence, s.first_q, item.head);
  float* lse = call.lse != nullptr ? lse_rows(call, item.sequence, s.first_q, item.head) : nullptr;
  for (int i = 0; i < item.rows; ++i) {
    float* row = t.out + i * t.dv;
    float divisor = info.divisor;
    if (info.softmax) {
      const float sum = hn::GetLane(hn::SumOfLanes(f, hn::LoadU(f, t.sums + static_cast<int64_t>(i) * kLanes)));
      const float maximum = t.maximum[i];
      const bool nothing = maximum == kMasked && sum == 0;
      if (lse != nullptr) lse[item.first_row + i] = nothing ? kMasked : maximum + std::log(sum);
      divisor = nothing ? 1.0f : sum;
    } else if (call.divisor_rows != nullptr && !seen.row_is_empty(i)) {
      divisor = call.divisor_rows[s.first_q + item.first_row + i];
    }
    const Vec by = hn::Set(f, divisor);
    for (int x = 0; x < dim; x += kLanes) hn::StoreU(hn::Div(hn::LoadU(f, row + x), by), f, row + x);
    store_row(row, dim, out.dtype, out.row(item.first_row + i));
  }
}

void clear_rows(const CallInfo& info, const ForwardItem& item) {
  const warploom_attention& call = *info.call;
  const bool past_end = item.sequence == call.batch;
  const int64_t first_q = past_end ? 0 : info.sequences[static_cast<size_t>(item.sequence)].first_q;
  const size_t bytes = static_cast<size_t>(call.value_dim * dtype_bytes(call.dtype));
  for (int64_t head = 0; head < call.heads; ++head) {
    const RowsView out = rows_view(call, call.out, past_end ? 0 : item.sequence, first_q, head);
    for (int64_t i = item.first_row; i < item.first_row + item.rows; ++i) std::memset(out.row(i), 0, bytes);
    if (call.lse == nullptr) continue;
    fill(lse_rows(call, past_end ? 0 : item.sequence, first_q, head) + item.first_row, item.rows, kMasked);
  }
}

void run_item(const Plan& plan, const ForwardItem& item, const ForwardItem* next, Scratch& scratch) {
  const CallInfo& info = plan.info;
  const warploom_attention& call = *info.call;
  if (item.blank) return clear_rows(info, item);
  const Sequence& s = info.sequences[static_cast<size_t>(item.sequence)];
  const int64_t key_head = item.head / info.query_groups;
  const int first = static_cast<int>(item.first_row), rows = static_cast<int>(item.rows);
  const ForwardTile t = carve(call, rows, scratch);
  const RowsView q = rows_view(call, call.q, item.sequence, s.first_q, item.head);
  load_rows(q, first, rows, static_cast<int>(call.head_dim), t.q, t.d);
  for (int i = 0; i < rows; ++i) scale_row(t.q + i * t.d, static_cast<int>(call.head_dim), info.alpha);
  fill(t.out, rows * t.dv, 0.0f);
  fill(t.maximum, rows, kMasked);
  fill(t.sums, static_cast<int64_t>(rows) * kLanes, 0.0f);

  thread_local RowIntervals seen;
  seen.build(call, s, item.head, first, rows);
  RowsView k, v;
  if (s.seqlen_k() > 0) {
    k = rows_view(call, call.k, item.sequence, s.first_k, key_head);
    v = rows_view(call, call.v, item.sequence, s.first_k, key_head);
  }
  const BiasView bias = bias_view(info, item.sequence, item.head);
  const bool biased = bias.kind != WARPLOOM_NO_BIAS;
  ReadAhead ahead;

  Interval next_keys;
  for (Interval keys = key_tile(s, seen.next_column(0)); !keys.empty(); keys = next_keys) {
    load_key_tile(t, call, k, v, keys.begin, keys.end - keys.begin);
    next_keys = key_tile(s, seen.next_column(keys.end));
    ahead.restart(2 * int64_t{rows});  // each row is in two products of the tile
    look_ahead(plan, item, next, next_keys, ahead);
    for (int block_row = 0; block_row < rows; block_row += kRowBlock) {
      const TilePlace place = {first + block_row, keys.begin, block_row};
      ScorePart parts[kRowBlock / kStrip];
      const int count =
          score_parts(seen, {block_row, geometry::min_of(block_row + kRowBlock, rows)}, keys, block_row, parts);
      for (int n = 0; n < count; ++n) {
        const ScorePart part = parts[n];
        const int left = part.first_vector() * kLanes;
        product<Layout::rows>({t.q + (block_row + part.rows.begin) * t.d, t.d}, {t.keys_transposed + left, kKeyTile},
                              t.scores + part.rows.begin * kKeyTile + left, kKeyTile, part.rows.end - part.rows.begin,
                              part.end_vector() - part.first_vector(), static_cast<int>(call.head_dim), false);
        ahead.advance(part.rows.end - part.rows.begin);
        if (biased) load_bias(info, s, bias, place, part, t.bias, t.buckets);
        Live live;
        const bool some = finish_scores(info, seen, place, part, biased ? t.bias : nullptr, t.scores, nullptr, live);
        if (info.softmax) {
          softmax_rows(t, part, block_row);
        } else if (info.score != nullptr) {
          score_rows(info, part, t.scores);
        } else {
          silu_rows(part, t.scores);
        }
        add_to_output(t, vectors_of(call.value_dim), part, block_row, some ? &live : nullptr);
        ahead.advance(part.rows.end - part.rows.begin);
      }
    }
  }
  write_rows(info, item, s, t, seen);
}

}  // namespace

void forward(const Plan& plan, size_t begin, size_t end, Scratch& scratch) {
  for (size_t n = begin; n < end; ++n)
    run_item(plan, plan.forward[n], n + 1 < end ? &plan.forward[n + 1] : nullptr, scratch);
}

/// A score function at any points.
void evaluate_score(const expression::ScoreFunction& function, const float* parameters, const float* z, int64_t count,
                    float* values, float* slopes) {
  ScoreInterpreter interpreter(function.gradient_program, parameters);
  HWY_ALIGN float points[kKeyTile] = {};
  for (int64_t first = 0; first < count; first += kKeyTile) {
    const auto n = static_cast<size_t>(std::min<int64_t>(kKeyTile, count - first));
    std::copy_n(z + first, n, points);
    interpreter.run(points, kKeyTile);
    if (values != nullptr) std::copy_n(interpreter.result(0), n, values + first);
    if (slopes != nullptr) std::copy_n(interpreter.result(1), n, slopes + first);
  }
}

void load_values(const void* source, uint32_t dtype, int64_t count, float* target) {
  load_row(source, dtype, static_cast<int>(count), target);
}

void store_values(const float* source, int64_t count, uint32_t dtype, void* target) {
  store_row(source, static_cast<int>(count), dtype, target);
}

}  // namespace warploom::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/targets.h"

namespace warploom::cpu {

bool add_forward_kernels(int64_t target, Kernels& kernels) {
#define WARPLOOM_ADD(space)                                                   \
  kernels.forward = space::forward, kernels.load_values = space::load_values, \
  kernels.store_values = space::store_values, kernels.evaluate_score = space::evaluate_score
  WARPLOOM_FOR_TARGET(target, WARPLOOM_ADD);
#undef WARPLOOM_ADD
}

}  // namespace warploom::cpu
#endif
