#include <algorithm>
#include <cmath>

#include "sim/pictures.h"

namespace warploom::sim {
namespace {

constexpr double kWidth = 960, kLane = 26, kGap = 6, kTop = 54;

// The whole style: variables for light and dark, so that a file shown in either is readable. Prefixed, since several
// pictures may share one HTML page.
constexpr const char* kStyle =
    "<style>.wl{font:12px "
    "system-ui,sans-serif;--ink:#1b1f24;--dim:#6a737d;--paper:#ffffff;--lane:#f0f2f5;--stall:#c9ced6}"
    "@media(prefers-color-scheme:dark){.wl{--ink:#e6e9ed;--dim:#9aa4af;--paper:#14181d;--lane:#20262d;--stall:#4a525c}}"
    ".wl text{fill:var(--ink)}.wl .dim{fill:var(--dim);font-size:10px}.wl .paper{fill:var(--paper)}.wl "
    ".lane{fill:var(--lane)}"
    ".wl .grid{stroke:var(--dim);stroke-opacity:.35;stroke-width:1}.wl "
    ".on{fill:#101418;font-size:10px;pointer-events:none}"
    ".wl .stall rect{fill:url(#wl-hatch);stroke:var(--stall);stroke-width:.5}.wl "
    ".hatch{stroke:var(--stall);stroke-width:2}"
    ".wl .stall text{fill:var(--dim);font-size:10px;pointer-events:none}</style>";

struct Box {
  Cycles start, end;
  char tag;  // of a stall: ' '
  std::string label;
  std::string hover;
};

std::string number(double value) {
  std::string text = fixed(value, 2);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string range(Cycles start, Cycles end) {
  return std::to_string(start) + " to " + std::to_string(end) + " (" + std::to_string(end - start) + " cycles)";
}

std::vector<Box> resource_boxes(const Run& run, Resource r) {
  std::vector<Box> boxes;
  for (const Interval& interval : run.timeline.intervals[r])
    boxes.push_back({interval.start, interval.end, interval.tag, std::string(1, interval.tag),
                     run.model.resources[r] + ": " + tag_name(run.model, interval.tag) + " of " +
                         run.model.executors[interval.executor].name + ", " + range(interval.start, interval.end)});
  return boxes;
}

std::vector<Box> executor_boxes(const Run& run, std::uint32_t e) {
  std::vector<Box> boxes;
  for (const Span& span : run.timeline.trace.spans) {
    if (span.executor != e) continue;
    const Operation& op = run.model.executors[e].program[span.operation];
    const std::string name = run.model.executors[e].name;
    if (op.kind == OperationKind::wait) {
      const std::string& barrier = run.model.barriers[op.barrier];
      boxes.push_back(
          {span.start, span.end, ' ', barrier,
           name + " waits for " + barrier + " >= " + std::to_string(op.cycles) + ", " + range(span.start, span.end)});
    } else if (op.kind == OperationKind::busy) {
      boxes.push_back({span.start, span.end, op.tag, tag_name(run.model, op.tag),
                       name + ": " + tag_name(run.model, op.tag) + ", " + range(span.start, span.end)});
    } else if (op.kind == OperationKind::use) {
      const std::string& resource = run.model.resources[op.resource];
      boxes.push_back({span.asked, span.start, ' ', resource,
                       name + " queues for " + resource + ", " + range(span.asked, span.start)});
      boxes.push_back(
          {span.start, span.end, op.tag, tag_name(run.model, op.tag),
           name + ": " + tag_name(run.model, op.tag) + " on " + resource + ", " + range(span.start, span.end)});
    }
  }
  return boxes;
}

class Picture {
 public:
  // `longest`: characters of the longest lane name
  Picture(Cycles until, int lanes, std::size_t longest)
      : left_(std::max(112.0, 6.8 * static_cast<double>(longest) + 16)),
        until_(until),
        scale_(kWidth / static_cast<double>(until)),
        height_(kTop + lanes * (kLane + kGap) + 44) {}

  double x(Cycles cycle) const { return left_ + scale_ * static_cast<double>(std::min(cycle, until_)); }

  void lane(const std::string& name, const std::vector<Box>& boxes) {
    const double y = kTop + lane_ * (kLane + kGap);
    body_ += "<text x=\"" + number(left_ - 8) + "\" y=\"" + number(y + 17) + "\" text-anchor=\"end\">" + escaped(name) +
             "</text>" + "<rect class=\"lane\" x=\"" + number(left_) + "\" y=\"" + number(y) + "\" width=\"" +
             number(kWidth) + "\" height=\"" + number(kLane) + "\"/>\n";
    double drawn = 0;  // right edge of the last box
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      const Box& box = boxes[i];
      if (box.end <= box.start || box.start >= until_) continue;
      // Neighbours of one tag that are too thin to tell apart become one box; what is thinner than half a pixel is left
      // out.
      std::size_t last = i;
      while (last + 1 < boxes.size() && boxes[last + 1].tag == box.tag &&
             x(boxes[last + 1].end) - x(boxes[last].start) < 1)
        ++last;
      if (x(boxes[last].end) - drawn >= 0.5 || i == 0) {
        draw(y, box, boxes[last].end, last - i);
        drawn = x(boxes[last].end);
      }
      i = last;
    }
    ++lane_;
  }

  void axis(const Machine& machine) {
    const double bottom = kTop + lane_ * (kLane + kGap);
    const auto mark = [&](double cycle, double y, const std::string& text, bool line) {
      const std::string at = number(left_ + scale_ * cycle);
      if (line)
        body_ += "<line class=\"grid\" x1=\"" + at + "\" x2=\"" + at + "\" y1=\"" + number(kTop - 6) + "\" y2=\"" +
                 number(bottom) + "\"/>";
      body_ +=
          "<text class=\"dim\" x=\"" + at + "\" y=\"" + number(y) + "\" text-anchor=\"middle\">" + text + "</text>\n";
    };
    const auto length = static_cast<double>(until_);
    for (double step = axis_step(length, 10), cycle = 0; cycle <= length; cycle += step)
      mark(cycle, kTop - 12, number(cycle), true);
    const double per_us = machine.clock_ghz * 1e3;
    for (double step = axis_step(length / per_us, 10), us = 0; us * per_us <= length; us += step)
      mark(us * per_us, bottom + 10, number(us), false);
    body_ += "<text class=\"dim\" x=\"" + number(left_ - 8) + "\" y=\"" + number(kTop - 12) +
             "\" text-anchor=\"end\">cycles</text>" + "<text class=\"dim\" x=\"" + number(left_ - 8) + "\" y=\"" +
             number(bottom + 10) + "\" text-anchor=\"end\">microseconds</text>\n";
  }

  std::string finish(const std::string& title, const std::string& legend) const {
    const double bottom = kTop + lane_ * (kLane + kGap);
    const std::string width = number(left_ + kWidth + 24), height = number(height_);
    return "<svg class=\"wl\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + width + " " + height +
           "\" width=\"" + width + "\" height=\"" + height + "\" role=\"img\" aria-label=\"" + escaped(title) + "\">" +
           kStyle +
           "<defs><pattern id=\"wl-hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
           "patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" "
           "y2=\"6\"/></pattern></defs>\n" +
           "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n<text x=\"8\" y=\"18\" font-weight=\"600\">" +
           escaped(title) + "</text>\n" + body_ + legend_row(bottom + 30, legend) + "</svg>\n";
  }

 private:
  void draw(double y, const Box& box, Cycles end, std::size_t merged) {
    const double left = x(box.start), width = std::max(x(end) - left, 0.3);
    const bool stall = box.tag == ' ';
    const std::string place = "x=\"" + number(left) + "\" y=\"" + number(y) + "\" width=\"" + number(width) +
                              "\" height=\"" + number(kLane) + "\"";
    std::string hover = box.hover;
    if (merged > 0) hover += " and " + std::to_string(merged) + " more";
    body_ += stall ? "<g class=\"stall\">" : "<g>";
    body_ += "<rect " + place + (stall ? "" : std::string(" fill=\"") + tag_colour(box.tag) + "\"") + "><title>" +
             escaped(hover) + "</title></rect>";
    const auto fits = [&](const std::string& text) { return 6.2 * static_cast<double>(text.size()) + 4 <= width; };
    const std::string label = fits(box.label) ? box.label : std::string(1, box.tag);
    if (merged == 0 && fits(label) && label != " ")
      body_ += std::string("<text ") + (stall ? "" : "class=\"on\" ") + "x=\"" + number(left + width / 2) + "\" y=\"" +
               number(y + 17) + "\" text-anchor=\"middle\">" + escaped(label) + "</text>";
    body_ += "</g>\n";
  }

  std::string legend_row(double y, const std::string& tags) const {
    std::string text;
    double at = left_;
    const auto entry = [&](const std::string& swatch, const std::string& name) {
      text += swatch + "<text class=\"dim\" x=\"" + number(at + 14) + "\" y=\"" + number(y + 9) + "\">" +
              escaped(name) + "</text>";
      at += 30 + 5.6 * static_cast<double>(name.size());
    };
    const auto place = [&] { return "x=\"" + number(at) + "\" y=\"" + number(y) + "\" width=\"10\" height=\"10\""; };
    for (std::size_t i = 0; i < tags.size();) {
      const char tag = tags[i];
      const std::size_t end = tags.find('\n', i);
      entry("<rect " + place() + " fill=\"" + tag_colour(tag) + "\"/>", tags.substr(i + 1, end - i - 1));
      i = end + 1;
    }
    entry("<g class=\"stall\"><rect " + place() + "/></g>", "waits (named after the barrier)");
    return text + "\n";
  }

  double left_;  // where the lanes begin
  Cycles until_;
  double scale_, height_;
  int lane_ = 0;
  std::string body_;
};

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

const char* tag_colour(char tag) {
  switch (tag) {
    case 'M':
    case 'A':
      return "#f2a93b";
    case 'm':
    case 'B':
      return "#6fbf73";
    case 'L':
      return "#6ea8fe";
    case 'd':
      return "#8fa3c7";
    case 'E':
      return "#c79bd9";
    case 'D':
      return "#b99a86";
    case 'i':
      return "#63c6c0";
    case 'T':
      return "#f4a6b7";
    case 'x':
      return "#ef7d77";
    case 'o':
      return "#e3cf57";
    case 'R':
      return "#9fd3e8";
    case 'Q':
      return "#b3b8f2";
    default:
      return "#aab4c0";
  }
}

double axis_step(double length, int most) {
  double step = std::pow(10.0, std::floor(std::log10(length / most)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if (length / (step * factor) <= most) return step * factor;
  return step * 10;
}

std::string timeline_svg(const Run& run, Cycles until) {
  std::vector<Resource> used;
  for (Resource r = 0; r < run.model.resources.size(); ++r)
    if (!run.timeline.intervals[r].empty() && run.timeline.intervals[r].front().start < until) used.push_back(r);
  std::size_t longest = 0;
  for (const Executor& executor : run.model.executors) longest = std::max(longest, executor.name.size());
  Picture picture(until, static_cast<int>(used.size() + run.model.executors.size()), longest);
  for (const Resource r : used) picture.lane(run.model.resources[r], resource_boxes(run, r));
  for (std::uint32_t e = 0; e < run.model.executors.size(); ++e)
    picture.lane(run.model.executors[e].name, executor_boxes(run, e));
  picture.axis(run.machine);

  std::string legend;
  for (const auto& [tag, meaning] : run.model.legend) {
    const bool shown = std::any_of(run.timeline.trace.spans.begin(), run.timeline.trace.spans.end(),
                                   [&, wanted = tag](const Span& span) {
                                     return run.model.executors[span.executor].program[span.operation].tag == wanted &&
                                            span.end > span.start && span.start < until;
                                   });
    if (shown) legend += tag + meaning + "\n";
  }
  return picture.finish(run.title + ": " + std::to_string(run.timeline.makespan) + " cycles", legend);
}

}  // namespace warploom::sim
