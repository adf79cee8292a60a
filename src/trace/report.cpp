#include "trace/report.h"

#include <algorithm>
#include <utility>

#include "problem/message.h"
#include "trace/timeline.h"

namespace warploom::trace {
namespace {

sim::Json activity_json(const Activity& activity) {
  return {{"count", activity.count}, {"mean", activity.mean}, {"share", activity.share}};
}

sim::Json comparison_json(const Comparison& comparison) {
  sim::Json json = {{"makespan", {{"model", comparison.model_makespan}, {"measured", comparison.measured_makespan}}},
                    {"tensor", {{"model", comparison.model_tensor}, {"measured", comparison.measured_tensor}}},
                    {"rows", sim::Json::array()},
                    {"verdict", comparison.verdict}};
  for (const ComparedRow& row : comparison.rows) {
    json["rows"].push_back({{"tag", row.tag},
                            {"what", row.what},
                            {"model", activity_json(row.model)},
                            {"measured", activity_json(row.measured)}});
  }
  return json;
}

}  // namespace

Result<Report> report_of(const TracedRun& traced, bool compare) {
  const Recording& recording = traced.recording;
  const std::int64_t cta = traced.cta;
  const auto found =
      std::find_if(recording.ctas.begin(), recording.ctas.end(), [&](const CtaTrace& each) { return each.cta == cta; });
  if (found == recording.ctas.end()) {
    if (recording.ctas.empty()) return Status::runtime_error("the trace is empty");
    return Status::invalid_value(message("cta = ", cta, " recorded nothing; CTAs ", recording.ctas.front().cta, " to ",
                                         recording.ctas.back().cta, " did"));
  }
  if (Status status = check_marks(traced.subject, *found); !status.ok()) return status;
  Report report;
  report.run = run_of(traced.subject, recording, *found);
  report.order = check_order(traced.subject, *found);
  report.ctas = static_cast<std::int64_t>(recording.ctas.size());
  report.marks = recording.marks;
  report.lost = recording.lost;
  report.plain_ms = traced.plain_ms;
  report.traced_ms = traced.traced_ms;
  if (!compare) return report;
  const sim::Scenario scenario = fit_model(traced.subject, *found);
  for (const sim::Variant variant : traced.subject.schedules) {
    sim::AttentionScenario scheduled = std::get<sim::AttentionScenario>(scenario);
    scheduled.variant = variant;
    const Result<sim::Run> run = sim::run_scenario(scheduled);
    if (!run.ok()) return run.status();
    report.schedules.push_back({sim::to_string(variant), run->timeline.makespan, run->timeline.utilisation(sim::TC)});
  }
  Result<sim::Run> model = sim::run_scenario(scenario, {.trace = true});
  if (!model.ok()) return model.status();
  report.comparison = trace::compare(*model, report.run);
  report.model = std::move(*model);
  for (const std::string& difference : traced.subject.differences) report.run.notes.push_back(difference);
  return report;
}

sim::Json report_json(const Report& report, const sim::Window& window) {
  sim::Json json = sim::run_json(report.run, window);
  json["note"] = "measured";
  json["clock_ghz"] = report.run.machine.clock_ghz;
  json["ctas"] = report.ctas;
  json["marks"] = report.marks;
  json["lost"] = report.lost;
  json["order"] = {
      {"checked", report.order.checked}, {"violated", report.order.violated}, {"violations", report.order.violations}};
  if (const std::optional<double> slow_down = report.slow_down()) {
    json["timing"] = {
        {"plain_ms", report.plain_ms}, {"traced_ms", report.traced_ms}, {"slow_down_percent", *slow_down}};
  }
  if (report.comparison) {
    json["comparison"] = comparison_json(*report.comparison);
    for (const ScheduledModel& model : report.schedules) {
      json["schedules"].push_back({{"name", model.name}, {"makespan", model.makespan}, {"tensor", model.tensor}});
    }
    json["model"] = sim::run_json(*report.model, window);
  }
  return json;
}

}  // namespace warploom::trace
