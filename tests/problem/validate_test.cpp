// Every rule of a call: each row of the tables below breaks one and names the argument and the value that the message
// holds.
#include "problem/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "valid_call.h"

namespace warploom {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Status validate(const warploom_attention& call) {
  if (Status status = validate_description(call); !status.ok()) return status;
  return call.device == WARPLOOM_CPU ? validate_values(call) : Status();
}

struct Case {
  const char* name;
  std::function<void(ValidCall&)> bend;
  const char* argument;  // what the message starts with
  const char* value;     // what it holds beside that
  StatusCode code = StatusCode::invalid_value;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

class Refused : public testing::TestWithParam<Case> {};

TEST_P(Refused, NamesArgumentAndValue) {
  ValidCall valid;
  GetParam().bend(valid);
  const Status status = validate(valid.call);
  EXPECT_EQ(status.code(), GetParam().code) << status.message();
  EXPECT_EQ(status.message().rfind(GetParam().argument, 0), 0u) << status.message();
  EXPECT_NE(status.message().find(GetParam().value), std::string::npos) << status.message();
}

std::string case_name(const testing::TestParamInfo<Case>& parameter) {
  return parameter.param.name;
}

#define BEND [](ValidCall & valid [[maybe_unused]], warploom_attention & c [[maybe_unused]])

/// Wraps a change of (ValidCall, its call).
template <typename Change>
std::function<void(ValidCall&)> bend(Change change) {
  return [change](ValidCall& valid) { change(valid, valid.call); };
}

const Case kVersions[] = {
    {"newer_library", bend(BEND { c.abi_version = 99; }), "abi_version", "99", StatusCode::runtime_error},
    {"structure_of_another_size", bend(BEND { c.struct_bytes -= 8; }), "struct_bytes", "", StatusCode::runtime_error},
};
INSTANTIATE_TEST_SUITE_P(Versions, Refused, testing::ValuesIn(kVersions), case_name);

const Case kCodes[] = {
    {"op", bend(BEND { c.op = 2; }), "op", "2"},
    {"pass", bend(BEND { c.pass = 7; }), "pass", "7"},
    {"device", bend(BEND { c.device = 2; }), "device", "2"},
    {"dtype", bend(BEND { c.dtype = 3; }), "dtype", "3", StatusCode::invalid_type},
    {"float32_on_gpu", bend(BEND { c.device = WARPLOOM_CUDA; }), "q", "float32", StatusCode::invalid_type},
    {"unknown_flag", bend(BEND { c.flags |= 1u << 20; }), "flags", "1048576"},
    {"reserved", bend(BEND { c.reserved = 1; }), "reserved", "0"},
    {"bias_reserved", bend(BEND { c.bias.reserved = 1; }), "reserved", "0"},
    {"cu_seqlens_q_dtype", bend(BEND { c.cu_seqlens_q_dtype = 2; }), "cu_seqlens_q", "int32", StatusCode::invalid_type},
    {"cu_seqlens_k_dtype", bend(BEND { c.cu_seqlens_k_dtype = 9; }), "cu_seqlens_k", "int64", StatusCode::invalid_type},
    {"negative_threads", bend(BEND { c.num_threads = -1; }), "num_threads", "-1"},
    {"too_many_threads", bend(BEND { c.num_threads = 5000; }), "num_threads", "5000"},
};
INSTANTIATE_TEST_SUITE_P(Codes, Refused, testing::ValuesIn(kCodes), case_name);

const Case kShapes[] = {
    {"negative_batch", bend(BEND { c.batch = -1; }), "batch", "-1"},
    {"no_heads", bend(BEND { c.heads = 0; }), "q has 0 heads", "1"},
    {"no_key_heads", bend(BEND { c.key_heads = 0; }), "k has 0 heads", "1"},
    {"heads_not_divided", bend(BEND { c.key_heads = 3; }), "q has 2 heads and k has 3", "divide"},
    {"head_dim_0", bend(BEND { c.head_dim = 0; }), "the head dimension of q and k is 0", "512"},
    {"head_dim_too_large", bend(BEND { c.head_dim = 513; }), "the head dimension of q and k is 513", "512"},
    {"value_dim_too_large", bend(BEND { c.value_dim = 1000; }), "the head dimension of v is 1000", "512"},
    {"head_dim_on_gpu_not_of_8", bend(BEND { valid.make_cuda(), c.head_dim = 20; }),
     "the head dimension of q and k is 20", "8"},
    {"head_dim_on_gpu_above_256", bend(BEND { valid.make_cuda(), c.head_dim = 264; }),
     "the head dimension of q and k is 264", "256"},
    {"value_dim_on_gpu", bend(BEND { valid.make_cuda(), c.value_dim = 4; }), "the head dimension of v is 4", "8"},
    {"negative_total_q", bend(BEND { c.total_q = -8; }), "q has -8 rows", ""},
    {"negative_total_k", bend(BEND { c.total_k = -8; }), "k has -8 rows", ""},
    {"rows_differ_without_cu_seqlens_k", bend(BEND { c.total_k = 7; }), "k has 7 rows and q has 8", "cu_seqlens_k"},
    {"cu_seqlens_k_alone", bend(BEND { valid.make_dense(), c.cu_seqlens_k = valid.cu_seqlens.data(); }), "cu_seqlens_k",
     "cu_seqlens_q"},
    {"dense_without_lengths", bend(BEND { valid.make_dense(), c.max_seqlen_q = -1; }), "a dense batch", "max_seqlen_q"},
    {"dense_rows_q", bend(BEND { valid.make_dense(), c.total_q = 9; }), "total_q = 9", "8"},
    {"dense_rows_k", bend(BEND { valid.make_dense(), c.total_k = 9; }), "total_k = 9", "8"},
    {"max_seqlen_q_negative", bend(BEND { c.max_seqlen_q = -2; }), "max_seqlen_q", "-2"},
    {"max_seqlen_k_negative", bend(BEND { c.max_seqlen_k = -2; }), "max_seqlen_k", "-2"},
    {"max_seqlen_q_too_small", bend(BEND { c.max_seqlen_q = 4; }), "max_seqlen_q = 4", "5"},
    {"max_seqlen_k_too_small", bend(BEND { c.max_seqlen_k = 4; }), "max_seqlen_k = 4", "5"},
};
INSTANTIATE_TEST_SUITE_P(Shapes, Refused, testing::ValuesIn(kShapes), case_name);

const Case kTensors[] = {
    {"q_missing", bend(BEND { c.q.data = nullptr; }), "q is missing", "8 rows"},
    {"k_missing", bend(BEND { c.k.data = nullptr; }), "k is missing", ""},
    {"v_missing", bend(BEND { c.v.data = nullptr; }), "v is missing", ""},
    {"out_missing", bend(BEND { c.out.data = nullptr; }), "out is missing", ""},
    {"dout_missing", bend(BEND { valid.make_backward(), c.dout.data = nullptr; }), "dout is missing", ""},
    {"dq_missing", bend(BEND { valid.make_backward(), c.dq.data = nullptr; }), "dq is missing", ""},
    {"dk_missing", bend(BEND { valid.make_backward(), c.dk.data = nullptr; }), "dk is missing", ""},
    {"dv_missing", bend(BEND { valid.make_backward(), c.dv.data = nullptr; }), "dv is missing", ""},
    {"lse_missing_in_backward", bend(BEND { valid.make_softmax(), valid.make_backward(), c.lse = nullptr; }),
     "lse is missing", "return_lse"},
    {"softmax_backward_without_out", bend(BEND { valid.make_softmax(), valid.make_backward(), c.out.data = nullptr; }),
     "out is missing", ""},
    {"out_is_broadcast", bend(BEND { c.out.row_stride = 0; }), "out has a stride of 0", "written"},
    {"dk_heads_share_memory", bend(BEND { valid.make_backward(), c.dk.head_stride = 0; }), "dk has a stride of 0",
     "written"},
    {"lse_heads_share_memory", bend(BEND { valid.make_softmax(), c.lse_head_stride = 0; }), "lse has a stride of 0",
     ""},
    {"q_not_aligned_to_its_type", bend(BEND { c.q.data = static_cast<char*>(c.q.data) + 2; }), "q starts at an address",
     "4 bytes"},
    {"k_not_aligned_on_gpu", bend(BEND { valid.make_cuda(), c.k.data = static_cast<char*>(c.k.data) + 2; }),
     "k starts at an address", "16 bytes"},
    {"v_stride_on_gpu", bend(BEND { valid.make_cuda(), c.v.row_stride = 12; }), "v has a stride of 12", "8"},
    {"q_batch_stride_on_gpu", bend(BEND { valid.make_cuda(), valid.make_dense(), c.q.batch_stride = 129; }),
     "q has a stride of 129", "8"},
    {"cu_seqlens_not_aligned", bend(BEND { c.cu_seqlens_q = reinterpret_cast<char*>(valid.cu_seqlens.data()) + 1; }),
     "cu_seqlens_q starts", "4 bytes"},
    {"seqused_not_aligned",
     bend(BEND { c.seqused_k = reinterpret_cast<int32_t*>(reinterpret_cast<char*>(valid.per_sequence.data()) + 1); }),
     "seqused_k starts", "4 bytes"},
};
INSTANTIATE_TEST_SUITE_P(Tensors, Refused, testing::ValuesIn(kTensors), case_name);

const Case kMasks[] = {
    {"left_negative", bend(BEND { c.left = -1; }), "left = -1", "None"},
    {"right_negative", bend(BEND { c.right = -1; }), "right = -1", "None"},
    {"mask_function_text", bend(BEND { c.right = WARPLOOM_UNBOUNDED, c.mask_function.text = "[0, r]"; }),
     "mask: found ]", "half-open"},
    {"mask_function_and_window", bend(BEND { c.mask_function.text = "[0, r)"; }), "a mask function replaces", "right"},
    {"group_size", bend(BEND { c.target_group_size = 0; }), "target_group_size = 0", "1"},
    {"contexts_without_causal", bend(BEND { c.right = WARPLOOM_UNBOUNDED, c.num_contexts_all = 1; }), "right = None",
     "num_contexts"},
    {"targets_with_right", bend(BEND { c.right = 2, c.num_targets_all = 1; }), "right = 2", "num_targets"},
    {"zero_contexts_without_causal", bend(BEND { c.right = 3, c.num_contexts_all = 0; }), "right = 3", "num_contexts"},
    {"targets_array_without_causal", bend(BEND { c.right = 1, c.num_targets = valid.per_sequence.data(); }),
     "right = 1", "num_targets"},
    {"intervals_with_left", bend(BEND { valid.make_interval_mask(), c.left = 3; }), "intervals", "left"},
    {"intervals_with_right", bend(BEND { valid.make_interval_mask(), c.right = 0; }), "intervals", "right"},
    {"intervals_with_targets", bend(BEND { valid.make_interval_mask(), c.num_targets_all = 0; }), "intervals",
     "num_targets"},
    {"intervals_negative", bend(BEND { valid.make_interval_mask(), c.num_intervals = -1; }), "intervals has -1", "row"},
    {"intervals_heads", bend(BEND { valid.make_interval_mask(), c.interval_heads = 3; }), "intervals has 3 heads", "2"},
    {"intervals_without_heads", bend(BEND { valid.make_interval_mask(), c.interval_heads = 0; }),
     "intervals has 0 heads", "2"},
    {"intervals_missing", bend(BEND { valid.make_interval_mask(), c.intervals = nullptr; }), "intervals is missing",
     ""},
};
INSTANTIATE_TEST_SUITE_P(Masks, Refused, testing::ValuesIn(kMasks), case_name);

const Case kScalars[] = {
    {"alpha_nan", bend(BEND { c.flags |= WARPLOOM_HAS_ALPHA, c.alpha = kNan; }), "alpha = ", "finite"},
    {"alpha_infinite", bend(BEND { c.flags |= WARPLOOM_HAS_ALPHA, c.alpha = -kInfinity; }), "alpha = -inf", "finite"},
    {"alpha_beyond_float32", bend(BEND { c.flags |= WARPLOOM_HAS_ALPHA, c.alpha = 1e40; }), "alpha = 1e+40", "float32"},
    {"softcap_negative", bend(BEND { valid.make_softmax(), c.softcap = -2; }), "softcap = -2", "None"},
    {"softcap_nan", bend(BEND { valid.make_softmax(), c.softcap = kNan; }), "softcap = ", "None"},
    {"softcap_infinite", bend(BEND { valid.make_softmax(), c.softcap = kInfinity; }), "softcap = inf", "None"},
    {"score_in_softmax", bend(BEND { valid.make_softmax(), c.score.text = "z"; }), "score belongs to HSTU", "silu"},
    {"score_text", bend(BEND { c.score.text = "z * sigmod(z)"; }), "score: unknown function sigmod", "sigmoid"},
    {"score_slope", bend(BEND { c.score.text = "z", c.score.slope = "y"; }), "slope: unknown name y", "line 1"},
    {"score_parameters", bend(BEND { c.score.text = "a * z", c.score.parameters = "a"; }), "parameters has 1 names",
     "0"},
    {"softcap_in_hstu", bend(BEND { c.softcap = 5; }), "softcap = 5", "softmax"},
    {"divisor_0", bend(BEND { c.flags |= WARPLOOM_HAS_DIVISOR, c.divisor = 0; }), "divisor = 0", "finite"},
    {"divisor_nan", bend(BEND { c.flags |= WARPLOOM_HAS_DIVISOR, c.divisor = kNan; }), "divisor = ", "finite"},
    {"divisor_0_in_float32", bend(BEND { c.flags |= WARPLOOM_HAS_DIVISOR, c.divisor = 1e-60; }), "divisor = 1e-60",
     "float32"},
    {"divisor_twice",
     bend(BEND { c.flags |= WARPLOOM_HAS_DIVISOR, c.divisor = 2, c.divisor_rows = valid.divisor_rows.data(); }),
     "divisor", "both"},
    {"divisor_in_softmax", bend(BEND { valid.make_softmax(), c.flags |= WARPLOOM_HAS_DIVISOR, c.divisor = 2; }),
     "divisor", "HSTU"},
    {"divisor_rows_in_softmax", bend(BEND { valid.make_softmax(), c.divisor_rows = valid.divisor_rows.data(); }),
     "divisor", "HSTU"},
    {"unscaled_bias_in_softmax", bend(BEND { valid.make_softmax(), c.flags |= WARPLOOM_BIAS_NOT_SCALED; }),
     "bias_scaled_by_alpha", "HSTU"},
    {"lse_in_hstu", bend(BEND { c.lse = valid.lse.data(); }), "lse", "softmax"},
};
INSTANTIATE_TEST_SUITE_P(Scalars, Refused, testing::ValuesIn(kScalars), case_name);

const Case kBiases[] = {
    {"kind", bend(BEND { c.bias.kind = 4; }), "bias.kind = 4", "bucketed"},
    {"dtype", bend(BEND { valid.make_dense_bias(), c.bias.dtype = WARPLOOM_FLOAT16; }), "bias is float16", "float32",
     StatusCode::invalid_type},
    {"dtype_unknown", bend(BEND { valid.make_packed_bias(), c.bias.dtype = 5; }), "bias is an unknown dtype", "float32",
     StatusCode::invalid_type},
    {"heads", bend(BEND { valid.make_dense_bias(), c.bias.heads = 3; }), "bias has 3 heads", "2"},
    {"batch", bend(BEND { valid.make_dense_bias(), c.bias.batch = 3; }), "bias has 3 sequences", "2"},
    {"rows_option", bend(BEND { valid.make_dense_bias(), c.bias.rows = 3; }), "rows = 3", "\"k\""},
    {"rows", bend(BEND { valid.make_dense_bias(), c.bias.num_rows = 4; }), "bias has 4 rows", "max_seqlen_k = 5"},
    {"columns", bend(BEND { valid.make_dense_bias(), c.bias.num_columns = 4; }), "bias has 4 columns",
     "max_seqlen_k = 5"},
    {"negative_rows", bend(BEND { valid.make_dense_bias(), c.bias.num_rows = -5; }), "bias has -5 rows", ""},
    {"dense_missing", bend(BEND { valid.make_dense_bias(), c.bias.values = nullptr; }), "bias has no values", ""},
    {"dense_gradient_shares_memory",
     bend(BEND { valid.make_dense_bias(), valid.make_backward(), c.bias.grad = valid.bias.data(); }),
     "the gradient of bias has a stride of 0", ""},
    {"packed_rows", bend(BEND { valid.make_packed_bias(), c.bias.rows = WARPLOOM_ROWS_AUTO; }), "rows = 0", "\"q\""},
    {"packed_elements", bend(BEND { valid.make_packed_bias(), c.bias.num_columns = 40; }), "bias has 40 elements",
     "52"},
    {"packed_missing", bend(BEND { valid.make_packed_bias(), c.bias.values = nullptr; }), "bias has no values", ""},
    {"no_table", bend(BEND { valid.make_bucketed_bias(), c.bias.position = c.bias.time = nullptr; }),
     "position and time", "at least one"},
    {"position_heads", bend(BEND { valid.make_bucketed_bias(), c.bias.position_heads = 3; }), "position has 3 heads",
     "2"},
    {"position_entries", bend(BEND { valid.make_bucketed_bias(), c.bias.num_positions = 0; }), "position has 0 entries",
     "1"},
    {"time_heads", bend(BEND { valid.make_bucketed_bias(), c.bias.time_heads = 4; }), "time has 4 heads", "2"},
    {"time_entries", bend(BEND { valid.make_bucketed_bias(), c.bias.num_times = 0; }), "time has 0 entries", "1"},
    {"timestamps_missing", bend(BEND { valid.make_bucketed_bias(), c.bias.timestamps = nullptr; }),
     "timestamps is missing", "int64"},
    {"thresholds_decrease", bend(BEND {
       valid.make_bucketed_bias(), valid.time_bucket = {1, 10, 9}, c.bias.time_bucket = valid.time_bucket.data();
     }),
     "time_bucket[2] = 9", "decrease"},
    {"time_with_more_queries", bend(BEND {
       valid.make_softmax(), valid.make_bucketed_bias(), valid.per_sequence = {2, 5},
                                                         c.seqused_k = valid.per_sequence.data();
     }),
     "time: sequence 0 has 3 queries for 2 keys", "seqlen_q"},
};
INSTANTIATE_TEST_SUITE_P(Biases, Refused, testing::ValuesIn(kBiases), case_name);

const Case kValues[] = {
    {"cu_seqlens_starts_late", bend(BEND { valid.cu_seqlens[0] = 1; }), "cu_seqlens_q[0] = 1", "0"},
    {"cu_seqlens_decreases", bend(BEND { valid.cu_seqlens[1] = 9; }), "cu_seqlens_q[2] = 8", "cu_seqlens_q[1] = 9"},
    {"cu_seqlens_negative", bend(BEND { valid.cu_seqlens[1] = -3; }), "cu_seqlens_q[1] = -3", "decrease"},
    {"cu_seqlens_past_the_tensor", bend(BEND { valid.cu_seqlens[2] = 9; }), "cu_seqlens_q[2] = 9", "8 rows"},
    {"cu_seqlens_k_past_the_tensor", bend(BEND {
       valid.cu_seqlens_64[2] = 20, c.cu_seqlens_k = valid.cu_seqlens_64.data(), c.cu_seqlens_k_dtype = WARPLOOM_INT64;
     }),
     "cu_seqlens_k[2] = 20", "8 rows"},
    {"more_queries_than_keys", bend(BEND {
       valid.cu_seqlens_64[1] = 2, c.cu_seqlens_k = valid.cu_seqlens_64.data(), c.cu_seqlens_k_dtype = WARPLOOM_INT64;
     }),
     "cu_seqlens_q gives sequence 0 3 queries for 2 keys", "HSTU"},
    {"dense_more_queries_than_keys", bend(BEND { valid.make_dense(), c.max_seqlen_k = 3, c.total_k = 6; }),
     "q gives sequence 0 4 queries for 3 keys", "HSTU"},
    {"used_queries_exceed_used_keys",
     bend(BEND { valid.per_sequence = {3, 4}, c.seqused_k = valid.per_sequence.data(); }),
     "seqused_q gives sequence 1 5 queries for 4 keys", "HSTU"},
    {"seqused_q_negative", bend(BEND { valid.per_sequence = {1, -2}, c.seqused_q = valid.per_sequence.data(); }),
     "seqused_q[1] = -2", "negative"},
    {"seqused_k_exceeds_slot", bend(BEND { valid.per_sequence = {4, 1}, c.seqused_k = valid.per_sequence.data(); }),
     "seqused_k[0] = 4", "3 rows"},
    {"seqused_for_all_exceeds_a_slot", bend(BEND { c.seqused_k_all = 4; }), "seqused_k[0] = 4", "3 rows"},
    {"contexts_negative", bend(BEND { valid.per_sequence = {0, -1}, c.num_contexts = valid.per_sequence.data(); }),
     "num_contexts[1] = -1", "negative"},
    {"targets_negative", bend(BEND { valid.per_sequence = {-7, 0}, c.num_targets = valid.per_sequence.data(); }),
     "num_targets[0] = -7", "negative"},
    {"targets_exceed_keys", bend(BEND { valid.per_sequence = {0, 6}, c.num_targets = valid.per_sequence.data(); }),
     "num_targets[1] = 6", "5 keys"},
    {"targets_for_all_exceed_keys", bend(BEND { c.num_targets_all = 4; }), "num_targets[0] = 4", "3 keys"},
    {"contexts_and_targets_exceed_keys",
     bend(BEND { valid.per_sequence = {0, 4}, c.num_contexts_all = 2, c.num_targets = valid.per_sequence.data(); }),
     "num_contexts[1] = 2 with num_targets[1] = 4", "5 keys"},
    {"targets_exceed_used_keys", bend(BEND {
       valid.per_sequence = {3, 3}, c.seqused_q_all = c.seqused_k_all = 2, c.num_targets = valid.per_sequence.data();
     }),
     "num_targets[0] = 3", "2 keys"},
};
INSTANTIATE_TEST_SUITE_P(Values, Refused, testing::ValuesIn(kValues), case_name);

TEST(Defaults, OfNoCallAreNoCrash) {
  warploom_attention_init(nullptr);
  warploom_attention call;
  warploom_attention_init(&call);
  EXPECT_EQ(call.abi_version, WARPLOOM_ABI_VERSION);
}

struct Accepted {
  const char* name;
  std::function<void(ValidCall&)> bend;
};
std::ostream& operator<<(std::ostream& out, const Accepted& a) {
  return out << a.name;
}

class Taken : public testing::TestWithParam<Accepted> {};

TEST_P(Taken, WithoutAnError) {
  ValidCall valid;
  GetParam().bend(valid);
  const Status status = validate(valid.call);
  EXPECT_TRUE(status.ok()) << status.message();
}

const Accepted kAccepted[] = {
    {"as_it_is", bend(BEND{})},
    {"backward", bend(BEND { valid.make_backward(); })},
    {"softmax", bend(BEND { valid.make_softmax(); })},
    {"softmax_without_lse", bend(BEND { c.op = WARPLOOM_SOFTMAX; })},
    {"softmax_backward", bend(BEND { valid.make_softmax(), valid.make_backward(); })},
    {"dense", bend(BEND { valid.make_dense(), valid.make_backward(); })},
    {"int64_cu_seqlens",
     bend(BEND { c.cu_seqlens_q = valid.cu_seqlens_64.data(), c.cu_seqlens_q_dtype = WARPLOOM_INT64; })},
    {"rows_after_the_last_sequence", bend(BEND { valid.cu_seqlens[2] = 6; })},
    {"empty_sequences",
     bend(BEND { valid.cu_seqlens = {0, 0, 0}, c.cu_seqlens_q = valid.cu_seqlens.data(), c.num_targets_all = 3; })},
    {"empty_batch", bend(BEND { c.batch = 0; })},
    {"no_rows", bend(BEND {
       valid.cu_seqlens = {0, 0, 0}, c.cu_seqlens_q = valid.cu_seqlens.data(), c.total_q = c.total_k = 0,
       c.q.data = c.k.data = c.v.data = c.out.data = nullptr;
     })},
    {"longer_max_seqlen", bend(BEND { c.max_seqlen_q = c.max_seqlen_k = 1000; })},
    {"more_queries_than_keys_in_softmax", bend(BEND {
       valid.make_softmax(), valid.cu_seqlens_64[1] = 2, c.cu_seqlens_k = valid.cu_seqlens_64.data(),
                             c.cu_seqlens_k_dtype = WARPLOOM_INT64;
     })},
    {"one_key_head", bend(BEND { c.key_heads = 1; })},
    {"alpha_negative", bend(BEND { c.flags |= WARPLOOM_HAS_ALPHA, c.alpha = -0.5; })},
    {"alpha_0", bend(BEND { c.flags |= WARPLOOM_HAS_ALPHA, c.alpha = 0; })},
    {"divisor_negative", bend(BEND { c.flags |= WARPLOOM_HAS_DIVISOR, c.divisor = -3; })},
    {"divisor_rows", bend(BEND { c.divisor_rows = valid.divisor_rows.data(); })},
    {"softcap", bend(BEND { valid.make_softmax(), c.softcap = 30; })},
    {"score", bend(BEND { c.score.text = "z * tanh(z)"; })},
    {"mask_function", bend(BEND {
       c.right = WARPLOOM_UNBOUNDED, c.mask_function.text = "[0, nc), [r, r + 1)", c.num_contexts_all = 1,
       c.num_targets_all = 2;
     })},
    {"window_0", bend(BEND { c.left = 0, c.right = 0; })},
    {"contexts_and_targets",
     bend(BEND { c.num_contexts_all = 1, c.num_targets = valid.per_sequence.data(), c.target_group_size = 3; })},
    {"window_from_history_end",
     bend(BEND { c.left = 2, c.num_targets_all = 1, c.flags |= WARPLOOM_WINDOW_FROM_HISTORY_END; })},
    {"intervals", bend(BEND { valid.make_interval_mask(); })},
    {"no_intervals_a_row", bend(BEND { valid.make_interval_mask(), c.num_intervals = 0, c.intervals = nullptr; })},
    {"dense_bias", bend(BEND { valid.make_dense_bias(); })},
    {"dense_bias_broadcast", bend(BEND { valid.make_dense_bias(), c.bias.row_stride = c.bias.head_stride = 0; })},
    {"dense_bias_gradient", bend(BEND {
       valid.make_dense_bias(), valid.make_backward(), c.bias.grad = valid.bias.data(), c.bias.grad_head_stride = 25,
                                                       c.bias.grad_row_stride = 5;
     })},
    {"dense_bias_gradient_padded", bend(BEND {
       valid.make_dense_bias(), valid.make_backward(), c.flags |= WARPLOOM_BIAS_GRAD_PADDED;
       c.bias.grad = valid.bias.data(), c.bias.grad_head_stride = 40, c.bias.grad_row_stride = 8;
     })},
    {"packed_bias", bend(BEND { valid.make_packed_bias(); })},
    {"packed_bias_half", bend(BEND {
       valid.make_packed_bias(), c.dtype = WARPLOOM_BFLOAT16, c.bias.dtype = WARPLOOM_BFLOAT16,
                                 c.bias.num_columns = 3 * 8 + 5 * 8;
     })},
    {"bucketed_bias", bend(BEND { valid.make_bucketed_bias(); })},
    {"bucketed_bias_default_thresholds", bend(BEND { valid.make_bucketed_bias(), c.bias.time_bucket = nullptr; })},
    {"equal_thresholds", bend(BEND {
       valid.make_bucketed_bias(), valid.time_bucket = {5, 5, 5}, c.bias.time_bucket = valid.time_bucket.data();
     })},
    {"gpu", bend(BEND { valid.make_cuda(); })},
    {"gpu_odd_stride_of_one_head", bend(BEND { valid.make_cuda(), c.heads = c.key_heads = 1, c.q.head_stride = 3; })},
    {"gpu_values_are_not_read",
     bend(BEND { valid.make_cuda(), c.cu_seqlens_q = reinterpret_cast<const void*>(uintptr_t{256}); })},
    {"negative_row_stride", bend(BEND { c.q.row_stride = -c.q.row_stride; })},
};
INSTANTIATE_TEST_SUITE_P(Calls, Taken, testing::ValuesIn(kAccepted),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace warploom
