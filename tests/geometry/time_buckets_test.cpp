#include "geometry/time_buckets.h"

#include <gtest/gtest.h>

#include <cmath>

namespace warploom::geometry {
namespace {

TEST(TimeThresholds, AreTheCeilingsOfTheExponential) {
  for (int n = 1; n <= kDefaultTimeThresholds; ++n) {
    const double value = std::ceil(std::exp(0.301 * n));
    ASSERT_LT(value, 0x1p64);
    EXPECT_EQ(kTimeThresholds.values[n - 1], static_cast<unsigned long long>(value)) << n;
  }
  EXPECT_GE(std::exp(0.301 * (kDefaultTimeThresholds + 1)), 0x1p64) << "no more of them fit";
}

}  // namespace
}  // namespace warploom::geometry
