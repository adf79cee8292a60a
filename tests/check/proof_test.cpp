// The proof says "no fault" exactly when the exploration of every interleaving finds none.
#include "check/proof.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "check/check.h"

namespace warploom::check {
namespace {

constexpr std::size_t kMaxStates = 1'600'000;

/// One small random change of the kind an author makes: an operation lost, doubled, moved, given another parity, phase
/// or object; a count or an id that is off by one.
void mutate(Protocol& protocol, std::mt19937& random) {
  const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  auto& role = protocol.roles[below(protocol.num_roles)];
  const int kind = below(10);
  if (kind == 0 && protocol.num_mbarriers > 0) {
    protocol.mbarriers[below(protocol.num_mbarriers)].arrivals = 1 + below(3);
  } else if (kind == 1 && protocol.num_named > 0) {
    auto& barrier = protocol.named[below(protocol.num_named)];
    barrier.threads = pipeline::kWarpgroup * (1 + below(3));
  } else if (kind == 2 && protocol.num_mbarriers > 1) {
    protocol.mbarriers[below(protocol.num_mbarriers)].id = below(protocol.num_mbarriers);
  } else if (role.length > 1) {
    const int at = below(role.length);
    std::vector<Op> ops(role.ops, role.ops + role.length);
    switch (kind) {
      case 3:
        ops.insert(ops.begin() + at, Op(ops[at]));
        break;
      case 4:
        std::swap(ops[at], ops[below(role.length)]);
        break;
      case 5:
        std::swap(ops[at], ops[at > 0 ? at - 1 : 1]);
        break;
      case 6:
        ops[at].parity = !ops[at].parity;
        break;
      case 7:
        ops[at].phase = static_cast<short>(ops[at].phase + 1);
        break;
      case 8:
        if (ops[at].kind == OpKind::wait_groups || ops[at].kind == OpKind::expect) ++ops[at].use;
        break;
      default:
        ops.erase(ops.begin() + at);
    }
    role.length = static_cast<int>(ops.size());
    std::copy(ops.begin(), ops.end(), role.ops);
  }
}

std::string words(const Exploration& exploration) {
  std::string text;
  for (const Finding& finding : exploration.findings) {
    text += std::string(name_of(finding.fault.kind)) + ": " + finding.fault.message + "\n";
  }
  return text;
}

/// Five roles and more have so many interleavings that only short runs can be explored whole.
bool has_many_roles(const pipeline::Pipeline& shipped) {
  return shipped.describe({.consumers = 2}).num_roles > 4;
}

TEST(Proof, agrees_with_the_full_exploration_of_mutated_protocols) {
  std::mt19937 random(20240);
  int proved = 0, faulty = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const auto& shipped = pipeline::kShippedPipelines[random() % std::size(pipeline::kShippedPipelines)];
    const auto up_to = [&random](unsigned n) { return static_cast<int>(random() % (n + 1)); };
    Sizes sizes{1 + up_to(2), up_to(3), 1 + up_to(1), up_to(2), up_to(1) == 1, up_to(1) == 1};
    if (has_many_roles(shipped)) {
      sizes.steps = std::min(sizes.steps, 1);
      sizes.tiles = std::min(sizes.tiles, 1);
    }
    Protocol protocol = shipped.describe(sizes);
    const int mutations = up_to(2);
    for (int i = 0; i < mutations; ++i) mutate(protocol, random);
    if (!malformed(protocol).empty()) continue;
    const Proof proof = prove(protocol);
    const Exploration exploration = explore(protocol, kMaxStates);
    ASSERT_TRUE(exploration.complete || !exploration.findings.empty());
    ASSERT_EQ(proof.holds, exploration.findings.empty())
        << shipped.name << " trial " << trial << " stages " << sizes.stages << " steps " << sizes.steps << " consumers "
        << sizes.consumers << " tiles " << sizes.tiles << "\nproof: " << proof.reason << "\n"
        << words(exploration);
    ++(proof.holds ? proved : faulty);
  }
  // Both verdicts must have been compared often enough to mean something.
  EXPECT_GT(proved, 500);
  EXPECT_GT(faulty, 500);
}

TEST(Proof, agrees_with_the_full_exploration_of_every_shipped_protocol_at_small_sizes) {
  Grid grid;
  grid.stages = {1, 2};
  grid.consumers = {1, 2};
  Limits limits;
  limits.exhaustive = true;
  limits.states = kMaxStates;
  for (const auto& shipped : pipeline::kShippedPipelines) {
    const bool many = has_many_roles(shipped);
    grid.steps = many ? std::vector{0, 1} : std::vector{0, 1, 2, 3};
    grid.tiles = many ? std::vector{0, 1} : std::vector{0, 1, 2};
    const Report report = check(shipped.name, shipped.describe, grid, limits);
    EXPECT_TRUE(report.ok()) << shipped.name;
    EXPECT_GT(report.explored_states, report.sizes) << shipped.name;
  }
}

}  // namespace
}  // namespace warploom::check
