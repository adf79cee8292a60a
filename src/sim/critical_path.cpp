#include "sim/critical_path.h"

#include <algorithm>

namespace warploom::sim {

std::vector<PathPiece> critical_path(const Model& model, const Timeline& timeline) {
  const Trace& trace = timeline.trace;
  std::vector<PathPiece> path;
  const auto add = [&](Cycles start, Cycles end, std::string what, std::uint32_t executor) {
    if (end > start) path.push_back({start, end, std::move(what), executor});
  };

  std::uint32_t at = kNone;
  for (std::uint32_t e = 0; e < timeline.ends.size(); ++e)
    if (timeline.ends[e] == timeline.makespan) at = trace.last_span[e];

  while (at != kNone) {
    const Span* span = &trace.spans[at];
    const Operation* op = &model.executors[span->executor].program[span->operation];
    if (op->kind == OperationKind::wait) {
      const Arrival& arrival = trace.arrivals[op->barrier][static_cast<std::size_t>(op->cycles - 1)];
      at = arrival.span;
      if (!arrival.async) continue;  // another executor arrived: its last span ended at this very cycle
      span = &trace.spans[at];
      add(span->end, arrival.time, "latency", span->executor);
      op = &model.executors[span->executor].program[span->operation];
    }
    add(span->start, span->end,
        op->kind == OperationKind::busy ? tag_name(model, op->tag) : model.resources[op->resource], span->executor);
    at = span->start > span->asked ? span->before_on_resource : span->before_in_executor;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<Share> shares(const std::vector<PathPiece>& path) {
  std::vector<Share> list;
  for (const PathPiece& piece : path) {
    auto found = std::find_if(list.begin(), list.end(), [&](const Share& share) { return share.what == piece.what; });
    if (found == list.end()) found = list.insert(list.end(), {piece.what, 0});
    found->cycles += piece.end - piece.start;
  }
  std::stable_sort(list.begin(), list.end(), [](const Share& a, const Share& b) { return a.cycles > b.cycles; });
  return list;
}

std::string to_string(const std::vector<Share>& shares, std::size_t most) {
  Cycles all = 0;
  for (const Share& share : shares) all += share.cycles;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, shares.size()); ++i)
    text +=
        (i == 0 ? "" : ", ") + shares[i].what + " " + std::to_string((200 * shares[i].cycles + all) / (2 * all)) + " %";
  return text;
}

}  // namespace warploom::sim
