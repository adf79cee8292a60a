#include "median.h"

#include <gtest/gtest.h>

namespace warploom {
namespace {

TEST(Median, IsTheMiddleValueOrTheMeanOfTheTwo) {
  EXPECT_EQ(median_of({}), 0);
  EXPECT_EQ(median_of({7}), 7);
  EXPECT_EQ(median_of({9, 1}), 5);
  EXPECT_EQ(median_of({9, 1, 4}), 4);
  EXPECT_EQ(median_of({8, 100, 2, 4}), 6);
  EXPECT_EQ(median_of({3, 3, 3, 1, 9, 3}), 3);
}

}  // namespace
}  // namespace warploom
