// Runs and experiments as JSON, in the shapes of api.md ("Command line").
#pragma once

#include <nlohmann/json.hpp>

#include "sim/design.h"
#include "sim/experiments.h"
#include "sim/scenario.h"
#include "sim/sweep.h"
#include "sim/work_list.h"

namespace warploom::sim {

/// In order of insertion, so that files read as they were written.
using Json = nlohmann::ordered_json;

/// What part of a timeline is shown.
struct Window {
  Cycles until = 0;  ///< 0: the makespan
  std::int64_t width = 72;
};

/// The window with its default filled in, or why it cannot be sampled.
Result<Window> resolve(Window window, const Timeline& timeline);

/// {"title", "makespan", "utilisation", "busy", "events", "timeline", "closed_form", "notes", ...}. `window` is
/// resolved.
Json run_json(const Run& run, const Window& window);

/// {"TC": {"start": [...], "end": [...], "executor": [...], "tag": "MMM"}, ...}
Json intervals_json(const Run& run);

/// The run's JSON with the experiment's name and its claims: [{"measure", "published", "ours", "agrees"}].
Json outcome_json(const Outcome& outcome);

/// {"experiments": [...], "formulas": [...], "ablation": {...}, "note"}
Json experiments_json(const std::vector<Outcome>& outcomes);

/// {"x": {"name", "values"}, "y": the same or null, "metric", "values": [[...]], "points", "done", "refusals", "note"}
Json sweep_json(const Sweep& sweep);

/// [{"shape", "roles", "stages", "shared_memory", registers, "feasible", "reason" or the figures}], and the note.
Json designs_json(const std::vector<Design>& designs);

/// {"items", "sms", "schedules": [{"order", "assignment", "makespan", "tail", "balance"}]} of the four combinations.
Json work_json(const WorkProblem& problem, const std::vector<Cycles>& costs);

const char* to_string(Measure measure);

}  // namespace warploom::sim
