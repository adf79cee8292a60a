#include "problem/sequence.h"

#include <gtest/gtest.h>

#include <cmath>

#include "valid_call.h"

namespace warploom {
namespace {

TEST(Sequence, JaggedRowsComeFromCuSeqlens) {
  ValidCall valid;
  const Sequence second = sequence_at(valid.call, 1);
  EXPECT_EQ(second.first_q, 3);
  EXPECT_EQ(second.first_k, 3);
  EXPECT_EQ(second.slot_q, 5);
  EXPECT_EQ(second.seqlen_q(), 5);
  EXPECT_EQ(second.seqlen_k(), 5);
  EXPECT_EQ(second.mask.left, geometry::kUnbounded);
  EXPECT_EQ(second.mask.right, 0);
  EXPECT_EQ(second.mask.num_contexts, 0);
  EXPECT_EQ(second.mask.num_targets, 0);
}

TEST(Sequence, KeysMayHaveLengthsOfTheirOwnInAnotherType) {
  ValidCall valid;
  valid.cu_seqlens_64 = {0, 4, 11};
  valid.call.cu_seqlens_k = valid.cu_seqlens_64.data();
  valid.call.cu_seqlens_k_dtype = WARPLOOM_INT64;
  valid.call.total_k = 11;
  const Sequence second = sequence_at(valid.call, 1);
  EXPECT_EQ(second.first_q, 3);
  EXPECT_EQ(second.first_k, 4);
  EXPECT_EQ(second.slot_k, 7);
  EXPECT_EQ(second.mask.offset(), 2);
  EXPECT_EQ(longest_slot_q(valid.call), 5);
  EXPECT_EQ(longest_slot_k(valid.call), 7);
  EXPECT_EQ(effective_max_seqlen_k(valid.call), 7);
}

TEST(Sequence, DenseRowsAreFlattened) {
  ValidCall valid;
  valid.make_dense();
  const Sequence second = sequence_at(valid.call, 1);
  EXPECT_EQ(second.first_q, 4);
  EXPECT_EQ(second.slot_q, 4);
  EXPECT_EQ(longest_slot_q(valid.call), 4);
  valid.call.batch = 0;
  EXPECT_EQ(longest_slot_q(valid.call), 0);
}

TEST(Sequence, OneNumberGoesForEverySequenceWithKeys) {
  ValidCall valid;
  valid.cu_seqlens = {0, 0, 8};
  valid.call.cu_seqlens_q = valid.cu_seqlens.data();
  valid.call.num_contexts_all = 2;
  valid.call.num_targets_all = 1;
  valid.call.seqused_q_all = valid.call.seqused_k_all = 6;
  const Sequence empty = sequence_at(valid.call, 0), full = sequence_at(valid.call, 1);
  EXPECT_EQ(empty.seqlen_q(), 0);
  EXPECT_EQ(empty.seqlen_k(), 0);
  EXPECT_EQ(empty.mask.num_contexts, 0);
  EXPECT_EQ(empty.mask.num_targets, 0);
  EXPECT_EQ(full.slot_q, 8);
  EXPECT_EQ(full.seqlen_q(), 6);
  EXPECT_EQ(full.seqlen_k(), 6);
  EXPECT_EQ(full.mask.num_contexts, 2);
  EXPECT_EQ(full.mask.num_targets, 1);
}

TEST(Sequence, ASequenceWhoseKeysAreUnusedHasNoTargets) {
  ValidCall valid;
  valid.per_sequence = {0, 5};
  valid.call.seqused_q = valid.call.seqused_k = valid.per_sequence.data();
  valid.call.num_targets_all = 2;
  EXPECT_EQ(sequence_at(valid.call, 0).mask.num_targets, 0);
  EXPECT_EQ(sequence_at(valid.call, 1).mask.num_targets, 2);
}

TEST(Sequence, WindowsAndGroupsAreCutToTheGeometrysLimit) {
  ValidCall valid;
  valid.call.left = int64_t{1} << 50;
  valid.call.target_group_size = int64_t{1} << 50;
  valid.call.flags |= WARPLOOM_WINDOW_FROM_HISTORY_END;
  const Sequence s = sequence_at(valid.call, 0);
  EXPECT_EQ(s.mask.left, geometry::kUnbounded);
  EXPECT_EQ(s.mask.target_group_size, geometry::kUnbounded);
  EXPECT_TRUE(s.mask.target_window_from_history_end);
}

TEST(Sequence, RowOffsetsFollowTheStrides) {
  ValidCall valid;
  valid.call.q.row_stride = 100, valid.call.q.head_stride = 7;
  EXPECT_EQ(row_offset(valid.call, valid.call.q, 1, 3, 2, 1), (3 + 2) * 100 + 7);
  valid.make_dense();
  valid.call.q.batch_stride = 5000;
  EXPECT_EQ(row_offset(valid.call, valid.call.q, 1, 4, 2, 1), 5000 + 2 * 100 + 7);
}

TEST(Problem, DefaultsOfScalars) {
  ValidCall valid;
  EXPECT_DOUBLE_EQ(effective_alpha(valid.call), 0.25);
  EXPECT_DOUBLE_EQ(effective_divisor(valid.call), 5);
  valid.call.max_seqlen_q = 40;
  EXPECT_DOUBLE_EQ(effective_divisor(valid.call), 40);
  valid.call.flags |= WARPLOOM_HAS_DIVISOR | WARPLOOM_HAS_ALPHA;
  valid.call.divisor = -3, valid.call.alpha = 0;
  EXPECT_DOUBLE_EQ(effective_divisor(valid.call), -3);
  EXPECT_DOUBLE_EQ(effective_alpha(valid.call), 0);
}

TEST(Problem, AnEmptyBatchDividesByOne) {
  ValidCall valid;
  valid.call.batch = 0;
  EXPECT_DOUBLE_EQ(effective_divisor(valid.call), 1);
}

TEST(Problem, PackedPitchIsRoundedTo16Bytes) {
  EXPECT_EQ(packed_pitch(0, WARPLOOM_FLOAT32), 0);
  EXPECT_EQ(packed_pitch(1, WARPLOOM_FLOAT32), 4);
  EXPECT_EQ(packed_pitch(4, WARPLOOM_FLOAT32), 4);
  EXPECT_EQ(packed_pitch(5, WARPLOOM_FLOAT32), 8);
  EXPECT_EQ(packed_pitch(5, WARPLOOM_BFLOAT16), 8);
  EXPECT_EQ(packed_pitch(9, WARPLOOM_FLOAT16), 16);
}

TEST(Problem, DenseBiasRowsAreDecidedByTheirNumber) {
  ValidCall valid;
  valid.cu_seqlens_64 = {0, 4, 11};
  valid.call.cu_seqlens_k = valid.cu_seqlens_64.data();
  valid.call.cu_seqlens_k_dtype = WARPLOOM_INT64;
  valid.call.bias.num_rows = 7;
  EXPECT_EQ(effective_bias_rows(valid.call), uint32_t{WARPLOOM_ROWS_KEY});
  valid.call.bias.num_rows = 5;
  EXPECT_EQ(effective_bias_rows(valid.call), uint32_t{WARPLOOM_ROWS_QUERY});
  valid.call.cu_seqlens_k = nullptr;  // both lengths are 5 now: the keys win
  EXPECT_EQ(effective_bias_rows(valid.call), uint32_t{WARPLOOM_ROWS_KEY});
  valid.call.bias.rows = WARPLOOM_ROWS_QUERY;
  EXPECT_EQ(effective_bias_rows(valid.call), uint32_t{WARPLOOM_ROWS_QUERY});
}

}  // namespace
}  // namespace warploom
