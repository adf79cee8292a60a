#include "geometry/swizzle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "geometry/fragment.h"

namespace warploom::geometry {
namespace {

constexpr int kBanks = 32;
constexpr int kBankBytes = 4;

/// The most accesses that meet in one bank when the lanes of an ldmatrix phase (eight rows of 16 bytes) read at once.
template <typename Offset>
int conflicts(int phase, BlockOrder order, Offset offset) {
  std::array<int, kBanks> uses{};
  for (int lane = 8 * phase; lane < 8 * phase + 8; ++lane) {
    const int byte = offset(ldmatrix_row(lane, order), ldmatrix_chunk(lane, order));
    for (int word = 0; word < kChunkBytes / kBankBytes; ++word) ++uses[(byte / kBankBytes + word) % kBanks];
  }
  return *std::max_element(uses.begin(), uses.end());
}

TEST(Swizzle, IsABijectionOntoTheTile) {
  for (const int rows : {8, 16, 32, 64, 96, 128, 256}) {
    for (int columns = 8; columns <= 256; columns += 8) {
      std::set<int> offsets;
      for (int row = 0; row < rows; ++row) {
        for (int chunk = 0; chunk < columns / kChunkValues; ++chunk) {
          const int offset = swizzled_offset(rows, row, chunk);
          ASSERT_EQ(offset % kChunkBytes, 0);
          ASSERT_GE(offset, 0);
          ASSERT_LE(offset + kChunkBytes, tile_bytes(rows, columns));
          ASSERT_TRUE(offsets.insert(offset).second)
              << rows << 'x' << columns << ": chunk " << chunk << " of row " << row;
        }
      }
      if (columns % kPanelColumns == 0) {
        ASSERT_EQ(tile_bytes(rows, columns), static_cast<int>(offsets.size()) * kChunkBytes);
      }
    }
  }
}

TEST(Swizzle, LdmatrixGoesFromEightWayConflictsToNone) {
  for (const int rows : {64, 128}) {
    for (int first_row = 0; first_row < rows; first_row += 16) {
      for (int column_block = 0; column_block < 16; ++column_block) {
        const auto swizzled = [&](int row, int chunk) {
          return swizzled_offset(rows, first_row + row, 2 * column_block + chunk);
        };
        const auto plain = [&](int row, int chunk) {
          return (first_row + row) * kPanelRowBytes + (2 * column_block + chunk) % 8 * kChunkBytes;
        };
        for (int phase = 0; phase < 4; ++phase) {
          for (const BlockOrder order : {BlockOrder::a, BlockOrder::b}) {
            EXPECT_EQ(conflicts(phase, order, swizzled), 1);
            EXPECT_EQ(conflicts(phase, order, plain), 8);
          }
        }
      }
    }
  }
}

TEST(Swizzle, WritingFragmentsHasNoConflicts) {
  // Registers to shared: lane l stores 4 bytes of row l / 4 at column pair l mod 4 of one chunk.
  for (int chunk = 0; chunk < kPanelChunks; ++chunk) {
    std::set<int> banks;
    for (int lane = 0; lane < 32; ++lane) {
      const Element element = fragment_element(lane);
      banks.insert((swizzled_offset(64, element.row, chunk) + element.column * 2) / kBankBytes % kBanks);
    }
    EXPECT_EQ(banks.size(), 32u) << "chunk " << chunk;
  }
}

TEST(Swizzle, FillingATileHasNoConflicts) {
  // Global to shared: eight neighbouring threads write the eight chunks of a row.
  for (int row = 0; row < 8; ++row) {
    std::set<int> banks;
    for (int chunk = 0; chunk < kPanelChunks; ++chunk) banks.insert(swizzled_offset(64, row, chunk) / kChunkBytes % 8);
    EXPECT_EQ(banks.size(), 8u) << "row " << row;
  }
}

TEST(Swizzle, BlockAddressesDifferByAnExclusiveOrOnly) {
  // tile::BlockReader relies on it: 16 columns further is an exclusive or with a constant inside a panel.
  for (int row = 0; row < 64; ++row) {
    for (int half = 0; half < 2; ++half) {
      const int first = swizzled_offset(64, row, half);
      for (int block = 0; block < 16; ++block) {
        const int expected = (first ^ (block % 4 * 2 * kChunkBytes)) + block / 4 * 64 * kPanelRowBytes;
        ASSERT_EQ(swizzled_offset(64, row, 2 * block + half), expected) << "row " << row << " block " << block;
      }
    }
  }
}

static_assert(panels_of(64) == 1 && panels_of(65) == 2 && panels_of(8) == 1);
static_assert(tile_bytes(16, 72) == 2 * 16 * 128);
static_assert(swizzled_chunk(9, 0) == 1);

}  // namespace
}  // namespace warploom::geometry
