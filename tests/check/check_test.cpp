// Every shipped pipeline at every size.
#include "check/check.h"

#include <gtest/gtest.h>

namespace warploom::check {
namespace {

TEST(Check, every_shipped_pipeline_is_free_of_faults_at_every_size_in_under_ten_seconds) {
  double milliseconds = 0;
  for (const auto& shipped : pipeline::kShippedPipelines) {
    const Report report = check(shipped.name, shipped.describe);
    EXPECT_EQ(report.sizes, 1848) << shipped.name;  // 4 * 10 * 3 * 5 * 2, and the uneven ones that differ
    EXPECT_TRUE(report.ok()) << shipped.name;
    for (const SizedFinding& found : report.findings)
      ADD_FAILURE() << shipped.name << ": " << found.finding.fault.message;
    EXPECT_EQ(report.unexplained, "");
    milliseconds += report.milliseconds;
  }
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // which take several times as long
  EXPECT_LT(milliseconds, 10'000);
#endif
}

TEST(Check, an_exploration_that_cannot_finish_is_not_a_pass) {
  const auto* shipped = find_pipeline("turns");
  ASSERT_NE(shipped, nullptr);
  Grid grid;
  grid.stages = {2};
  grid.steps = {3};
  grid.consumers = {2};
  grid.tiles = {2};
  Limits limits;
  limits.exhaustive = true;
  limits.states = 100;
  const Report report = check(shipped->name, shipped->describe, grid, limits);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.unfinished, report.sizes);
}

TEST(Check, a_protocol_that_outgrows_its_tables_is_malformed) {
  Grid grid;
  grid.stages = {9};
  const auto* shipped = find_pipeline("two-stage");
  ASSERT_NE(shipped, nullptr);
  const Report report = check(shipped->name, shipped->describe, grid);
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].finding.fault.kind, FaultKind::malformed);
}

TEST(Check, unknown_pipelines_are_not_found) {
  EXPECT_EQ(find_pipeline("specialised"), nullptr);
}

}  // namespace
}  // namespace warploom::check
