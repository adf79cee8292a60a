#include "geometry/fragment.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace warploom::geometry {
namespace {

/// Checks that `registers` registers of `width` neighbours each, over 32 lanes, hold every element of a matrix once.
template <typename Map>
void expect_coverage(int rows, int columns, int registers, int width, Map element) {
  std::set<std::pair<int, int>> seen;
  for (int lane = 0; lane < 32; ++lane) {
    for (int index = 0; index < registers; ++index) {
      const Element first = element(lane, index);
      for (int n = 0; n < width; ++n) {
        EXPECT_TRUE(0 <= first.row && first.row < rows && 0 <= first.column && first.column + n < columns);
        EXPECT_TRUE(seen.emplace(first.row, first.column + n).second) << "lane " << lane << " register " << index;
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(rows * columns));
}

TEST(Fragment, MapsHoldEveryElementOnce) {
  expect_coverage(8, 8, 1, 2, [](int lane, int) { return fragment_element(lane); });
  expect_coverage(16, 16, 4, 2, [](int lane, int index) { return a_element(lane, index); });
  expect_coverage(8, 16, 2, 2, [](int lane, int index) { return b_element(lane, index); });
  expect_coverage(16, 8, 4, 1, [](int lane, int index) { return c_element(lane, index); });
}

TEST(Fragment, ScoreAccumulatorsAreOutputOperands) {
  // S (16 rows, 16 keys) as two n-tiles of C is the A operand of P V: register i is pair i mod 2 of n-tile i / 2.
  for (int lane = 0; lane < 32; ++lane) {
    for (int index = 0; index < 4; ++index) {
      for (int n = 0; n < 2; ++n) {
        const Element score = c_element(lane, index % 2 * 2 + n);
        const Element operand = a_element(lane, index);
        EXPECT_EQ(score.row, operand.row);
        EXPECT_EQ(score.column + index / 2 * 8, operand.column + n);
      }
    }
  }
}

TEST(Fragment, LdmatrixBlocksArriveInTheOrderOfARegisters) {
  for (int index = 0; index < 4; ++index) {
    for (int lane = 0; lane < 32; ++lane) {
      const int source = index * 8 + lane / 4;  // the lane whose 16 bytes hold this lane's pair (PTX ISA, ldmatrix)
      const Element element = a_element(lane, index);
      EXPECT_EQ(ldmatrix_row(source), element.row);
      EXPECT_EQ(ldmatrix_chunk(source) * 8 + lane % 4 * 2, element.column);
    }
  }
}

TEST(Fragment, LdmatrixBlocksArriveAsTheOperandsOfTwoMma) {
  // 16 rows of B, as (n, k): registers 0, 1 are those of rows 0..7, registers 2, 3 of rows 8..15.
  for (int index = 0; index < 4; ++index) {
    for (int lane = 0; lane < 32; ++lane) {
      const int source = index * 8 + lane / 4;
      const Element element = b_element(lane, index % 2);
      EXPECT_EQ(ldmatrix_row(source, BlockOrder::b), element.row + index / 2 * 8);
      EXPECT_EQ(ldmatrix_chunk(source, BlockOrder::b) * 8 + lane % 4 * 2, element.column);
    }
  }
}

static_assert(c_element(31, 3).row == 15 && c_element(31, 3).column == 7);

}  // namespace
}  // namespace warploom::geometry
