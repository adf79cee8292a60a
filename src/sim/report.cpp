#include <algorithm>

#include "sim/critical_path.h"
#include "sim/json.h"
#include "sim/pictures.h"

namespace warploom::sim {
namespace {

constexpr const char* kHead =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width\">"
    "<title>Warploom: the pipeline model</title><style>"
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:1120px;margin:2rem auto;padding:0 "
    "1rem}"
    "table{border-collapse:collapse;font-size:14px}th,td{padding:.25rem .7rem;text-align:left;border-bottom:1px solid "
    "#8884}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.no{color:#d33;font-weight:600}.optimism{border-left:"
    "4px solid "
    "#e0a030;padding:.3rem .8rem;background:#e0a03018}figure{margin:2.2rem "
    "0}figcaption{margin-bottom:.4rem}svg{max-width:100%;"
    "height:auto}a{color:inherit}</style></head><body>\n";

std::string optimism() {
  return std::string("<p class=\"optimism\">") + kOptimism + "</p>\n";
}

std::string cell(const std::string& text, bool numeric = false) {
  return (numeric ? "<td class=\"n\">" : "<td>") + escaped(text) + "</td>";
}

std::string experiment_row(const Outcome& outcome) {
  std::string published, ours;
  for (const CheckedClaim& checked : outcome.claims) {
    const std::string unit = to_string(checked.claim.measure);
    published += (published.empty() ? "" : "; ") + unit + " " + checked.claim.published;
    ours += (ours.empty() ? "" : "; ") + checked.ours;
  }
  const std::string& name = outcome.experiment.name;
  return "<tr><td><a href=\"#figure-" + name + "\">" + name + "</a></td>" + cell(outcome.experiment.about) +
         cell(std::to_string(outcome.run.timeline.makespan), true) +
         cell(fixed(outcome.run.timeline.utilisation(TC), 2), true) + cell(published) + cell(ours) +
         (outcome.claims.empty() ? "<td></td>"
          : outcome.agrees()     ? "<td>yes</td>"
                                 : "<td class=\"no\">no</td>") +
         "</tr>\n";
}

std::string figure(const Outcome& outcome) {
  const Timeline& timeline = outcome.run.timeline;
  // Long runs repeat themselves: their first cycles show the prologue and enough of the steady state.
  constexpr Cycles kShown = 16000;
  const Cycles until = outcome.experiment.until > 0 ? outcome.experiment.until : std::min(timeline.makespan, kShown);
  std::string text =
      "<figure id=\"figure-" + outcome.experiment.name + "\"><figcaption><b>" + outcome.experiment.name +
      "</b>: " + escaped(outcome.experiment.about) + ". TC " + fixed(timeline.utilisation(TC), 2) +
      " % busy; critical path: " + escaped(to_string(shares(critical_path(outcome.run.model, timeline)))) + ".";
  if (outcome.run.closed_form)
    text += " Closed form " + escaped(outcome.run.closed_form->formula) + " = " +
            std::to_string(outcome.run.closed_form->makespan) + ".";
  if (until < timeline.makespan) text += " The first " + std::to_string(until) + " cycles:";
  return text + "</figcaption>\n" + timeline_svg(outcome.run, until) + "</figure>\n";
}

}  // namespace

std::string html_report(const std::vector<Outcome>& outcomes) {
  std::string html = std::string(kHead) + "<h1>The pipeline model of one SM</h1>\n" + optimism() +
                     "<h2>Experiments</h2>\n<table id=\"experiments\"><tr><th>experiment</th><th>what</th><th "
                     "class=\"n\">makespan</th>"
                     "<th class=\"n\">TC %</th><th>published</th><th>ours</th><th>agree</th></tr>\n";
  for (const Outcome& outcome : outcomes) html += experiment_row(outcome);
  html += "</table>\n<h2>Measured beside the model</h2>\n<p>" + std::string(kFlashAttention3Setting) + "; peak " +
          std::to_string(kFlashAttention3Peak) + " TFLOP/s.</p>\n<table id=\"ablation\">";
  for (const Ablation& row : kFlashAttention3)
    html += "<tr>" + cell(row.what) + cell(std::to_string(row.tflops) + " TFLOP/s", true) +
            cell(fixed(100.0 * row.tflops / kFlashAttention3Peak, 0) + " % of peak", true) + "</tr>\n";
  html += "</table>\n<h2>Closed forms (H100)</h2>\n<table id=\"formulas\">";
  for (const Formula& row : formulas(Machine{}))
    html += "<tr>" + cell(row.what) + cell(row.formula) + cell(row.value) + "</tr>\n";
  html += "</table>\n<h2>Timelines</h2>\n";
  for (const Outcome& outcome : outcomes) html += figure(outcome);
  return html + optimism() + "</body></html>\n";
}

}  // namespace warploom::sim
