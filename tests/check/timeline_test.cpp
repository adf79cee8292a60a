// The picture of a finding.
#include "check/timeline.h"

#include <gtest/gtest.h>

#include "check/plant.h"

namespace warploom::check {
namespace {

TEST(Timeline, draws_roles_as_lanes_and_time_downwards) {
  const Sizes sizes{1, 1, 1, 1, true, false};
  const Describe describe = planted(*find_plant("double-release"), *find_pipeline("specialized"));
  const Protocol protocol = describe(sizes);
  const Exploration exploration = explore(protocol, 1000);
  ASSERT_EQ(exploration.findings.size(), 1u);
  const Timeline picture = timeline(protocol, exploration.findings[0]);
  EXPECT_EQ(draw(picture),
            "  step  producer               consumer[0]         memory\n"
            "     1  wait empty[0] (fresh)  ░\n"
            "     2  expect full[0] #0      ░\n"
            "     3  load stage[0] #0       ░\n"
            "     4                         ░                   stage[0] #0 lands\n"
            "     5                         wait full[0] #0\n"
            "     6                         read stage[0] #0\n"
            "     7                         done stage[0] #0\n"
            "     8                         arrive empty[0] #0\n"
            "     9                         arrive empty[0] #0\n");
  EXPECT_EQ(picture.steps.back().who, "consumer[0]");
  EXPECT_EQ(picture.steps.back().does, "arrive empty[0] #0");
  const std::vector<std::string> state = {"full[0]: phase 1 (parity 1), 0 of 1 arrived",
                                          "empty[0]: phase 1 (parity 1), 0 of 1 arrived", "stage[0]: holds #0"};
  EXPECT_EQ(picture.state, state);
}

TEST(Timeline, describes_sizes_in_words) {
  EXPECT_EQ(describe({1, 2, 3, 4, true, true}),
            "1 stage, 2 steps, 3 consumers, 4 tiles (every second one half as long), producer exits early");
  EXPECT_EQ(describe({2, 1, 1, 1, false, false}), "2 stages, 1 step, 1 consumer, 1 tile, producer drains its rings");
}

}  // namespace
}  // namespace warploom::check
