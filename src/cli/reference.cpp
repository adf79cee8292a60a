#include "cli/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "cli/numbers.h"
#include "history/random.h"

namespace warploom::cli {
namespace {

using std::int64_t;

std::size_t at(int64_t index) {
  return static_cast<std::size_t>(index);
}

bool dense(const warploom_attention& call) {
  return call.cu_seqlens_q == nullptr;
}

int64_t entry(const void* values, std::uint32_t dtype, int64_t index) {
  return dtype == WARPLOOM_INT64 ? static_cast<const int64_t*>(values)[index]
                                 : static_cast<const std::int32_t*>(values)[index];
}

/// Sequence b in the words of docs/attention.md.
struct Shape {
  int64_t first_q, first_k, slot_q, slot_k, seqlen_q, seqlen_k, num_contexts, num_targets;

  int64_t key_row(int64_t i) const { return i + seqlen_k - seqlen_q; }
};

Shape shape_of(const warploom_attention& call, int64_t b) {
  Shape s{};
  if (dense(call)) {
    s.first_q = b * call.max_seqlen_q;
    s.first_k = b * call.max_seqlen_k;
    s.slot_q = call.max_seqlen_q;
    s.slot_k = call.max_seqlen_k;
  } else {
    const void* cu_k = call.cu_seqlens_k != nullptr ? call.cu_seqlens_k : call.cu_seqlens_q;
    const std::uint32_t type_k = call.cu_seqlens_k != nullptr ? call.cu_seqlens_k_dtype : call.cu_seqlens_q_dtype;
    s.first_q = entry(call.cu_seqlens_q, call.cu_seqlens_q_dtype, b);
    s.slot_q = entry(call.cu_seqlens_q, call.cu_seqlens_q_dtype, b + 1) - s.first_q;
    s.first_k = entry(cu_k, type_k, b);
    s.slot_k = entry(cu_k, type_k, b + 1) - s.first_k;
  }
  const auto given = [&](const std::int32_t* each, std::int32_t all, int64_t otherwise) -> int64_t {
    if (each != nullptr) return each[b];
    return all >= 0 ? all : otherwise;
  };
  // One number for all sequences leaves out those without keys.
  s.seqlen_q =
      s.slot_k == 0 && call.seqused_q == nullptr ? s.slot_q : given(call.seqused_q, call.seqused_q_all, s.slot_q);
  s.seqlen_k = s.slot_k == 0 && call.seqused_k == nullptr ? 0 : given(call.seqused_k, call.seqused_k_all, s.slot_k);
  s.num_contexts =
      s.seqlen_k == 0 && call.num_contexts == nullptr ? 0 : given(call.num_contexts, call.num_contexts_all, 0);
  s.num_targets = s.seqlen_k == 0 && call.num_targets == nullptr ? 0 : given(call.num_targets, call.num_targets_all, 0);
  return s;
}

bool visible(const warploom_attention& call, const Shape& s, int64_t n, int64_t i, int64_t j) {
  if (j < 0 || j >= s.seqlen_k) return false;
  if (call.num_intervals > 0) {
    const int64_t head = call.interval_heads == 1 ? 0 : n;
    const std::int32_t* list = call.intervals + (head * call.total_q + s.first_q + i) * call.num_intervals * 2;
    for (int64_t m = 0; m < call.num_intervals; ++m)
      if (list[2 * m] <= j && j < list[2 * m + 1]) return true;
    return false;
  }
  if (call.interval_heads != 0) return false;  // lists of no intervals
  const int64_t r = s.key_row(i), h = s.seqlen_k - s.num_targets;
  const auto left_of = [&](int64_t row) { return call.left == WARPLOOM_UNBOUNDED || j >= row - call.left; };
  if (r >= h && r >= 0) {
    const int64_t start = h + (r - h) / call.target_group_size * call.target_group_size;
    const int64_t window_row = (call.flags & WARPLOOM_WINDOW_FROM_HISTORY_END) != 0 ? h : r;
    return (left_of(window_row) && j < h) || (start <= j && j <= r);
  }
  if (0 <= r && r < s.num_contexts) return j < h;
  return left_of(r) && (call.right == WARPLOOM_UNBOUNDED || j <= r + call.right);
}

/// Where R of a pair comes from: an element of the bias, or an entry in each of two tables; -1: nowhere.
struct BiasPlace {
  int64_t value = -1;     ///< in the bias's own strides
  int64_t gradient = -1;  ///< in a contiguous tensor
  int64_t position = -1, position_value = -1;
  int64_t time = -1, time_value = -1;
};

int64_t time_bucket(const warploom_bias& bias, int64_t difference) {
  const int64_t distance = difference < 0 ? -difference : difference;
  int64_t bucket = 0;
  for (int64_t n = 1; n < bias.num_times; ++n) {
    const bool passed = bias.time_bucket != nullptr
                            ? bias.time_bucket[n - 1] <= distance
                            : std::ceil(std::exp(0.301 * static_cast<double>(n))) <= static_cast<double>(distance);
    bucket += passed ? 1 : 0;
  }
  return bucket;
}

/// Where sequence b's packed block starts, and its pitch.
int64_t packed_pitch(const warploom_attention& call, const Shape& s) {
  const int64_t per_16_bytes = 16 / bytes_per_element(call.bias.dtype);
  return (s.slot_k + per_16_bytes - 1) / per_16_bytes * per_16_bytes;
}
int64_t packed_start(const warploom_attention& call, int64_t b) {
  int64_t start = 0;
  for (int64_t other = 0; other < b; ++other) {
    const Shape s = shape_of(call, other);
    start += (call.bias.rows == WARPLOOM_ROWS_QUERY ? s.slot_q : s.slot_k) * packed_pitch(call, s);
  }
  return start;
}

bool bias_rows_are_keys(const warploom_attention& call) {
  if (call.bias.rows != WARPLOOM_ROWS_AUTO) return call.bias.rows == WARPLOOM_ROWS_KEY;
  int64_t longest = call.max_seqlen_k;
  if (longest == WARPLOOM_FROM_CU_SEQLENS)
    for (int64_t b = 0; b < call.batch; ++b) longest = std::max(longest, shape_of(call, b).slot_k);
  return call.bias.num_rows == longest;
}

BiasPlace bias_place(const warploom_attention& call, const Shape& s, int64_t b, int64_t packed_first, bool key_rows,
                     int64_t n, int64_t i, int64_t j) {
  const warploom_bias& bias = call.bias;
  const int64_t r = s.key_row(i), row = key_rows ? r : i;
  BiasPlace place;
  if (bias.kind == WARPLOOM_DENSE_BIAS && row >= 0) {
    const int64_t bb = bias.batch == 1 ? 0 : b, nn = bias.heads == 1 ? 0 : n;
    place.value = bb * bias.batch_stride + nn * bias.head_stride + row * bias.row_stride + j;
    place.gradient = ((bb * bias.heads + nn) * bias.num_rows + row) * bias.num_columns + j;
  }
  if (bias.kind == WARPLOOM_PACKED_BIAS && row >= 0) {
    const int64_t nn = bias.heads == 1 ? 0 : n, inside = packed_first + row * packed_pitch(call, s) + j;
    place.value = nn * bias.head_stride + inside;
    place.gradient = nn * bias.num_columns + inside;
  }
  if (bias.kind == WARPLOOM_BUCKETED_BIAS && bias.position != nullptr) {
    const int64_t nn = bias.position_heads == 1 ? 0 : n, index = std::clamp<int64_t>(r - j, 0, bias.num_positions - 1);
    place.position_value = nn * bias.position_head_stride + index;
    place.position = nn * bias.num_positions + index;
  }
  if (bias.kind == WARPLOOM_BUCKETED_BIAS && bias.time != nullptr) {
    const int64_t nn = bias.time_heads == 1 ? 0 : n;
    const int64_t index = time_bucket(bias, bias.timestamps[s.first_k + r] - bias.timestamps[s.first_k + j]);
    place.time_value = nn * bias.time_head_stride + index;
    place.time = nn * bias.num_times + index;
  }
  return place;
}

double bias_value(const warploom_bias& bias, const BiasPlace& place) {
  double sum = 0;
  if (place.value >= 0) sum += load(bias.values, bias.dtype, place.value);
  if (place.position >= 0) sum += static_cast<double>(bias.position[place.position_value]);
  if (place.time >= 0) sum += static_cast<double>(bias.time[place.time_value]);
  return sum;
}

/// One visible pair of a row.
struct Pair {
  int64_t j;
  double score;  ///< softmax: S after the softcap; HSTU: Z
  double
      score_magnitude;  ///< what it would be if nothing in Q K^T + R cancelled: its own rounding errors grow with that
  double p;             ///< P
  double slope;         ///< HSTU: g(Z); softmax: the softcap's slope
  double curvature;     ///< HSTU: the slope of g
  BiasPlace place;

  /// P and the slope if nothing cancelled on the way to them.
  double p_magnitude(bool softmax) const { return std::fabs(p) + score_magnitude * (softmax ? p : std::fabs(slope)); }
  double slope_magnitude() const { return std::fabs(slope) + score_magnitude * std::fabs(curvature); }
};

class Computation {
 public:
  Computation(const warploom_attention& call, std::optional<Rounding> rounding)
      : call_(call), rounding_(rounding), random_(rounding ? static_cast<std::uint64_t>(rounding->draw) : 0) {
    roundoff_ = call.dtype == WARPLOOM_FLOAT32 ? 0 : unit_roundoff(call.dtype);
    const bool backward = call.pass == WARPLOOM_BACKWARD;
    result_.out = ReferenceTensor(call.total_q * call.heads * call.value_dim);
    if (call.op == WARPLOOM_SOFTMAX) {
      result_.lse = ReferenceTensor(call.total_q * call.heads);
      std::fill(result_.lse.value.begin(), result_.lse.value.end(), -INFINITY);
    }
    if (!backward) return;
    result_.dq = ReferenceTensor(call.total_q * call.heads * call.head_dim);
    result_.dk = ReferenceTensor(call.total_k * call.key_heads * call.head_dim);
    result_.dv = ReferenceTensor(call.total_k * call.key_heads * call.value_dim);
    const warploom_bias& bias = call.bias;
    if (bias.kind == WARPLOOM_DENSE_BIAS)
      result_.bias = ReferenceTensor(bias.batch * bias.heads * bias.num_rows * bias.num_columns);
    if (bias.kind == WARPLOOM_PACKED_BIAS) result_.bias = ReferenceTensor(bias.heads * bias.num_columns);
    if (bias.position != nullptr) result_.position = ReferenceTensor(bias.position_heads * bias.num_positions);
    if (bias.time != nullptr) result_.time = ReferenceTensor(bias.time_heads * bias.num_times);
  }

  void sequence(int64_t b) {
    const Shape s = shape_of(call_, b);
    for (int64_t n = 0; n < call_.heads; ++n) {
      load_keys(b, s, n);
      for (int64_t i = 0; i < s.seqlen_q; ++i) row(b, s, n, i);
    }
  }

  Reference finish() {
    for (ReferenceTensor* tensor : {&result_.out, &result_.dq, &result_.dk, &result_.dv, &result_.bias}) {
      for (std::size_t index = 0; index < tensor->value.size(); ++index) {
        double& value = tensor->value[index];
        const double step = roundoff_ * value;
        tensor->bound_squared[index] += step * step;
        if (rounding_) value = round_to(call_.dtype, value);
      }
    }
    return std::move(result_);
  }

 private:
  double element(const warploom_tensor& tensor, int64_t b, int64_t first, int64_t row, int64_t head, int64_t d) const {
    const int64_t row_at =
        dense(call_) ? b * tensor.batch_stride + row * tensor.row_stride : (first + row) * tensor.row_stride;
    return load(tensor.data, call_.dtype, row_at + head * tensor.head_stride + d);
  }

  void load_keys(int64_t b, const Shape& s, int64_t n) {
    const int64_t key_head = n / (call_.heads / call_.key_heads);
    keys_.assign(at(s.seqlen_k * call_.head_dim), 0);
    values_.assign(at(s.seqlen_k * call_.value_dim), 0);
    for (int64_t j = 0; j < s.seqlen_k; ++j) {
      for (int64_t d = 0; d < call_.head_dim; ++d)
        keys_[at(j * call_.head_dim + d)] = element(call_.k, b, s.first_k, j, key_head, d);
      for (int64_t d = 0; d < call_.value_dim; ++d)
        values_[at(j * call_.value_dim + d)] = element(call_.v, b, s.first_k, j, key_head, d);
    }
    packed_first_ = call_.bias.kind == WARPLOOM_PACKED_BIAS ? packed_start(call_, b) : 0;
    key_rows_ = bias_rows_are_keys(call_);
  }

  /// The row's visible pairs with their scores and P (softmax: not yet normalised to the row's sum).
  void scores(int64_t b, const Shape& s, int64_t n, int64_t i) {
    const double alpha =
        (call_.flags & WARPLOOM_HAS_ALPHA) != 0 ? call_.alpha : 1 / std::sqrt(static_cast<double>(call_.head_dim));
    const bool bias_scaled = call_.op == WARPLOOM_HSTU && (call_.flags & WARPLOOM_BIAS_NOT_SCALED) == 0;
    pairs_.clear();
    for (int64_t j = 0; j < s.seqlen_k; ++j) {
      if (!visible(call_, s, n, i, j)) continue;
      double dot = 0, dot_magnitude = 0;
      for (int64_t d = 0; d < call_.head_dim; ++d) {
        const double term = query_[at(d)] * keys_[at(j * call_.head_dim + d)];
        dot += term;
        dot_magnitude += std::fabs(term);
      }
      const BiasPlace place = bias_place(call_, s, b, packed_first_, key_rows_, n, i, j);
      const double bias = bias_value(call_.bias, place);
      if (bias == -INFINITY) continue;  // masks: P = 0 with slope 0
      double score = bias_scaled ? alpha * (dot + bias) : alpha * dot + bias;
      const double score_magnitude =
          std::fabs(alpha) * dot_magnitude + (bias_scaled ? std::fabs(alpha * bias) : std::fabs(bias));
      double p = 0, slope = 1, curvature = 0;
      if (call_.op == WARPLOOM_HSTU) {
        const double sigmoid = 1 / (1 + std::exp(-score));
        p = score == -INFINITY ? 0 : score * sigmoid;
        slope = sigmoid * (1 + score * (1 - sigmoid));
        curvature = sigmoid * (1 - sigmoid) * (2 + score * (1 - 2 * sigmoid));
      } else if (call_.softcap > 0) {
        const double t = std::tanh(score / call_.softcap);
        score = call_.softcap * t;
        slope = 1 - t * t;
      }
      pairs_.push_back({j, score, score_magnitude, p, slope, curvature, place});
    }
  }

  /// Turns softmax scores into P; returns the row's log-sum-exp.
  double normalise() {
    double highest = -INFINITY, sum = 0;
    for (const Pair& pair : pairs_) highest = std::max(highest, pair.score);
    for (const Pair& pair : pairs_) sum += std::exp(pair.score - highest);
    for (Pair& pair : pairs_) pair.p = std::exp(pair.score - highest) / sum;
    return highest + std::log(sum);
  }

  double divisor(const Shape& s, int64_t i) const {
    if (call_.op == WARPLOOM_SOFTMAX) return 1;
    if ((call_.flags & WARPLOOM_HAS_DIVISOR) != 0) return call_.divisor;
    if (call_.divisor_rows != nullptr) return static_cast<double>(call_.divisor_rows[s.first_q + i]);
    if (call_.max_seqlen_q != WARPLOOM_FROM_CU_SEQLENS) return static_cast<double>(call_.max_seqlen_q);
    int64_t longest = 0;
    for (int64_t b = 0; b < call_.batch; ++b) longest = std::max(longest, shape_of(call_, b).slot_q);
    return static_cast<double>(longest);
  }

  /// The value that a matrix product takes where a fused kernel rounds; `scale` is the draw's factor of the row.
  double rounded(double value, double scale) const {
    return rounding_ ? round_to(call_.dtype, value * scale) / scale : value;
  }

  /// Adds one term of a sum: what it is, how large it would be without cancellation inside it, how wrong it may be.
  static void add(ReferenceTensor& tensor, int64_t index, double term, double magnitude, double error) {
    tensor.value[at(index)] += term;
    tensor.magnitude[at(index)] += magnitude;
    tensor.bound_squared[at(index)] += error * error;
  }

  void row(int64_t b, const Shape& s, int64_t n, int64_t i) {
    query_.resize(at(call_.head_dim));
    for (int64_t d = 0; d < call_.head_dim; ++d) query_[at(d)] = element(call_.q, b, s.first_q, i, n, d);
    scores(b, s, n, i);
    if (pairs_.empty()) return;
    if (call_.op == WARPLOOM_SOFTMAX) {
      const int64_t place =
          dense(call_) ? (b * call_.heads + n) * call_.max_seqlen_q + i : n * call_.total_q + s.first_q + i;
      double largest = 0;
      for (const Pair& pair : pairs_) largest = std::max(largest, std::fabs(pair.score));
      result_.lse.value[at(place)] = normalise();
      result_.lse.magnitude[at(place)] = 1 + largest;
    }
    const double scale = rounding_ && rounding_->draw > 0 ? 1 + random_.uniform() : 1;
    const double n_divisor = divisor(s, i);
    const int64_t out_row = ((s.first_q + i) * call_.heads + n) * call_.value_dim;
    for (const Pair& pair : pairs_) {
      const double p = rounded(pair.p, scale);
      for (int64_t d = 0; d < call_.value_dim; ++d) {
        const double v = values_[at(pair.j * call_.value_dim + d)] / n_divisor;
        add(result_.out, out_row + d, p * v, pair.p_magnitude(call_.op == WARPLOOM_SOFTMAX) * std::fabs(v),
            roundoff_ * pair.p * v);
      }
    }
    if (call_.pass == WARPLOOM_BACKWARD) backward_row(b, s, n, i, n_divisor, out_row);
  }

  void backward_row(int64_t b, const Shape& s, int64_t n, int64_t i, double n_divisor, int64_t out_row) {
    const double alpha =
        (call_.flags & WARPLOOM_HAS_ALPHA) != 0 ? call_.alpha : 1 / std::sqrt(static_cast<double>(call_.head_dim));
    const bool bias_scaled = call_.op == WARPLOOM_HSTU && (call_.flags & WARPLOOM_BIAS_NOT_SCALED) == 0;
    const int64_t key_head = n / (call_.heads / call_.key_heads);
    const double p_scale = rounding_ && rounding_->draw > 0 ? 1 + random_.uniform() : 1;
    const double ds_scale = rounding_ && rounding_->draw > 0 ? 1 + random_.uniform() : 1;
    dout_.resize(at(call_.value_dim));
    // Softmax: the row sum of dO * O, what rounding O adds to it, and its size if nothing cancelled.
    double delta = 0, delta_error = 0, delta_magnitude = 0;
    for (int64_t d = 0; d < call_.value_dim; ++d) {
      dout_[at(d)] = element(call_.dout, b, s.first_q, i, n, d) / n_divisor;
      const double out = result_.out.value[at(out_row + d)];
      delta += dout_[at(d)] * (rounding_ ? round_to(call_.dtype, out) : out);
      delta_magnitude += std::fabs(dout_[at(d)]) * result_.out.magnitude[at(out_row + d)];
      delta_error += std::pow(roundoff_ * out * dout_[at(d)], 2);
    }
    for (const Pair& pair : pairs_) {
      double dp = 0, dp_magnitude = 0;
      for (int64_t d = 0; d < call_.value_dim; ++d) {
        dp += dout_[at(d)] * values_[at(pair.j * call_.value_dim + d)];
        dp_magnitude += std::fabs(dout_[at(d)] * values_[at(pair.j * call_.value_dim + d)]);
      }
      const bool softmax = call_.op == WARPLOOM_SOFTMAX;
      const double dz = softmax ? pair.p * (dp - delta) * pair.slope : dp * pair.slope;
      const double dz_magnitude = softmax ? pair.p_magnitude(true) * (dp_magnitude + delta_magnitude) * pair.slope
                                          : dp_magnitude * pair.slope_magnitude();
      // What rounding O leaves in dS is common to the row; rounding dS is its own.
      const double common = softmax ? pair.p * std::sqrt(delta_error) * pair.slope : 0;
      const double dz_error = std::hypot(roundoff_ * dz, common);
      const double ds = rounded(alpha * dz, ds_scale), ds_error = std::fabs(alpha) * dz_error;
      const double ds_magnitude = std::fabs(alpha) * dz_magnitude;
      for (int64_t d = 0; d < call_.head_dim; ++d) {
        const int64_t dq = ((s.first_q + i) * call_.heads + n) * call_.head_dim + d;
        const int64_t dk = ((s.first_k + pair.j) * call_.key_heads + key_head) * call_.head_dim + d;
        const double key = keys_[at(pair.j * call_.head_dim + d)], query = query_[at(d)];
        add(result_.dq, dq, ds * key, ds_magnitude * std::fabs(key), ds_error * key);
        add(result_.dk, dk, ds * query, ds_magnitude * std::fabs(query), ds_error * query);
      }
      const double p = rounded(pair.p, p_scale);
      for (int64_t d = 0; d < call_.value_dim; ++d) {
        const double term = p * dout_[at(d)];
        add(result_.dv, ((s.first_k + pair.j) * call_.key_heads + key_head) * call_.value_dim + d, term,
            pair.p_magnitude(softmax) * std::fabs(dout_[at(d)]), roundoff_ * term);
      }
      const double factor = bias_scaled ? alpha : 1;
      const auto add_bias = [&](ReferenceTensor& tensor, int64_t index) {
        if (index < 0) return;
        add(tensor, index, rounded(factor * dz, ds_scale), std::fabs(factor) * dz_magnitude, factor * dz_error);
      };
      add_bias(result_.bias, pair.place.gradient);
      add_bias(result_.position, pair.place.position);
      add_bias(result_.time, pair.place.time);
    }
  }

  const warploom_attention& call_;
  std::optional<Rounding> rounding_;
  history::Random random_;
  double roundoff_ = 0;
  Reference result_;
  // of the current sequence and head
  std::vector<double> keys_, values_;
  int64_t packed_first_ = 0;
  bool key_rows_ = true;
  // of the current row
  std::vector<double> query_, dout_;
  std::vector<Pair> pairs_;
};

}  // namespace

Reference reference(const warploom_attention& call, std::optional<Rounding> rounding, int64_t only_sequence) {
  Computation computation(call, rounding);
  for (int64_t b = 0; b < call.batch; ++b)
    if (only_sequence < 0 || only_sequence == b) computation.sequence(b);
  return computation.finish();
}

bool reference_visible(const warploom_attention& call, int64_t b, int64_t n, int64_t i, int64_t j) {
  return visible(call, shape_of(call, b), n, i, j);
}

int64_t visible_pairs(const warploom_attention& call) {
  int64_t pairs = 0;
  for (int64_t b = 0; b < call.batch; ++b) {
    const Shape s = shape_of(call, b);
    for (int64_t i = 0; i < s.seqlen_q; ++i)
      for (int64_t j = 0; j < s.seqlen_k; ++j) pairs += visible(call, s, 0, i, j) ? 1 : 0;
  }
  return pairs;
}

}  // namespace warploom::cli
