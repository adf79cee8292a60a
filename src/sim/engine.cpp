#include "sim/engine.h"

#include <algorithm>

namespace warploom::sim {
namespace {

struct Event {
  Cycles time;
  std::int64_t order;    // the sequence number, negated when ties run in reverse
  std::uint32_t target;  // executor to resume, or barrier that gets an arrival
  std::uint32_t origin;  // arrivals: the executor whose async sent it
  std::uint32_t span;    // arrivals: the span of that async
  bool arrival;
};

struct Later {
  bool operator()(const Event& a, const Event& b) const {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
};

struct Waiter {
  std::uint32_t executor;
  Cycles count;
};

struct BarrierState {
  Cycles count = 0;
  Cycles waited_for = 0;
  std::vector<Waiter> waiters;  // in the order in which they began to wait
};

struct ExecutorState {
  std::uint32_t next = 0;              // program counter
  std::uint32_t last_span = kNone;     // the last span that blocked the executor
  std::uint32_t waiting_span = kNone;  // trace: the open span of a wait
  Cycles since = 0;
  bool waiting = false;
};

class Engine {
 public:
  Engine(const Model& model, RunOptions options)
      : model_(model),
        options_(options),
        free_at_(model.resources.size(), 0),
        last_on_resource_(model.resources.size(), kNone),
        barriers_(model.barriers.size()),
        executors_(model.executors.size()) {
    result_.intervals.resize(model.resources.size());
    result_.ends.assign(model.executors.size(), -1);
    if (options.trace) result_.trace.arrivals.resize(model.barriers.size());
  }

  Timeline run() {
    for (std::uint32_t e = 0; e < executors_.size(); ++e) schedule({0, 0, e, 0, kNone, false});
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), Later{});
      const Event event = queue_.back();
      queue_.pop_back();
      ++result_.events;
      now_ = event.time;
      if (event.arrival)
        arrive(event.target, event.origin, event.span, true);
      else
        resume(event.target);
    }
    report_deadlock();
    if (options_.trace)
      for (const ExecutorState& state : executors_) result_.trace.last_span.push_back(state.last_span);
    return std::move(result_);
  }

 private:
  void schedule(Event event) {
    event.order = options_.reverse_ties ? -sequence_ : sequence_;
    ++sequence_;
    queue_.push_back(event);
    std::push_heap(queue_.begin(), queue_.end(), Later{});
  }

  std::uint32_t add_span(std::uint32_t e, std::uint32_t operation, Cycles start, Cycles end) {
    result_.trace.spans.push_back({e, operation, now_, start, end, executors_[e].last_span, kNone});
    return static_cast<std::uint32_t>(result_.trace.spans.size() - 1);
  }

  // Order of request is order of service, so the end of the work is known when it is asked for.
  Cycles reserve(std::uint32_t e, const Operation& op, std::uint32_t* span) {
    const Cycles start = std::max(now_, free_at_[op.resource]);
    const Cycles end = start + op.cycles;
    free_at_[op.resource] = end;
    if (op.cycles > 0) result_.intervals[op.resource].push_back({start, end, e, op.tag});
    if (options_.trace) {
      *span = add_span(e, executors_[e].next, start, end);
      result_.trace.spans[*span].before_on_resource = last_on_resource_[op.resource];
      last_on_resource_[op.resource] = *span;
    }
    return end;
  }

  void resume(std::uint32_t e) {
    ExecutorState& state = executors_[e];
    const std::vector<Operation>& program = model_.executors[e].program;
    if (state.waiting_span != kNone) {
      result_.trace.spans[state.waiting_span].end = now_;
      state.last_span = state.waiting_span;
      state.waiting_span = kNone;
    }
    while (state.next < program.size()) {
      const Operation& op = program[state.next];
      std::uint32_t span = kNone;
      switch (op.kind) {
        case OperationKind::use: {
          const Cycles end = reserve(e, op, &span);
          state.last_span = span;
          ++state.next;
          schedule({end, 0, e, 0, kNone, false});
          return;
        }
        case OperationKind::busy:
          if (options_.trace) state.last_span = add_span(e, state.next, now_, now_ + op.cycles);
          ++state.next;
          schedule({now_ + op.cycles, 0, e, 0, kNone, false});
          return;
        case OperationKind::async: {
          const Cycles end = reserve(e, op, &span);
          schedule({end + op.latency, 0, op.barrier, e, span, true});
          break;
        }
        case OperationKind::wait: {
          BarrierState& barrier = barriers_[op.barrier];
          barrier.waited_for = std::max(barrier.waited_for, op.cycles);
          if (barrier.count >= op.cycles) break;
          barrier.waiters.push_back({e, op.cycles});
          state.waiting = true;
          state.since = now_;
          if (options_.trace) state.waiting_span = add_span(e, state.next, now_, now_);
          return;
        }
        case OperationKind::arrive:
          arrive(op.barrier, e, state.last_span, false);
          break;
      }
      ++state.next;
    }
    result_.ends[e] = now_;
    result_.makespan = std::max(result_.makespan, now_);
  }

  void arrive(Barrier b, std::uint32_t executor, std::uint32_t span, bool async) {
    BarrierState& barrier = barriers_[b];
    ++barrier.count;
    if (options_.trace) result_.trace.arrivals[b].push_back({now_, executor, span, async});
    auto kept = barrier.waiters.begin();
    for (const Waiter& waiter : barrier.waiters) {
      if (barrier.count < waiter.count) {
        *kept++ = waiter;
        continue;
      }
      ExecutorState& state = executors_[waiter.executor];
      state.waiting = false;
      ++state.next;
      schedule({now_, 0, waiter.executor, 0, kNone, false});
    }
    barrier.waiters.erase(kept, barrier.waiters.end());
  }

  void report_deadlock() {
    Deadlock deadlock;
    for (std::uint32_t e = 0; e < executors_.size(); ++e) {
      const ExecutorState& state = executors_[e];
      if (!state.waiting) continue;
      const Operation& op = model_.executors[e].program[state.next];
      Blocked blocked{e, state.next, op.barrier, op.cycles, barriers_[op.barrier].count, state.since, {}};
      for (std::uint32_t other = 0; other < executors_.size(); ++other)
        if (executors_[other].waiting && will_arrive(other, op.barrier)) blocked.could_arrive.push_back(other);
      deadlock.blocked.push_back(std::move(blocked));
    }
    if (deadlock.blocked.empty()) return;
    for (Barrier b = 0; b < barriers_.size(); ++b)
      if (barriers_[b].count > barriers_[b].waited_for)
        deadlock.unmatched.push_back({b, barriers_[b].count, barriers_[b].waited_for});
    // A run that cannot end has no makespan of its own; the latest thing that happened stands in for it, so that it can
    // be drawn.
    result_.makespan = std::max(result_.makespan, now_);
    result_.deadlock = std::move(deadlock);
  }

  bool will_arrive(std::uint32_t e, Barrier barrier) const {
    const std::vector<Operation>& program = model_.executors[e].program;
    return std::any_of(program.begin() + executors_[e].next, program.end(), [barrier](const Operation& op) {
      return op.barrier == barrier && (op.kind == OperationKind::arrive || op.kind == OperationKind::async);
    });
  }

  const Model& model_;
  const RunOptions options_;
  Cycles now_ = 0;
  std::int64_t sequence_ = 0;
  std::vector<Event> queue_;  // a heap
  std::vector<Cycles> free_at_;
  std::vector<std::uint32_t> last_on_resource_;
  std::vector<BarrierState> barriers_;
  std::vector<ExecutorState> executors_;
  Timeline result_;
};

std::string plural(Cycles n, const char* word) {
  return std::to_string(n) + " " + word + (n == 1 ? "" : "s");
}

}  // namespace

Cycles Timeline::busy(Resource resource) const {
  Cycles sum = 0;
  for (const Interval& interval : intervals[resource]) sum += interval.end - interval.start;
  return sum;
}

double Timeline::utilisation(Resource resource) const {
  return makespan == 0 ? 0.0 : 100.0 * static_cast<double>(busy(resource)) / static_cast<double>(makespan);
}

Timeline run(const Model& model, RunOptions options) {
  return Engine(model, options).run();
}

Result<Timeline> simulate(const Model& model, RunOptions options) {
  if (Status status = validate(model); !status.ok()) return status;
  Timeline timeline = run(model, options);
  if (timeline.deadlock) return Status::runtime_error(describe(model, *timeline.deadlock));
  return timeline;
}

std::string describe(const Model& model, const Deadlock& deadlock) {
  std::string text = "deadlock: no event is left and " +
                     plural(static_cast<Cycles>(deadlock.blocked.size()), "executor") + " cannot go on";
  for (const Blocked& blocked : deadlock.blocked) {
    text += "\n  " + model.executors[blocked.executor].name + " waits for " + model.barriers[blocked.barrier] +
            " >= " + std::to_string(blocked.needs) + " (it is " + std::to_string(blocked.has) + ", " +
            plural(blocked.needs - blocked.has, "arrival") + " missing) since cycle " + std::to_string(blocked.since) +
            ", at operation " + std::to_string(blocked.operation) + "; ";
    if (blocked.could_arrive.empty()) text += "nobody is left who would arrive";
    for (std::size_t i = 0; i < blocked.could_arrive.size(); ++i)
      text += (i == 0 ? "" : ", ") + model.executors[blocked.could_arrive[i]].name;
    if (!blocked.could_arrive.empty()) text += " would arrive, but " + std::string("cannot go on either");
  }
  for (const Unmatched& unmatched : deadlock.unmatched)
    text += "\n  " + model.barriers[unmatched.barrier] + " got " + plural(unmatched.arrivals, "arrival") +
            ", but nobody waited for more than " + std::to_string(unmatched.waited_for);
  return text;
}

}  // namespace warploom::sim
