// Lengths, windows and groups near 2^30. Under UndefinedBehaviorSanitizer these also show that nothing overflows.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "brute_force.h"
#include "geometry/mask.h"
#include "random_problem.h"

namespace warploom::geometry {
namespace {

using brute_force::Problem;
using brute_force::Random;

constexpr int64_t kLongest = kUnbounded - 1;

/// A length, window or count at the edges of what is allowed.
int64_t extreme(Random& random, int64_t highest) {
  const int64_t near = random.in(0, std::min<int64_t>(highest, 40));
  switch (random.in(0, 3)) {
    case 0:
      return near;
    case 1:
      return highest - near;
    case 2:
      return highest;
    default:
      return random.in(0, highest);
  }
}

Problem extreme_problem(Random& random) {
  Problem p;
  p.lk = extreme(random, kLongest);
  p.lq = random.chance(60) ? std::max<int64_t>(0, p.lk - extreme(random, p.lk)) : extreme(random, kLongest);
  if (random.chance(60)) p.left = extreme(random, kUnbounded - 1);
  if (random.chance(60)) {
    p.right = 0;
    if (random.chance(50)) p.contexts = extreme(random, p.lk);
    if (random.chance(50)) p.targets = extreme(random, p.lk - p.contexts);
    if (random.chance(50)) p.group = std::max<int64_t>(1, extreme(random, kUnbounded));
    p.window_from_history_end = random.chance(50);
  } else if (random.chance(60)) {
    p.right = extreme(random, kUnbounded - 1);
  }
  return p;
}

/// A tile of up to `size` among `length`, at an edge of something or anywhere.
Interval extreme_tile(Random& random, int64_t length, int size) {
  const int64_t begin = extreme(random, length);
  return {static_cast<int>(begin), static_cast<int>(std::min<int64_t>(length, begin + random.in(1, size)))};
}

/// Places where membership could change: around every bound, and the ends of the axis.
template <typename Parts>
std::vector<int64_t> probes(const Parts& parts, int64_t length, Random& random) {
  std::vector<int64_t> places = {0, 1, length - 1, random.in(0, std::max<int64_t>(0, length - 1))};
  for (const Interval& part : parts) {
    for (const int64_t bound : {part.begin, part.end}) {
      for (int64_t step = -1; step <= 1; ++step) places.push_back(bound + step);
    }
  }
  std::erase_if(places, [length](int64_t x) { return x < 0 || x >= length; });
  return places;
}

template <typename Check>
void for_extreme_problems(uint32_t seed, Check check) {
  Random random(seed);
  for (int n = 0; n < 4000 && !testing::Test::HasFailure(); ++n) {
    const Problem problem = extreme_problem(random);
    SCOPED_TRACE(testing::Message() << "problem " << n << ": " << problem);
    check(problem, mask_of(problem), random);
  }
}

TEST(MaskLimits, VisibleColumns) {
  for_extreme_problems(1, [](const Problem& p, const SequenceMask& mask, Random& random) {
    if (p.lq == 0) return;
    for (int n = 0; n < 10; ++n) {
      const int64_t i = std::min(extreme(random, p.lq), p.lq - 1);
      const VisibleColumns columns = visible_columns(mask, static_cast<int>(i) + mask.offset());
      for (const int64_t j : probes(std::vector{columns.first, columns.second}, p.lk, random)) {
        ASSERT_EQ(columns.contains(static_cast<int>(j)), visible(p, i, j)) << "row " << i << " column " << j;
      }
    }
  });
}

TEST(MaskLimits, VisibleToAny) {
  for_extreme_problems(2, [](const Problem& p, const SequenceMask& mask, Random& random) {
    const Interval rows = extreme_tile(random, p.lq, 64);
    const Ranges seen = visible_to_any(mask, rows);
    for (const int64_t j : probes(seen.parts, p.lk, random)) {
      bool expected = false;
      for (int64_t i = rows.begin; i < rows.end; ++i) expected |= visible(p, i, j);
      ASSERT_EQ(seen.intersects({static_cast<int>(j), static_cast<int>(j) + 1}), expected)
          << "rows " << rows.begin << ".." << rows.end << " column " << j;
    }
  });
}

TEST(MaskLimits, SeeingAny) {
  for_extreme_problems(3, [](const Problem& p, const SequenceMask& mask, Random& random) {
    const Interval columns = extreme_tile(random, p.lk, 64);
    const Ranges rows = seeing_any(mask, columns);
    for (const int64_t i : probes(rows.parts, p.lq, random)) {
      bool expected = false;
      for (int64_t j = columns.begin; j < columns.end; ++j) expected |= visible(p, i, j);
      ASSERT_EQ(rows.intersects({static_cast<int>(i), static_cast<int>(i) + 1}), expected)
          << "columns " << columns.begin << ".." << columns.end << " row " << i;
    }
  });
}

TEST(MaskLimits, Classify) {
  for_extreme_problems(4, [](const Problem& p, const SequenceMask& mask, Random& random) {
    const Interval rows = extreme_tile(random, p.lq, 8), columns = extreme_tile(random, p.lk, 8);
    if (rows.empty() || columns.empty()) return;
    int64_t count = 0;
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      for (int64_t j = columns.begin; j < columns.end; ++j) count += visible(p, i, j) ? 1 : 0;
    }
    const int64_t whole = int64_t{rows.end - rows.begin} * (columns.end - columns.begin);
    const TileKind expected = count == 0 ? TileKind::empty : count == whole ? TileKind::full : TileKind::partial;
    ASSERT_EQ(classify(mask, rows, columns), expected)
        << "rows " << rows.begin << ".." << rows.end << " columns " << columns.begin << ".." << columns.end;
  });
}

TEST(MaskLimits, TilesAreWalkedToTheLastOne) {
  const SequenceMask mask{static_cast<int>(kLongest), static_cast<int>(kLongest), 100, 0};
  for (const int size : {16, 128, 256}) {
    const Ranges seen = visible_to_any(mask, {static_cast<int>(kLongest) - 16, static_cast<int>(kLongest)});
    const int last = static_cast<int>((kLongest - 1) / size);
    EXPECT_EQ(seen.next_tile(0, size), static_cast<int>((kLongest - 116) / size));
    EXPECT_EQ(seen.next_tile(last, size), last);
    EXPECT_EQ(seen.next_tile(last + 1, size), kUnbounded);
    EXPECT_EQ(seen.next_run(0, size).end, last + 1);
    EXPECT_TRUE(seen.next_run(last + 1, size).empty());
  }
}

}  // namespace
}  // namespace warploom::geometry
