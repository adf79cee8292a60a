#include "problem/validate.h"

#include <cmath>
#include <cstdint>

#include "problem/message.h"
#include "problem/sequence.h"

namespace warploom {
namespace {

constexpr int64_t kMaxHeadDim = 512;
constexpr int64_t kMaxSequence = geometry::kUnbounded - 1;
constexpr int64_t kMaxRows = int64_t{1} << 40;
constexpr uint32_t kKnownFlags = WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR | WARPLOOM_BIAS_NOT_SCALED |
                                 WARPLOOM_WINDOW_FROM_HISTORY_END | WARPLOOM_DETERMINISTIC | WARPLOOM_CHECK_INPUTS;

template <typename... Pieces>
Status bad_value(const Pieces&... pieces) {
  return Status::invalid_value(message(pieces...));
}

#define WARPLOOM_RETURN_IF_ERROR(expression)       \
  if (Status status = (expression); !status.ok()) { \
    return status;                                  \
  }

bool has_flag(const warploom_attention& call, uint32_t flag) { return (call.flags & flag) != 0; }
bool has_contexts(const warploom_attention& call) { return call.num_contexts != nullptr || call.num_contexts_all >= 0; }
bool has_targets(const warploom_attention& call) { return call.num_targets != nullptr || call.num_targets_all >= 0; }

Status check_versions(const warploom_attention& call) {
  if (call.abi_version != WARPLOOM_ABI_VERSION) {
    return Status::runtime_error(message("abi_version = ", call.abi_version, " but this library speaks version ",
                                         WARPLOOM_ABI_VERSION, ", so library and caller are of different releases; ",
                                         "install both from the same release"));
  }
  if (call.struct_bytes != sizeof(warploom_attention)) {
    return Status::runtime_error(message("struct_bytes = ", call.struct_bytes, " but warploom_attention has ",
                                         sizeof(warploom_attention), " bytes here; build against this release's warploom.h"));
  }
  return {};
}

Status check_codes(const warploom_attention& call) {
  if (call.op > WARPLOOM_SOFTMAX) return bad_value("op = ", call.op, " is unknown; use WARPLOOM_HSTU or WARPLOOM_SOFTMAX");
  if (call.pass > WARPLOOM_BACKWARD) return bad_value("pass = ", call.pass, " is unknown; use WARPLOOM_FORWARD or WARPLOOM_BACKWARD");
  if (call.device > WARPLOOM_CUDA) return bad_value("device = ", call.device, " is unknown; use WARPLOOM_CPU or WARPLOOM_CUDA");
  if (call.dtype > WARPLOOM_BFLOAT16) {
    return Status::invalid_type(message("dtype = ", call.dtype, " is unknown; q, k and v take float32, float16 or bfloat16"));
  }
  if (call.device == WARPLOOM_CUDA && call.dtype == WARPLOOM_FLOAT32) {
    return Status::invalid_type("q is float32, which runs on the CPU only; on a GPU pass float16 or bfloat16");
  }
  if ((call.flags & ~kKnownFlags) != 0) {
    return bad_value("flags = ", call.flags, " has unknown options (bits ", call.flags & ~kKnownFlags,
                     "); this library knows bits ", kKnownFlags);
  }
  if (call.reserved != 0 || call.bias.reserved != 0) return bad_value("reserved fields must be 0; zero the structure before filling it in");
  if (call.cu_seqlens_q_dtype > WARPLOOM_INT64) return Status::invalid_type("cu_seqlens_q is neither int32 nor int64");
  if (call.cu_seqlens_k_dtype > WARPLOOM_INT64) return Status::invalid_type("cu_seqlens_k is neither int32 nor int64");
  if (call.num_threads < 0) return bad_value("num_threads = ", call.num_threads, " is negative; 0 means the default");
  return {};
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

Status check_shapes(const warploom_attention& call) {
  if (call.batch < 0 || call.batch > kMaxSequence) return bad_value("batch = ", call.batch, " is not a number of sequences");
  if (call.heads < 1) return bad_value("q has ", call.heads, " heads; at least 1 is needed");
  if (call.key_heads < 1) return bad_value("k has ", call.key_heads, " heads; at least 1 is needed");
  if (call.heads % call.key_heads != 0) {
    return bad_value("q has ", call.heads, " heads and k has ", call.key_heads, "; k's heads must divide q's");
  }
  WARPLOOM_RETURN_IF_ERROR(check_head_dim(call, "q and k", call.head_dim));
  WARPLOOM_RETURN_IF_ERROR(check_head_dim(call, "v", call.value_dim));
  if (call.total_q < 0 || call.total_q > kMaxRows) return bad_value("q has ", call.total_q, " rows");
  if (call.total_k < 0 || call.total_k > kMaxRows) return bad_value("k has ", call.total_k, " rows");
  if (is_dense(call)) {
    if (call.cu_seqlens_k != nullptr) return bad_value("cu_seqlens_k is given without cu_seqlens_q; pass both, or neither for a dense batch");
    if (call.max_seqlen_q < 0 || call.max_seqlen_k < 0 || call.max_seqlen_q > kMaxSequence || call.max_seqlen_k > kMaxSequence) {
      return bad_value("a dense batch needs its lengths as max_seqlen_q and max_seqlen_k, 0 to ", kMaxSequence);
    }
    if (call.total_q != call.batch * call.max_seqlen_q) return bad_value("total_q = ", call.total_q, " is not batch * max_seqlen_q = ", call.batch * call.max_seqlen_q);
    if (call.total_k != call.batch * call.max_seqlen_k) return bad_value("total_k = ", call.total_k, " is not batch * max_seqlen_k = ", call.batch * call.max_seqlen_k);
    return {};
  }
  if (call.max_seqlen_q < WARPLOOM_FROM_CU_SEQLENS) return bad_value("max_seqlen_q = ", call.max_seqlen_q, " is negative; pass the longest length, or leave it out");
  if (call.max_seqlen_k < WARPLOOM_FROM_CU_SEQLENS) return bad_value("max_seqlen_k = ", call.max_seqlen_k, " is negative; pass the longest length, or leave it out");
  if (call.cu_seqlens_k == nullptr && call.total_q != call.total_k) {
    return bad_value("k has ", call.total_k, " rows and q has ", call.total_q, "; without cu_seqlens_k they share cu_seqlens_q and so their number of rows");
  }
  return {};
}

Status check_tensor(const warploom_attention& call, const char* name, const warploom_tensor& tensor, int64_t rows) {
  if (rows > 0 && tensor.data == nullptr) return bad_value(name, " is missing (null) but has ", rows, " rows");
  if (call.device == WARPLOOM_CUDA) {
    if (reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0) {
      return bad_value(name, " starts at an address that is not a multiple of 16 bytes; on a GPU pass an aligned tensor (clone it)");
    }
    const int64_t elements = 16 / dtype_bytes(call.dtype);
    if (tensor.row_stride % elements != 0 || tensor.head_stride % elements != 0 || (is_dense(call) && tensor.batch_stride % elements != 0)) {
      return bad_value(name, " has strides that are not multiples of ", elements, " elements (16 bytes); on a GPU pass an aligned tensor (clone it)");
    }
  }
  return {};
}

Status check_tensors(const warploom_attention& call) {
  WARPLOOM_RETURN_IF_ERROR(check_tensor(call, "q", call.q, call.total_q));
  WARPLOOM_RETURN_IF_ERROR(check_tensor(call, "k", call.k, call.total_k));
  WARPLOOM_RETURN_IF_ERROR(check_tensor(call, "v", call.v, call.total_k));
  const bool softmax = call.op == WARPLOOM_SOFTMAX;
  if (call.pass == WARPLOOM_FORWARD) return check_tensor(call, "out", call.out, call.total_q);
  WARPLOOM_RETURN_IF_ERROR(check_tensor(call, "dout", call.dout, call.total_q));
  WARPLOOM_RETURN_IF_ERROR(check_tensor(call, "dq", call.dq, call.total_q));
  WARPLOOM_RETURN_IF_ERROR(check_tensor(call, "dk", call.dk, call.total_k));
  WARPLOOM_RETURN_IF_ERROR(check_tensor(call, "dv", call.dv, call.total_k));
  if (!softmax) return {};
  WARPLOOM_RETURN_IF_ERROR(check_tensor(call, "out", call.out, call.total_q));
  if (call.lse == nullptr && call.total_q > 0) return bad_value("lse is missing; softmax backward needs the forward's lse (return_lse=True)");
  return {};
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
    if (counts || call.left != WARPLOOM_UNBOUNDED || call.right != WARPLOOM_UNBOUNDED) {
      return bad_value("intervals replace every other mask rule; leave out left, right, num_contexts and num_targets");
    }
    if (call.num_intervals < 0) return bad_value("intervals has ", call.num_intervals, " intervals a row");
    if (call.interval_heads != 1 && call.interval_heads != call.heads) {
      return bad_value("intervals has ", call.interval_heads, " heads; it must have 1 or q's ", call.heads);
    }
    if (call.intervals == nullptr && call.total_q > 0 && call.num_intervals > 0) return bad_value("intervals is missing (null)");
    return {};
  }
  if (counts && call.right != 0) {
    const char* which = has_contexts(call) ? "num_contexts" : "num_targets";
    return call.right == WARPLOOM_UNBOUNDED
               ? bad_value("right = None with ", which, "; contexts and targets need a causal mask, pass right=0")
               : bad_value("right = ", call.right, " with ", which, "; contexts and targets need a causal mask, pass right=0");
  }
  return {};
}

Status check_scalars(const warploom_attention& call) {
  if (has_flag(call, WARPLOOM_HAS_ALPHA) && !std::isfinite(call.alpha)) return bad_value("alpha = ", call.alpha, " is not finite");
  if (!(call.softcap >= 0) || !std::isfinite(call.softcap)) return bad_value("softcap = ", call.softcap, " is not a positive number; pass 0 or None to switch it off");
  const bool divisor = has_flag(call, WARPLOOM_HAS_DIVISOR);
  if (call.op == WARPLOOM_SOFTMAX) {
    if (divisor || call.divisor_rows != nullptr) return bad_value("divisor belongs to HSTU attention; softmax attention takes none");
    if (has_flag(call, WARPLOOM_BIAS_NOT_SCALED)) return bad_value("bias_scaled_by_alpha belongs to HSTU attention; softmax adds the bias to alpha * Q K^T");
    return {};
  }
  if (call.softcap != 0) return bad_value("softcap = ", call.softcap, " belongs to softmax attention; HSTU attention takes none");
  if (call.lse != nullptr) return bad_value("lse belongs to softmax attention; HSTU attention has none");
  if (divisor && call.divisor_rows != nullptr) return bad_value("divisor is given both as a number and for each row; pass one");
  if (divisor && (call.divisor == 0 || !std::isfinite(call.divisor))) return bad_value("divisor = ", call.divisor, "; it must be a finite number other than 0");
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
  if (heads != 1 && heads != problem_heads) return bad_value(name, " has ", heads, " heads; it must have 1 or q's ", problem_heads);
  return {};
}

Status check_bucketed_bias(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  if (bias.position == nullptr && bias.time == nullptr) return bad_value("position and time are both missing; a bucketed bias needs at least one table");
  if (bias.position != nullptr) {
    WARPLOOM_RETURN_IF_ERROR(check_bias_heads("position", bias.position_heads, call.heads));
    if (bias.num_positions < 1 || bias.num_positions > kMaxSequence) return bad_value("position has ", bias.num_positions, " entries; at least 1 is needed");
  }
  if (bias.time != nullptr) {
    WARPLOOM_RETURN_IF_ERROR(check_bias_heads("time", bias.time_heads, call.heads));
    if (bias.num_times < 1 || bias.num_times > kMaxSequence) return bad_value("time has ", bias.num_times, " entries; at least 1 is needed");
    if (bias.timestamps == nullptr && call.total_k > 0) return bad_value("timestamps is missing; a time table needs one int64 for each row of k");
  }
  return {};
}

Status check_bias_description(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  switch (bias.kind) {
    case WARPLOOM_NO_BIAS:
      return {};
    case WARPLOOM_DENSE_BIAS:
      WARPLOOM_RETURN_IF_ERROR(check_bias_dtype(call));
      WARPLOOM_RETURN_IF_ERROR(check_bias_heads("bias", bias.heads, call.heads));
      if (bias.batch != 1 && bias.batch != call.batch) return bad_value("bias has ", bias.batch, " sequences; it must have 1 or the batch's ", call.batch);
      if (bias.rows > WARPLOOM_ROWS_QUERY) return bad_value("rows = ", bias.rows, " is unknown; use \"k\" or \"q\"");
      if (bias.values == nullptr && bias.batch * bias.num_rows * bias.num_columns > 0) return bad_value("bias has no values (null)");
      return {};
    case WARPLOOM_PACKED_BIAS:
      WARPLOOM_RETURN_IF_ERROR(check_bias_dtype(call));
      WARPLOOM_RETURN_IF_ERROR(check_bias_heads("bias", bias.heads, call.heads));
      if (bias.rows != WARPLOOM_ROWS_KEY && bias.rows != WARPLOOM_ROWS_QUERY) return bad_value("rows = ", bias.rows, "; a packed bias needs rows \"k\" or \"q\"");
      if (bias.values == nullptr && bias.num_columns > 0) return bad_value("bias has no values (null)");
      return {};
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
    if (end < begin) return bad_value(name, "[", b + 1, "] = ", end, " is smaller than ", name, "[", b, "] = ", begin, "; cumulative lengths must not decrease");
    if (end - begin > kMaxSequence) return bad_value(name, " gives sequence ", b, " ", end - begin, " rows; the limit is ", kMaxSequence);
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
    return bad_value("num_targets[", b, "] = ", mask.num_targets, " exceeds the sequence's ", mask.seqlen_k, " keys; pass counts <= seqlen_k");
  }
  if (int64_t{mask.num_contexts} + mask.num_targets > mask.seqlen_k) {
    return bad_value("num_contexts[", b, "] = ", mask.num_contexts, " with num_targets[", b, "] = ", mask.num_targets,
                     " exceeds the sequence's ", mask.seqlen_k, " keys; their sum must be <= seqlen_k");
  }
  if (mask.seqlen_q > mask.seqlen_k && call.op == WARPLOOM_HSTU) {
    return bad_value(is_dense(call) ? "q" : "cu_seqlens_q", " gives sequence ", b, " ", mask.seqlen_q, " queries for ", mask.seqlen_k,
                     " keys; HSTU attention needs seqlen_q <= seqlen_k");
  }
  if (mask.seqlen_q > mask.seqlen_k && call.bias.kind == WARPLOOM_BUCKETED_BIAS && call.bias.time != nullptr) {
    return bad_value("time: sequence ", b, " has ", mask.seqlen_q, " queries for ", mask.seqlen_k, " keys; a time bias needs seqlen_q <= seqlen_k");
  }
  return {};
}

Status check_bias_values(const warploom_attention& call) {
  const warploom_bias& bias = call.bias;
  if (bias.kind == WARPLOOM_DENSE_BIAS) {
    const int64_t max_q = effective_max_seqlen_q(call), max_k = effective_max_seqlen_k(call);
    if (bias.num_columns != max_k) return bad_value("bias has ", bias.num_columns, " columns; its last axis must be max_seqlen_k = ", max_k);
    const bool fits = (bias.rows != WARPLOOM_ROWS_QUERY && bias.num_rows == max_k) || (bias.rows != WARPLOOM_ROWS_KEY && bias.num_rows == max_q);
    if (!fits) {
      return bad_value("bias has ", bias.num_rows, " rows", bias.rows == WARPLOOM_ROWS_AUTO ? "" : bias.rows == WARPLOOM_ROWS_KEY ? " with rows=\"k\"" : " with rows=\"q\"",
                       "; its row axis must be max_seqlen_k = ", max_k, " (rows=\"k\") or max_seqlen_q = ", max_q, " (rows=\"q\")");
    }
  }
  if (bias.kind == WARPLOOM_PACKED_BIAS) {
    int64_t elements = 0;
    for (int64_t b = 0; b < call.batch; ++b) {
      const Sequence s = sequence_at(call, b);
      elements += (bias.rows == WARPLOOM_ROWS_KEY ? s.slot_k : s.slot_q) * packed_pitch(s.slot_k, bias.dtype);
    }
    if (bias.num_columns != elements) {
      return bad_value("bias has ", bias.num_columns, " elements a head; packed with rows=\"", bias.rows == WARPLOOM_ROWS_KEY ? "k" : "q",
                       "\" these sequences need ", elements, " (each row padded to 16 bytes)");
    }
  }
  if (bias.kind == WARPLOOM_BUCKETED_BIAS && bias.time != nullptr && bias.time_bucket != nullptr) {
    for (int64_t n = 1; n + 1 < bias.num_times; ++n) {
      if (bias.time_bucket[n] < bias.time_bucket[n - 1]) {
        return bad_value("time_bucket[", n, "] = ", bias.time_bucket[n], " is smaller than the threshold before it; thresholds must not decrease");
      }
    }
  }
  return {};
}

}  // namespace

Status validate_description(const warploom_attention& call) {
  WARPLOOM_RETURN_IF_ERROR(check_versions(call));
  WARPLOOM_RETURN_IF_ERROR(check_codes(call));
  WARPLOOM_RETURN_IF_ERROR(check_shapes(call));
  WARPLOOM_RETURN_IF_ERROR(check_mask(call));
  WARPLOOM_RETURN_IF_ERROR(check_scalars(call));
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
