#include "problem/validate.h"

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "expression/functions.h"
#include "problem/extents.h"
#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom {
namespace {

constexpr int64_t kMaxHeadDim = 512;
constexpr int64_t kMaxSequence = geometry::kUnbounded - 1;
constexpr int64_t kMaxRows = int64_t{1} << 40;
constexpr int64_t kMaxHeads = 1 << 20;
constexpr int64_t kMaxIntervals = 1 << 20;
constexpr uint32_t kKnownFlags = WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR | WARPLOOM_BIAS_NOT_SCALED |
                                 WARPLOOM_WINDOW_FROM_HISTORY_END | WARPLOOM_DETERMINISTIC | WARPLOOM_CHECK_INPUTS |
                                 WARPLOOM_BIAS_GRAD_PADDED;

template <typename... Pieces>
Status bad_value(const Pieces&... pieces) {
  return Status::invalid_value(message(pieces...));
}

#define WARPLOOM_RETURN_IF_ERROR(expression)        \
  if (Status status = (expression); !status.ok()) { \
    return status;                                  \
  }

bool has_flag(const warploom_attention& call, uint32_t flag) {
  return (call.flags & flag) != 0;
}
bool has_contexts(const warploom_attention& call) {
  return call.num_contexts != nullptr || call.num_contexts_all >= 0;
}
bool has_targets(const warploom_attention& call) {
  return call.num_targets != nullptr || call.num_targets_all >= 0;
}

Status check_versions(const warploom_attention& call) {
  if (call.abi_version != WARPLOOM_ABI_VERSION) {
    return Status::runtime_error(message("abi_version = ", call.abi_version, " but this library speaks version ",
                                         WARPLOOM_ABI_VERSION, ", so library and caller are of different releases; ",
                                         "install both from the same release"));
  }
  if (call.struct_bytes != sizeof(warploom_attention)) {
    return Status::runtime_error(message("struct_bytes = ", call.struct_bytes, " but warploom_attention has ",
                                         sizeof(warploom_attention),
                                         " bytes here; build against this release's warploom.h"));
  }
  return {};
}

Status check_codes(const warploom_attention& call) {
  if (call.op > WARPLOOM_SOFTMAX)
    return bad_value("op = ", call.op, " is unknown; use WARPLOOM_HSTU or WARPLOOM_SOFTMAX");
  if (call.pass > WARPLOOM_BACKWARD)
    return bad_value("pass = ", call.pass, " is unknown; use WARPLOOM_FORWARD or WARPLOOM_BACKWARD");
  if (call.device > WARPLOOM_CUDA)
    return bad_value("device = ", call.device, " is unknown; use WARPLOOM_CPU or WARPLOOM_CUDA");
  if (call.dtype > WARPLOOM_BFLOAT16) {
    return Status::invalid_type(
        message("dtype = ", call.dtype, " is unknown; q, k and v take float32, float16 or bfloat16"));
  }
  if (call.device == WARPLOOM_CUDA && call.dtype == WARPLOOM_FLOAT32) {
    return Status::invalid_type("q is float32, which runs on the CPU only; on a GPU pass float16 or bfloat16");
  }
  if ((call.flags & ~kKnownFlags) != 0) {
    return bad_value("flags = ", call.flags, " has unknown options (bits ", call.flags & ~kKnownFlags,
                     "); this library knows bits ", kKnownFlags);
  }
  if (call.reserved != 0 || call.bias.reserved != 0)
    return bad_value("reserved fields must be 0; zero the structure before filling it in");
  if (call.cu_seqlens_q_dtype > WARPLOOM_INT64) return Status::invalid_type("cu_seqlens_q is neither int32 nor int64");
  if (call.cu_seqlens_k_dtype > WARPLOOM_INT64) return Status::invalid_type("cu_seqlens_k is neither int32 nor int64");
  return validate_num_threads(call.num_threads);
}

Status check_head_dim(const warploom_attention& call, const char* tensor, int64_t dim) {
  if (dim < 1 || dim > kMaxHeadDim) {
    return bad_value("the head dimension of ", tensor, " is ", dim, "; the CPU serves 1 to ", kMaxHeadDim,
                     ", a GPU multiples of 8 up to 256");
  }
  if (call.device == WARPLOOM_CUDA && (dim % 8 != 0 || dim > 256)) {
    return bad_value("the head dimension of ", tensor, " is ", dim, "; on a GPU it is a multiple of 8 up to 256");
  }
  return {};
}

/// Of a jagged batch.
Status check_max_seqlen(const char* name, int64_t value) {
  if (value < WARPLOOM_FROM_CU_SEQLENS)
    return bad_value(name, " = ", value, " is negative; pass the longest length, or leave it out");
  if (value > kMaxSequence)
    return bad_value(name, " = ", value, " is above the limit, ", kMaxSequence,
                     "; pass the longest length, or leave it out");
  return {};
}

Status check_shapes(const warploom_attention& call) {
  if (call.batch < 0 || call.batch > kMaxSequence)
    return bad_value("batch = ", call.batch, " is not a number of sequences");
  if (call.heads < 1 || call.heads > kMaxHeads)
    return bad_value("q has ", call.heads, " heads; 1 to ", kMaxHeads, " are served");
  if (call.key_heads < 1) return bad_value("k has ", call.key_heads, " heads; at least 1 is needed");
  if (call.heads % call.key_heads != 0) {
    return bad_value("q has ", call.heads, " heads and k has ", call.key_heads, "; k's heads must divide q's");
  }
  WARPLOOM_RETURN_IF_ERROR(check_head_dim(call, "q and k", call.head_dim));
  WARPLOOM_RETURN_IF_ERROR(check_head_dim(call, "v", call.value_dim));
  if (call.total_q < 0 || call.total_q > kMaxRows) return bad_value("q has ", call.total_q, " rows");
  if (call.total_k < 0 || call.total_k > kMaxRows) return bad_value("k has ", call.total_k, " rows");
  if (is_dense(call)) {
    if (call.cu_seqlens_k != nullptr)
      return bad_value("cu_seqlens_k is given without cu_seqlens_q; pass both, or neither for a dense batch");
    if (call.max_seqlen_q < 0 || call.max_seqlen_k < 0 || call.max_seqlen_q > kMaxSequence ||
        call.max_seqlen_k > kMaxSequence) {
      return bad_value("a dense batch needs its lengths as max_seqlen_q and max_seqlen_k, 0 to ", kMaxSequence);
    }
    if (call.total_q != call.batch * call.max_seqlen_q)
      return bad_value("total_q = ", call.total_q, " is not batch * max_seqlen_q = ", call.batch * call.max_seqlen_q);
    if (call.total_k != call.batch * call.max_seqlen_k)
      return bad_value("total_k = ", call.total_k, " is not batch * max_seqlen_k = ", call.batch * call.max_seqlen_k);
    return {};
  }
  WARPLOOM_RETURN_IF_ERROR(check_max_seqlen("max_seqlen_q", call.max_seqlen_q));
  WARPLOOM_RETURN_IF_ERROR(check_max_seqlen("max_seqlen_k", call.max_seqlen_k));
  if (call.cu_seqlens_k == nullptr && call.total_q != call.total_k) {
    return bad_value("k has ", call.total_k, " rows and q has ", call.total_q,
                     "; without cu_seqlens_k they share cu_seqlens_q and so their number of rows");
  }
  return {};
}

/// Of an array, written or only read, given by its axes.
Status check_strides(const char* name, std::initializer_list<Axis> axes, bool written) {
  if (!is_reachable(axes)) return bad_value(name, " has strides that reach past any memory; pass strides in elements");
  if (written && repeats_elements(axes))
    return bad_value(name, " has a stride of 0, so its elements share memory, but it is written; pass memory for each");
  return {};
}

Status check_pointer(const char* name, const void* pointer, int64_t element_bytes) {
  if (is_aligned(pointer, element_bytes)) return {};
  return bad_value(name, " starts at an address that is not a multiple of its elements' ", element_bytes,
                   " bytes; pass an aligned array (copy it)");
}

/// A GPU moves 16 bytes at a time.
Status check_gpu_tensor(const warploom_attention& call, const char* name, const warploom_tensor& tensor,
                        std::initializer_list<Axis> axes) {
  if (!is_aligned(tensor.data, 16)) {
    return bad_value(
        name, " starts at an address that is not a multiple of 16 bytes; on a GPU pass an aligned tensor (clone it)");
  }
  const int64_t elements = 16 / dtype_bytes(call.dtype);
  for (const Axis& axis : axes) {
    if (axis.extent > 1 && axis.stride % elements != 0) {
      return bad_value(name, " has a stride of ", axis.stride, " elements; on a GPU strides are multiples of ",
                       elements, " (16 bytes), pass an aligned tensor (clone it)");
    }
  }
  return {};
}

enum class Use { read, write };

/// `length`: rows of one sequence of a dense batch.
Status check_tensor(const warploom_attention& call, const char* name, const warploom_tensor& tensor, int64_t rows,
                    int64_t length, int64_t heads, Use use) {
  if (rows > 0 && tensor.data == nullptr) return bad_value(name, " is missing (null) but has ", rows, " rows");
  const Axis batch = is_dense(call) ? Axis{call.batch, tensor.batch_stride} : Axis{};
  const std::initializer_list<Axis> axes = {
      batch, {is_dense(call) ? length : rows, tensor.row_stride}, {heads, tensor.head_stride}};
  if (rows > 0) WARPLOOM_RETURN_IF_ERROR(check_strides(name, axes, use == Use::write));
  WARPLOOM_RETURN_IF_ERROR(check_pointer(name, tensor.data, dtype_bytes(call.dtype)));
  return call.device == WARPLOOM_CUDA && rows > 0 ? check_gpu_tensor(call, name, tensor, axes) : Status();
}

Status check_query_tensor(const warploom_attention& call, const char* name, const warploom_tensor& tensor, Use use) {
  return check_tensor(call, name, tensor, call.total_q, call.max_seqlen_q, call.heads, use);
}

Status check_key_tensor(const warploom_attention& call, const char* name, const warploom_tensor& tensor, Use use) {
  return check_tensor(call, name, tensor, call.total_k, call.max_seqlen_k, call.key_heads, use);
}

Status check_lse(const warploom_attention& call) {
  const bool forward = call.pass == WARPLOOM_FORWARD;
  if (call.lse == nullptr) {
    if (forward || call.total_q == 0) return {};
    return bad_value("lse is missing; softmax backward needs the forward's lse (return_lse=True)");
  }
  WARPLOOM_RETURN_IF_ERROR(check_pointer("lse", call.lse, sizeof(float)));
  if (call.total_q == 0) return {};
  const Axis batch = is_dense(call) ? Axis{call.batch, call.lse_batch_stride} : Axis{};
  return check_strides(
      "lse", {batch, {call.heads, call.lse_head_stride}, {is_dense(call) ? call.max_seqlen_q : call.total_q, 1}},
      forward);
}

Status check_tensors(const warploom_attention& call) {
  WARPLOOM_RETURN_IF_ERROR(check_query_tensor(call, "q", call.q, Use::read));
  WARPLOOM_RETURN_IF_ERROR(check_key_tensor(call, "k", call.k, Use::read));
  WARPLOOM_RETURN_IF_ERROR(check_key_tensor(call, "v", call.v, Use::read));
  const bool softmax = call.op == WARPLOOM_SOFTMAX;
  if (softmax) WARPLOOM_RETURN_IF_ERROR(check_lse(call));
  if (call.pass == WARPLOOM_FORWARD) return check_query_tensor(call, "out", call.out, Use::write);
  if (softmax) WARPLOOM_RETURN_IF_ERROR(check_query_tensor(call, "out", call.out, Use::read));
  WARPLOOM_RETURN_IF_ERROR(check_query_tensor(call, "dout", call.dout, Use::read));
  WARPLOOM_RETURN_IF_ERROR(check_query_tensor(call, "dq", call.dq, Use::write));
  WARPLOOM_RETURN_IF_ERROR(check_key_tensor(call, "dk", call.dk, Use::write));
  return check_key_tensor(call, "dv", call.dv, Use::write);
}

/// Arrays of lengths, counts and per-row numbers.
Status check_arrays(const warploom_attention& call) {
  WARPLOOM_RETURN_IF_ERROR(
      check_pointer("cu_seqlens_q", call.cu_seqlens_q, call.cu_seqlens_q_dtype == WARPLOOM_INT64 ? 8 : 4));
  WARPLOOM_RETURN_IF_ERROR(
      check_pointer("cu_seqlens_k", call.cu_seqlens_k, call.cu_seqlens_k_dtype == WARPLOOM_INT64 ? 8 : 4));
  WARPLOOM_RETURN_IF_ERROR(check_pointer("seqused_q", call.seqused_q, sizeof(int32_t)));
  WARPLOOM_RETURN_IF_ERROR(check_pointer("seqused_k", call.seqused_k, sizeof(int32_t)));
  WARPLOOM_RETURN_IF_ERROR(check_pointer("num_contexts", call.num_contexts, sizeof(int32_t)));
  WARPLOOM_RETURN_IF_ERROR(check_pointer("num_targets", call.num_targets, sizeof(int32_t)));
  WARPLOOM_RETURN_IF_ERROR(check_pointer("intervals", call.intervals, sizeof(int32_t)));
  return check_pointer("divisor", call.divisor_rows, sizeof(float));
}

Status check_mask_function(const warploom_attention& call) {
  if (call.left != WARPLOOM_UNBOUNDED || call.right != WARPLOOM_UNBOUNDED || call.target_group_size != 1 ||
      has_flag(call, WARPLOOM_WINDOW_FROM_HISTORY_END)) {
    return bad_value("a mask function replaces every other mask rule; leave out left, right and the targets' options");
  }
  return expression::find_mask(call.mask_function).status();
}

/// Only for HSTU: softmax's P is no function of one score.
Status check_score_function(const warploom_attention& call) {
  if (!has_score_function(call)) return {};
  if (call.op == WARPLOOM_SOFTMAX)
    return bad_value("score belongs to HSTU attention, where it replaces silu; softmax attention takes none");
  return expression::find_score(call.score).status();
}

Status check_mask(const warploom_attention& call) {
  if (call.left < 0) return bad_value("left = ", call.left, " is negative; pass 0 or more, or None for no limit");
  if (call.right < 0) return bad_value("right = ", call.right, " is negative; pass 0 or more, or None for no limit");
  if (call.target_group_size < 1) return bad_value("target_group_size = ", call.target_group_size, " is below 1");
  const bool counts = has_contexts(call) || has_targets(call);
  if (!has_interval_mask(call) && (call.intervals != nullptr || call.num_intervals != 0)) {
    return bad_value("intervals has 0 heads; it must have 1 or q's ", call.heads);
  }
  if (has_interval_mask(call)) {
    if (has_mask_function(call)) return bad_value("intervals are given beside a mask function; pass one of the two");
    if (counts || call.left != WARPLOOM_UNBOUNDED || call.right != WARPLOOM_UNBOUNDED) {
      return bad_value("intervals replace every other mask rule; leave out left, right, num_contexts and num_targets");
    }
    if (call.num_intervals < 0 || call.num_intervals > kMaxIntervals) {
      return bad_value("intervals has ", call.num_intervals, " intervals a row; 0 to ", kMaxIntervals, " are served");
    }
    if (call.interval_heads != 1 && call.interval_heads != call.heads) {
      return bad_value("intervals has ", call.interval_heads, " heads; it must have 1 or q's ", call.heads);
    }
    if (call.intervals == nullptr && call.total_q > 0 && call.num_intervals > 0)
      return bad_value("intervals is missing (null)");
    return {};
  }
  if (has_mask_function(call)) return check_mask_function(call);
  if (counts && call.right != 0) {
    const char* which = has_contexts(call) ? "num_contexts" : "num_targets";
    return call.right == WARPLOOM_UNBOUNDED
               ? bad_value("right = None with ", which, "; contexts and targets need a causal mask, pass right=0")
               : bad_value("right = ", call.right, " with ", which,
                           "; contexts and targets need a causal mask, pass right=0");
  }
  return {};
}

Status check_scalars(const warploom_attention& call) {
  if (has_flag(call, WARPLOOM_HAS_ALPHA) && !(std::abs(call.alpha) <= FLT_MAX))
    return bad_value("alpha = ", call.alpha, " is not a finite float32");
  if (call.softcap != 0 && !(call.softcap >= FLT_MIN && call.softcap <= FLT_MAX)) {
    return bad_value("softcap = ", call.softcap, " is not a positive float32; pass 0 or None to switch it off");
  }
  const bool divisor = has_flag(call, WARPLOOM_HAS_DIVISOR);
  if (call.op == WARPLOOM_SOFTMAX) {
    if (divisor || call.divisor_rows != nullptr)
      return bad_value("divisor belongs to HSTU attention; softmax attention takes none");
    if (has_flag(call, WARPLOOM_BIAS_NOT_SCALED))
      return bad_value("bias_scaled_by_alpha belongs to HSTU attention; softmax adds the bias to alpha * Q K^T");
    return {};
  }
  if (call.softcap != 0)
    return bad_value("softcap = ", call.softcap, " belongs to softmax attention; HSTU attention takes none");
  if (call.lse != nullptr) return bad_value("lse belongs to softmax attention; HSTU attention has none");
  if (divisor && call.divisor_rows != nullptr)
    return bad_value("divisor is given both as a number and for each row; pass one");
  if (divisor && !(std::abs(call.divisor) >= FLT_MIN && std::abs(call.divisor) <= FLT_MAX)) {
    return bad_value("divisor = ", call.divisor, "; it must be a finite float32 other than 0");
  }
  return {};
}

Status check_bias_dtype(const warploom_attention& call) {
  if (call.bias.dtype > WARPLOOM_BFLOAT16 || (call.bias.dtype != WARPLOOM_FLOAT32 && call.bias.dtype != call.dtype)) {
    return Status::invalid_type(message("bias is ", dtype_name(call.bias.dtype), "; with q in ", dtype_name(call.dtype),
                                        " it must be ", dtype_name(call.dtype), " or float32"));
  }
  return {};
}

Status check_bias_heads(const char* name, int64_t heads, int64_t problem_heads) {
  if (heads != 1 && heads != problem_heads)
    return bad_value(name, " has ", heads, " heads; it must have 1 or q's ", problem_heads);
  return {};
}

/// A float32 table of a bucketed bias, (heads, entries).
Status check_table(const warploom_attention& call, const char* name, const float* table, const float* grad,
                   int64_t heads, int64_t entries, int64_t head_stride) {
  WARPLOOM_RETURN_IF_ERROR(check_bias_heads(name, heads, call.heads));
  if (entries < 1 || entries > kMaxSequence)
    return bad_value(name, " has ", entries, " entries; 1 to ", kMaxSequence, " are served");
  WARPLOOM_RETURN_IF_ERROR(check_strides(name, {{heads, head_stride}, {entries, 1}}, false));
  WARPLOOM_RETURN_IF_ERROR(check_pointer(name, table, sizeof(float)));
  return check_pointer(name, grad, sizeof(float));
}

Status check_bucketed_bias(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  if (bias.position == nullptr && bias.time == nullptr)
    return bad_value("position and time are both missing; a bucketed bias needs at least one table");
  if (bias.position != nullptr) {
    WARPLOOM_RETURN_IF_ERROR(check_table(call, "position", bias.position, bias.position_grad, bias.position_heads,
                                         bias.num_positions, bias.position_head_stride));
  }
  if (bias.time == nullptr) return {};
  WARPLOOM_RETURN_IF_ERROR(
      check_table(call, "time", bias.time, bias.time_grad, bias.time_heads, bias.num_times, bias.time_head_stride));
  if (bias.timestamps == nullptr && call.total_k > 0)
    return bad_value("timestamps is missing; a time table needs one int64 for each row of k");
  WARPLOOM_RETURN_IF_ERROR(check_pointer("timestamps", bias.timestamps, sizeof(int64_t)));
  return check_pointer("time_bucket", bias.time_bucket, sizeof(int64_t));
}

/// What dense and packed biases have in common: memory for the values and, in backward, for a gradient of the same
/// shape.
Status check_bias_memory(const warploom_attention& call, bool empty, std::initializer_list<Axis> axes,
                         std::initializer_list<Axis> grad_axes) {
  const warploom_bias& bias = call.bias;
  if (empty) return {};
  if (bias.values == nullptr) return bad_value("bias has no values (null)");
  WARPLOOM_RETURN_IF_ERROR(check_pointer("bias", bias.values, dtype_bytes(bias.dtype)));
  WARPLOOM_RETURN_IF_ERROR(check_strides("bias", axes, false));
  if (call.pass == WARPLOOM_FORWARD || bias.grad == nullptr) return {};
  WARPLOOM_RETURN_IF_ERROR(check_pointer("the gradient of bias", bias.grad, dtype_bytes(bias.dtype)));
  return check_strides("the gradient of bias", grad_axes, true);
}

Status check_dense_bias(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  if (bias.batch != 1 && bias.batch != call.batch)
    return bad_value("bias has ", bias.batch, " sequences; it must have 1 or the batch's ", call.batch);
  if (bias.rows > WARPLOOM_ROWS_QUERY) return bad_value("rows = ", bias.rows, " is unknown; use \"k\" or \"q\"");
  if (bias.num_rows < 0 || bias.num_rows > kMaxSequence)
    return bad_value("bias has ", bias.num_rows, " rows; its row axis must be max_seqlen_k or max_seqlen_q");
  if (bias.num_columns < 0 || bias.num_columns > kMaxSequence)
    return bad_value("bias has ", bias.num_columns, " columns; its last axis must be max_seqlen_k");
  const int64_t padded = packed_pitch(bias.num_columns, bias.dtype);
  if (has_flag(call, WARPLOOM_BIAS_GRAD_PADDED) && bias.grad != nullptr && bias.num_rows > 1 &&
      bias.grad_row_stride < padded) {
    return bad_value("grad_row_stride = ", bias.grad_row_stride,
                     " with WARPLOOM_BIAS_GRAD_PADDED; a row and its padding", " take ", padded, " elements");
  }
  return check_bias_memory(call, bias.batch == 0 || bias.num_rows == 0 || bias.num_columns == 0,
                           {{bias.batch, bias.batch_stride},
                            {bias.heads, bias.head_stride},
                            {bias.num_rows, bias.row_stride},
                            {bias.num_columns, 1}},
                           {{bias.batch, bias.grad_batch_stride},
                            {bias.heads, bias.grad_head_stride},
                            {bias.num_rows, bias.grad_row_stride},
                            {bias.num_columns, 1}});
}

Status check_packed_bias(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  if (bias.rows != WARPLOOM_ROWS_KEY && bias.rows != WARPLOOM_ROWS_QUERY)
    return bad_value("rows = ", bias.rows, "; a packed bias needs rows \"k\" or \"q\"");
  if (bias.num_columns < 0 || bias.num_columns > kMaxElements)
    return bad_value("bias has ", bias.num_columns, " elements a head, which no memory holds");
  return check_bias_memory(call, bias.num_columns == 0, {{bias.heads, bias.head_stride}, {bias.num_columns, 1}},
                           {{bias.heads, bias.grad_head_stride}, {bias.num_columns, 1}});
}

Status check_bias_description(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  switch (bias.kind) {
    case WARPLOOM_NO_BIAS:
      return {};
    case WARPLOOM_DENSE_BIAS:
    case WARPLOOM_PACKED_BIAS:
      WARPLOOM_RETURN_IF_ERROR(check_bias_dtype(call));
      WARPLOOM_RETURN_IF_ERROR(check_bias_heads("bias", bias.heads, call.heads));
      return bias.kind == WARPLOOM_DENSE_BIAS ? check_dense_bias(call) : check_packed_bias(call);
    case WARPLOOM_BUCKETED_BIAS:
      return check_bucketed_bias(call);
    default:
      return bad_value("bias.kind = ", bias.kind, " is unknown; use none, dense, packed or bucketed");
  }
}

Status check_cumulative(const char* name, int64_t (*entry)(const warploom_attention&, int64_t),
                        const warploom_attention& call, int64_t rows) {
  if (entry(call, 0) != 0) return bad_value(name, "[0] = ", entry(call, 0), "; it must be 0");
  for (int64_t b = 0; b < call.batch; ++b) {
    const int64_t begin = entry(call, b), end = entry(call, b + 1);
    if (end < begin)
      return bad_value(name, "[", b + 1, "] = ", end, " is smaller than ", name, "[", b, "] = ", begin,
                       "; cumulative lengths must not decrease");
    if (end - begin > kMaxSequence)
      return bad_value(name, " gives sequence ", b, " ", end - begin, " rows; the limit is ", kMaxSequence);
  }
  if (entry(call, call.batch) > rows) {
    return bad_value(name, "[", call.batch, "] = ", entry(call, call.batch), " goes past the tensor's ", rows, " rows");
  }
  return {};
}

Status check_max(const char* name, int64_t given, int64_t longest) {
  if (given != WARPLOOM_FROM_CU_SEQLENS && given < longest) {
    return bad_value(name, " = ", given, " is smaller than the longest sequence, ", longest, "; pass at least that");
  }
  return {};
}

Status check_used(const char* name, int64_t b, int64_t used, int64_t slot) {
  if (used < 0) return bad_value(name, "[", b, "] = ", used, " is negative");
  if (used > slot) return bad_value(name, "[", b, "] = ", used, " exceeds the sequence's ", slot, " rows");
  return {};
}

Status check_sequence(const warploom_attention& call, int64_t b) {
  const Sequence s = sequence_at(call, b);
  const geometry::SequenceMask& mask = s.mask;
  WARPLOOM_RETURN_IF_ERROR(check_used("seqused_q", b, mask.seqlen_q, s.slot_q));
  WARPLOOM_RETURN_IF_ERROR(check_used("seqused_k", b, mask.seqlen_k, s.slot_k));
  if (mask.num_contexts < 0) return bad_value("num_contexts[", b, "] = ", mask.num_contexts, " is negative");
  if (mask.num_targets < 0) return bad_value("num_targets[", b, "] = ", mask.num_targets, " is negative");
  if (mask.num_targets > mask.seqlen_k) {
    return bad_value("num_targets[", b, "] = ", mask.num_targets, " exceeds the sequence's ", mask.seqlen_k,
                     " keys; pass counts <= seqlen_k");
  }
  if (int64_t{mask.num_contexts} + mask.num_targets > mask.seqlen_k) {
    return bad_value("num_contexts[", b, "] = ", mask.num_contexts, " with num_targets[", b, "] = ", mask.num_targets,
                     " exceeds the sequence's ", mask.seqlen_k, " keys; their sum must be <= seqlen_k");
  }
  if (mask.seqlen_q > mask.seqlen_k && call.op == WARPLOOM_HSTU) {
    const bool slots_fit = s.slot_q <= s.slot_k;
    return bad_value(slots_fit        ? "seqused_q"
                     : is_dense(call) ? "q"
                                      : "cu_seqlens_q",
                     " gives sequence ", b, " ", mask.seqlen_q, " queries for ", mask.seqlen_k,
                     " keys; HSTU attention needs seqlen_q <= seqlen_k");
  }
  if (mask.seqlen_q > mask.seqlen_k && call.bias.kind == WARPLOOM_BUCKETED_BIAS && call.bias.time != nullptr) {
    return bad_value("time: sequence ", b, " has ", mask.seqlen_q, " queries for ", mask.seqlen_k,
                     " keys; a time bias needs seqlen_q <= seqlen_k");
  }
  return {};
}

Status check_bias_values(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  if (bias.kind == WARPLOOM_DENSE_BIAS) {
    const int64_t max_q = effective_max_seqlen_q(call), max_k = effective_max_seqlen_k(call);
    if (bias.num_columns != max_k)
      return bad_value("bias has ", bias.num_columns, " columns; its last axis must be max_seqlen_k = ", max_k);
    const bool fits = (bias.rows != WARPLOOM_ROWS_QUERY && bias.num_rows == max_k) ||
                      (bias.rows != WARPLOOM_ROWS_KEY && bias.num_rows == max_q);
    if (!fits) {
      return bad_value("bias has ", bias.num_rows, " rows",
                       bias.rows == WARPLOOM_ROWS_AUTO  ? ""
                       : bias.rows == WARPLOOM_ROWS_KEY ? " with rows=\"k\""
                                                        : " with rows=\"q\"",
                       "; its row axis must be max_seqlen_k = ", max_k, " (rows=\"k\") or max_seqlen_q = ", max_q,
                       " (rows=\"q\")");
    }
  }
  if (bias.kind == WARPLOOM_PACKED_BIAS) {
    int64_t elements = 0;
    for (int64_t b = 0; b < call.batch && elements <= kMaxElements; ++b) {
      const Sequence s = sequence_at(call, b);
      elements += (bias.rows == WARPLOOM_ROWS_KEY ? s.slot_k : s.slot_q) * packed_pitch(s.slot_k, bias.dtype);
    }
    if (bias.num_columns != elements) {
      return bad_value("bias has ", bias.num_columns, " elements a head; packed with rows=\"",
                       bias.rows == WARPLOOM_ROWS_KEY ? "k" : "q", "\" these sequences need ", elements,
                       " (each row padded to 16 bytes)");
    }
  }
  if (bias.kind == WARPLOOM_BUCKETED_BIAS && bias.time != nullptr && bias.time_bucket != nullptr) {
    for (int64_t n = 1; n + 1 < bias.num_times; ++n) {
      if (bias.time_bucket[n] < bias.time_bucket[n - 1]) {
        return bad_value("time_bucket[", n, "] = ", bias.time_bucket[n],
                         " is smaller than the threshold before it; thresholds must not decrease");
      }
    }
  }
  return {};
}

}  // namespace

Status validate_num_threads(std::int32_t count) {
  if (count < 0) return bad_value("num_threads = ", count, " is negative; 0 means the default");
  if (count > kMaxThreads) return bad_value("num_threads = ", count, " is above the limit, ", kMaxThreads);
  return {};
}

Status validate_description(const warploom_attention& call) {
  WARPLOOM_RETURN_IF_ERROR(check_versions(call));
  WARPLOOM_RETURN_IF_ERROR(check_codes(call));
  WARPLOOM_RETURN_IF_ERROR(check_shapes(call));
  WARPLOOM_RETURN_IF_ERROR(check_arrays(call));
  WARPLOOM_RETURN_IF_ERROR(check_mask(call));
  WARPLOOM_RETURN_IF_ERROR(check_scalars(call));
  WARPLOOM_RETURN_IF_ERROR(check_score_function(call));
  WARPLOOM_RETURN_IF_ERROR(check_bias_description(call));
  return check_tensors(call);
}

Status validate_values(const warploom_attention& call) {
  if (!is_dense(call)) {
    WARPLOOM_RETURN_IF_ERROR(check_cumulative("cu_seqlens_q", cumulative_length_q, call, call.total_q));
    if (call.cu_seqlens_k != nullptr) {
      WARPLOOM_RETURN_IF_ERROR(check_cumulative("cu_seqlens_k", cumulative_length_k, call, call.total_k));
    }
    WARPLOOM_RETURN_IF_ERROR(check_max("max_seqlen_q", call.max_seqlen_q, longest_slot_q(call)));
    WARPLOOM_RETURN_IF_ERROR(check_max("max_seqlen_k", call.max_seqlen_k, longest_slot_k(call)));
  }
  for (int64_t b = 0; b < call.batch; ++b) WARPLOOM_RETURN_IF_ERROR(check_sequence(call, b));
  return check_bias_values(call);
}

}  // namespace warploom
