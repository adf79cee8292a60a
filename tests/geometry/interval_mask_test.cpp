#include "geometry/interval_mask.h"

#include <gtest/gtest.h>

#include <climits>
#include <vector>

#include "random_problem.h"

namespace warploom::geometry {
namespace {

using brute_force::Picture;
using brute_force::Random;

/// A row's list and, column by column, what it sees.
struct Row {
  std::vector<int> pairs;
  std::vector<bool> sees;

  RowIntervals intervals() const {
    return {pairs.data(), static_cast<int>(pairs.size() / 2), static_cast<int>(sees.size())};
  }
  bool any(int begin, int end) const {
    for (int j = std::max(begin, 0); j < std::min<int>(end, static_cast<int>(sees.size())); ++j) {
      if (sees[j]) return true;
    }
    return false;
  }
};

/// Up to `most` intervals: empty, reversed, negative, overlapping and past the sequence among them.
Row random_row(Random& random, int seqlen_k, int most) {
  Row row;
  row.sees.resize(seqlen_k);
  const int64_t count = random.in(0, most);
  for (int64_t n = 0; n < count; ++n) {
    const int64_t begin = random.in(-5, seqlen_k + 5);
    const int64_t end =
        random.chance(15) ? random.in(-5, begin) : random.in(begin, begin + random.in(0, 1 + seqlen_k / 2));
    row.pairs.push_back(static_cast<int>(random.chance(3) ? INT_MIN : begin));
    row.pairs.push_back(static_cast<int>(random.chance(3) ? INT_MAX : end));
    for (int j = 0; j < seqlen_k; ++j) {
      if (row.pairs[2 * n] <= j && j < row.pairs[2 * n + 1]) row.sees[j] = true;
    }
  }
  return row;
}

template <typename Check>
void for_random_rows(uint32_t seed, Check check) {
  Random random(seed);
  for (int n = 0; n < 4000 && !testing::Test::HasFailure(); ++n) {
    const int seqlen_k = static_cast<int>(brute_force::random_length(random, 300));
    const Row row = random_row(random, seqlen_k, n % 4 == 0 ? 40 : 5);
    SCOPED_TRACE(testing::Message() << "row " << n << ": " << testing::PrintToString(row.pairs) << " of " << seqlen_k);
    check(row, seqlen_k, random);
  }
}

TEST(RowIntervals, ContainsIsMembershipInTheClippedUnion) {
  for_random_rows(1, [](const Row& row, int seqlen_k, Random&) {
    for (int j = -2; j < seqlen_k + 2; ++j) ASSERT_EQ(row.intervals().contains(j), row.any(j, j + 1)) << "column " << j;
  });
}

TEST(RowIntervals, NextColumnIsTheFirstVisibleOne) {
  for_random_rows(2, [](const Row& row, int seqlen_k, Random&) {
    int expected = kUnbounded;
    for (int j = seqlen_k + 1; j >= -1; --j) {
      if (row.any(j, j + 1)) expected = j;
      ASSERT_EQ(row.intervals().next_column(j), expected) << "from " << j;
    }
  });
}

TEST(RowIntervals, IntersectsAndCoversAreExact) {
  for_random_rows(3, [](const Row& row, int seqlen_k, Random& random) {
    for (int n = 0; n < 60; ++n) {
      const int begin = static_cast<int>(random.in(0, seqlen_k));
      const int end = begin + static_cast<int>(random.in(0, n % 2 == 0 ? 6 : seqlen_k + 3));
      bool all = true;
      for (int j = begin; j < end; ++j) all &= row.any(j, j + 1);
      ASSERT_EQ(row.intervals().covers({begin, end}), all) << begin << ".." << end;
      ASSERT_EQ(row.intervals().intersects({begin, end}), row.any(begin, end)) << begin << ".." << end;
    }
  });
}

TEST(RowIntervals, WalkingByTheNearestColumnVisitsEveryTileWithAVisiblePairOnce) {
  Random random(4);
  for (int n = 0; n < 300; ++n) {
    const int seqlen_k = static_cast<int>(random.in(0, 300));
    std::vector<Row> rows(random.in(1, 128));
    for (Row& row : rows) row = random_row(random, seqlen_k, 3);
    const Picture picture(static_cast<int64_t>(rows.size()), seqlen_k,
                          [&](int64_t i, int64_t j) { return rows[i].sees[j]; });
    for (const int size : {16, 32, 64, 96, 128, 192, 256}) {
      std::vector<int> expected, visited;
      for (int tile = 0; tile * size < seqlen_k; ++tile) {
        if (picture.count(0, picture.rows(), tile * size, (tile + 1) * size) > 0) expected.push_back(tile);
      }
      for (int column = 0;; column = (visited.back() + 1) * size) {
        int next = kUnbounded;
        for (const Row& row : rows) next = min_of(next, row.intervals().next_column(column));
        if (next == kUnbounded) break;
        visited.push_back(next / size);
      }
      ASSERT_EQ(visited, expected) << "mask " << n << ", tiles of " << size;
    }
  }
}

TEST(RowIntervals, NoIntervalsSeeNothing) {
  const RowIntervals none{nullptr, 0, 100};
  EXPECT_FALSE(none.contains(0));
  EXPECT_EQ(none.next_column(0), kUnbounded);
  EXPECT_FALSE(none.covers({0, 1}));
  EXPECT_FALSE(none.intersects({0, 100}));
}

constexpr int kPairs[] = {0, 4, 10, 2, 3, 8};
constexpr RowIntervals kRow{kPairs, 3, 7};
static_assert(kRow.covers({0, 7}) && !kRow.covers({0, 8}) && kRow.next_column(7) == kUnbounded);

}  // namespace
}  // namespace warploom::geometry
