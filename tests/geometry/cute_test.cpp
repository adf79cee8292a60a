// Our layouts beside CuTe's: the 128-byte swizzle, the operands of mma.m16n8k16 and the blocks of ldmatrix.x4.
#include <gtest/gtest.h>

#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/swizzle.hpp>

#include "geometry/fragment.h"
#include "geometry/swizzle.h"

namespace warploom::geometry {
namespace {

constexpr int kElementBits = 16;
constexpr int kPhaseBits = 128;  // what a lane addresses in ldmatrix

TEST(Cute, SwizzleOf128ByteRows) {
  // In elements of 16 bits: 8 in a chunk (2^3), 8 chunks in a row (2^3), rows 2^3 chunks apart.
  const cute::Swizzle<3, 3, 3> swizzle;
  for (int row = 0; row < 256; ++row) {
    for (int column = 0; column < kPanelColumns; ++column) {
      const int ours = swizzled_offset(256, row, column / kChunkValues) / 2 + column % kChunkValues;
      ASSERT_EQ(ours, swizzle(row * kPanelColumns + column)) << "row " << row << " column " << column;
    }
  }
}

/// Compares a map lane, register -> element with CuTe's (thread, value) -> index, column by column.
template <typename Layout, typename Map>
void expect_layout(const Layout& layout, int rows, int registers, int width, Map element) {
  ASSERT_EQ(static_cast<int>(cute::size<0>(layout)), 32);
  ASSERT_EQ(static_cast<int>(cute::size<1>(layout)), registers * width);
  for (int lane = 0; lane < 32; ++lane) {
    for (int value = 0; value < registers * width; ++value) {
      const Element first = element(lane, value / width);
      EXPECT_EQ(first.row + (first.column + value % width) * rows, static_cast<int>(layout(lane, value)))
          << "lane " << lane << " value " << value;
    }
  }
}

template <typename Instruction>
void expect_operands() {
  using Traits = cute::MMA_Traits<Instruction>;
  expect_layout(typename Traits::ALayout{}, 16, 4, 2, a_element);
  expect_layout(typename Traits::BLayout{}, 8, 2, 2, b_element);
  expect_layout(typename Traits::CLayout{}, 16, 4, 1, c_element);
}

TEST(Cute, OperandsOfMma) {
  expect_operands<cute::SM80_16x8x16_F32F16F16F32_TN>();
  expect_operands<cute::SM80_16x8x16_F32BF16BF16F32_TN>();
}

/// The row and column of a 16x16 block that CuTe says lane `lane` receives, when lanes address it as ours do.
template <typename Traits>
Element received(int lane, int value) {
  const int bit = static_cast<int>(typename Traits::DstLayout{}(lane, value * kElementBits));
  const int source = bit / kPhaseBits;
  EXPECT_EQ(static_cast<int>(typename Traits::SrcLayout{}(source, bit % kPhaseBits)), bit);
  return {ldmatrix_row(source), ldmatrix_chunk(source) * kChunkValues + bit % kPhaseBits / kElementBits};
}

TEST(Cute, LdmatrixDeliversAsRegistersOfA) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int value = 0; value < 8; ++value) {
      const Element theirs = received<cute::Copy_Traits<cute::SM75_U32x4_LDSM_N>>(lane, value);
      const Element ours = a_element(lane, value / 2);
      EXPECT_EQ(theirs.row, ours.row) << "lane " << lane << " value " << value;
      EXPECT_EQ(theirs.column, ours.column + value % 2) << "lane " << lane << " value " << value;
    }
  }
}

TEST(Cute, LdmatrixTransposedDeliversTwoOperandsB) {
  // V's block (16 keys, 16 value columns): registers 0, 1 are B of columns 0..7, registers 2, 3 of columns 8..15.
  for (int lane = 0; lane < 32; ++lane) {
    for (int value = 0; value < 8; ++value) {
      const Element theirs = received<cute::Copy_Traits<cute::SM75_U16x8_LDSM_T>>(lane, value);
      const Element ours = b_element(lane, value / 2 % 2);  // (n, k)
      EXPECT_EQ(theirs.row, ours.column + value % 2) << "lane " << lane << " value " << value;
      EXPECT_EQ(theirs.column, ours.row + value / 4 * 8) << "lane " << lane << " value " << value;
    }
  }
}

}  // namespace
}  // namespace warploom::geometry
