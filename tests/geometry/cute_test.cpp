// Our layouts beside CuTe's: the 128-byte swizzle, the operands of mma.m16n8k16 and wgmma, the blocks of ldmatrix.x4.
#include <gtest/gtest.h>

#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/copy_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/swizzle.hpp>
#include <cute/tensor.hpp>

#include "geometry/fragment.h"
#include "geometry/swizzle.h"
#include "geometry/wgmma_descriptor.h"

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
template <typename Traits, BlockOrder Order = BlockOrder::a>
Element received(int lane, int value) {
  const int bit = static_cast<int>(typename Traits::DstLayout{}(lane, value * kElementBits));
  const int source = bit / kPhaseBits;
  EXPECT_EQ(static_cast<int>(typename Traits::SrcLayout{}(source, bit % kPhaseBits)), bit);
  return {ldmatrix_row(source, Order), ldmatrix_chunk(source, Order) * kChunkValues + bit % kPhaseBits / kElementBits};
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

TEST(Cute, LdmatrixInOrderBDeliversTwoOperandsB) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int value = 0; value < 8; ++value) {
      const Element theirs = received<cute::Copy_Traits<cute::SM75_U32x4_LDSM_N>, BlockOrder::b>(lane, value);
      const Element ours = b_element(lane, value / 2 % 2);
      EXPECT_EQ(theirs.row, ours.row + value / 4 * 8) << "lane " << lane << " value " << value;
      EXPECT_EQ(theirs.column, ours.column + value % 2) << "lane " << lane << " value " << value;
    }
  }
}

TEST(Cute, LdmatrixInOrderBTransposedDeliversRegistersOfA) {
  // dS's block (16 keys, 16 queries) as A of dS K, whose rows are the queries.
  for (int lane = 0; lane < 32; ++lane) {
    for (int value = 0; value < 8; ++value) {
      const Element theirs = received<cute::Copy_Traits<cute::SM75_U16x8_LDSM_T>, BlockOrder::b>(lane, value);
      const Element ours = a_element(lane, value / 2);
      EXPECT_EQ(theirs.row, ours.column + value % 2) << "lane " << lane << " value " << value;
      EXPECT_EQ(theirs.column, ours.row) << "lane " << lane << " value " << value;
    }
  }
}

TEST(Cute, CopiesOfATileAreATiledCopy) {
  using cute::Int, cute::Layout, cute::Shape, cute::Stride;
  constexpr int kThreads = 128, kRows = 64, kColumns = 128, kRowsAtOnce = kThreads / kPanelChunks;
  using Atom = cute::Copy_Atom<cute::SM80_CP_ASYNC_CACHEGLOBAL<cute::uint128_t>, cute::half_t>;
  const auto copy = cute::make_tiled_copy(
      Atom{}, Layout<Shape<Int<kRowsAtOnce>, Int<kPanelChunks>>, Stride<Int<kPanelChunks>, Int<1>>>{},
      Layout<Shape<Int<1>, Int<kChunkValues>>>{});
  const auto coordinates = cute::make_identity_tensor(Shape<Int<kRows>, Int<kColumns>>{});
  for (int thread = 0; thread < kThreads; ++thread) {
    const auto theirs = copy.get_slice(thread).partition_D(coordinates);
    const CopyPlace ours = copy_place(static_cast<unsigned>(thread));
    for (int step = 0; step < kRows / kRowsAtOnce; ++step) {
      for (int panel = 0; panel < panels_of(kColumns); ++panel) {
        const auto first = theirs(0, step, panel);
        EXPECT_EQ(static_cast<int>(cute::get<0>(first)), ours.row + step * kRowsAtOnce) << "thread " << thread;
        EXPECT_EQ(static_cast<int>(cute::get<1>(first)), panel * kPanelColumns + ours.chunk * kChunkValues)
            << "thread " << thread;
      }
    }
  }
}

template <int N>
void expect_accumulators() {
  const cute::SM90::GMMA::CLayout_64xN<N> layout;
  ASSERT_EQ(static_cast<int>(cute::size<1>(layout)), N / 2);
  for (int thread = 0; thread < 128; ++thread) {
    for (int index = 0; index < N / 2; ++index) {
      const Element e = accumulator_element(thread, index);
      ASSERT_EQ(e.row + e.column * 64, static_cast<int>(layout(thread, index))) << "thread " << thread << " " << index;
    }
  }
}

TEST(Cute, AccumulatorsOfWgmma) {
  expect_accumulators<8>();
  expect_accumulators<136>();
  expect_accumulators<256>();
}

TEST(Cute, OperandInRegistersOfWgmma) {
  const cute::SM90::GMMA::ALayout_64x16 layout;
  for (int thread = 0; thread < 128; ++thread) {
    for (int value = 0; value < 8; ++value) {
      const Element e = a_element(thread % 32, value / 2);
      ASSERT_EQ(thread / 32 * 16 + e.row + (e.column + value % 2) * 64, static_cast<int>(layout(thread, value)));
    }
  }
}

/// Both words of our descriptor as CuTe reads them.
cute::GmmaDescriptor descriptor(unsigned address, int leading_bytes) {
  return cute::GmmaDescriptor(std::uint64_t{kDescriptorHigh} << 32 | descriptor_low(address, leading_bytes));
}

TEST(Cute, FieldsOfTheDescriptor) {
  const cute::GmmaDescriptor found = descriptor(0x2A400, 24576);
  EXPECT_EQ(found.bitfield.start_address_, 0x2A400 / 16);
  EXPECT_EQ(found.bitfield.leading_byte_offset_, 24576 / 16);
  EXPECT_EQ(found.bitfield.stride_byte_offset_, 1024 / 16);
  EXPECT_EQ(found.bitfield.base_offset_, 0);
  EXPECT_EQ(found.bitfield.layout_type_, static_cast<int>(cute::SM90::GMMA::LayoutType::B128));
}

/// The byte where CuTe's tile in shared memory has an element of 16 bits: its swizzle is one of byte addresses.
template <typename Tile>
int cute_offset(const Tile& tile, int row, int column) {
  const cute::Swizzle<3, 4, 3> swizzle;
  return swizzle(static_cast<int>(tile.layout_b()(row, column)) * 2);
}

/// Where a wgmma with this descriptor finds 16-byte chunk `chunk` of row `row` of a K-major operand: the swizzle is of
/// the address, as the hardware applies it.
int k_major_chunk(const cute::GmmaDescriptor& found, int row, int chunk) {
  const int plain = static_cast<int>(found.bitfield.start_address_) * 16 +
                    row / 8 * static_cast<int>(found.bitfield.stride_byte_offset_) * 16 + row % 8 * 128 + chunk * 16;
  const cute::Swizzle<3, 4, 3> swizzle;
  return swizzle(plain);
}

TEST(Cute, KMajorStepsFollowTheTile) {
  constexpr int kRows = 128, kColumns = 192;
  using cute::Int;
  // CuTe's own tile of 128-byte rows in panels; in elements.
  const auto tile = cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<cute::half_t>{},
                                        cute::Shape<Int<kRows>, Int<kColumns>>{});
  for (int k = 0; k < kColumns; k += 16) {
    const cute::GmmaDescriptor found(descriptor(0, kChunkBytes).desc_ + k_major_step(kRows, k));
    for (int row = 0; row < kRows; ++row) {
      for (int chunk = 0; chunk < 2; ++chunk) {
        const int ours = swizzled_offset(kRows, row, k / kChunkValues + chunk);
        ASSERT_EQ(k_major_chunk(found, row, chunk), ours) << "k " << k << " row " << row;
        ASSERT_EQ(cute_offset(tile, row, k + chunk * kChunkValues), ours) << "k " << k << " row " << row;
      }
    }
  }
}

TEST(Cute, TransposedTileIsCutes) {
  // Rows of K, 64 columns of N a panel: an MN-major tile of CuTe's.
  constexpr int kDepth = 64, kColumns = 128;
  using cute::Int;
  const auto tile = cute::tile_to_shape(cute::SM90::GMMA::Layout_MN_SW128_Atom<cute::half_t>{},
                                        cute::Shape<Int<kColumns>, Int<kDepth>>{}, cute::Step<cute::_2, cute::_1>{});
  for (int k = 0; k < kDepth; ++k) {
    for (int n = 0; n < kColumns; n += kChunkValues) {
      ASSERT_EQ(cute_offset(tile, n, k), swizzled_offset(kDepth, k, n / kChunkValues)) << k << ", " << n;
    }
  }
  // 16 rows of K on: a whole number of swizzle atoms, so the start address alone moves.
  EXPECT_EQ(static_cast<int>(transposed_step(16)) * 16, swizzled_offset(kDepth, 16, 0));
}

}  // namespace
}  // namespace warploom::geometry
