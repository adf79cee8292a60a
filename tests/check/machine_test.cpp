// The barriers behave as the hardware's do.
#include "check/machine.h"

#include <gtest/gtest.h>

namespace warploom::check {
namespace {

using pipeline::kWarpgroup;
using pipeline::Recorder;

Event operation(int role) {
  return {Event::Kind::operation, static_cast<std::int8_t>(role)};
}
Event landing(int slot) {
  return {Event::Kind::landing, static_cast<std::int8_t>(slot)};
}

TEST(Machine, a_fresh_mbarrier_lets_parity_one_pass_and_parity_zero_wait) {
  Protocol protocol({});
  const int barrier = protocol.add_mbarrier({"b"}, 1);
  Recorder zero = protocol.add_role({"zero"}, 32);
  zero.wait(barrier, 0);
  Recorder one = protocol.add_role({"one"}, 32);
  one.wait(barrier, -1);
  const Machine machine(protocol);
  const State state = machine.initial();
  EXPECT_FALSE(machine.enabled(state, operation(0)));
  EXPECT_TRUE(machine.enabled(state, operation(1)));
}

TEST(Machine, a_phase_ends_when_arrivals_and_bytes_are_complete_in_either_order) {
  for (const bool bytes_first : {false, true}) {
    Protocol protocol({});
    const int slot = protocol.add_slot({"s"});
    const int barrier = protocol.add_mbarrier({"full"}, 1);
    Recorder producer = protocol.add_role({"producer"}, 32);
    if (bytes_first) {
      producer.load(slot, 0, barrier, 0);
      producer.expect(barrier, 0, 1);
    } else {
      producer.expect(barrier, 0, 1);
      producer.load(slot, 0, barrier, 0);
    }
    Recorder consumer = protocol.add_role({"consumer"}, kWarpgroup);
    consumer.wait(barrier, 0);
    const Machine machine(protocol);
    State state = machine.initial();
    ASSERT_FALSE(machine.apply(state, operation(0)));
    if (bytes_first) {
      ASSERT_FALSE(machine.apply(state, landing(slot)));
    }
    EXPECT_FALSE(machine.enabled(state, operation(1)));
    ASSERT_FALSE(machine.apply(state, operation(0)));
    if (!bytes_first) {
      EXPECT_FALSE(machine.enabled(state, operation(1)));
      ASSERT_FALSE(machine.apply(state, landing(slot)));
    }
    EXPECT_TRUE(machine.enabled(state, operation(1)));
    EXPECT_FALSE(machine.apply(state, operation(1)));
  }
}

TEST(Machine, a_named_barrier_releases_when_its_threads_have_arrived) {
  Protocol protocol({});
  const int barrier = protocol.add_named_barrier({"turn"}, 2 * kWarpgroup, 1);
  Recorder waiting = protocol.add_role({"waiting"}, kWarpgroup);
  waiting.sync(barrier);
  Recorder passing = protocol.add_role({"passing"}, kWarpgroup);
  passing.signal(barrier);
  const Machine machine(protocol);
  State state = machine.initial();
  ASSERT_FALSE(machine.apply(state, operation(0)));
  EXPECT_FALSE(machine.enabled(state, operation(0)));
  ASSERT_FALSE(machine.apply(state, operation(1)));
  EXPECT_TRUE(machine.enabled(state, operation(0)));
  ASSERT_FALSE(machine.apply(state, operation(0)));
  EXPECT_FALSE(machine.judge_end(state));
}

TEST(Machine, wait_group_leaves_only_the_newest_groups_pending) {
  Protocol protocol({});
  const int first = protocol.add_slot({"s", 0}), second = protocol.add_slot({"s", 1});
  Recorder warp = protocol.add_role({"warp"}, 32);
  warp.copy(first, 0);
  warp.commit();
  warp.copy(second, 0);
  warp.commit();
  warp.wait_groups(1);
  warp.wait_groups(0);
  const Machine machine(protocol);
  State state = machine.initial();
  for (int i = 0; i < 4; ++i) ASSERT_FALSE(machine.apply(state, operation(0)));
  EXPECT_FALSE(machine.enabled(state, operation(0)));
  ASSERT_FALSE(machine.apply(state, landing(first)));
  EXPECT_TRUE(machine.enabled(state, operation(0)));
  ASSERT_FALSE(machine.apply(state, operation(0)));
  EXPECT_FALSE(machine.enabled(state, operation(0)));
}

TEST(Machine, malformed_names_the_rule) {
  Protocol protocol({});
  protocol.add_named_barrier({"turn", 3}, 2 * kWarpgroup, 16);
  protocol.add_named_barrier({"odd"}, 100, 2);
  protocol.add_mbarrier({"none"}, 0);
  const auto faults = malformed(protocol);
  ASSERT_EQ(faults.size(), 3u);
  EXPECT_EQ(faults[0].message, "none is initialised for 0 arrivals; an mbarrier needs at least 1");
  EXPECT_EQ(faults[1].message, "turn[3] has id 16; the hardware has named barriers 0 to 15");
  EXPECT_EQ(faults[2].message, "odd counts 100 threads; bar.sync takes a multiple of the warp size, 32");
}

}  // namespace
}  // namespace warploom::check
