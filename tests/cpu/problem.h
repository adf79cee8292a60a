// Calls with their storage, for the tests: sizes and options first, then tensors filled at random (or by hand) in any
// layout.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/attention.h"
#include "problem/validate.h"
#include "reference.h"
#include "warploom/warploom.h"

namespace test {

inline int bytes_of(uint32_t dtype) {
  return dtype == WARPLOOM_FLOAT32 ? 4 : dtype == WARPLOOM_FLOAT8_E4M3 ? 1 : 2;
}

/// To a 16-bit type by search: the nearest value, ties to even. Slow and obvious.
inline uint16_t to_16_bits(double value, uint32_t dtype) {
  if (std::isnan(value)) return dtype == WARPLOOM_FLOAT16 ? 0x7e00 : 0x7fc0;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::abs(value);
  const auto decode = [&](int bits) { return reference::element_16(static_cast<uint16_t>(bits), dtype); };
  const int infinity = dtype == WARPLOOM_FLOAT16 ? 0x7c00 : 0x7f80;
  int low = 0, high = infinity;  // decode(low) <= size < decode(high), or infinite
  if (std::isinf(size)) return static_cast<uint16_t>(sign | infinity);
  while (high - low > 1) (decode((low + high) / 2) <= size ? low : high) = (low + high) / 2;
  const double step = decode(low) - decode(low - (low > 0 ? 1 : 0));
  const double upper = high == infinity ? decode(low) + step : decode(high);
  const double below = size - decode(low), above = upper - size;
  const int nearest = below < above || (below == above && low % 2 == 0) ? low : high;
  return static_cast<uint16_t>(sign | nearest);
}

/// Likewise to FP8 e4m3, of values within its range.
inline uint8_t to_8_bits(double value) {
  if (std::isnan(value)) return 0x7f;
  const double size = std::abs(value);
  int nearest = 0;
  for (int bits = 1; bits < 0x7f; ++bits) {
    const double distance = std::abs(reference::element_8(static_cast<uint8_t>(bits)) - size);
    const double least = std::abs(reference::element_8(static_cast<uint8_t>(nearest)) - size);
    if (distance < least || (distance == least && bits % 2 == 0)) nearest = bits;
  }
  return static_cast<uint8_t>(nearest | (std::signbit(value) ? 0x80 : 0));
}

/// Memory of one tensor of a dtype; elements that no index reaches hold NaN.
struct Storage {
  std::vector<char> bytes;
  uint32_t dtype = WARPLOOM_FLOAT32;

  void resize(int64_t elements, uint32_t type) {
    dtype = type;
    bytes.assign(static_cast<size_t>(elements * bytes_of(type)), 0);
    for (int64_t x = 0; x < elements; ++x) set(x, std::nan(""));
  }
  int64_t size() const { return static_cast<int64_t>(bytes.size()) / bytes_of(dtype); }
  void set(int64_t index, double value) {
    if (dtype == WARPLOOM_FLOAT32) {
      const auto word = static_cast<float>(value);
      std::memcpy(bytes.data() + index * 4, &word, 4);
    } else if (dtype == WARPLOOM_FLOAT8_E4M3) {
      bytes[static_cast<size_t>(index)] = static_cast<char>(to_8_bits(value));
    } else {
      const uint16_t word = to_16_bits(value, dtype);
      std::memcpy(bytes.data() + index * 2, &word, 2);
    }
  }
  double get(int64_t index) const { return reference::element(bytes.data(), dtype, index); }
};

/// A call, its storage and how to fill it. Options are set on `call` directly before `allocate`.
struct Problem {
  warploom_attention call = {};
  std::vector<int64_t> lengths_q, lengths_k;  // jagged; k empty: the same as q
  int64_t dense_q = -1, dense_k = -1;         // dense batches
  int64_t spare_rows = 0;                     // rows after the last sequence
  int padding = 0;                            // elements between rows and heads
  double size_q = 1, size_k = 1, size_bias = 1;

  std::vector<int64_t> cu_q, cu_k;
  std::vector<int32_t> used_q, used_k, contexts, targets, intervals;
  std::vector<float> divisors, lse, position, time, position_grad, time_grad;
  std::vector<int64_t> timestamps, thresholds;
  Storage q, k, v, out, dout, dq, dk, dv, bias, bias_grad;

  Problem() {
    call.abi_version = WARPLOOM_ABI_VERSION;
    call.struct_bytes = sizeof call;
    call.left = call.right = WARPLOOM_UNBOUNDED;
    call.seqused_q_all = call.seqused_k_all = call.num_contexts_all = call.num_targets_all = -1;
    call.target_group_size = 1;
    call.max_seqlen_q = call.max_seqlen_k = WARPLOOM_FROM_CU_SEQLENS;
    call.heads = call.key_heads = 1;
    call.head_dim = call.value_dim = 8;

    call.bias.batch = call.bias.heads = call.bias.position_heads = call.bias.time_heads = 1;
  }

  bool softmax() const { return call.op == WARPLOOM_SOFTMAX; }

  /// Shapes, cumulative lengths, storage; every used element random.
  void allocate(std::mt19937& random) {
    if (dense_q >= 0) {
      call.max_seqlen_q = dense_q;
      call.max_seqlen_k = dense_k;
      call.total_q = call.batch * dense_q;
      call.total_k = call.batch * dense_k;
    } else {
      call.batch = static_cast<int64_t>(lengths_q.size());
      cu_q = {0};
      cu_k = {0};
      for (const int64_t l : lengths_q) cu_q.push_back(cu_q.back() + l);
      for (const int64_t l : lengths_k) cu_k.push_back(cu_k.back() + l);
      call.cu_seqlens_q = cu_q.data();
      call.cu_seqlens_q_dtype = call.cu_seqlens_k_dtype = WARPLOOM_INT64;
      call.cu_seqlens_k = lengths_k.empty() ? nullptr : cu_k.data();
      call.total_q = cu_q.back() + spare_rows;
      call.total_k = (lengths_k.empty() ? cu_q.back() : cu_k.back()) + spare_rows;
    }
    const int64_t key_heads = call.key_heads;
    lay_out(call.q, q, call.total_q, call.heads, call.head_dim, random, size_q);
    lay_out(call.k, k, call.total_k, key_heads, call.head_dim, random, size_k);
    lay_out(call.v, v, call.total_k, key_heads, call.value_dim, random, 1);
    lay_out(call.out, out, call.total_q, call.heads, call.value_dim, random, 0);
    lay_out(call.dout, dout, call.total_q, call.heads, call.value_dim, random, 1);
    lay_out(call.dq, dq, call.total_q, call.heads, call.head_dim, random, 0);
    lay_out(call.dk, dk, call.total_k, key_heads, call.head_dim, random, 0);
    lay_out(call.dv, dv, call.total_k, key_heads, call.value_dim, random, 0);
    poison();
    if (softmax()) {
      lse.assign(static_cast<size_t>(call.total_q * call.heads), std::nanf(""));
      call.lse = lse.data();
      call.lse_head_stride = dense_q >= 0 ? dense_q : call.total_q;
      call.lse_batch_stride = dense_q >= 0 ? dense_q * call.heads : 0;
    }
    if (!used_q.empty()) call.seqused_q = used_q.data();
    if (!used_k.empty()) call.seqused_k = used_k.data();
    if (!contexts.empty()) call.num_contexts = contexts.data();
    if (!targets.empty()) call.num_targets = targets.data();
    if (!divisors.empty()) call.divisor_rows = divisors.data();
  }

  void lay_out(warploom_tensor& tensor, Storage& storage, int64_t rows, int64_t heads, int64_t dim,
               std::mt19937& random, double size) const {
    tensor.head_stride = dim + padding;
    tensor.row_stride = heads * tensor.head_stride + 2 * padding;
    tensor.batch_stride = dense_q >= 0 ? tensor.row_stride * (&tensor == &call.k || &tensor == &call.v ||
                                                                      &tensor == &call.dk || &tensor == &call.dv
                                                                  ? dense_k
                                                                  : dense_q) +
                                             padding
                                       : 0;
    storage.resize(rows * tensor.row_stride + call.batch * padding + 1, call.dtype);
    tensor.data = storage.bytes.data();
    std::normal_distribution<double> normal(0, 1);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t n = 0; n < heads; ++n) {
        for (int64_t x = 0; x < dim; ++x) storage.set(index(tensor, i, n, x), size * normal(random));
      }
    }
  }

  /// i counts rows over the whole tensor.
  int64_t index(const warploom_tensor& tensor, int64_t i, int64_t n, int64_t x) const {
    int64_t row = i * tensor.row_stride;
    if (dense_q >= 0) {
      const int64_t length =
          &tensor == &call.k || &tensor == &call.v || &tensor == &call.dk || &tensor == &call.dv ? dense_k : dense_q;
      row = i / length * tensor.batch_stride + i % length * tensor.row_stride;
    }
    return row + n * tensor.head_stride + x;
  }

  void poison() {
    for (Storage* s : {&out, &dq, &dk, &dv, &bias_grad}) {
      for (int64_t x = 0; x < s->size(); ++x) s->set(x, std::nan(""));
    }
    for (auto* s : {&lse, &position_grad, &time_grad}) std::fill(s->begin(), s->end(), std::nanf(""));
  }

  int64_t longest(bool keys) const {
    if (dense_q >= 0) return keys ? dense_k : dense_q;
    int64_t result = 0;
    for (int64_t b = 0; b < call.batch; ++b) {
      const reference::Lengths l = reference::lengths(call, b);
      result = std::max(result, keys ? l.slot_k : l.slot_q);
    }
    return result;
  }

  void add_dense_bias(std::mt19937& random, bool per_sequence, bool per_head, uint32_t rows, uint32_t dtype) {
    warploom_bias& r = call.bias;
    r.kind = WARPLOOM_DENSE_BIAS;
    r.dtype = dtype;
    r.rows = rows;
    r.batch = per_sequence ? call.batch : 1;
    r.heads = per_head ? call.heads : 1;
    r.num_columns = longest(true);
    r.num_rows = longest(rows != WARPLOOM_ROWS_QUERY);
    r.grad_row_stride = r.row_stride = r.num_columns + padding;
    r.grad_head_stride = r.head_stride = r.row_stride * r.num_rows;
    r.grad_batch_stride = r.batch_stride = r.head_stride * r.heads;
    fill_bias(random, r.batch_stride * r.batch);
  }

  void add_packed_bias(std::mt19937& random, bool per_head, uint32_t rows, uint32_t dtype) {
    warploom_bias& r = call.bias;
    r.kind = WARPLOOM_PACKED_BIAS;
    r.dtype = dtype;
    r.rows = rows;
    r.heads = per_head ? call.heads : 1;
    const int64_t unit = 16 / bytes_of(dtype);
    r.num_columns = 0;
    for (int64_t b = 0; b < call.batch; ++b) {
      const reference::Lengths l = reference::lengths(call, b);
      r.num_columns += (rows == WARPLOOM_ROWS_KEY ? l.slot_k : l.slot_q) * ((l.slot_k + unit - 1) / unit * unit);
    }
    r.grad_head_stride = r.head_stride = r.num_columns + padding;
    fill_bias(random, r.head_stride * r.heads);
  }

  void fill_bias(std::mt19937& random, int64_t elements) {
    std::normal_distribution<double> normal(0, size_bias);
    bias.resize(elements + 1, call.bias.dtype);
    for (int64_t x = 0; x < elements; ++x) bias.set(x, normal(random));
    bias_grad.resize(elements + 1, call.bias.dtype);
    call.bias.values = bias.bytes.data();
    call.bias.grad = bias_grad.bytes.data();
  }

  void add_bucketed_bias(std::mt19937& random, int64_t positions, bool position_per_head, int64_t times,
                         bool time_per_head, const std::function<int64_t(std::mt19937&, int64_t)>& next_time) {
    warploom_bias& r = call.bias;
    r.kind = WARPLOOM_BUCKETED_BIAS;
    std::normal_distribution<float> normal(0, static_cast<float>(size_bias));
    const auto table = [&](std::vector<float>& values, std::vector<float>& grad, int64_t heads, int64_t entries) {
      values.resize(static_cast<size_t>(heads * entries));
      for (float& x : values) x = normal(random);
      grad.assign(values.size(), std::nanf(""));
    };
    if (positions > 0) {
      r.position_heads = position_per_head ? call.heads : 1;
      r.num_positions = r.position_head_stride = positions;
      table(position, position_grad, r.position_heads, positions);
      r.position = position.data();
      r.position_grad = position_grad.data();
    }
    if (times > 0) {
      r.time_heads = time_per_head ? call.heads : 1;
      r.num_times = r.time_head_stride = times;
      table(time, time_grad, r.time_heads, times);
      r.time = time.data();
      r.time_grad = time_grad.data();
      int64_t now = 0;
      for (int64_t j = 0; j < call.total_k; ++j) timestamps.push_back(now = next_time(random, now));
      timestamps.push_back(0);
      r.timestamps = timestamps.data();
      if (!thresholds.empty()) r.time_bucket = thresholds.data();
    }
  }

  /// Forward, and backward when asked for; both from poisoned outputs.
  void run(bool backward, int threads = 1) {
    poison();
    run_pass(WARPLOOM_FORWARD, threads);
    if (backward) run_pass(WARPLOOM_BACKWARD, threads);
  }

  void run_pass(uint32_t pass, int threads) {
    call.num_threads = threads;
    call.pass = pass;
    warploom::Status status = warploom::validate_description(call);
    if (status.ok()) status = warploom::validate_values(call);
    if (status.ok()) status = warploom::cpu::run(call);
    ASSERT_TRUE(status.ok()) << status.message();
  }
};

/// Judges a result by the accuracy rule (docs/attention.md, section 8): the whole tensor and every row of it.
/// unit: the rounding unit of the type the result is stored in (0: float32), smallest: its smallest step.
struct Judge {
  std::string name;
  double unit = 0, smallest = 0;

  double limit(double norm, double magnitude, double count) const {
    return 2e-5 * norm + unit * norm + smallest * std::sqrt(count) + 8 * 0x1p-24 * magnitude;
  }

  /// got(x): element x; rows of `row` elements.
  void check(const reference::Tensor& expected, size_t row, const std::function<double(size_t)>& got) const {
    double all_error = 0, all_norm = 0, all_size = 0;
    for (size_t first = 0; first < expected.size(); first += row) {
      double error = 0, norm = 0, size = 0;
      for (size_t x = first; x < first + row; ++x) {
        const double value = got(x);
        ASSERT_FALSE(std::isnan(value)) << name << " element " << x << " of " << expected.size() << ", rows of " << row;
        error += (value - expected[x].value) * (value - expected[x].value);
        norm += expected[x].value * expected[x].value;
        size += expected[x].magnitude * expected[x].magnitude;
      }
      ASSERT_LE(std::sqrt(error), limit(std::sqrt(norm), std::sqrt(size), static_cast<double>(row)))
          << name << " row " << first / row << " of " << expected.size() / row << " norm " << std::sqrt(norm);
      all_error += error, all_norm += norm, all_size += size;
    }
    ASSERT_LE(std::sqrt(all_error),
              limit(std::sqrt(all_norm), std::sqrt(all_size), static_cast<double>(expected.size())))
        << name;
  }
};

inline Judge judge(const std::string& name, uint32_t dtype) {
  if (dtype == WARPLOOM_BFLOAT16) return {name, 0x1p-8, 0};
  if (dtype == WARPLOOM_FLOAT16) return {name, 0x1p-11, 0x1p-25};
  return {name, 0, 0};
}

/// Nothing between a tensor's rows and heads was written: it still holds the NaN of the start.
inline void expect_gaps_untouched(const Problem& p, const char* name, const Storage& storage,
                                  const warploom_tensor& tensor, int64_t rows, int64_t heads, int64_t dim) {
  std::vector<bool> reached(static_cast<size_t>(storage.size()));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t n = 0; n < heads; ++n) {
      for (int64_t x = 0; x < dim; ++x) reached[static_cast<size_t>(p.index(tensor, i, n, x))] = true;
    }
  }
  for (int64_t x = 0; x < storage.size(); ++x) {
    const bool untouched = reached[static_cast<size_t>(x)] || std::isnan(storage.get(x));
    ASSERT_TRUE(untouched) << name << " wrote outside itself";
  }
}

/// Everything a problem wrote, against the reference.
inline void check(const Problem& p, bool backward, const reference::Result& expected) {
  const warploom_attention& call = p.call;
  const auto tensor = [&](const char* name, const reference::Tensor& want, const Storage& got, const warploom_tensor& t,
                          int64_t heads, int64_t dim) {
    judge(name, call.dtype).check(want, static_cast<size_t>(dim), [&](size_t x) {
      const auto at = static_cast<int64_t>(x);
      return got.get(p.index(t, at / dim / heads, at / dim % heads, at % dim));
    });
    expect_gaps_untouched(p, name, got, t, static_cast<int64_t>(want.size()) / heads / dim, heads, dim);
  };
  tensor("out", expected.out, p.out, p.call.out, call.heads, call.value_dim);
  if (p.softmax()) {
    for (int64_t i = 0; i < call.total_q; ++i) {
      for (int64_t n = 0; n < call.heads; ++n) {
        const reference::Sum want = expected.lse[static_cast<size_t>(i * call.heads + n)];
        const int64_t at = p.dense_q >= 0
                               ? i / p.dense_q * call.lse_batch_stride + n * call.lse_head_stride + i % p.dense_q
                               : n * call.lse_head_stride + i;
        const float got = p.lse[static_cast<size_t>(at)];
        if (want.value == -reference::kInfinity) {
          ASSERT_EQ(got, want.value) << "lse row " << i;
        } else {
          ASSERT_NEAR(got, want.value, 2e-5 * (1 + want.magnitude)) << "lse row " << i;
        }
      }
    }
  }
  if (!backward) return;
  tensor("dq", expected.dq, p.dq, p.call.dq, call.heads, call.head_dim);
  tensor("dk", expected.dk, p.dk, p.call.dk, call.key_heads, call.head_dim);
  tensor("dv", expected.dv, p.dv, p.call.dv, call.key_heads, call.value_dim);
  const warploom_bias& r = call.bias;
  const Judge bias_judge = judge("dbias", r.dtype);
  if (r.kind == WARPLOOM_DENSE_BIAS) {
    bias_judge.check(expected.dbias, static_cast<size_t>(std::max<int64_t>(1, r.num_columns)), [&](size_t x) {
      const auto at = static_cast<int64_t>(x);
      const int64_t row = at / r.num_columns;
      return p.bias_grad.get(row / r.num_rows / r.heads * r.grad_batch_stride +
                             row / r.num_rows % r.heads * r.grad_head_stride + row % r.num_rows * r.grad_row_stride +
                             at % r.num_columns);
    });
  }
  if (r.kind == WARPLOOM_PACKED_BIAS) {
    bias_judge.check(expected.dbias, 1, [&](size_t x) {
      const auto at = static_cast<int64_t>(x);
      return p.bias_grad.get(at / r.num_columns * r.grad_head_stride + at % r.num_columns);
    });
  }
  judge("dposition", WARPLOOM_FLOAT32).check(expected.dposition, 1, [&](size_t x) { return p.position_grad[x]; });
  judge("dtime", WARPLOOM_FLOAT32).check(expected.dtime, 1, [&](size_t x) { return p.time_grad[x]; });
}

/// The same; softmax backward starts from the out that the problem holds.
inline void check(const Problem& p, bool backward) {
  warploom_attention call = p.call;
  call.pass = backward ? WARPLOOM_BACKWARD : WARPLOOM_FORWARD;
  check(p, backward, reference::run(call));
}

}  // namespace test
