// The descriptions themselves: constant expressions, and the arithmetic that kernels share.
#include <gtest/gtest.h>

#include "pipeline/shipped.h"

namespace warploom::pipeline {
namespace {

constexpr Sizes kSizes{2, 3, 2, 2, true, false};
constexpr Protocol kSpecialized = specialized_ring(kSizes);
static_assert(!kSpecialized.overflow);
static_assert(kSpecialized.num_roles == 3);
static_assert(kSpecialized.roles[0].length == 2 * 3 * 3, "wait, expect, load a step");
static_assert(kSpecialized.mbarriers[0].arrivals == 1 && kSpecialized.mbarriers[2].arrivals == 2);

TEST(Cursor, advancing_and_skipping_agree) {
  for (int stages = 1; stages <= 4; ++stages) {
    const Ring ring{stages, 0, 0, stages};
    Cursor stepped;
    for (int step = 0; step < 20; ++step, stepped.advance(ring)) {
      Cursor skipped;
      skipped.skip(ring, step);
      EXPECT_EQ(skipped.slot, stepped.slot);
      EXPECT_EQ(skipped.round, stepped.round);
      EXPECT_EQ(use_of(ring, stepped), step);
    }
  }
}

TEST(Recorder, the_first_wait_for_an_empty_slot_has_parity_one) {
  const Op& wait = kSpecialized.roles[0].ops[0];
  EXPECT_EQ(wait.kind, OpKind::wait);
  EXPECT_EQ(wait.phase, -1);
  EXPECT_TRUE(wait.parity);
}

TEST(Protocol, says_when_its_tables_are_too_small) {
  EXPECT_TRUE(specialized_ring({2, 100, 2, 10, true, false}).overflow);
  EXPECT_TRUE(specialized_ring({2, 1, 7, 1, true, false}).overflow);
  EXPECT_TRUE(specialized_ring({20, 1, 1, 1, true, false}).overflow);
}

TEST(Turns, one_consumer_needs_none) {
  EXPECT_EQ(ping_pong({2, 3, 1, 2, true, false}).num_named, 0);
  EXPECT_EQ(ping_pong({2, 3, 3, 2, true, false}).num_named, 3);
}

}  // namespace
}  // namespace warploom::pipeline
