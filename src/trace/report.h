// Everything that is said of a traced run: one CTA's timeline, the order of its marks, the model beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/json.h"
#include "trace/compare.h"
#include "trace/order.h"
#include "trace/traced_run.h"

namespace warploom::trace {

/// A run of the model under a schedule of its own.
struct ScheduledModel {
  std::string name;
  sim::Cycles makespan = 0;
  double tensor = 0;  ///< percent of the makespan in which the tensor core is busy
};

struct Report {
  sim::Run run;  ///< of one CTA, as the simulator's
  OrderCheck order;
  std::optional<sim::Run> model;  ///< the same work in the simulator, when it was asked for
  std::optional<Comparison> comparison;
  std::vector<ScheduledModel> schedules;  ///< likewise, of attention: the model's other ways to schedule it
  std::int64_t ctas = 0, marks = 0, lost = 0;
  double plain_ms = 0, traced_ms = 0;

  /// Percent; none without timing.
  std::optional<double> slow_down() const {
    if (plain_ms <= 0) return std::nullopt;
    return 100 * (traced_ms / plain_ms - 1);
  }
};

/// Of the CTA to show. Errors: invalid_value where it did not record, naming those that did; runtime_error for marks
/// that are not the subject's; what the simulator says of the model.
Result<Report> report_of(const TracedRun& traced, bool compare);

/// sim::run_json with what only a measurement has.
sim::Json report_json(const Report& report, const sim::Window& window);

}  // namespace warploom::trace
