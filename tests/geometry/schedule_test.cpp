#include "geometry/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "random_problem.h"

namespace warploom::geometry {
namespace {

using brute_force::Random;

template <typename Check>
void for_random_schedules(uint32_t seed, Check check) {
  Random random(seed);
  for (int n = 0; n < 500 && !testing::Test::HasFailure(); ++n) {
    const auto number = [&](int64_t most) { return static_cast<int>(random.in(1, most)); };
    const Schedule schedule{number(20), number(12), number(8), number(random.chance(50) ? 6 : 150), random.chance(50)};
    SCOPED_TRACE(testing::Message() << schedule.query_tiles << " tiles, " << schedule.sequences << " sequences, "
                                    << schedule.heads << " heads, groups of " << schedule.pairs_in_group
                                    << (schedule.first_tile_is_long ? ", tile 0 first" : ""));
    check(schedule);
  }
}

TEST(Schedule, EveryItemExactlyOnce) {
  for_random_schedules(1, [](const Schedule& schedule) {
    std::set<std::tuple<int, int, int>> seen;
    for (long long index = 0; index < schedule.items(); ++index) {
      const WorkItem item = schedule.item(index);
      ASSERT_TRUE(0 <= item.query_tile && item.query_tile < schedule.query_tiles);
      ASSERT_TRUE(0 <= item.sequence && item.sequence < schedule.sequences);
      ASSERT_TRUE(0 <= item.head && item.head < schedule.heads);
      ASSERT_TRUE(seen.emplace(item.query_tile, item.sequence, item.head).second) << "item " << index << " again";
    }
    ASSERT_EQ(static_cast<long long>(seen.size()), 1LL * schedule.query_tiles * schedule.sequences * schedule.heads);
  });
}

TEST(Schedule, TilesOfKeysComeInTheirOrder) {
  for_random_schedules(5, [](Schedule schedule) {
    schedule.first_to_last = true;
    std::map<std::pair<int, int>, int> next;
    for (long long index = 0; index < schedule.items(); ++index) {
      const WorkItem item = schedule.item(index);
      ASSERT_EQ(item.query_tile, (next[{item.sequence, item.head}]++));
    }
  });
}

TEST(Schedule, APairsTilesComeLongestFirst) {
  for_random_schedules(2, [](const Schedule& schedule) {
    std::map<std::pair<int, int>, int> last;
    for (long long index = 0; index < schedule.items(); ++index) {
      const WorkItem item = schedule.item(index);
      const auto [previous, first] = last.try_emplace({item.sequence, item.head}, item.query_tile);
      if (first) {
        ASSERT_EQ(item.query_tile, schedule.first_tile_is_long ? 0 : schedule.query_tiles - 1);
        if (schedule.first_tile_is_long) previous->second = schedule.query_tiles;
      } else {
        ASSERT_EQ(item.query_tile, previous->second - 1);
        previous->second = item.query_tile;
      }
    }
  });
}

TEST(Schedule, PairsOfAGroupRunSideBySide) {
  for_random_schedules(3, [](const Schedule& schedule) {
    const long long pairs = 1LL * schedule.sequences * schedule.heads;
    long long index = 0;
    for (long long first = 0; first < pairs; first += schedule.pairs_in_group) {
      const long long here = std::min<long long>(schedule.pairs_in_group, pairs - first);
      for (int turn = 0; turn < schedule.query_tiles; ++turn) {
        const int tile = schedule.item(index).query_tile;
        for (long long n = 0; n < here; ++n, ++index) {
          const WorkItem item = schedule.item(index);
          ASSERT_EQ(item.query_tile, tile) << "a group's items of one turn are the same tile of different pairs";
          ASSERT_EQ(1LL * item.sequence * schedule.heads + item.head, first + n);
        }
      }
    }
  });
}

TEST(Schedule, AnEmptyBatchHasNoItems) {
  EXPECT_EQ((Schedule{0, 4, 4, 1}.items()), 0);
  EXPECT_EQ((Schedule{4, 0, 4, 1}.items()), 0);
}

TEST(Schedule, LargestGridsDoNotOverflow) {
  // A grid has fewer than 2^31 CTAs.
  const auto expect = [](const Schedule& schedule, long long index, int tile, int sequence, int head) {
    ASSERT_LT(schedule.items(), 1LL << 31);
    const WorkItem item = schedule.item(index);
    EXPECT_EQ(item.query_tile, tile) << index;
    EXPECT_EQ(item.sequence, sequence) << index;
    EXPECT_EQ(item.head, head) << index;
  };
  const Schedule wide{32, (1 << 20) - 1, 64, 264, false};
  expect(wide, 0, 31, 0, 0);
  expect(wide, 32 * 264 - 1, 0, 4, 7);
  expect(wide, 32 * 264, 31, 4, 8);
  expect(wide, wide.items() - 1, 0, (1 << 20) - 2, 63);
  const Schedule one_group{(1 << 23) - 1, 1, 256, 1 << 30, false};  // a group that holds more pairs than there are
  expect(one_group, one_group.items() - 1, 0, 0, 255);
  const Schedule long_sequence{(1 << 26) - 1, 2, 8, 16, true};
  expect(long_sequence, 15, 0, 1, 7);
  expect(long_sequence, 16, (1 << 26) - 2, 0, 0);
  expect(long_sequence, long_sequence.items() - 1, 1, 1, 7);
}

static_assert(Schedule{3, 1, 1, 1, true}.item(0).query_tile == 0 && Schedule{3, 1, 1, 1, true}.item(1).query_tile == 2);
static_assert(Schedule{3, 1, 1, 1, false}.item(0).query_tile == 2);

}  // namespace
}  // namespace warploom::geometry
