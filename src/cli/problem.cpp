#include "cli/problem.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <numeric>

#include "cli/numbers.h"
#include "history/random.h"

namespace warploom::cli {
namespace {

using history::Random;
using std::int64_t;

std::size_t at(int64_t index) {
  return static_cast<std::size_t>(index);
}

std::vector<int64_t> offsets(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> result(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), result.begin() + 1);
  return result;
}

int64_t longest(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

OwnedTensor empty_tensor(const ProblemConfig& config, int64_t rows, int64_t heads, int64_t dim) {
  OwnedTensor tensor;
  const int64_t row_stride = heads * dim + config.gap, elements = rows * row_stride;
  tensor.memory = Memory(at(elements) * at(bytes_per_element(config.dtype)));
  tensor.view = {tensor.memory.data(), static_cast<DType>(config.dtype), rows, heads, dim, row_stride, dim, 0};
  return tensor;
}

/// Every bit set is NaN in all three types. Whatever should not be read or must be written starts as that.
void poison(OwnedTensor& tensor) {
  std::fill_n(static_cast<unsigned char*>(tensor.memory.data()), tensor.memory.bytes(),
              static_cast<unsigned char>(0xFF));
}

/// Fills the rows that sequences use with normal values.
void fill(OwnedTensor& tensor, const std::vector<int64_t>& lengths, const std::vector<std::int32_t>& used,
          double deviation, Random& random) {
  const auto dtype = static_cast<std::uint32_t>(tensor.view.dtype);
  int64_t first = 0;
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const int64_t rows = used.empty() ? lengths[b] : used[b];
    for (int64_t row = first; row < first + rows; ++row)
      for (int64_t index = 0; index < tensor.view.heads * tensor.view.dim; ++index)
        store(tensor.view.data, dtype, row * tensor.view.row_stride + index, deviation * random.normal());
    first += lengths[b];
  }
}

int64_t packed_elements(const ProblemConfig& config, std::uint32_t dtype) {
  const int64_t unit = 16 / bytes_per_element(dtype);
  int64_t elements = 0;
  for (std::size_t b = 0; b < config.lengths_q.size(); ++b) {
    const int64_t keys = config.key_lengths()[b],
                  rows = config.bias_rows == BiasRows::query ? config.lengths_q[b] : keys;
    elements += rows * ((keys + unit - 1) / unit * unit);
  }
  return elements;
}

int64_t bias_head_count(const ProblemConfig& config) {
  return config.bias_heads > 0 ? config.bias_heads : config.heads;
}
std::uint32_t bias_dtype(const ProblemConfig& config) {
  return config.bias_float32 ? static_cast<std::uint32_t>(WARPLOOM_FLOAT32) : config.dtype;
}
int64_t bias_row_count(const ProblemConfig& config) {
  return longest(config.bias_rows == BiasRows::query ? config.lengths_q : config.key_lengths());
}
int64_t bias_batch(const ProblemConfig& config) {
  return config.bias_each_sequence ? static_cast<int64_t>(config.lengths_q.size()) : 1;
}

void make_bias(Problem& problem, bool backward, Random& random, Contents contents) {
  const ProblemConfig& config = problem.config;
  const int64_t heads = bias_head_count(config);
  const bool wants_gradient = backward && config.bias_gradient;
  if (config.bias == BiasForm::dense || config.bias == BiasForm::packed) {
    const std::uint32_t dtype = bias_dtype(config);
    problem.bias_elements = config.bias == BiasForm::packed
                                ? heads * packed_elements(config, dtype)
                                : bias_batch(config) * heads * bias_row_count(config) * longest(config.key_lengths());
    problem.bias = Memory(at(problem.bias_elements) * at(bytes_per_element(dtype)));
    for (int64_t index = 0; contents == Contents::random && index < problem.bias_elements; ++index) {
      const bool masked = config.bias_masked > 0 && random.uniform() < config.bias_masked;
      store(problem.bias.data(), dtype, index, masked ? -INFINITY : random.normal());
    }
    if (wants_gradient) problem.bias_grad = Memory(problem.bias.bytes());
  }
  if (config.bias != BiasForm::bucketed) return;
  const auto table = [&](int64_t entries, std::vector<float>& values, std::vector<float>& grad) {
    values.resize(at(heads * entries));
    for (float& value : values) value = static_cast<float>(random.normal());
    if (wants_gradient) grad.assign(values.size(), std::numeric_limits<float>::quiet_NaN());
  };
  table(config.positions, problem.position, problem.position_grad);
  table(config.times, problem.time, problem.time_grad);
  if (config.times == 0) return;
  problem.timestamps = config.timestamps;
  for (int64_t row = static_cast<int64_t>(problem.timestamps.size()), time = 0; row < problem.k.view.rows; ++row) {
    time += static_cast<int64_t>(std::exp(12 * random.uniform()));
    problem.timestamps.push_back(time);
  }
  if (!config.own_thresholds) return;
  for (int64_t n = 1; n < config.times; ++n) problem.thresholds.push_back(n * n * 10);
}

void fill_intervals(Problem& problem, Random& random) {
  const ProblemConfig& config = problem.config;
  for (int64_t n = 0; n < config.interval_heads; ++n) {
    for (int64_t row = 0; row < problem.q.view.rows; ++row) {
      for (int64_t m = 0; m < config.intervals; ++m) {
        const int64_t begin = random.between(-5, longest(config.key_lengths()) + 5);
        problem.intervals.push_back(static_cast<std::int32_t>(begin));
        problem.intervals.push_back(static_cast<std::int32_t>(begin + random.between(-2, 40)));
      }
    }
  }
}

Mask mask_of(const Problem& problem) {
  const ProblemConfig& config = problem.config;
  if (!config.mask_function.empty()) {
    Mask mask = Mask::from_function({.intervals = config.mask_function.c_str()});
    if (!config.contexts.empty()) mask.num_contexts = std::span<const std::int32_t>(config.contexts);
    if (!config.targets.empty()) mask.num_targets = std::span<const std::int32_t>(config.targets);
    return mask;
  }
  if (config.intervals > 0) return Mask::from_intervals(problem.intervals, config.interval_heads, config.intervals);
  Mask mask = Mask::window(config.left, config.right);
  if (!config.contexts.empty()) mask.num_contexts = std::span<const std::int32_t>(config.contexts);
  if (!config.targets.empty()) mask.num_targets = std::span<const std::int32_t>(config.targets);
  mask.target_group_size = config.target_group_size;
  mask.target_window_from_history_end = config.window_from_history_end;
  return mask;
}

Bias bias_of(Problem& problem) {
  const ProblemConfig& config = problem.config;
  const int64_t heads = bias_head_count(config), columns = longest(config.key_lengths()), rows = bias_row_count(config);
  const auto dtype = static_cast<DType>(bias_dtype(config));
  switch (config.bias) {
    case BiasForm::dense: {
      const int64_t head_stride = heads > 1 ? rows * columns : 0;
      return DenseBias{problem.bias.data(),
                       dtype,
                       bias_batch(config),
                       heads,
                       rows,
                       columns,
                       config.bias_each_sequence ? heads * rows * columns : 0,
                       head_stride,
                       columns,
                       config.bias_rows,
                       problem.bias_grad.data()};
    }
    case BiasForm::packed:
      return PackedBias{
          problem.bias.data(),     dtype, heads, packed_elements(config, bias_dtype(config)), config.bias_rows,
          problem.bias_grad.data()};
    case BiasForm::bucketed:
      return BucketedBias{problem.position,      problem.time,     heads, heads, problem.timestamps, problem.thresholds,
                          problem.position_grad, problem.time_grad};
    case BiasForm::none:
      break;
  }
  return {};
}

Sequences sequences_of(const Problem& problem) {
  const ProblemConfig& config = problem.config;
  Sequences sequences = config.dense ? dense(static_cast<int64_t>(config.lengths_q.size())) : jagged(problem.offsets_q);
  if (!config.dense && !config.lengths_k.empty()) sequences = jagged(problem.offsets_q, problem.offsets_k);
  if (!config.dense) {
    // Said, not left to be read: a GPU would have to wait for it, and a plan has no device memory to read.
    sequences.max_length_q = longest(config.lengths_q);
    sequences.max_length_k = longest(config.key_lengths());
  }
  sequences.used_q = config.used_q;
  sequences.used_k = config.used_k;
  return sequences;
}

/// Null for none.
const char* text_of(const std::string& text) {
  return text.empty() ? nullptr : text.c_str();
}

HstuOptions hstu_options(Problem& problem, const Execution& execution) {
  return {mask_of(problem),
          bias_of(problem),
          problem.config.alpha,
          problem.config.divisor,
          problem.divisors,
          problem.config.bias_scaled_by_alpha,
          execution,
          {.value = text_of(problem.config.score), .slope = text_of(problem.config.slope)}};
}

SoftmaxOptions softmax_options(Problem& problem, const Execution& execution) {
  return {mask_of(problem), bias_of(problem), problem.config.alpha, problem.config.softcap, execution};
}

}  // namespace

void Memory::Release::operator()(void* data) const {
  std::free(data);
}

Memory::Memory(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t alignment = 64;
  if (bytes == 0) return;
  data_.reset(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment));
  if (data_ == nullptr) throw std::bad_alloc();
}

double OwnedTensor::at(std::int64_t row, std::int64_t head, std::int64_t d) const {
  return load(view.data, static_cast<std::uint32_t>(view.dtype), row * view.row_stride + head * view.head_stride + d);
}

std::int64_t Problem::bytes(bool backward) const {
  std::size_t total = q.memory.bytes() + k.memory.bytes() + v.memory.bytes() + bias.bytes() +
                      lse.size() * sizeof(float) + (position.size() + time.size()) * sizeof(float) +
                      timestamps.size() * sizeof(std::int64_t) + intervals.size() * sizeof(std::int32_t);
  if (!backward || config.softmax) total += out.memory.bytes();
  if (backward) {
    total += dout.memory.bytes() + dq.memory.bytes() + dk.memory.bytes() + dv.memory.bytes() + bias_grad.bytes() +
             (position_grad.size() + time_grad.size()) * sizeof(float);
  }
  return static_cast<std::int64_t>(total);
}

Problem make_problem(const ProblemConfig& config, bool backward, Contents contents) {
  Problem problem;
  problem.config = config;
  problem.offsets_q = offsets(config.lengths_q);
  problem.offsets_k = offsets(config.key_lengths());
  const int64_t rows_q = problem.offsets_q.back() + config.rows_behind,
                rows_k = problem.offsets_k.back() + config.rows_behind;
  const int64_t key_heads = config.key_heads_or_default(), value_dim = config.value_dim_or_default();
  Random random(config.seed);

  problem.q = empty_tensor(config, rows_q, config.heads, config.head_dim);
  problem.k = empty_tensor(config, rows_k, key_heads, config.head_dim);
  problem.v = empty_tensor(config, rows_k, key_heads, value_dim);
  problem.out = empty_tensor(config, rows_q, config.heads, value_dim);
  if (backward) {
    problem.dout = empty_tensor(config, rows_q, config.heads, value_dim);
    problem.dq = empty_tensor(config, rows_q, config.heads, config.head_dim);
    problem.dk = empty_tensor(config, rows_k, key_heads, config.head_dim);
    problem.dv = empty_tensor(config, rows_k, key_heads, value_dim);
  }
  if (config.softmax) problem.lse.assign(at(config.heads * rows_q), std::numeric_limits<float>::quiet_NaN());
  if (config.divisor_for_each_row) {
    for (int64_t row = 0; row < rows_q; ++row)
      problem.divisors.push_back(static_cast<float>(1 + 50 * random.uniform()));
  }
  make_bias(problem, backward, random, contents);
  fill_intervals(problem, random);
  if (contents == Contents::untouched) return problem;
  for (OwnedTensor* tensor :
       {&problem.q, &problem.k, &problem.v, &problem.out, &problem.dout, &problem.dq, &problem.dk, &problem.dv}) {
    poison(*tensor);
  }
  fill(problem.q, config.lengths_q, config.used_q, config.deviation, random);
  fill(problem.k, config.key_lengths(), config.used_k, config.deviation, random);
  fill(problem.v, config.key_lengths(), config.used_k, config.deviation, random);
  if (backward) fill(problem.dout, config.lengths_q, config.used_q, 1, random);
  return problem;
}

Result<warploom_attention> forward_call(Problem& problem, const Execution& execution) {
  const Sequences sequences = sequences_of(problem);
  if (problem.config.softmax) {
    return softmax_forward_call(problem.q.view, problem.k.view, problem.v.view, problem.out.view, problem.lse,
                                sequences, softmax_options(problem, execution));
  }
  return hstu_forward_call(problem.q.view, problem.k.view, problem.v.view, problem.out.view, sequences,
                           hstu_options(problem, execution));
}

Result<warploom_attention> backward_call(Problem& problem, const Execution& execution) {
  const Sequences sequences = sequences_of(problem);
  const Gradients gradients{problem.dq.view, problem.dk.view, problem.dv.view};
  if (problem.config.softmax) {
    return softmax_backward_call(problem.dout.view, problem.q.view, problem.k.view, problem.v.view, problem.out.view,
                                 problem.lse, gradients, sequences, softmax_options(problem, execution));
  }
  return hstu_backward_call(problem.dout.view, problem.q.view, problem.k.view, problem.v.view, gradients, sequences,
                            hstu_options(problem, execution));
}

double flops(const ProblemConfig& config, bool backward) {
  double pairs = 0;
  for (std::size_t b = 0; b < config.lengths_q.size(); ++b) {
    pairs += static_cast<double>(config.lengths_q[b]) * static_cast<double>(config.key_lengths()[b]);
  }
  if (config.right) pairs /= 2;
  const double forward = 2.0 * static_cast<double>(config.head_dim + config.value_dim_or_default()) *
                         static_cast<double>(config.heads) * pairs;
  return backward ? 2.5 * forward : forward;
}

}  // namespace warploom::cli
