// Everything that is said of a traced run: one CTA's timeline, the order of its marks, the model beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/json.h"
#include "trace/compare.h"
#include "trace/order.h"
#include "trace/traced_run.h"

namespace warploom::trace {

struct Report {
  sim::Run run;  ///< of one CTA, as the simulator's
  OrderCheck order;
  std::optional<sim::Run> model;  ///< the same work in the simulator, when it was asked for
  std::optional<Comparison> comparison;
  std::int64_t ctas = 0, marks = 0, lost = 0;
  double plain_ms = 0, traced_ms = 0;

  /// Percent; none without timing.
  std::optional<double> slow_down() const {
    if (plain_ms <= 0) return std::nullopt;
    return 100 * (traced_ms / plain_ms - 1);
  }
};

/// Error: invalid_value for a CTA that did not record, naming those that did; what the simulator says of the model.
Result<Report> report_of(const TracedRun& traced, std::int64_t cta, bool compare);

/// sim::run_json with what only a measurement has.
sim::Json report_json(const Report& report, const sim::Window& window);

}  // namespace warploom::trace
