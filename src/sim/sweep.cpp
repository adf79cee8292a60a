#include "sim/sweep.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "sim/experiments.h"
#include "sim/pictures.h"

namespace warploom::sim {
namespace {

constexpr std::size_t kMostValues = 100000;

std::string number_text(double value) {
  if (value == std::nearbyint(value) && std::abs(value) < 9e15) return std::to_string(static_cast<std::int64_t>(value));
  std::string text = fixed(value, 6);
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

// "2..8", "300..3000:300", "16..256*2"
Result<std::vector<std::string>> parse_range(const std::string& name, const std::string& text) {
  const std::size_t dots = text.find("..");
  const std::size_t end = text.find_first_of(":*", dots + 2);
  const bool factor = end != std::string::npos && text[end] == '*';
  const Result<double> first = parse_number(name, text.substr(0, dots));
  const Result<double> last =
      parse_number(name, text.substr(dots + 2, end == std::string::npos ? end : end - dots - 2));
  const Result<double> step = end == std::string::npos ? Result<double>(1.0) : parse_number(name, text.substr(end + 1));
  for (const Result<double>& part : {first, last, step})
    if (!part.ok()) return part.status();
  if (*last < *first || (factor ? !(*step > 1 && *first > 0) : !(*step > 0)))
    return Status::invalid_value(name + " = '" + text +
                                 "' must be FIRST..LAST, FIRST..LAST:STEP with a step above 0, or " +
                                 "FIRST..LAST*FACTOR with a factor above 1");
  std::vector<std::string> values;
  for (std::size_t i = 0; i <= kMostValues; ++i) {
    const double value =
        factor ? *first * std::pow(*step, static_cast<double>(i)) : *first + static_cast<double>(i) * *step;
    if (value > *last * (1 + 1e-12)) break;
    values.push_back(number_text(value));
  }
  return values;
}

Scenario default_scenario(ScenarioKind kind) {
  if (kind == ScenarioKind::gemm) return GemmScenario{};
  return AttentionScenario{};
}

double measure(const Timeline& timeline, Metric metric) {
  switch (metric) {
    case Metric::tensor_percent:
      return timeline.utilisation(TC);
    case Metric::memory_percent:
      return timeline.utilisation(MEM);
    case Metric::makespan:
      return static_cast<double>(timeline.makespan);
  }
  return 0;
}

}  // namespace

Result<Axis> parse_axis(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return Status::invalid_value("axis = '" + text +
                                 "' must be NAME=VALUES, as in stages=2..8 or latency=300..3000:300");
  Axis axis{text.substr(0, equals), {}};
  std::replace(axis.name.begin(), axis.name.end(), '-', '_');
  const std::string list = text.substr(equals + 1);
  if (list.find("..") != std::string::npos) {
    Result<std::vector<std::string>> values = parse_range(axis.name, list);
    if (!values.ok()) return values.status();
    axis.values = std::move(*values);
  } else {
    for (std::size_t at = 0; at <= list.size();) {
      const std::size_t comma = std::min(list.find(',', at), list.size());
      axis.values.push_back(list.substr(at, comma - at));
      at = comma + 1;
    }
  }
  if (axis.values.size() > kMostValues)
    return Status::invalid_value("axis " + axis.name + " has more than 100,000 values; take a larger step");
  return axis;
}

Result<Metric> parse_metric(const std::string& text) {
  for (const Metric metric : {Metric::tensor_percent, Metric::memory_percent, Metric::makespan})
    if (text == to_string(metric)) return metric;
  return Status::invalid_value("metric = '" + text + "' must be one of TC|MEM|makespan");
}

const char* to_string(Metric metric) {
  return metric == Metric::tensor_percent ? "TC" : metric == Metric::memory_percent ? "MEM" : "makespan";
}

Result<ScenarioKind> parse_kind(const std::string& text) {
  if (text == "gemm") return ScenarioKind::gemm;
  if (text == "attention") return ScenarioKind::attention;
  return Status::invalid_value("kind = '" + text + "' must be one of gemm|attention");
}

Result<Sweep> sweep(const SweepRequest& request, const Control& control) {
  const bool two = !request.y.name.empty();
  const auto columns = static_cast<std::int64_t>(request.x.values.size());
  const std::int64_t rows = two ? static_cast<std::int64_t>(request.y.values.size()) : 1;
  if (columns < 1 || rows < 1) return Status::invalid_value("an axis has no values");
  if (two && request.x.name == request.y.name)
    return Status::invalid_value("both axes are " + request.x.name + "; take two parameters");
  if (columns * rows > 10'000'000)
    return Status::invalid_value("the sweep has " + std::to_string(columns * rows) +
                                 " points, more than 10,000,000; take larger steps");

  Sweep result{request, std::vector<std::optional<double>>(static_cast<std::size_t>(columns * rows)), {}, 0};
  std::mutex mutex;
  result.done = for_each_index(columns * rows, control, [&](std::int64_t i) {
    Settings settings = request.base;
    settings.emplace_back(request.x.name, request.x.values[static_cast<std::size_t>(i % columns)]);
    if (two) settings.emplace_back(request.y.name, request.y.values[static_cast<std::size_t>(i / columns)]);
    Scenario scenario = default_scenario(request.kind);
    const Status status = std::visit([&](auto& s) { return configure(s, settings); }, scenario);
    if (status.ok()) {
      result.values[static_cast<std::size_t>(i)] = measure(run(model_of(scenario)), request.metric);
      return;
    }
    const std::lock_guard lock(mutex);
    if (result.refusals.size() < 20 &&
        std::find(result.refusals.begin(), result.refusals.end(), status.message()) == result.refusals.end())
      result.refusals.push_back(status.message());
  });
  if (!bounds(result) && !result.refusals.empty()) return Status::invalid_value(result.refusals.front());
  return result;
}

std::optional<std::pair<double, double>> bounds(const Sweep& sweep) {
  std::optional<std::pair<double, double>> range;
  for (const std::optional<double>& value : sweep.values) {
    if (!value) continue;
    if (!range) range = {*value, *value};
    range = {std::min(range->first, *value), std::max(range->second, *value)};
  }
  return range;
}

unsigned heat_colour(double share) {
  // Five stops of viridis (matplotlib, CC0), linear in between.
  constexpr std::array<std::array<double, 3>, 5> kStops = {
      {{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}}};
  const double at = std::clamp(share, 0.0, 1.0) * 4;
  const auto low = static_cast<std::size_t>(std::min(at, 3.0));
  const double part = at - static_cast<double>(low);
  unsigned colour = 0;
  for (std::size_t c = 0; c < 3; ++c)
    colour =
        colour << 8 | static_cast<unsigned>(std::lround(kStops[low][c] + part * (kStops[low + 1][c] - kStops[low][c])));
  return colour;
}

std::string value_text(const Sweep& sweep, double value) {
  return fixed(value, sweep.request.metric == Metric::makespan ? 0 : 2);
}

std::string heat_map_svg(const Sweep& sweep) {
  const SweepRequest& request = sweep.request;
  const std::size_t columns = request.x.values.size(), rows = sweep.values.size() / columns;
  const double cell_width = std::clamp(900.0 / static_cast<double>(columns), 1.0, 64.0);
  const double cell_height = std::clamp(480.0 / static_cast<double>(rows), 1.0, 28.0);
  const double left = 110, top = 48;
  const double width = left + cell_width * static_cast<double>(columns) + 140,
               height = top + cell_height * static_cast<double>(rows) + 56;
  const std::pair<double, double> range = bounds(sweep).value_or(std::pair{0.0, 0.0});
  const auto px = [](double value) { return fixed(value, 1); };
  const auto colour = [&](double value) {
    std::array<char, 8> text{};
    std::snprintf(text.data(), text.size(), "#%06x",
                  heat_colour(range.second > range.first ? (value - range.first) / (range.second - range.first) : 1));
    return std::string(text.data());
  };
  const auto text_at = [&](double x, double y, const std::string& anchor, const std::string& text) {
    return "<text x=\"" + px(x) + "\" y=\"" + px(y) + "\" text-anchor=\"" + anchor + "\">" + escaped(text) +
           "</text>\n";
  };
  const std::string title = std::string(to_string(request.metric)) +
                            (request.metric == Metric::makespan ? " (cycles)" : " % busy") + " over " + request.x.name +
                            (request.y.name.empty() ? "" : " and " + request.y.name);
  std::string svg = "<svg class=\"wh\" xmlns=\"http://www.w3.org/2000/svg\" width=\"" + px(width) + "\" height=\"" +
                    px(height) + "\" viewBox=\"0 0 " + px(width) + " " + px(height) + "\" role=\"img\" aria-label=\"" +
                    escaped(title) +
                    "\"><style>.wh{font:11px system-ui,sans-serif}.wh .paper{fill:#fff}.wh text{fill:#1b1f24}"
                    "@media(prefers-color-scheme:dark){.wh .paper{fill:#14181d}.wh text{fill:#e6e9ed}}</style>"
                    "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n" +
                    text_at(8, 18, "start", title);
  for (std::size_t y = 0; y < rows; ++y)
    for (std::size_t x = 0; x < columns; ++x) {
      const std::optional<double>& value = sweep.values[y * columns + x];
      const std::string where = request.x.name + " " + request.x.values[x] +
                                (request.y.name.empty() ? "" : ", " + request.y.name + " " + request.y.values[y]);
      svg += "<rect x=\"" + px(left + cell_width * static_cast<double>(x)) + "\" y=\"" +
             px(top + cell_height * static_cast<double>(y)) + "\" width=\"" + px(cell_width) + "\" height=\"" +
             px(cell_height) + "\" fill=\"" + (value ? colour(*value) : "none") + "\"><title>" +
             escaped(where + ": " + (value ? value_text(sweep, *value) : "no value")) + "</title></rect>\n";
    }
  const auto every = [](double cell, double space) {
    return static_cast<std::size_t>(std::max(1.0, std::ceil(space / cell)));
  };
  for (std::size_t x = 0; x < columns; x += every(cell_width, 44))
    svg += text_at(left + cell_width * (static_cast<double>(x) + 0.5), height - 40, "middle", request.x.values[x]);
  svg += text_at(left + cell_width * static_cast<double>(columns) / 2, height - 22, "middle", request.x.name);
  if (!request.y.name.empty()) {
    svg += text_at(left - 6, top - 8, "end", request.y.name);
    for (std::size_t y = 0; y < rows; y += every(cell_height, 14))
      svg += text_at(left - 6, top + cell_height * (static_cast<double>(y) + 0.5) + 4, "end", request.y.values[y]);
  }
  for (int step = 0; step <= 10; ++step) {
    const double value = range.second - (range.second - range.first) * step / 10;
    svg += "<rect x=\"" + px(width - 120) + "\" y=\"" + px(top + 16.0 * step) +
           "\" width=\"14\" height=\"16\" fill=\"" + colour(value) + "\"/>" +
           text_at(width - 100, top + 16.0 * step + 12, "start", value_text(sweep, value));
  }
  return svg + text_at(8, height - 6, "start", kOptimism) + "</svg>\n";
}

}  // namespace warploom::sim
