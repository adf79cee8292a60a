#include "check/timeline.h"

#include <algorithm>

namespace warploom::check {
namespace {

/// Columns of a terminal: bytes of UTF-8 that begin a character.
int columns(const std::string& text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(const std::string& text, int width) {
  return text + std::string(static_cast<std::size_t>(std::max(0, width - columns(text))), ' ');
}

std::string counted(int n, const char* word) {
  return std::to_string(n) + " " + word + (n == 1 ? "" : "s");
}

/// The sign in a lane in which nothing happens in this step.
std::string idle_sign(const Machine& machine, const State& state, int role) {
  if (machine.next(state, role) == nullptr) return "";
  if (!machine.enabled(state, {Event::Kind::operation, static_cast<std::int8_t>(role)})) return "░";
  for (int s = 0; s < machine.protocol().num_slots; ++s) {
    if ((state.slots[s].readers >> role & 1) != 0) return "│";
  }
  return "·";
}

std::string memory_sign(const Machine& machine, const State& state) {
  for (int s = 0; s < machine.protocol().num_slots; ++s) {
    if (state.slots[s].in_flight) return "│";
  }
  return "";
}

}  // namespace

Timeline timeline(const Protocol& protocol, const Finding& finding) {
  const Machine machine(protocol);
  Timeline result;
  for (int r = 0; r < protocol.num_roles; ++r) result.lanes.push_back(machine.role_name(r));
  result.lanes.push_back("memory");
  if (finding.fault.kind == FaultKind::malformed) return result;

  State state = machine.initial();
  result.state = machine.describe(state);
  for (const Event& event : finding.interleaving) {
    const bool landing = event.kind == Event::Kind::landing;
    const int actor = landing ? protocol.num_roles : event.index;
    const std::string does = machine.describe(state, event);
    result.steps.push_back({result.lanes[actor], does});
    for (int lane = 0; lane <= protocol.num_roles; ++lane) {
      if (lane == actor) {
        result.marks.push_back(does);
      } else {
        result.marks.push_back(lane == protocol.num_roles ? memory_sign(machine, state)
                                                          : idle_sign(machine, state, lane));
      }
    }
    if (!machine.apply(state, event)) result.state = machine.describe(state);
  }
  return result;
}

std::string draw(const Timeline& timeline) {
  const std::size_t lanes = timeline.lanes.size();
  std::vector<int> widths;
  for (const std::string& lane : timeline.lanes) widths.push_back(columns(lane));
  for (std::size_t i = 0; i < timeline.marks.size(); ++i) {
    widths[i % lanes] = std::max(widths[i % lanes], columns(timeline.marks[i]));
  }
  std::string text;
  const auto line = [&](const std::string& first, auto cell) {
    std::string row = "  " + first;
    for (std::size_t lane = 0; lane < lanes; ++lane) row += "  " + padded(cell(lane), widths[lane]);
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  };
  line("step", [&](std::size_t lane) { return timeline.lanes[lane]; });
  for (std::size_t step = 0; step < timeline.steps.size(); ++step) {
    const std::string number = std::to_string(step + 1);
    line(std::string(number.size() < 4 ? 4 - number.size() : 0, ' ') + number,
         [&](std::size_t lane) { return timeline.marks[step * lanes + lane]; });
  }
  return text;
}

std::string describe(const pipeline::Sizes& sizes) {
  return counted(sizes.stages, "stage") + ", " + counted(sizes.steps, "step") + ", " +
         counted(sizes.consumers, "consumer") + ", " + counted(sizes.tiles, "tile") +
         (sizes.uneven_tiles ? " (every second one half as long)" : "") +
         (sizes.producer_exits_early ? ", producer exits early" : ", producer drains its rings");
}

}  // namespace warploom::check
