// The event engine: rules of simulator.md sections 1 to 3, in 64-bit integer cycles.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sim/model.h"

namespace warploom::sim {

/// A stretch in which a resource serves one request: [start, end), end > start.
struct Interval {
  Cycles start = 0;
  Cycles end = 0;
  std::uint32_t executor = 0;
  char tag = ' ';
};

inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// One executed operation that takes or may take time (use, async, busy, and waits that blocked), kept when
/// RunOptions::trace is set. `asked` is when the executor reached it, [start, end) when it was served: for a wait,
/// start = asked and end = the release.
struct Span {
  std::uint32_t executor = 0;
  std::uint32_t operation = 0;  ///< index in the executor's program
  Cycles asked = 0;
  Cycles start = 0;
  Cycles end = 0;
  std::uint32_t before_in_executor = kNone;  ///< the span whose end let the executor reach this one
  std::uint32_t before_on_resource = kNone;  ///< use, async: the span served before it on the same resource
};

/// One arrival on a barrier. The n-th arrival (from 1) is the one that ends a wait for count n.
struct Arrival {
  Cycles time = 0;
  std::uint32_t executor = 0;
  std::uint32_t span = kNone;  ///< the async operation, or the last span that ended before the executor arrived
  bool async = false;
};

struct Trace {
  std::vector<Span> spans;
  std::vector<std::vector<Arrival>> arrivals;  ///< one list a barrier, in order of arrival
  std::vector<std::uint32_t> last_span;        ///< one an executor: the span with which it ended
};

/// An executor that could not go on when no event was left.
struct Blocked {
  std::uint32_t executor = 0;
  std::uint32_t operation = 0;
  Barrier barrier = 0;
  Cycles needs = 0;  ///< the count it waits for
  Cycles has = 0;    ///< the count that was reached
  Cycles since = 0;
  std::vector<std::uint32_t> could_arrive;  ///< blocked executors whose remaining program arrives on the barrier
};

/// A barrier that got more arrivals than any executor ever waited for (a program may end with some on purpose, as turns
/// do).
struct Unmatched {
  Barrier barrier = 0;
  Cycles arrivals = 0;
  Cycles waited_for = 0;
};

struct Deadlock {
  std::vector<Blocked> blocked;
  std::vector<Unmatched> unmatched;
};

struct Timeline {
  Cycles makespan = 0;
  std::vector<std::vector<Interval>> intervals;  ///< one list a resource, in order of start
  std::vector<Cycles> ends;                      ///< when each executor ended; -1 for one that is blocked
  std::int64_t events = 0;                       ///< events taken from the queue
  Trace trace;                                   ///< empty unless RunOptions::trace
  std::optional<Deadlock> deadlock;

  /// Sum of the lengths of a resource's intervals.
  Cycles busy(Resource resource) const;
  /// busy / makespan in percent; 0 for an empty run.
  double utilisation(Resource resource) const;
};

struct RunOptions {
  bool reverse_ties = false;  ///< process simultaneous events in reverse order of their sequence numbers
  bool trace = false;         ///< keep spans and arrivals, for critical paths and pictures
};

/// Runs a model that validate() accepts. A deadlock is part of the result: the timeline up to it is kept.
Timeline run(const Model& model, RunOptions options = {});

/// validate() and run(); a deadlock is a runtime_error whose message is describe().
Result<Timeline> simulate(const Model& model, RunOptions options = {});

/// Who waits for what, since when, who could have ended it, and the arrivals that nobody waited for; one line each.
std::string describe(const Model& model, const Deadlock& deadlock);

}  // namespace warploom::sim
