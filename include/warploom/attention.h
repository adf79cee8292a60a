// The C++ API: HSTU and softmax attention on views of your own memory, no CUDA or torch types. Link libwarploom.
//
//   std::vector<float> q(rows * heads * dim), k(q), v(q), out(q.size());          // fill q, k, v
//   std::vector<std::int64_t> offsets = {0, 200, 350};                            // two sequences in 350 rows
//   warploom::Status status = warploom::hstu_attention(
//       warploom::view(q, heads, dim), warploom::view(k, heads, dim), warploom::view(v, heads, dim),
//       warploom::view(out, heads, dim), warploom::jagged(offsets), {.mask = warploom::Mask::causal()});
//   if (!status.ok()) std::cerr << status.message() << "\n";
//
// docs/attention.md is the mathematics; its symbols are used here. Every function checks its arguments and returns a
// Status whose message names argument, value, rule and remedy; nothing is written when there is an error. On the CPU a
// function returns when its results are there, on a GPU when the work is queued on the stream.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom {

/// 16-bit types are bare bits here: use your own (__half, at::BFloat16, _Float16, ...) and pass pointers cast to these.
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

enum class DType : std::uint32_t {
  float32 = WARPLOOM_FLOAT32,
  float16 = WARPLOOM_FLOAT16,
  bfloat16 = WARPLOOM_BFLOAT16,
  float8_e4m3 = WARPLOOM_FLOAT8_E4M3,  ///< operands of warploom::gemm only
};

template <typename T>
constexpr DType dtype_of() {
  using Element = std::remove_cv_t<T>;
  static_assert(std::is_same_v<Element, float> || std::is_same_v<Element, Float16> || std::is_same_v<Element, BFloat16>,
                "tensors hold float, warploom::Float16 or warploom::BFloat16");
  if constexpr (std::is_same_v<Element, Float16>) return DType::float16;
  if constexpr (std::is_same_v<Element, BFloat16>) return DType::bfloat16;
  return DType::float32;
}

/// A (rows, heads, dim) tensor in memory that somebody else owns. The last dimension is contiguous; strides are in
/// elements. In a dense batch rows = batch * length, and sequence b starts at row b * length.
struct TensorView {
  void* data = nullptr;  ///< never written through when the view is an input
  DType dtype = DType::float32;
  std::int64_t rows = 0, heads = 0, dim = 0;
  std::int64_t row_stride = 0, head_stride = 0;
  std::int64_t batch_stride = 0;  ///< dense batches only; 0: each sequence follows the one before
};

/// A view with strides of its own, e.g. one third of a packed (rows, 3, heads, dim) qkv tensor.
template <typename T>
TensorView view(T* data, std::int64_t rows, std::int64_t heads, std::int64_t dim, std::int64_t row_stride,
                std::int64_t head_stride) {
  return {const_cast<std::remove_const_t<T>*>(data), dtype_of<T>(), rows, heads, dim, row_stride, head_stride, 0};
}

/// A contiguous (rows, heads, dim) view of a vector, array or span; rows follow from its size.
template <typename Container>
TensorView view(Container&& values, std::int64_t heads, std::int64_t dim) {
  const std::span all(values);
  const std::int64_t row = heads * dim;
  return view(all.data(), row > 0 ? static_cast<std::int64_t>(all.size()) / row : 0, heads, dim, row, dim);
}

/// Cumulative lengths: B + 1 values of int32 or int64, in the memory of the device that runs the call.
class CumulativeLengths {
 public:
  CumulativeLengths() = default;
  CumulativeLengths(std::span<const std::int32_t> values)  // NOLINT(google-explicit-constructor)
      : data_(values.data()), size_(values.size()), dtype_(WARPLOOM_INT32) {}
  CumulativeLengths(std::span<const std::int64_t> values)  // NOLINT(google-explicit-constructor)
      : data_(values.data()), size_(values.size()), dtype_(WARPLOOM_INT64) {}

  const void* data() const { return data_; }
  std::int64_t size() const { return static_cast<std::int64_t>(size_); }
  std::uint32_t dtype() const { return dtype_; }

 private:
  const void* data_ = nullptr;
  std::size_t size_ = 0;
  std::uint32_t dtype_ = WARPLOOM_INT32;
};

/// How rows are divided into sequences: by cumulative lengths, or `batch` equal parts. Make one with jagged() or
/// dense().
struct Sequences {
  CumulativeLengths cumulative_q = {},
                    cumulative_k = {};  ///< jagged; an empty cumulative_k means the same as cumulative_q
  std::int64_t batch = 0;               ///< dense
  std::span<const std::int32_t> used_q = {}, used_k = {};  ///< (B) valid rows at the start of each slot; empty: all
  /// Jagged: at least the longest slots. Left out, cumulative lengths are read (on a GPU that synchronises).
  std::optional<std::int64_t> max_length_q = {}, max_length_k = {};
};

template <typename Offsets>
Sequences jagged(const Offsets& offsets) {
  return {.cumulative_q = CumulativeLengths(std::span(offsets))};
}
template <typename OffsetsQ, typename OffsetsK>
Sequences jagged(const OffsetsQ& offsets_q, const OffsetsK& offsets_k) {
  return {.cumulative_q = CumulativeLengths(std::span(offsets_q)),
          .cumulative_k = CumulativeLengths(std::span(offsets_k))};
}
inline Sequences dense(std::int64_t batch) {
  return {.batch = batch};
}

/// One count for every sequence, or one each (B), or none.
using Counts = std::variant<std::monostate, std::int32_t, std::span<const std::int32_t>>;

/// What P is made of in HSTU attention instead of silu (docs/score-functions.md). As spans do, it points to memory of
/// yours, which is read during a call; what is made of a text is kept for the process. A parameter's value is read at
/// every call: another one compiles nothing.
///
///     const double beta = 1.7;
///     .score = {.value = "z * sigmoid(beta * z)", .parameters = "beta", .values = std::span(&beta, 1)}
struct ScoreFunction {
  const char* value = nullptr;       ///< null: silu
  const char* slope = nullptr;       ///< null: derived
  const char* parameters = nullptr;  ///< names separated by commas; null: none
  std::span<const double> values = {};
};

/// A row's half-open intervals of keys as a function of its place: "[0, nc), [max(nc, r - w), r + 1)". As above.
struct MaskFunction {
  const char* intervals = nullptr;
  const char* parameters = nullptr;
  std::span<const double> values = {};
};

/// Which keys a query row sees (docs/attention.md, section 4).
struct Mask {
  std::optional<std::int64_t> left, right;  ///< window to either side; nothing: unbounded
  Counts num_contexts, num_targets;         ///< these need right = 0
  std::int64_t target_group_size = 1;
  bool target_window_from_history_end = false;
  /// (interval_heads, Tq, num_intervals, 2), half-open [begin, end); given, it replaces everything above.
  std::span<const std::int32_t> intervals;
  std::int64_t interval_heads = 1, num_intervals = 0;
  /// Given, it replaces everything above but num_contexts and num_targets, which it reads as nc and nt.
  MaskFunction function;

  static Mask full() { return {}; }
  static Mask causal() { return window(std::nullopt, 0); }
  static Mask window(std::optional<std::int64_t> left, std::optional<std::int64_t> right) {
    Mask mask;
    mask.left = left;
    mask.right = right;
    return mask;
  }
  static Mask from_intervals(std::span<const std::int32_t> intervals, std::int64_t heads, std::int64_t per_row) {
    Mask mask;
    mask.intervals = intervals;
    mask.interval_heads = heads;
    mask.num_intervals = per_row;
    return mask;
  }
  static Mask from_function(const MaskFunction& function) {
    Mask mask;
    mask.function = function;
    return mask;
  }
};

enum class BiasRows : std::uint32_t {
  by_size = WARPLOOM_ROWS_AUTO,
  key = WARPLOOM_ROWS_KEY,
  query = WARPLOOM_ROWS_QUERY,
};

/// R[b, h, row, column], strides in elements (0 = broadcast), last dimension contiguous. `grad` (backward): the same
/// shape, contiguous, overwritten; null when not wanted.
struct DenseBias {
  const void* values = nullptr;
  DType dtype = DType::float32;
  std::int64_t batch = 1, heads = 1, rows = 0, columns = 0;
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
  BiasRows row_axis = BiasRows::by_size;
  void* grad = nullptr;
};

/// Rows of each sequence one after the other, each padded to 16 bytes: (heads, elements), contiguous.
struct PackedBias {
  const void* values = nullptr;
  DType dtype = DType::float32;
  std::int64_t heads = 1, elements = 0;
  BiasRows row_axis = BiasRows::key;
  void* grad = nullptr;
};

/// Two small tables, contiguous: position (position_heads, n) by r - j, time (time_heads, m) by the bucket of
/// t[r] - t[j]. One of the two may be empty. Gradients have the tables' sizes; empty when not wanted.
struct BucketedBias {
  std::span<const float> position, time;
  std::int64_t position_heads = 1, time_heads = 1;
  std::span<const std::int64_t> timestamps;   ///< (Tk)
  std::span<const std::int64_t> time_bucket;  ///< m - 1 thresholds; empty: the default
  std::span<float> position_grad, time_grad;
};

using Bias = std::variant<std::monostate, DenseBias, PackedBias, BucketedBias>;

/// Where a call runs, and how.
struct Execution {
  bool cuda = false;
  int device_index = 0;
  void* stream = nullptr;      ///< a CUstream; null: the default stream
  int num_threads = 0;         ///< CPU; 0: warploom_set_num_threads' value
  bool deterministic = false;  ///< every gradient bitwise repeatable
  bool check_inputs = false;   ///< GPU: check lengths and counts too (synchronises)
};

/// O = silu(alpha (Q K^T + R)) V / divisor, or with another score function in silu's place.
struct HstuOptions {
  Mask mask = Mask::causal();
  Bias bias = {};
  std::optional<double> alpha = {};          ///< nothing: 1/sqrt(D)
  std::optional<double> divisor = {};        ///< nothing: divisor_rows, else the longest query length
  std::span<const float> divisor_rows = {};  ///< (Tq)
  bool bias_scaled_by_alpha = true;          ///< false: alpha Q K^T + R
  Execution execution = {};
  ScoreFunction score = {};
};

/// O = softmax(alpha Q K^T + R) V.
struct SoftmaxOptions {
  Mask mask = Mask::full();
  Bias bias = {};
  std::optional<double> alpha = {};    ///< nothing: 1/sqrt(D)
  std::optional<double> softcap = {};  ///< c: c * tanh(S / c)
  Execution execution = {};
};

/// Where backward writes; shaped like q, k, v. Bias gradients go to the bias's own `grad` fields.
struct Gradients {
  TensorView dq, dk, dv;
};

namespace detail {

inline Status bad(std::string message) {
  return Status::invalid_value(std::move(message));
}

inline Status check_size(const char* name, std::size_t size, std::int64_t expected, const char* rule) {
  if (static_cast<std::int64_t>(size) == expected) return {};
  return bad(std::string(name) + " has " + std::to_string(size) + " entries; it must have " + std::to_string(expected) +
             ", " + rule);
}

inline Status set_tensor(warploom_attention& call, warploom_tensor& tensor, const char* name, const TensorView& from,
                         std::int64_t rows, std::int64_t heads, std::int64_t dim) {
  if (static_cast<std::uint32_t>(from.dtype) != call.dtype) {
    return Status::invalid_type(std::string(name) + "'s type differs from q's; pass all tensors in one type");
  }
  const auto text = [](std::int64_t r, std::int64_t h, std::int64_t d) {
    return "(" + std::to_string(r) + ", " + std::to_string(h) + ", " + std::to_string(d) + ")";
  };
  if (from.rows != rows || from.heads != heads || from.dim != dim) {
    return bad(std::string(name) + " is " + text(from.rows, from.heads, from.dim) + "; here it must be " +
               text(rows, heads, dim) + " (rows, heads, dimension)");
  }
  tensor.data = from.data;
  tensor.row_stride = from.row_stride;
  tensor.head_stride = from.head_stride;
  tensor.batch_stride = from.batch_stride;
  if (from.batch_stride == 0 && call.batch > 0) tensor.batch_stride = rows / call.batch * from.row_stride;
  return {};
}

inline Status set_inputs(warploom_attention& call, const TensorView& q, const TensorView& k, const TensorView& v) {
  call.dtype = static_cast<std::uint32_t>(q.dtype);
  call.heads = q.heads;
  call.key_heads = k.heads;
  call.head_dim = q.dim;
  call.value_dim = v.dim;
  call.total_q = q.rows;
  call.total_k = k.rows;
  if (Status status = set_tensor(call, call.q, "q", q, q.rows, q.heads, q.dim); !status.ok()) return status;
  if (Status status = set_tensor(call, call.k, "k", k, k.rows, k.heads, q.dim); !status.ok()) return status;
  return set_tensor(call, call.v, "v", v, k.rows, k.heads, v.dim);
}

inline Status set_sequences(warploom_attention& call, const Sequences& sequences, std::int64_t rows_q,
                            std::int64_t rows_k) {
  const CumulativeLengths& cu_q = sequences.cumulative_q;
  const CumulativeLengths& cu_k = sequences.cumulative_k;
  if (cu_q.data() == nullptr) {
    if (sequences.batch < 0) return bad("batch = " + std::to_string(sequences.batch) + " is negative");
    call.batch = sequences.batch;
    const std::int64_t batch = call.batch > 0 ? call.batch : 1;
    if (rows_q % batch != 0 || rows_k % batch != 0)
      return bad("a dense batch's rows must be a multiple of batch; use jagged()");
    call.max_seqlen_q = rows_q / batch;
    call.max_seqlen_k = rows_k / batch;
  } else {
    if (cu_q.size() == 0) return bad("cumulative_q is empty; it has one entry more than there are sequences");
    call.batch = cu_q.size() - 1;
    call.cu_seqlens_q = cu_q.data();
    call.cu_seqlens_q_dtype = cu_q.dtype();
    if (cu_k.data() != nullptr) {
      if (cu_k.size() != cu_q.size())
        return bad("cumulative_k and cumulative_q differ in size; both have one entry more than there are sequences");
      call.cu_seqlens_k = cu_k.data();
      call.cu_seqlens_k_dtype = cu_k.dtype();
    }
    call.max_seqlen_q = sequences.max_length_q.value_or(WARPLOOM_FROM_CU_SEQLENS);
    call.max_seqlen_k = sequences.max_length_k.value_or(WARPLOOM_FROM_CU_SEQLENS);
  }
  const auto set_used = [&](const char* name, std::span<const std::int32_t> used,
                            const std::int32_t*& field) -> Status {
    if (used.data() == nullptr) return {};
    field = used.data();
    return check_size(name, used.size(), call.batch, "one for each sequence");
  };
  if (Status status = set_used("used_q", sequences.used_q, call.seqused_q); !status.ok()) return status;
  return set_used("used_k", sequences.used_k, call.seqused_k);
}

inline Status set_counts(warploom_attention& call, const char* name, const Counts& counts, const std::int32_t*& each,
                         std::int32_t& all) {
  if (const auto* one = std::get_if<std::int32_t>(&counts)) {
    if (*one < 0) return bad(std::string(name) + " = " + std::to_string(*one) + " is negative");
    all = *one;
  } else if (const auto* many = std::get_if<std::span<const std::int32_t>>(&counts); many && many->data() != nullptr) {
    each = many->data();
    return check_size(name, many->size(), call.batch, "one for each sequence");
  }
  return {};
}

inline void set_function(warploom_function& function, const char* text, const char* slope, const char* parameters,
                         std::span<const double> values) {
  function.text = text;
  function.slope = slope;
  function.parameters = parameters;
  function.values = values.data();
  function.num_values = static_cast<std::int64_t>(values.size());
}

inline Status set_mask(warploom_attention& call, const Mask& mask) {
  call.left = mask.left.value_or(WARPLOOM_UNBOUNDED);
  call.right = mask.right.value_or(WARPLOOM_UNBOUNDED);
  call.target_group_size = mask.target_group_size;
  set_function(call.mask_function, mask.function.intervals, nullptr, mask.function.parameters, mask.function.values);
  if (mask.target_window_from_history_end) call.flags |= WARPLOOM_WINDOW_FROM_HISTORY_END;
  if (mask.intervals.data() != nullptr || mask.num_intervals != 0) {
    call.intervals = mask.intervals.data();
    call.interval_heads = mask.interval_heads;
    call.num_intervals = mask.num_intervals;
    if (Status status =
            check_size("intervals", mask.intervals.size(), mask.interval_heads * call.total_q * mask.num_intervals * 2,
                       "interval_heads * rows of q * num_intervals * 2");
        !status.ok()) {
      return status;
    }
  }
  if (Status status = set_counts(call, "num_contexts", mask.num_contexts, call.num_contexts, call.num_contexts_all);
      !status.ok()) {
    return status;
  }
  return set_counts(call, "num_targets", mask.num_targets, call.num_targets, call.num_targets_all);
}

inline Status set_bias(warploom_attention&, std::monostate) {
  return {};
}

inline Status set_bias(warploom_attention& call, const DenseBias& from) {
  warploom_bias& bias = call.bias;
  bias.kind = WARPLOOM_DENSE_BIAS;
  bias.dtype = static_cast<std::uint32_t>(from.dtype);
  bias.rows = static_cast<std::uint32_t>(from.row_axis);
  bias.values = from.values;
  bias.batch = from.batch;
  bias.heads = from.heads;
  bias.num_rows = from.rows;
  bias.num_columns = from.columns;
  bias.batch_stride = from.batch_stride;
  bias.head_stride = from.head_stride;
  bias.row_stride = from.row_stride;
  bias.grad = from.grad;
  bias.grad_row_stride = from.columns;
  bias.grad_head_stride = from.rows * bias.grad_row_stride;
  bias.grad_batch_stride = from.heads * bias.grad_head_stride;
  return {};
}

inline Status set_bias(warploom_attention& call, const PackedBias& from) {
  warploom_bias& bias = call.bias;
  bias.kind = WARPLOOM_PACKED_BIAS;
  bias.dtype = static_cast<std::uint32_t>(from.dtype);
  bias.rows = static_cast<std::uint32_t>(from.row_axis);
  bias.values = from.values;
  bias.heads = from.heads;
  bias.num_columns = from.elements;
  bias.head_stride = from.elements;
  bias.grad = from.grad;
  bias.grad_head_stride = from.elements;
  return {};
}

/// One table of a bucketed bias: entries a head, checked against its gradient's size.
inline Status set_table(const char* name, std::span<const float> table, std::span<float> grad, std::int64_t heads,
                        std::int64_t& entries) {
  if (heads < 1 || static_cast<std::int64_t>(table.size()) % heads != 0) {
    return bad(std::string(name) + " has " + std::to_string(table.size()) + " entries, which " + std::to_string(heads) +
               " heads do not divide");
  }
  entries = static_cast<std::int64_t>(table.size()) / heads;
  if (grad.data() == nullptr) return {};
  return check_size((std::string(name) + "_grad").c_str(), grad.size(), static_cast<std::int64_t>(table.size()),
                    "as many as the table");
}

inline Status set_bias(warploom_attention& call, const BucketedBias& from) {
  warploom_bias& bias = call.bias;
  bias.kind = WARPLOOM_BUCKETED_BIAS;
  if (!from.position.empty()) {
    if (Status status =
            set_table("position", from.position, from.position_grad, from.position_heads, bias.num_positions);
        !status.ok()) {
      return status;
    }
    bias.position = from.position.data();
    bias.position_grad = from.position_grad.data();
    bias.position_heads = from.position_heads;
    bias.position_head_stride = bias.num_positions;
  }
  if (from.time.empty()) return {};
  if (Status status = set_table("time", from.time, from.time_grad, from.time_heads, bias.num_times); !status.ok())
    return status;
  bias.time = from.time.data();
  bias.time_grad = from.time_grad.data();
  bias.time_heads = from.time_heads;
  bias.time_head_stride = bias.num_times;
  bias.timestamps = from.timestamps.data();
  if (Status status = check_size("timestamps", from.timestamps.size(), call.total_k, "one for each row of k");
      !status.ok())
    return status;
  if (from.time_bucket.empty()) return {};
  bias.time_bucket = from.time_bucket.data();
  return check_size("time_bucket", from.time_bucket.size(), bias.num_times - 1,
                    "one less than the time table's entries");
}

inline void set_execution(warploom_attention& call, const Execution& execution) {
  call.device = execution.cuda ? WARPLOOM_CUDA : WARPLOOM_CPU;
  call.device_index = execution.device_index;
  call.stream = execution.stream;
  call.num_threads = execution.num_threads;
  if (execution.deterministic) call.flags |= WARPLOOM_DETERMINISTIC;
  if (execution.check_inputs) call.flags |= WARPLOOM_CHECK_INPUTS;
}

inline Status set_operator(warploom_attention& call, const HstuOptions& options) {
  call.op = WARPLOOM_HSTU;
  if (options.divisor) {
    call.flags |= WARPLOOM_HAS_DIVISOR;
    call.divisor = *options.divisor;
  }
  if (!options.bias_scaled_by_alpha) call.flags |= WARPLOOM_BIAS_NOT_SCALED;
  const ScoreFunction& score = options.score;
  set_function(call.score, score.value, score.slope, score.parameters, score.values);
  if (options.divisor_rows.data() == nullptr) return {};
  call.divisor_rows = options.divisor_rows.data();
  return check_size("divisor_rows", options.divisor_rows.size(), call.total_q, "one for each row of q");
}

inline Status set_operator(warploom_attention& call, const SoftmaxOptions& options) {
  call.op = WARPLOOM_SOFTMAX;
  call.softcap = options.softcap.value_or(0);
  return {};
}

inline Status set_lse(warploom_attention& call, std::span<float> lse) {
  if (lse.data() == nullptr) return {};
  call.lse = lse.data();
  call.lse_head_stride = call.cu_seqlens_q != nullptr ? call.total_q : call.max_seqlen_q;
  call.lse_batch_stride = call.heads * call.lse_head_stride;
  return check_size("lse", lse.size(), call.heads * call.total_q, "heads * rows of q");
}

/// Everything that forward and backward share.
template <typename Options>
Status set_common(warploom_attention& call, const TensorView& q, const TensorView& k, const TensorView& v,
                  const Sequences& sequences, const Options& options) {
  warploom_attention_init(&call);
  if (Status status = set_sequences(call, sequences, q.rows, k.rows); !status.ok()) return status;
  if (Status status = set_inputs(call, q, k, v); !status.ok()) return status;
  if (Status status = set_mask(call, options.mask); !status.ok()) return status;
  if (Status status = std::visit([&](const auto& bias) { return set_bias(call, bias); }, options.bias); !status.ok())
    return status;
  if (options.alpha) {
    call.flags |= WARPLOOM_HAS_ALPHA;
    call.alpha = *options.alpha;
  }
  set_execution(call, options.execution);
  return set_operator(call, options);
}

inline Status set_gradients(warploom_attention& call, const TensorView& dout, const Gradients& gradients) {
  call.pass = WARPLOOM_BACKWARD;
  if (Status status = set_tensor(call, call.dout, "dout", dout, call.total_q, call.heads, call.value_dim); !status.ok())
    return status;
  if (Status status = set_tensor(call, call.dq, "dq", gradients.dq, call.total_q, call.heads, call.head_dim);
      !status.ok())
    return status;
  if (Status status = set_tensor(call, call.dk, "dk", gradients.dk, call.total_k, call.key_heads, call.head_dim);
      !status.ok())
    return status;
  return set_tensor(call, call.dv, "dv", gradients.dv, call.total_k, call.key_heads, call.value_dim);
}

inline Status status_of(int code) {
  return code == WARPLOOM_OK ? Status() : Status(static_cast<StatusCode>(code), warploom_last_error());
}

inline Status run(const Result<warploom_attention>& call) {
  return call.ok() ? status_of(warploom_run(&call.value())) : call.status();
}

}  // namespace detail

/// The C structure of a call, with every size checked that only spans know; for explain() and warmup() below.
inline Result<warploom_attention> hstu_forward_call(const TensorView& q, const TensorView& k, const TensorView& v,
                                                    const TensorView& out, const Sequences& sequences,
                                                    const HstuOptions& options = {}) {
  warploom_attention call;
  if (Status status = detail::set_common(call, q, k, v, sequences, options); !status.ok()) return status;
  if (Status status = detail::set_tensor(call, call.out, "out", out, q.rows, q.heads, v.dim); !status.ok())
    return status;
  return call;
}
inline Result<warploom_attention> hstu_backward_call(const TensorView& dout, const TensorView& q, const TensorView& k,
                                                     const TensorView& v, const Gradients& gradients,
                                                     const Sequences& sequences, const HstuOptions& options = {}) {
  warploom_attention call;
  if (Status status = detail::set_common(call, q, k, v, sequences, options); !status.ok()) return status;
  if (Status status = detail::set_gradients(call, dout, gradients); !status.ok()) return status;
  return call;
}
inline Result<warploom_attention> softmax_forward_call(const TensorView& q, const TensorView& k, const TensorView& v,
                                                       const TensorView& out, std::span<float> lse,
                                                       const Sequences& sequences, const SoftmaxOptions& options = {}) {
  warploom_attention call;
  if (Status status = detail::set_common(call, q, k, v, sequences, options); !status.ok()) return status;
  if (Status status = detail::set_tensor(call, call.out, "out", out, q.rows, q.heads, v.dim); !status.ok())
    return status;
  if (Status status = detail::set_lse(call, lse); !status.ok()) return status;
  return call;
}
inline Result<warploom_attention> softmax_backward_call(const TensorView& dout, const TensorView& q,
                                                        const TensorView& k, const TensorView& v, const TensorView& out,
                                                        std::span<float> lse, const Gradients& gradients,
                                                        const Sequences& sequences,
                                                        const SoftmaxOptions& options = {}) {
  Result<warploom_attention> made = softmax_forward_call(q, k, v, out, lse, sequences, options);
  if (!made.ok()) return made;
  if (Status status = detail::set_gradients(made.value(), dout, gradients); !status.ok()) return status;
  return made;
}

/// HSTU attention. q (Tq, H, D), k (Tk, Hkv, D), v (Tk, Hkv, Dv), out (Tq, H, Dv) in one type; Hkv divides H.
/// Errors: invalid_value, invalid_type for arguments; runtime_error for device, compiler, memory.
inline Status hstu_attention(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                             const Sequences& sequences, const HstuOptions& options = {}) {
  return detail::run(hstu_forward_call(q, k, v, out, sequences, options));
}

/// Gradients of HSTU attention: dout (Tq, H, Dv) to dq, dk, dv and the bias's gradient fields, all overwritten.
inline Status hstu_attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                                      const TensorView& v, const Gradients& gradients, const Sequences& sequences,
                                      const HstuOptions& options = {}) {
  return detail::run(hstu_backward_call(dout, q, k, v, gradients, sequences, options));
}

/// Softmax attention. lse: (H, Tq) jagged or (B, H, Lq) dense, natural logarithm; empty when not wanted.
inline Status softmax_attention(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                                std::span<float> lse, const Sequences& sequences, const SoftmaxOptions& options = {}) {
  return detail::run(softmax_forward_call(q, k, v, out, lse, sequences, options));
}

/// Gradients of softmax attention, with out and lse of the forward call.
inline Status softmax_attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                                         const TensorView& v, const TensorView& out, std::span<float> lse,
                                         const Gradients& gradients, const Sequences& sequences,
                                         const SoftmaxOptions& options = {}) {
  return detail::run(softmax_backward_call(dout, q, k, v, out, lse, gradients, sequences, options));
}

/// GPU: compiles and loads what the call needs without running it. CPU: nothing to do.
inline Status warmup(const warploom_attention& call) {
  return detail::status_of(warploom_warmup(&call));
}

/// What the call would run, as JSON (docs/cli.md).
inline Result<std::string> explain(const warploom_attention& call) {
  char* text = nullptr;
  if (Status status = detail::status_of(warploom_explain(&call, &text)); !status.ok()) return status;
  std::string result(text);
  warploom_free(text);
  return result;
}

/// For callers who prefer exceptions: throw_if_error(hstu_attention(...)). std::invalid_argument for invalid_value and
/// invalid_type, std::runtime_error for the rest.
inline void throw_if_error(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::runtime_error) throw std::runtime_error(status.message());
  throw std::invalid_argument(status.message());
}

}  // namespace warploom
