#include "cli/simulate_options.h"

#include <algorithm>
#include <cstdio>

#include "cli/terminal.h"
#include "sim/critical_path.h"
#include "sim/pictures.h"
#include "sim/rows.h"

namespace warploom::cli {
namespace {

// A model of many SMs has hundreds of resources: its first, its last and what they share stand for all.
std::vector<sim::Resource> shown_resources(const sim::Run& run) {
  constexpr std::size_t kMany = 16, kEnd = 5;
  const std::size_t count = run.model.resources.size();
  std::vector<sim::Resource> list;
  for (std::size_t r = 0; r < count; ++r)
    if (count <= kMany || r < kEnd - 1 || r + kEnd >= count) list.push_back(static_cast<sim::Resource>(r));
  return list;
}

int name_width(const sim::Run& run, const std::vector<sim::Resource>& resources) {
  std::size_t width = 4;
  for (const sim::Resource r : resources) width = std::max(width, run.model.resources[r].size());
  return static_cast<int>(width);
}

void print_timeline(const sim::Run& run, const sim::Window& window) {
  const std::vector<sim::Resource> resources = shown_resources(run);
  const int width = name_width(run, resources);
  std::printf("\n  %-*s 0%*s\n", width, "", static_cast<int>(window.width) - 1,
              (with_commas(window.until) + " cycles").c_str());
  for (const sim::Resource r : resources)
    std::printf(
        "  %-*s %s\n", width, run.model.resources[r].c_str(),
        sim::drawn(sim::sample_row(run.timeline.intervals[r], window.until, static_cast<int>(window.width))).c_str());
  std::string legend;
  for (const auto& [tag, meaning] : run.model.legend) {
    bool shown = false;
    for (const auto& intervals : run.timeline.intervals)
      for (const sim::Interval& interval : intervals) shown = shown || interval.tag == tag;
    if (shown) legend += std::string(legend.empty() ? "" : ", ") + tag + " " + meaning;
  }
  std::printf("  %s\n", paint(Colour::dim, legend).c_str());
}

}  // namespace

void print_run(const sim::Run& run, const sim::Window& window) {
  std::printf("%s\n", paint(Colour::bold, run.title).c_str());
  std::printf("  makespan %s cycles = %.1f us at %.2f GHz, %s events\n", with_commas(run.timeline.makespan).c_str(),
              sim::microseconds(run.machine, run.timeline.makespan), run.machine.clock_ghz,
              with_commas(run.timeline.events).c_str());
  if (run.closed_form)
    std::printf("  closed form %s = %s\n", run.closed_form->formula.c_str(),
                with_commas(run.closed_form->makespan).c_str());
  std::printf("  critical path: %s\n",
              sim::to_string(sim::shares(sim::critical_path(run.model, run.timeline))).c_str());
  print_lanes(run, window);
  std::printf("  %s\n", paint(Colour::dim, sim::kOptimism).c_str());
}

void print_lanes(const sim::Run& run, const sim::Window& window) {
  const std::vector<sim::Resource> resources = shown_resources(run);
  for (const sim::Resource r : resources) {
    const double percent = run.timeline.utilisation(r);
    std::printf("  %-*s %s %6.2f %%  %s cycles\n", name_width(run, resources), run.model.resources[r].c_str(),
                bar(percent / 100, 30).c_str(), percent, with_commas(run.timeline.busy(r)).c_str());
  }
  if (resources.size() < run.model.resources.size())
    std::printf("  ... of %zu resources the first, the last and the shared ones are shown\n",
                run.model.resources.size());
  print_timeline(run, window);
  for (const std::string& note : run.notes) std::printf("  note: %s\n", note.c_str());
}

void RunOutput::add_to(CLI::App& command) {
  command.add_option("--until", until, "End of the timeline in cycles (default: the makespan)")->type_name("N");
  command.add_option("--width", width, "Characters of the timeline")->type_name("N")->capture_default_str();
  is_written(command.add_option("--svg", svg, "Write the timeline as SVG")->type_name("FILE"));
  is_written(command.add_option("--perfetto", perfetto, "Write a trace for ui.perfetto.dev")->type_name("FILE"));
  json.add_to(command);
}

int RunOutput::finish(const sim::Run& run) const {
  return finish(
      run, [&run](const sim::Window& window) { print_run(run, window); },
      [&run](const sim::Window& window) { return sim::run_json(run, window); });
}

int RunOutput::finish(const sim::Run& run, const std::function<void(const sim::Window&)>& print,
                      const std::function<Json(const sim::Window&)>& json_of) const {
  if (until)
    if (const Status status = sim::validate_window(*until, width); !status.ok()) return report(status);
  const Result<sim::Window> window = sim::resolve({until.value_or(0), width}, run.timeline);
  if (!window.ok()) return report(window.status());
  if (json.prints_text()) print(*window);
  for (const Status& status : {write_if_given("--svg", svg, [&] { return sim::timeline_svg(run, window->until); }),
                               write_if_given("--perfetto", perfetto, [&] { return sim::perfetto_json(run); }),
                               json.requested() ? json.write(json_of(*window)) : Status()})
    if (!status.ok()) return report(status);
  return exit_success;
}

}  // namespace warploom::cli
