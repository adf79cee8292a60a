// Every class of fault, planted in a shipped protocol, is found, with a shortest interleaving that really leads to it.
#include "check/plant.h"

#include <gtest/gtest.h>

#include <array>

namespace warploom::check {
namespace {

const SizedFinding* find(const Report& report, FaultKind kind) {
  for (const SizedFinding& found : report.findings) {
    if (found.finding.fault.kind == kind) return &found;
  }
  return nullptr;
}

Report check_plant(const char* name) {
  const Plant* plant = find_plant(name);
  const auto* shipped = find_pipeline(plant->pipeline);
  return check(shipped->name, planted(*plant, *shipped));
}

/// Performs the interleaving: every step but the last must be possible and free of faults.
std::optional<Fault> replay(const Protocol& protocol, const Finding& finding) {
  const Machine machine(protocol);
  State state = machine.initial();
  for (std::size_t i = 0; i < finding.interleaving.size(); ++i) {
    EXPECT_TRUE(machine.enabled(state, finding.interleaving[i]));
    if (auto fault = machine.apply(state, finding.interleaving[i])) {
      EXPECT_EQ(i + 1, finding.interleaving.size());
      return fault;
    }
  }
  if (auto fault = machine.missed_phase(state)) return fault;
  return machine.judge_end(state);
}

TEST(Plants, each_is_found_and_its_interleaving_replays) {
  for (const Plant& plant : plants()) {
    const auto* shipped = find_pipeline(plant.pipeline);
    ASSERT_NE(shipped, nullptr) << plant.name;
    const Describe describe = planted(plant, *shipped);
    const Report report = check(shipped->name, describe);
    EXPECT_FALSE(report.ok()) << plant.name;
    EXPECT_EQ(report.unfinished, 0) << plant.name;
    const SizedFinding* found = find(report, plant.shows);
    ASSERT_NE(found, nullptr) << plant.name;
    if (plant.shows == FaultKind::malformed) continue;
    const auto fault = replay(describe(found->sizes), found->finding);
    ASSERT_TRUE(fault) << plant.name;
    EXPECT_EQ(fault->kind, plant.shows) << plant.name;
    EXPECT_EQ(fault->message, found->finding.fault.message) << plant.name;
  }
}

TEST(Plants, cover_every_kind_of_fault) {
  std::array<bool, kFaultKinds> covered{};
  for (const Plant& plant : plants()) covered[static_cast<int>(plant.shows)] = true;
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    EXPECT_TRUE(covered[kind]) << name_of(static_cast<FaultKind>(kind));
  }
}

TEST(Plants, the_shortest_deadlock_of_a_missing_release) {
  const Report report = check_plant("missing-release");
  const SizedFinding* found = find(report, FaultKind::deadlock);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->finding.interleaving.size(), 7u);  // wait, expect, load, it lands, wait, read, done
  EXPECT_EQ(found->finding.fault.message, "producer is stuck in wait empty[0] #0 (phase 0 has 0 of 1 arrival)");
}

TEST(Plants, an_early_release_lets_the_producer_overwrite_a_slot_under_its_reader) {
  const Report report = check_plant("early-release");
  const SizedFinding* found = find(report, FaultKind::slot_overwritten);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->finding.fault.message,
            "producer writes filling 1 of stage[0] while consumer[0] still reads filling 0");
}

TEST(Plants, a_consumer_that_nobody_counts_can_sleep_through_a_phase) {
  const Report report = check_plant("uncounted-consumer");
  const SizedFinding* found = find(report, FaultKind::phase_reuse);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->finding.fault.message,
            "consumer[1] waits for phase 0 of full[0], but phase 1 has ended too: the parity shows the phase it waits "
            "for as not ended");
}

TEST(Plants, without_turns_a_later_tile_takes_an_early_phase_for_its_own) {
  const Report report = check_plant("no-turns");
  const SizedFinding* found = find(report, FaultKind::phase_reuse);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->finding.fault.message,
            "consumer[1] waits for phase 1 of full[0] with parity 1, and passes while phase 0 is under way");
}

}  // namespace
}  // namespace warploom::check
