#include <nlohmann/json.hpp>

#include "sim/pictures.h"

namespace warploom::sim {
namespace {

constexpr int kResources = 1, kExecutors = 2;  // process numbers, one group of tracks each

class Writer {
 public:
  explicit Writer(const Run& run) : run_(run), per_us_(run.machine.clock_ghz * 1e3) {}

  void name(int process, int thread, const char* kind, const std::string& text) {
    events_.push_back({{"ph", "M"}, {"pid", process}, {"tid", thread}, {"name", kind}, {"args", {{"name", text}}}});
  }

  void slice(int process, std::uint32_t thread, Cycles start, Cycles end, const std::string& text,
             const char* category) {
    events_.push_back({{"ph", "X"},
                       {"pid", process},
                       {"tid", thread},
                       {"ts", us(static_cast<double>(start))},
                       {"dur", us(static_cast<double>(end - start))},
                       {"name", text},
                       {"cat", category},
                       {"args", {{"start", start}, {"end", end}, {"cycles", end - start}}}});
  }

  // Arrows attach to the slice that holds their time, so both ends lie a quarter of a cycle before the slices' ends.
  void arrow(int from_process, std::uint32_t from_thread, Cycles from, std::uint32_t to_thread, Cycles to,
             const std::string& text) {
    const std::int64_t id = ++arrows_;
    events_.push_back({{"ph", "s"},
                       {"id", id},
                       {"pid", from_process},
                       {"tid", from_thread},
                       {"name", text},
                       {"cat", "barrier"},
                       {"ts", us(static_cast<double>(from) - 0.25)}});
    events_.push_back({{"ph", "f"},
                       {"bp", "e"},
                       {"id", id},
                       {"pid", kExecutors},
                       {"tid", to_thread},
                       {"name", text},
                       {"cat", "barrier"},
                       {"ts", us(static_cast<double>(to) - 0.25)}});
  }

  std::string finish() {
    nlohmann::ordered_json json = {{"displayTimeUnit", "ns"},
                                   {"otherData", {{"title", run_.title}, {"clock_ghz", run_.machine.clock_ghz}}}};
    json["traceEvents"] = std::move(events_);
    return json.dump();
  }

 private:
  double us(double cycles) const { return cycles / per_us_; }

  const Run& run_;
  double per_us_;
  std::int64_t arrows_ = 0;
  nlohmann::ordered_json events_ = nlohmann::ordered_json::array();
};

}  // namespace

std::string perfetto_json(const Run& run) {
  const Model& model = run.model;
  const Trace& trace = run.timeline.trace;
  Writer writer(run);
  writer.name(kResources, 0, "process_name", "resources");
  writer.name(kExecutors, 0, "process_name", "executors");
  for (std::uint32_t r = 0; r < model.resources.size(); ++r) {
    writer.name(kResources, static_cast<int>(r), "thread_name", model.resources[r]);
    for (const Interval& interval : run.timeline.intervals[r])
      writer.slice(kResources, r, interval.start, interval.end, tag_name(model, interval.tag), "resource");
  }
  for (std::uint32_t e = 0; e < model.executors.size(); ++e)
    writer.name(kExecutors, static_cast<int>(e), "thread_name", model.executors[e].name);
  for (const Span& span : trace.spans) {
    const Operation& op = model.executors[span.executor].program[span.operation];
    if (op.kind == OperationKind::async) continue;  // the executor went on; its resource's track shows the work
    if (op.kind == OperationKind::wait) {
      if (span.end == span.start) continue;
      const std::string text = "wait " + model.barriers[op.barrier];
      writer.slice(kExecutors, span.executor, span.start, span.end, text, "stall");
      const Arrival& arrival = trace.arrivals[op.barrier][static_cast<std::size_t>(op.cycles - 1)];
      if (arrival.span == kNone) continue;  // it arrived at cycle 0, before any work
      const Span& source = trace.spans[arrival.span];
      const Operation& cause = model.executors[source.executor].program[source.operation];
      if (!arrival.async)
        writer.arrow(kExecutors, source.executor, source.end, span.executor, span.end, model.barriers[op.barrier]);
      else if (source.end > source.start)
        writer.arrow(kResources, cause.resource, source.end, span.executor, span.end, model.barriers[op.barrier]);
      continue;
    }
    if (span.start > span.asked)
      writer.slice(kExecutors, span.executor, span.asked, span.start, "queue for " + model.resources[op.resource],
                   "stall");
    if (span.end > span.start)
      writer.slice(kExecutors, span.executor, span.start, span.end, tag_name(model, op.tag),
                   op.kind == OperationKind::busy ? "busy" : "use");
  }
  return writer.finish();
}

}  // namespace warploom::sim
