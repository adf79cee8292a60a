#include "sim/json.h"

#include <algorithm>

#include "sim/rows.h"

namespace warploom::sim {

Result<Window> resolve(Window window, const Timeline& timeline) {
  if (window.until == 0) window.until = std::max<Cycles>(timeline.makespan, 1);
  if (Status status = validate_window(window.until, window.width); !status.ok()) return status;
  return window;
}

Json run_json(const Run& run, const Window& window) {
  const Timeline& timeline = run.timeline;
  Json json;
  json["title"] = run.title;
  json["machine"] = run.machine.name;
  json["makespan"] = timeline.makespan;
  json["microseconds"] = microseconds(run.machine, timeline.makespan);
  for (Resource r = 0; r < run.model.resources.size(); ++r) {
    const std::string& name = run.model.resources[r];
    json["utilisation"][name] = timeline.utilisation(r);
    json["busy"][name] = timeline.busy(r);
    json["timeline"][name] = sample_row(timeline.intervals[r], window.until, static_cast<int>(window.width));
  }
  json["events"] = timeline.events;
  json["until"] = window.until;
  json["width"] = window.width;
  if (run.closed_form)
    json["closed_form"] = {{"formula", run.closed_form->formula}, {"makespan", run.closed_form->makespan}};
  for (const auto& [tag, meaning] : run.model.legend) json["legend"][std::string(1, tag)] = meaning;
  json["notes"] = run.notes;
  json["note"] = kOptimism;
  return json;
}

Json intervals_json(const Run& run) {
  Json json = Json::object();
  for (Resource r = 0; r < run.model.resources.size(); ++r) {
    Json& lane = json[run.model.resources[r]];
    lane = {{"start", Json::array()}, {"end", Json::array()}, {"executor", Json::array()}};
    std::string tags;
    for (const Interval& interval : run.timeline.intervals[r]) {
      lane["start"].push_back(interval.start);
      lane["end"].push_back(interval.end);
      lane["executor"].push_back(interval.executor);
      tags += interval.tag;
    }
    lane["tag"] = tags;
  }
  return json;
}

const char* to_string(Measure measure) {
  switch (measure) {
    case Measure::tensor_percent:
      return "TC %";
    case Measure::memory_percent:
      return "MEM %";
    case Measure::makespan:
      return "makespan";
    case Measure::stages_needed:
      return "stages needed";
    case Measure::tensor_row:
      return "TC row";
    case Measure::memory_row:
      return "MEM row";
  }
  return "";
}

Json outcome_json(const Outcome& outcome) {
  const Cycles until = outcome.experiment.until > 0 ? outcome.experiment.until : outcome.run.timeline.makespan;
  Json json = {
      {"name", outcome.experiment.name}, {"section", outcome.experiment.section}, {"about", outcome.experiment.about}};
  json.update(run_json(outcome.run, {until, outcome.experiment.width}));
  json["claims"] = Json::array();
  for (const CheckedClaim& checked : outcome.claims)
    json["claims"].push_back({{"measure", to_string(checked.claim.measure)},
                              {"published", checked.claim.published},
                              {"ours", checked.ours},
                              {"agrees", checked.agrees}});
  return json;
}

Json experiments_json(const std::vector<Outcome>& outcomes) {
  Json json;
  json["experiments"] = Json::array();
  for (const Outcome& outcome : outcomes) json["experiments"].push_back(outcome_json(outcome));
  json["formulas"] = Json::array();
  for (const Formula& row : formulas(Machine{}))
    json["formulas"].push_back({{"what", row.what}, {"formula", row.formula}, {"value", row.value}});
  json["ablation"] = {{"setting", kFlashAttention3Setting}, {"peak", kFlashAttention3Peak}, {"tflops", Json::object()}};
  for (const Ablation& row : kFlashAttention3) json["ablation"]["tflops"][row.what] = row.tflops;
  json["note"] = kOptimism;
  return json;
}

Json sweep_json(const Sweep& sweep) {
  const auto axis = [](const Axis& a) { return Json{{"name", a.name}, {"values", a.values}}; };
  const SweepRequest& request = sweep.request;
  Json json = {{"x", axis(request.x)},
               {"y", request.y.name.empty() ? Json() : axis(request.y)},
               {"metric", to_string(request.metric)},
               {"points", sweep.points()},
               {"done", sweep.done},
               {"refusals", sweep.refusals},
               {"values", Json::array()},
               {"note", kOptimism}};
  const std::size_t columns = request.x.values.size();
  for (std::size_t i = 0; i < sweep.values.size(); ++i) {
    if (i % columns == 0) json["values"].push_back(Json::array());
    json["values"].back().push_back(sweep.values[i] ? Json(*sweep.values[i]) : Json());
  }
  return json;
}

Json designs_json(const std::vector<Design>& designs) {
  Json json = {{"designs", Json::array()}, {"note", kOptimism}};
  for (const Design& design : designs) {
    Json row = {{"shape", design.shape},
                {"roles", design.roles},
                {"stages", design.stages},
                {"shared_memory", design.shared_memory},
                {"producer_registers", design.producer_registers},
                {"consumer_registers", design.consumer_registers},
                {"accumulators", design.accumulators},
                {"feasible", design.infeasible.empty()}};
    if (design.infeasible.empty())
      row.update({{"makespan", design.makespan},
                  {"useful", design.useful},
                  {"tensor_busy", design.tensor_busy},
                  {"limiter", design.limiter},
                  {"path", design.path},
                  {"pareto", design.pareto}});
    else
      row["reason"] = design.infeasible;
    json["designs"].push_back(std::move(row));
  }
  return json;
}

Json work_json(const WorkProblem& problem, const std::vector<Cycles>& costs) {
  Json json = {{"items", costs.size()}, {"sms", problem.sms}, {"schedules", Json::array()}};
  for (const Order order : {Order::in_order, Order::longest_first})
    for (const Assignment assignment : {Assignment::fixed, Assignment::dynamic}) {
      const Schedule result = schedule(costs, problem.sms, order, assignment);
      json["schedules"].push_back({{"order", to_string(order)},
                                   {"assignment", to_string(assignment)},
                                   {"makespan", result.makespan},
                                   {"tail", result.tail},
                                   {"balance", result.balance}});
    }
  json["note"] = kOptimism;
  return json;
}

}  // namespace warploom::sim
