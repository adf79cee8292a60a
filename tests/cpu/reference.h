// Attention as docs/attention.md writes it, in float64, one (row, column) pair after the other. It reads a call's
// inputs through its own address arithmetic and shares no code with the library.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "warploom/warploom.h"

namespace reference {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double half_to_double(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  if (exponent == 31) return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

inline double element_16(uint16_t bits, uint32_t dtype) {
  return dtype == WARPLOOM_BFLOAT16 ? std::bit_cast<float>(static_cast<uint32_t>(bits) << 16) : half_to_double(bits);
}

/// OCP FP8 e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa; all ones is NaN.
inline double element_8(uint8_t bits) {
  const double sign = bits & 0x80 ? -1 : 1;
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}

inline double element(const void* data, uint32_t dtype, int64_t index) {
  if (dtype == WARPLOOM_FLOAT8_E4M3) return element_8(static_cast<const uint8_t*>(data)[index]);
  if (dtype == WARPLOOM_FLOAT32) return static_cast<const float*>(data)[index];
  return element_16(static_cast<const uint16_t*>(data)[index], dtype);
}
/// A result and, beside it, the size it would have if no two terms cancelled.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double term, double size) {
    value += term;
    magnitude += size;
  }
};
using Tensor = std::vector<Sum>;

inline double sigmoid(double z) {
  return 1 / (1 + std::exp(-z));
}
inline double silu_slope(double z) {
  return sigmoid(z) * (1 + z * sigmoid(-z));
}
inline double silu_curvature(double z) {
  return sigmoid(z) * sigmoid(-z) * (2 + z * (1 - 2 * sigmoid(z)));
}

struct Lengths {
  int64_t first_q, slot_q, q, first_k, slot_k, k;
};

inline int64_t cumulative(const void* data, uint32_t dtype, int64_t b) {
  return dtype == WARPLOOM_INT64 ? static_cast<const int64_t*>(data)[b] : static_cast<const int32_t*>(data)[b];
}

inline Lengths lengths(const warploom_attention& c, int64_t b) {
  Lengths l{};
  if (c.cu_seqlens_q == nullptr) {
    l = {b * c.max_seqlen_q, c.max_seqlen_q, 0, b * c.max_seqlen_k, c.max_seqlen_k, 0};
  } else {
    const void* cu_k = c.cu_seqlens_k != nullptr ? c.cu_seqlens_k : c.cu_seqlens_q;
    const uint32_t type_k = c.cu_seqlens_k != nullptr ? c.cu_seqlens_k_dtype : c.cu_seqlens_q_dtype;
    l.first_q = cumulative(c.cu_seqlens_q, c.cu_seqlens_q_dtype, b);
    l.slot_q = cumulative(c.cu_seqlens_q, c.cu_seqlens_q_dtype, b + 1) - l.first_q;
    l.first_k = cumulative(cu_k, type_k, b);
    l.slot_k = cumulative(cu_k, type_k, b + 1) - l.first_k;
  }
  l.q = c.seqused_q != nullptr ? c.seqused_q[b] : c.seqused_q_all >= 0 && l.slot_q > 0 ? c.seqused_q_all : l.slot_q;
  l.k = c.seqused_k != nullptr ? c.seqused_k[b] : c.seqused_k_all >= 0 && l.slot_k > 0 ? c.seqused_k_all : l.slot_k;
  return l;
}

inline bool visible(const warploom_attention& c, const Lengths& l, int64_t b, int64_t head, int64_t i, int64_t j) {
  if (j < 0 || j >= l.k) return false;
  if (c.interval_heads != 0) {
    const int64_t h = c.interval_heads == 1 ? 0 : head;
    const int32_t* row = c.intervals + (h * c.total_q + l.first_q + i) * c.num_intervals * 2;
    for (int64_t n = 0; n < c.num_intervals; ++n) {
      if (row[2 * n] <= j && j < row[2 * n + 1]) return true;
    }
    return false;
  }
  const int64_t r = i + l.k - l.q;
  const int64_t nc = c.num_contexts != nullptr            ? c.num_contexts[b]
                     : c.num_contexts_all >= 0 && l.k > 0 ? c.num_contexts_all
                                                          : 0;
  const int64_t nt = c.num_targets != nullptr            ? c.num_targets[b]
                     : c.num_targets_all >= 0 && l.k > 0 ? c.num_targets_all
                                                         : 0;
  const int64_t h = l.k - nt;
  const auto not_left_of = [&](int64_t origin) { return c.left == WARPLOOM_UNBOUNDED || origin - c.left <= j; };
  if (r >= h && r >= 0) {
    const int64_t start = h + (r - h) / c.target_group_size * c.target_group_size;
    const bool from_end = (c.flags & WARPLOOM_WINDOW_FROM_HISTORY_END) != 0;
    return (not_left_of(from_end ? h : r) && j < h) || (start <= j && j <= r);
  }
  if (0 <= r && r < nc) return j < h;
  return not_left_of(r) && (c.right == WARPLOOM_UNBOUNDED || j <= r + c.right);
}

struct Result {
  Tensor out, lse, dq, dk, dv;     // (rows, heads, dim); lse (rows, heads), magnitude: largest |S| seen
  Tensor dbias, dposition, dtime;  // indexed as the gradient's memory (dense: contiguous)
  int64_t bias_rows_by_key = 0;
};

class Attention {
 public:
  explicit Attention(const warploom_attention& call) : c(call) {}

  Result run() {
    result.out.resize(static_cast<size_t>(c.total_q * c.heads * c.value_dim));
    result.lse.assign(static_cast<size_t>(c.total_q * c.heads), {-kInfinity, 0});
    result.dq.resize(static_cast<size_t>(c.total_q * c.heads * c.head_dim));
    result.dk.resize(static_cast<size_t>(c.total_k * c.key_heads * c.head_dim));
    result.dv.resize(static_cast<size_t>(c.total_k * c.key_heads * c.value_dim));
    q = decode(c.q, false, c.heads, c.head_dim);
    k = decode(c.k, true, c.key_heads, c.head_dim);
    v = decode(c.v, true, c.key_heads, c.value_dim);
    out = decode(c.out, false, c.heads, c.value_dim);
    dout = decode(c.dout, false, c.heads, c.value_dim);
    const warploom_bias& bias = c.bias;
    if (bias.kind == WARPLOOM_DENSE_BIAS) {
      result.dbias.resize(static_cast<size_t>(bias.batch * bias.heads * bias.num_rows * bias.num_columns));
    }
    if (bias.kind == WARPLOOM_PACKED_BIAS) result.dbias.resize(static_cast<size_t>(bias.heads * bias.num_columns));
    if (bias.position != nullptr)
      result.dposition.resize(static_cast<size_t>(bias.position_heads * bias.num_positions));
    if (bias.time != nullptr) result.dtime.resize(static_cast<size_t>(bias.time_heads * bias.num_times));
    alpha = (c.flags & WARPLOOM_HAS_ALPHA) != 0 ? c.alpha : 1 / std::sqrt(static_cast<double>(c.head_dim));
    max_q = c.max_seqlen_q;
    if (max_q < 0) {
      max_q = 0;
      for (int64_t b = 0; b < c.batch; ++b) max_q = std::max(max_q, lengths(c, b).slot_q);
    }
    int64_t max_k = c.max_seqlen_k;
    if (max_k < 0) {
      max_k = 0;
      for (int64_t b = 0; b < c.batch; ++b) max_k = std::max(max_k, lengths(c, b).slot_k);
    }
    by_key = bias.rows == WARPLOOM_ROWS_KEY || (bias.rows == WARPLOOM_ROWS_AUTO && bias.num_rows == max_k);
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t n = 0; n < c.heads; ++n) {
        const Lengths l = lengths(c, b);
        for (int64_t i = 0; i < l.q; ++i) row(b, n, l, i);
      }
      packed_base += packed_rows(b) * pitch(b);
    }
    return std::move(result);
  }

 private:
  int64_t pitch(int64_t b) const {
    const int64_t unit = c.bias.dtype == WARPLOOM_FLOAT32 ? 4 : 8;
    return (lengths(c, b).slot_k + unit - 1) / unit * unit;
  }
  int64_t packed_rows(int64_t b) const { return by_key ? lengths(c, b).slot_k : lengths(c, b).slot_q; }

  /// Every used element of a tensor, (row, head, dim), rows counted over the whole batch.
  std::vector<double> decode(const warploom_tensor& t, bool keys, int64_t heads, int64_t dim) const {
    std::vector<double> values(static_cast<size_t>((keys ? c.total_k : c.total_q) * heads * dim));
    if (t.data == nullptr) return values;
    for (int64_t b = 0; b < c.batch; ++b) {
      const Lengths l = lengths(c, b);
      const int64_t first = keys ? l.first_k : l.first_q, rows = keys ? l.k : l.q;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t n = 0; n < heads; ++n) {
          for (int64_t x = 0; x < dim; ++x)
            values[static_cast<size_t>(((first + i) * heads + n) * dim + x)] = at(t, b, first, i, n, x);
        }
      }
    }
    return values;
  }

  double at(const warploom_tensor& t, int64_t b, int64_t first, int64_t i, int64_t n, int64_t x) const {
    const int64_t row = c.cu_seqlens_q == nullptr ? b * t.batch_stride + i * t.row_stride : (first + i) * t.row_stride;
    return element(t.data, c.dtype, row + n * t.head_stride + x);
  }

  int64_t time_index(const Lengths& l, int64_t r, int64_t j) const {
    const int64_t x = c.bias.timestamps[l.first_k + r], y = c.bias.timestamps[l.first_k + j];
    const uint64_t distance = x > y ? static_cast<uint64_t>(x) - static_cast<uint64_t>(y)
                                    : static_cast<uint64_t>(y) - static_cast<uint64_t>(x);
    int64_t index = 0;
    for (int64_t n = 1; n < c.bias.num_times; ++n) {
      if (c.bias.time_bucket != nullptr) {
        const int64_t threshold = c.bias.time_bucket[n - 1];
        index += threshold <= 0 || static_cast<uint64_t>(threshold) <= distance ? 1 : 0;
      } else {
        index += std::ceil(std::exp(0.301 * static_cast<double>(n))) <= static_cast<double>(distance) ? 1 : 0;
      }
    }
    return index;
  }

  int64_t position_index(int64_t r, int64_t j) const { return std::clamp<int64_t>(r - j, 0, c.bias.num_positions - 1); }

  int64_t bias_row(const Lengths& l, int64_t i) const { return by_key ? i + l.k - l.q : i; }

  double bias_at(int64_t b, int64_t n, const Lengths& l, int64_t i, int64_t j) const {
    const warploom_bias& bias = c.bias;
    if (bias.kind == WARPLOOM_NO_BIAS) return 0;
    const int64_t r = i + l.k - l.q;
    if (bias.kind == WARPLOOM_BUCKETED_BIAS) {
      double sum = 0;
      if (bias.position != nullptr)
        sum += bias.position[(bias.position_heads == 1 ? 0 : n) * bias.position_head_stride + position_index(r, j)];
      if (bias.time != nullptr)
        sum += bias.time[(bias.time_heads == 1 ? 0 : n) * bias.time_head_stride + time_index(l, r, j)];
      return sum;
    }
    if (bias_row(l, i) < 0) return 0;
    const int64_t head = (bias.heads == 1 ? 0 : n) * bias.head_stride;
    if (bias.kind == WARPLOOM_PACKED_BIAS)
      return element(bias.values, bias.dtype, head + packed_base + bias_row(l, i) * pitch(b) + j);
    return element(bias.values, bias.dtype,
                   (bias.batch == 1 ? 0 : b) * bias.batch_stride + head + bias_row(l, i) * bias.row_stride + j);
  }

  void add_bias_gradient(int64_t b, int64_t n, const Lengths& l, int64_t i, int64_t j, double value, double size) {
    const warploom_bias& bias = c.bias;
    const int64_t r = i + l.k - l.q;
    if (bias.kind == WARPLOOM_BUCKETED_BIAS) {
      if (bias.position != nullptr)
        result
            .dposition[static_cast<size_t>((bias.position_heads == 1 ? 0 : n) * bias.num_positions +
                                           position_index(r, j))]
            .add(value, size);
      if (bias.time != nullptr)
        result.dtime[static_cast<size_t>((bias.time_heads == 1 ? 0 : n) * bias.num_times + time_index(l, r, j))].add(
            value, size);
    }
    if (bias.kind == WARPLOOM_NO_BIAS || bias.kind == WARPLOOM_BUCKETED_BIAS || bias_row(l, i) < 0) return;
    const int64_t head = bias.heads == 1 ? 0 : n;
    const int64_t index =
        bias.kind == WARPLOOM_PACKED_BIAS
            ? head * bias.num_columns + packed_base + bias_row(l, i) * pitch(b) + j
            : (((bias.batch == 1 ? 0 : b) * bias.heads + head) * bias.num_rows + bias_row(l, i)) * bias.num_columns + j;
    result.dbias[static_cast<size_t>(index)].add(value, size);
  }

  void row(int64_t b, int64_t n, const Lengths& l, int64_t i) {
    const int64_t kn = n / (c.heads / c.key_heads);
    const bool softmax = c.op == WARPLOOM_SOFTMAX;
    const bool backward = c.pass == WARPLOOM_BACKWARD;
    const auto d = static_cast<size_t>(c.head_dim), dv = static_cast<size_t>(c.value_dim);
    const auto row_index = static_cast<size_t>((l.first_q + i) * c.heads + n);
    const auto key_index = [&](int64_t j) { return static_cast<size_t>((l.first_k + j) * c.key_heads + kn); };
    std::vector<int64_t> columns;
    std::vector<double> score, cap_slope;
    std::vector<double> score_size;  // |S| if nothing in it cancelled: what its rounding errors are relative to
    for (int64_t j = 0; j < l.k; ++j) {
      if (!visible(c, l, b, n, i, j)) continue;
      const double bias = bias_at(b, n, l, i, j);
      if (bias == -kInfinity) continue;
      double product = 0, size = 0;
      for (size_t x = 0; x < d; ++x) {
        const double term = q[row_index * d + x] * k[key_index(j) * d + x];
        product += term;
        size += std::abs(term);
      }
      const bool scaled = !softmax && (c.flags & WARPLOOM_BIAS_NOT_SCALED) == 0;
      score_size.push_back(std::abs(alpha) * size + (scaled ? std::abs(alpha) : 1) * std::abs(bias));
      double s = scaled ? alpha * (product + bias) : alpha * product + bias;
      double slope = 1;
      if (softmax && c.softcap > 0) {
        const double t = std::tanh(s / c.softcap);
        slope = 1 / (std::cosh(s / c.softcap) * std::cosh(s / c.softcap));
        s = c.softcap * t;
      }
      columns.push_back(j);
      score.push_back(s);
      cap_slope.push_back(slope);
    }
    double divisor = 1, highest = -kInfinity, sum = 0, largest = 0;
    if (!softmax)
      divisor = c.divisor_rows != nullptr               ? c.divisor_rows[l.first_q + i]
                : (c.flags & WARPLOOM_HAS_DIVISOR) != 0 ? c.divisor
                                                        : static_cast<double>(std::max<int64_t>(1, max_q));
    for (const double s : score) highest = std::max(highest, s), largest = std::max(largest, std::abs(s));
    for (const double s : score) sum += std::exp(s - highest);
    if (softmax && !columns.empty()) result.lse[row_index] = {highest + std::log(sum), largest};
    std::vector<double> weight(columns.size()), weight_size(columns.size());
    double delta = 0, delta_size = 0;
    for (size_t m = 0; m < columns.size(); ++m) {
      const double z = score[m];
      weight[m] = softmax ? std::exp(z - highest) / sum : z / (1 + std::exp(-z)) / divisor;
      if (!softmax && z == -kInfinity) weight[m] = 0;
      weight_size[m] = std::abs(weight[m]) + score_size[m] * (softmax ? weight[m] : std::abs(silu_slope(z) / divisor));
      for (size_t x = 0; x < dv; ++x) {
        const double value = v[key_index(columns[m]) * dv + x];
        result.out[row_index * dv + x].add(weight[m] * value, weight_size[m] * std::abs(value));
      }
    }
    if (!backward) return;
    for (size_t x = 0; softmax && x < dv; ++x) {
      // As stored by forward, rounded to its type: an input of backward.
      delta += dout[row_index * dv + x] * out[row_index * dv + x];
      delta_size += std::abs(dout[row_index * dv + x]) * result.out[row_index * dv + x].magnitude;
    }
    for (size_t m = 0; m < columns.size(); ++m) {
      const size_t key = key_index(columns[m]);
      double dp = 0, dp_size = 0;
      for (size_t x = 0; x < dv; ++x) {
        const double term = dout[row_index * dv + x] * v[key * dv + x];
        dp += term;
        dp_size += std::abs(term);
        const double size = std::abs(dout[row_index * dv + x]);
        result.dv[key * dv + x].add(weight[m] * dout[row_index * dv + x], weight_size[m] * size);
      }
      const double z = score[m], slope = silu_slope(z) / divisor;
      const double dz = softmax ? weight[m] * (dp - delta) * cap_slope[m] : dp * slope;
      const double dz_size = softmax
                                 ? weight[m] * (1 + score_size[m]) * (dp_size + delta_size) * cap_slope[m]
                                 : dp_size * (std::abs(slope) + score_size[m] * std::abs(silu_curvature(z) / divisor));
      for (size_t x = 0; x < d; ++x) {
        const double ds = alpha * dz, size = std::abs(alpha) * dz_size;
        result.dq[row_index * d + x].add(ds * k[key * d + x], size * std::abs(k[key * d + x]));
        result.dk[key * d + x].add(ds * q[row_index * d + x], size * std::abs(q[row_index * d + x]));
      }
      const double scale = softmax || (c.flags & WARPLOOM_BIAS_NOT_SCALED) != 0 ? 1 : alpha;
      add_bias_gradient(b, n, l, i, columns[m], scale * dz, std::abs(scale) * dz_size);
    }
  }

  const warploom_attention& c;
  std::vector<double> q, k, v, out, dout;
  Result result;
  double alpha = 1;
  int64_t max_q = 0;
  int64_t packed_base = 0;
  bool by_key = false;
};

inline Result run(const warploom_attention& call) {
  return Attention(call).run();
}

}  // namespace reference
