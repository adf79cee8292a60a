#include "geometry/mask.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "brute_force.h"
#include "random_problem.h"

namespace warploom::geometry {
namespace {

using brute_force::Picture;
using brute_force::Problem;
using brute_force::Random;

constexpr int kLongest = 300;
constexpr int kProblems = 2500;
// Rows and columns of the tiles that kernels use.
constexpr int kTileSizes[] = {16, 32, 64, 96, 128, 192, 256};

/// Calls check(problem, its mask, its picture) for many random problems; stops at the first that fails.
template <typename Check>
void for_random_problems(uint32_t seed, int problems, Check check) {
  Random random(seed);
  for (int n = 0; n < problems && !testing::Test::HasFailure(); ++n) {
    const Problem problem = random_problem(random, kLongest);
    SCOPED_TRACE(testing::Message() << "problem " << n << ": " << problem);
    check(problem, mask_of(problem), Picture(problem));
  }
}

bool contains(const Ranges& ranges, int x) {
  return ranges.intersects({x, x + 1});
}

std::vector<int> tiles_by_next_tile(const Ranges& ranges, int size) {
  std::vector<int> tiles;
  for (int tile = ranges.next_tile(0, size); tile != kUnbounded; tile = ranges.next_tile(tile + 1, size)) {
    tiles.push_back(tile);
  }
  return tiles;
}

std::vector<int> tiles_by_last_tile(const Ranges& ranges, int size) {
  std::vector<int> tiles;
  for (int tile = ranges.last_tile(kUnbounded / size, size); tile >= 0; tile = ranges.last_tile(tile, size)) {
    tiles.insert(tiles.begin(), tile);
  }
  return tiles;
}

std::vector<int> tiles_by_next_run(const Ranges& ranges, int size) {
  std::vector<int> tiles;
  for (Interval run = ranges.next_run(0, size); !run.empty(); run = ranges.next_run(run.end, size)) {
    if (!tiles.empty()) {
      EXPECT_GT(run.begin, tiles.back() + 1) << "two runs that touch";
    }
    for (int tile = run.begin; tile < run.end; ++tile) tiles.push_back(tile);
  }
  return tiles;
}

std::string row_picture(const SequenceMask& mask, int i) {
  std::string text;
  for (int j = 0; j < mask.seqlen_k; ++j) {
    text += visible_columns(mask, i + mask.offset()).contains(j) ? '#' : '.';
  }
  return text;
}

TEST(Mask, WorkedExampleWithContextsAndGroupedTargets) {
  // Two contexts, four of history, five targets in groups of two; windows of three columns.
  const Problem problem{11, 11, 3, 0, 2, 5, 2, false};
  const char* const expected[] = {"######.....", "######.....",                                // contexts
                                  "###........", "####.......", ".####......", "..####.....",  // history
                                  "...####....", "....####...", ".....#..#..", "........##.",
                                  "..........#"};  // targets
  for (int i = 0; i < 11; ++i) {
    EXPECT_EQ(row_picture(mask_of(problem), i), expected[i]) << "row " << i;
    for (int j = 0; j < 11; ++j) EXPECT_EQ(visible(problem, i, j), expected[i][j] == '#') << i << ' ' << j;
  }
}

TEST(Mask, WindowOfTargetsFromTheHistorysEnd) {
  const Problem problem{4, 7, 2, 0, 0, 3, 1, true};
  const char* const expected[] = {".###...", "..###..", "..##.#.", "..##..#"};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(row_picture(mask_of(problem), i), expected[i]) << "row " << i;
}

TEST(Mask, MoreQueriesThanKeysAlignsTheLastRowWithTheLastKey) {
  SequenceMask causal{5, 3, kUnbounded, 0};
  const char* const expected[] = {"...", "...", "#..", "##.", "###"};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(row_picture(causal, i), expected[i]) << "row " << i;
  SequenceMask full{5, 3};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(row_picture(full, i), "###") << "row " << i;
}

TEST(Mask, NoContextsNoTargetsNoWindowIsCausal) {
  const SequenceMask mask{9, 9, kUnbounded, 0};
  for (int i = 0; i < 9; ++i) EXPECT_EQ(row_picture(mask, i), std::string(i + 1, '#') + std::string(8 - i, '.'));
}

TEST(Mask, VisibleColumnsAreThoseOfTheBruteForce) {
  for_random_problems(1, kProblems, [](const Problem&, const SequenceMask& mask, const Picture& picture) {
    for (int i = 0; i < mask.seqlen_q; ++i) {
      const VisibleColumns columns = visible_columns(mask, i + mask.offset());
      for (int j = -1; j <= mask.seqlen_k; ++j) {
        const bool expected = j >= 0 && j < mask.seqlen_k && picture.sees(i, j);
        ASSERT_EQ(columns.contains(j), expected) << "row " << i << " column " << j;
      }
      for (const Interval part : {columns.first, columns.second}) {
        if (part.empty()) continue;
        ASSERT_GE(part.begin, 0) << "row " << i;
        ASSERT_LE(part.end, mask.seqlen_k) << "row " << i;
      }
      if (!columns.first.empty() && !columns.second.empty()) {
        ASSERT_LT(columns.first.end, columns.second.begin) << "row " << i << ": the intervals touch or overlap";
      }
    }
  });
}

TEST(Mask, VisibleToAnyIsExactlyTheUnionOfTheRows) {
  Random random(20);
  for_random_problems(2, kProblems, [&](const Problem&, const SequenceMask& mask, const Picture& picture) {
    for (int n = 0; n < 12; ++n) {
      const int begin = static_cast<int>(random.in(-3, mask.seqlen_q));
      const int end = static_cast<int>(random.in(begin - 1, begin + (n % 2 == 0 ? 20 : kLongest)));
      const Ranges seen = visible_to_any(mask, {begin, end});
      for (int j = -1; j <= mask.seqlen_k; ++j) {
        ASSERT_EQ(contains(seen, j), picture.count(begin, end, j, j + 1) > 0)
            << "rows " << begin << ".." << end << " column " << j;
      }
      ASSERT_EQ(seen.empty(), picture.count(begin, end, 0, mask.seqlen_k) == 0);
    }
  });
}

TEST(Mask, SeeingAnyIsExactlyTheRowsThatSeeAColumn) {
  Random random(30);
  for_random_problems(3, kProblems, [&](const Problem&, const SequenceMask& mask, const Picture& picture) {
    for (int n = 0; n < 12; ++n) {
      const int begin = static_cast<int>(random.in(-3, mask.seqlen_k));
      const int end = static_cast<int>(random.in(begin - 1, begin + (n % 2 == 0 ? 20 : kLongest)));
      const Ranges rows = seeing_any(mask, {begin, end});
      for (int i = -1; i <= mask.seqlen_q; ++i) {
        ASSERT_EQ(contains(rows, i), picture.count(i, i + 1, begin, end) > 0)
            << "columns " << begin << ".." << end << " row " << i;
      }
    }
  });
}

TEST(Mask, VisibleToAllIsExact) {
  Random random(40);
  for_random_problems(4, kProblems, [&](const Problem&, const SequenceMask& mask, const Picture& picture) {
    for (int n = 0; n < 200; ++n) {
      // Small rectangles, or almost no tile would be full.
      const int r0 = static_cast<int>(random.in(0, mask.seqlen_q)),
                r1 = static_cast<int>(random.in(r0, r0 + (n % 2 == 0 ? 4 : 40)));
      const int c0 = static_cast<int>(random.in(0, mask.seqlen_k)),
                c1 = static_cast<int>(random.in(c0 + 1, c0 + (n % 2 == 0 ? 4 : 40)));
      const int64_t rows = std::max(0, std::min(r1, mask.seqlen_q) - r0);
      const bool expected = c1 <= mask.seqlen_k && picture.count(r0, r1, c0, c1) == rows * (c1 - c0);
      ASSERT_EQ(visible_to_all(mask, {r0, r1}, {c0, c1}), expected)
          << "rows " << r0 << ".." << r1 << " columns " << c0 << ".." << c1;
    }
  });
}

TEST(Mask, ColumnsOfAllAreSeenByEveryRowAndAllButTheTargetsOwn) {
  Random random(50);
  for_random_problems(7, kProblems, [&](const Problem&, const SequenceMask& mask, const Picture& picture) {
    for (int n = 0; n < 12; ++n) {
      const int r0 = static_cast<int>(random.in(0, mask.seqlen_q));
      const int r1 = static_cast<int>(random.in(r0, r0 + (n % 2 == 0 ? 8 : 80)));
      const int64_t rows = std::max(0, std::min(r1, mask.seqlen_q) - r0);
      const Interval common = columns_of_all(mask, {r0, r1});
      if (rows == 0) continue;
      for (int j = -1; j <= mask.seqlen_k; ++j) {
        const bool seen = j >= 0 && j < mask.seqlen_k && picture.count(r0, r1, j, j + 1) == rows;
        const bool has_targets = std::min(r1, mask.seqlen_q) + mask.offset() > mask.history_end();
        if (common.contains(j)) {
          ASSERT_TRUE(seen) << "rows " << r0 << ".." << r1 << " column " << j;
        } else if (seen) {
          ASSERT_TRUE(has_targets && j >= mask.history_end()) << "rows " << r0 << ".." << r1 << " column " << j;
        }
      }
    }
  });
}

TEST(Mask, HullHoldsAllMembersAndNoLongerInterval) {
  Random random(60);
  for_random_problems(8, kProblems, [&](const Problem&, const SequenceMask& mask, const Picture& picture) {
    const int begin = static_cast<int>(random.in(0, mask.seqlen_q));
    const int end = static_cast<int>(random.in(begin, begin + 100));
    const Interval hull = visible_to_any(mask, {begin, end}).hull();
    int first = -1, last = -1;
    for (int j = 0; j < mask.seqlen_k; ++j) {
      if (picture.count(begin, end, j, j + 1) == 0) continue;
      if (first < 0) first = j;
      last = j;
    }
    if (first < 0) {
      ASSERT_TRUE(hull.empty());
    } else {
      ASSERT_EQ(hull.begin, first);
      ASSERT_EQ(hull.end, last + 1);
    }
  });
}

TEST(Mask, EveryVisiblePairIsCoveredOnceFromTheQuerySide) {
  for_random_problems(5, kProblems, [](const Problem&, const SequenceMask& mask, const Picture& picture) {
    for (const int rows : kTileSizes) {
      for (int begin = 0; begin < mask.seqlen_q; begin += rows) {
        const Ranges seen = visible_to_any(mask, {begin, begin + rows});
        for (const int size : kTileSizes) {
          std::vector<int> expected;
          for (int tile = 0; tile * size < mask.seqlen_k; ++tile) {
            if (picture.count(begin, begin + rows, tile * size, (tile + 1) * size) > 0) expected.push_back(tile);
          }
          ASSERT_EQ(tiles_by_next_tile(seen, size), expected)
              << "rows from " << begin << ", tiles " << rows << 'x' << size;
          ASSERT_EQ(tiles_by_next_run(seen, size), expected)
              << "rows from " << begin << ", tiles " << rows << 'x' << size;
        }
      }
    }
  });
}

TEST(Mask, EveryVisiblePairIsCoveredOnceFromTheKeySide) {
  for_random_problems(6, kProblems, [](const Problem&, const SequenceMask& mask, const Picture& picture) {
    for (const int columns : kTileSizes) {
      for (int begin = 0; begin < mask.seqlen_k; begin += columns) {
        const Ranges rows = seeing_any(mask, {begin, begin + columns});
        for (const int size : kTileSizes) {
          std::vector<int> expected;
          for (int tile = 0; tile * size < mask.seqlen_q; ++tile) {
            if (picture.count(tile * size, (tile + 1) * size, begin, begin + columns) > 0) expected.push_back(tile);
          }
          ASSERT_EQ(tiles_by_next_tile(rows, size), expected)
              << "columns from " << begin << ", tiles " << size << 'x' << columns;
          ASSERT_EQ(tiles_by_last_tile(rows, size), expected)
              << "columns from " << begin << ", tiles " << size << 'x' << columns;
          ASSERT_EQ(tiles_by_next_run(rows, size), expected)
              << "columns from " << begin << ", tiles " << size << 'x' << columns;
        }
      }
    }
  });
}

TEST(Mask, TilesAreClassifiedExactly) {
  int full = 0, partial = 0, empty = 0;
  for_random_problems(7, kProblems, [&](const Problem&, const SequenceMask& mask, const Picture& picture) {
    for (const int rows : kTileSizes) {
      for (const int columns : kTileSizes) {
        for (int r = 0; r < mask.seqlen_q; r += rows) {
          for (int c = 0; c < mask.seqlen_k; c += columns) {
            const int64_t count = picture.count(r, r + rows, c, c + columns);
            const bool whole =
                c + columns <= mask.seqlen_k && count == int64_t{std::min(rows, mask.seqlen_q - r)} * columns;
            const TileKind expected = count == 0 ? TileKind::empty : whole ? TileKind::full : TileKind::partial;
            ASSERT_EQ(classify(mask, {r, r + rows}, {c, c + columns}), expected)
                << rows << 'x' << columns << " tile at " << r << ", " << c;
            ++(expected == TileKind::empty ? empty : expected == TileKind::full ? full : partial);
          }
        }
      }
    }
  });
  // The property is worth nothing unless every kind occurs often.
  EXPECT_GT(full, 1000);
  EXPECT_GT(partial, 1000);
  EXPECT_GT(empty, 1000);
}

TEST(Ranges, NextRunJoinsPartsInAnyOrder) {
  const auto run = [](std::initializer_list<Interval> parts, int tile, int size) {
    Ranges ranges;
    int n = 0;
    for (const Interval part : parts) ranges.parts[n++] = part;
    const Interval found = ranges.next_run(tile, size);
    return std::pair(found.begin, found.end);
  };
  EXPECT_EQ(run({{64, 65}, {32, 64}, {16, 32}, {8, 16}, {0, 8}}, 0, 8), std::pair(0, 9));
  EXPECT_EQ(run({{40, 41}, {0, 1}, {24, 25}}, 0, 16), std::pair(0, 3));
  EXPECT_EQ(run({{48, 49}, {0, 1}}, 0, 16), std::pair(0, 1));
  EXPECT_EQ(run({{48, 49}, {0, 1}}, 1, 16), std::pair(3, 4));
  EXPECT_EQ(run({{5, 5}, {7, 3}}, 0, 16), std::pair(0, 0));
}

// The kernels use the functions at compile time too.
constexpr SequenceMask kCausal{128, 256, kUnbounded, 0};
static_assert(visible_columns(kCausal, 128).first.end == 129);
static_assert(visible_to_any(kCausal, {0, 64}).next_tile(0, 64) == 0);
static_assert(visible_to_any(kCausal, {0, 64}).next_run(0, 64).end == 3);
static_assert(seeing_any(kCausal, {192, 256}).next_tile(0, 64) == 1);
static_assert(classify(kCausal, {0, 64}, {0, 128}) == TileKind::full);
static_assert(classify(kCausal, {0, 64}, {128, 192}) == TileKind::partial);
static_assert(classify(kCausal, {0, 64}, {192, 256}) == TileKind::empty);

}  // namespace
}  // namespace warploom::geometry
