// A problem that the command makes up: what it is (ProblemConfig), its memory with random contents (Problem), and the
// calls on it. `bench`, `verify`, `demo` and `explain` all work on these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "warploom/attention.h"

namespace warploom::cli {

enum class BiasForm { none, dense, packed, bucketed };

/// Everything a call may ask for, as plain values. The defaults are the simplest problem.
struct ProblemConfig {
  bool softmax = false;
  std::uint32_t dtype = WARPLOOM_FLOAT32;

  std::vector<std::int64_t> lengths_q;  ///< rows of each sequence
  std::vector<std::int64_t> lengths_k;  ///< empty: the same
  bool dense = false;                   ///< a 4-D batch; all lengths equal
  std::vector<std::int32_t> used_q, used_k;
  std::int64_t rows_behind = 0;  ///< rows of the tensors that belong to no sequence

  std::int64_t heads = 1;
  std::int64_t key_heads = 0;  ///< 0: as many as heads
  std::int64_t head_dim = 64;
  std::int64_t value_dim = 0;  ///< 0: as head_dim

  std::optional<std::int64_t> left, right;
  std::vector<std::int32_t> contexts, targets;
  std::int64_t target_group_size = 1;
  bool window_from_history_end = false;
  std::int64_t intervals = 0;  ///< random intervals for each row, which replace the rules above
  std::int64_t interval_heads = 1;

  BiasForm bias = BiasForm::none;
  bool bias_gradient = true;
  bool bias_float32 = false;       ///< else in dtype (tables are float32 always)
  std::int64_t bias_heads = 0;     ///< 0: as many as heads
  bool bias_each_sequence = true;  ///< dense: one for each sequence, else one for all
  BiasRows bias_rows = BiasRows::key;
  double bias_masked = 0;                ///< the share of dense and packed entries that are -inf
  std::int64_t positions = 0;            ///< bucketed: entries of the position table, 0: none
  std::int64_t times = 0;                ///< bucketed: entries of the time table, 0: none
  bool own_thresholds = false;           ///< bucketed: thresholds instead of the default buckets
  std::vector<std::int64_t> timestamps;  ///< bucketed: empty: made up

  std::string score, slope, mask_function;  ///< a user's functions; empty: none, of the slope: derived

  std::optional<double> alpha, divisor, softcap;
  bool divisor_for_each_row = false;
  bool bias_scaled_by_alpha = true;

  std::int64_t gap = 0;  ///< elements between rows that belong to somebody else; a multiple of 8 for a GPU
  double deviation = 1;  ///< of the random values of q, k, v
  std::uint64_t seed = 0;

  std::int64_t key_heads_or_default() const { return key_heads > 0 ? key_heads : heads; }
  std::int64_t value_dim_or_default() const { return value_dim > 0 ? value_dim : head_dim; }
  const std::vector<std::int64_t>& key_lengths() const { return lengths_k.empty() ? lengths_q : lengths_k; }
};

/// Aligned bytes that are not cleared: what the calls read and write.
class Memory {
 public:
  explicit Memory(std::size_t bytes = 0);
  void* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Release {
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Release> data_;
  std::size_t bytes_ = 0;
};

/// One (rows, heads, dim) tensor with its memory.
struct OwnedTensor {
  Memory memory;
  TensorView view;

  double at(std::int64_t row, std::int64_t head, std::int64_t d) const;
};

/// The memory of a problem. Inputs are random; rows that no sequence uses, and the gaps, hold NaN in every tensor, so
/// that reading them shows. Not copyable: the calls point into it.
struct Problem {
  ProblemConfig config;
  std::vector<std::int64_t> offsets_q, offsets_k;
  std::vector<std::int32_t> intervals;
  OwnedTensor q, k, v, out, dout, dq, dk, dv;
  std::vector<float> lse;
  Memory bias, bias_grad;  ///< dense: (batch, heads, rows, columns), packed: (heads, elements)
  std::int64_t bias_elements = 0;
  std::vector<float> position, time, position_grad, time_grad;
  std::vector<std::int64_t> timestamps, thresholds;
  std::vector<float> divisors;

  Problem() = default;
  Problem(Problem&&) = default;
  Problem& operator=(Problem&&) = default;

  /// Bytes of all inputs and outputs of a pass.
  std::int64_t bytes(bool backward) const;
};

enum class Contents { random, untouched };

/// Makes the memory. `backward`: with what gradients need. `untouched`: q, k, v, dout and the bias's values are left as
/// the system gives them (which costs no memory until they are read).
Problem make_problem(const ProblemConfig& config, bool backward, Contents contents = Contents::random);

/// The call on the host's memory. For softmax, forward is to run before backward.
Result<warploom_attention> forward_call(Problem& problem, const Execution& execution = {});
Result<warploom_attention> backward_call(Problem& problem, const Execution& execution = {});

/// Floating point operations as peers count them (a multiplication and an addition are two): forward
/// 2 (D + Dv) H sum(Lq Lk), halved when the mask is causal; backward 2.5 times that.
double flops(const ProblemConfig& config, bool backward);

}  // namespace warploom::cli
