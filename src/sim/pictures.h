// Runs as pictures: SVG, Chrome/Perfetto trace JSON, and one HTML report of all experiments.
#pragma once

#include <string>
#include <vector>

#include "sim/experiments.h"
#include "sim/scenario.h"

namespace warploom::sim {

/// A self-contained SVG of [0, until): a lane for each resource that served something and for each executor. Stalls are
/// hatched and labelled with the barrier or resource that caused them; hovering names every box; the axis is in cycles
/// and microseconds; colours follow the reader's light or dark setting. Needs a run with RunOptions::trace.
std::string timeline_svg(const Run& run, Cycles until);

/// Chrome trace JSON (open in ui.perfetto.dev): a track for each resource and each executor, and a flow arrow from
/// every arrival to the wait that it ended. Times are microseconds of the machine's clock; args hold the cycles. Needs
/// a run with RunOptions::trace.
std::string perfetto_json(const Run& run);

/// One HTML page without outside references: the table of experiments, closed forms, the ablation, and a figure for
/// each experiment (id "figure-NAME"). The outcomes need traces.
std::string html_report(const std::vector<Outcome>& outcomes);

/// Text with &, <, > and " escaped, for XML.
std::string escaped(const std::string& text);

/// The colour of a tag in every picture, "#rrggbb".
const char* tag_colour(char tag);

/// A round step between axis marks so that `most` of them cover `length`: 1, 2 or 5 times a power of ten.
double axis_step(double length, int most);

}  // namespace warploom::sim
