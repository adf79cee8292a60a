// Numbers at the edges of their types: refused or taken, never an overflow (UndefinedBehaviorSanitizer watches) or a
// crash.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "problem/sequence.h"
#include "problem/validate.h"
#include "valid_call.h"

namespace warploom {
namespace {

constexpr int64_t kExtremes[] = {std::numeric_limits<int64_t>::min(),
                                 std::numeric_limits<int64_t>::min() + 1,
                                 -(int64_t{1} << 40),
                                 -1,
                                 0,
                                 1,
                                 (int64_t{1} << 30) - 1,
                                 int64_t{1} << 30,
                                 (int64_t{1} << 31) - 1,
                                 int64_t{1} << 32,
                                 int64_t{1} << 40,
                                 int64_t{1} << 60,
                                 std::numeric_limits<int64_t>::max() - 1,
                                 std::numeric_limits<int64_t>::max()};

/// Every int64 of a call that a hostile caller may set to anything: pointers, and how far they are read, stay honest.
std::vector<int64_t*> numbers_of(warploom_attention& c) {
  std::vector<int64_t*> numbers = {&c.heads,         &c.key_heads,       &c.head_dim,          &c.value_dim,
                                   &c.total_q,       &c.total_k,         &c.max_seqlen_q,      &c.max_seqlen_k,
                                   &c.left,          &c.right,           &c.target_group_size, &c.interval_heads,
                                   &c.num_intervals, &c.lse_head_stride, &c.lse_batch_stride};
  for (warploom_tensor* tensor : {&c.q, &c.k, &c.v, &c.out, &c.dout, &c.dq, &c.dk, &c.dv}) {
    numbers.insert(numbers.end(), {&tensor->batch_stride, &tensor->row_stride, &tensor->head_stride});
  }
  warploom_bias& b = c.bias;
  numbers.insert(numbers.end(),
                 {&b.batch, &b.heads, &b.num_rows, &b.num_columns, &b.batch_stride, &b.head_stride, &b.row_stride,
                  &b.grad_batch_stride, &b.grad_head_stride, &b.grad_row_stride, &b.position_heads, &b.num_positions,
                  &b.position_head_stride, &b.time_heads, &b.num_times, &b.time_head_stride});
  return numbers;
}

/// The call in one of its forms: op, pass, dense or jagged, mask, bias.
void shape(ValidCall& valid, std::mt19937& random) {
  const auto one_in = [&random](unsigned n) { return random() % n == 0; };
  if (one_in(2)) valid.make_softmax();
  if (one_in(2)) valid.make_backward();
  if (one_in(2)) valid.make_dense();
  if (one_in(4)) valid.make_interval_mask();
  switch (random() % 4) {
    case 0:
      valid.make_dense_bias();
      break;
    case 1:
      valid.make_packed_bias();
      break;
    case 2:
      valid.make_bucketed_bias();
      valid.call.bias.time_bucket = nullptr;  // num_times says how far it is read
      break;
    default:
      break;
  }
  valid.call.bias.grad = one_in(2) ? valid.bias.data() : nullptr;
}

/// What a back end does first with a valid call: none of it may overflow.
void use(const warploom_attention& call) {
  EXPECT_GE(longest_slot_q(call), 0);
  EXPECT_GE(longest_slot_k(call), 0);
  EXPECT_GE(effective_max_seqlen_q(call), longest_slot_q(call));
  EXPECT_GE(effective_max_seqlen_k(call), longest_slot_k(call));
  if (call.op == WARPLOOM_HSTU) {
    EXPECT_GT(std::abs(effective_divisor(call)), 0);
  }
  for (int64_t b = 0; b < call.batch; ++b) {
    const Sequence s = sequence_at(call, b);
    EXPECT_LE(s.mask.num_contexts + s.mask.num_targets, s.mask.seqlen_k);
    if (s.slot_q > 0) row_offset(call, call.q, b, s.first_q, s.slot_q - 1, call.heads - 1);
    if (s.slot_k > 0) row_offset(call, call.k, b, s.first_k, s.slot_k - 1, call.key_heads - 1);
    geometry::visible_to_any(s.mask, {0, s.mask.seqlen_q});
    geometry::seeing_any(s.mask, {0, s.mask.seqlen_k});
  }
}

TEST(ValidateHostile, ExtremeNumbersNeverOverflow) {
  std::mt19937 random(11);
  int taken = 0, refused = 0;
  for (int n = 0; n < 60000; ++n) {
    ValidCall valid;
    shape(valid, random);
    warploom_attention& call = valid.call;
    const std::vector<int64_t*> numbers = numbers_of(call);
    for (unsigned change = 0; change <= random() % 3; ++change) {
      *numbers[random() % numbers.size()] = kExtremes[random() % std::size(kExtremes)];
    }
    Status status = validate_description(call);
    if (status.ok()) status = validate_values(call);
    ++(status.ok() ? taken : refused);
    if (status.ok()) use(call);
    EXPECT_EQ(status.ok(), status.message().empty());
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(ValidateHostile, ExtremeLengthsNeverOverflow) {
  std::mt19937 random(12);
  int taken = 0;
  for (int n = 0; n < 30000; ++n) {
    ValidCall valid;
    warploom_attention& call = valid.call;
    shape(valid, random);
    call.bias.kind = random() % 2 == 0 ? uint32_t{WARPLOOM_NO_BIAS} : call.bias.kind;
    call.cu_seqlens_q = valid.cu_seqlens_64.data();
    call.cu_seqlens_q_dtype = WARPLOOM_INT64;
    call.max_seqlen_q = call.max_seqlen_k = WARPLOOM_FROM_CU_SEQLENS;
    const auto extreme = [&random] { return kExtremes[random() % std::size(kExtremes)]; };
    valid.cu_seqlens_64 = {0, random() % 2 == 0 ? extreme() : 3, extreme()};
    call.cu_seqlens_q = valid.cu_seqlens_64.data();
    call.total_q = call.total_k = int64_t{1} << 40;
    const auto count = [&random] {
      constexpr int32_t kCounts[] = {
          -1, 0, 1, 1 << 30, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()};
      return kCounts[random() % std::size(kCounts)];
    };
    call.seqused_q_all = count(), call.seqused_k_all = count();
    if (call.intervals == nullptr) {
      call.right = 0;
      call.num_contexts_all = count();
      valid.per_sequence = {count(), count()};
      call.num_targets = valid.per_sequence.data();
    }
    Status status = validate_description(call);
    if (status.ok()) status = validate_values(call);
    if (!status.ok()) continue;
    ++taken;
    use(call);
  }
  EXPECT_GT(taken, 20);
}

TEST(ValidateHostile, PackedSizeBeyondAnyMemory) {
  ValidCall valid;
  warploom_attention& call = valid.call;
  valid.make_packed_bias();
  // 1024 sequences of 2^30 - 1 rows: the sum of rows * pitch would pass 2^63.
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b <= 1024; ++b) lengths.push_back(b * ((int64_t{1} << 30) - 1));
  call.batch = 1024;
  call.cu_seqlens_q = lengths.data();
  call.cu_seqlens_q_dtype = WARPLOOM_INT64;
  call.total_q = call.total_k = int64_t{1} << 40;
  ASSERT_TRUE(validate_description(call).ok());
  EXPECT_EQ(validate_values(call).message().rfind("bias has 52 elements", 0), 0u) << validate_values(call).message();
}

}  // namespace
}  // namespace warploom
