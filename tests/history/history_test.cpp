#include "history/history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace warploom::history {
namespace {

TEST(GroupByUser, AUserWithoutEventsHasAnEmptyHistory) {
  const Histories histories = group_by_user({{2, 0, 5}, {0, 1, 7}}, {"a", "b", "c"}, 2);
  EXPECT_EQ(histories.offsets, (std::vector<std::int64_t>{0, 1, 1, 2}));
  EXPECT_EQ(histories.length(1), 0);
  EXPECT_EQ(histories.longest(), 1);
}

TEST(Shorten, KeepsTheFirstUsersAndTheirLastEvents) {
  const Histories histories =
      group_by_user({{0, 0, 1}, {0, 1, 2}, {0, 2, 3}, {1, 3, 9}, {2, 4, 9}}, {"a", "b", "c"}, 5);
  const Histories shorter = shorten(histories, 2, 2);
  EXPECT_EQ(shorter.offsets, (std::vector<std::int64_t>{0, 2, 3}));
  EXPECT_EQ(shorter.items, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(shorter.timestamps, (std::vector<std::int64_t>{2, 3, 9}));
  EXPECT_EQ(shorten(histories, 0, 0).items, histories.items);
  EXPECT_EQ(shorten(histories, 99, 99).offsets, histories.offsets);
}

TEST(Generate, LooksLikeMovieLensAndRepeats) {
  const Histories histories = generate(943, 1682, 1);
  EXPECT_EQ(histories.num_users(), 943);
  EXPECT_EQ(histories.items, generate(943, 1682, 1).items);
  EXPECT_NE(histories.items, generate(943, 1682, 2).items);
  std::vector<std::int64_t> lengths;
  for (std::int64_t user = 0; user < 943; ++user) {
    lengths.push_back(histories.length(user));
    EXPECT_TRUE(std::is_sorted(histories.timestamps.begin() + histories.offsets[static_cast<std::size_t>(user)],
                               histories.timestamps.begin() + histories.offsets[static_cast<std::size_t>(user) + 1]));
  }
  std::sort(lengths.begin(), lengths.end());
  EXPECT_GE(lengths.front(), 20);
  EXPECT_LE(lengths.back(), 737);
  EXPECT_NEAR(static_cast<double>(lengths[471]), 65, 10);
  EXPECT_GE(*std::min_element(histories.items.begin(), histories.items.end()), 0);
  EXPECT_LT(*std::max_element(histories.items.begin(), histories.items.end()), 1682);
}

}  // namespace
}  // namespace warploom::history
