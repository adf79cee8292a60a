// Runs a call with the marks of its kernel on, and reads them back.
#pragma once

#include <cstdint>
#include <string>

#include "sim/machine.h"
#include "trace/recording.h"
#include "trace/subject.h"
#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::trace {

struct TraceOptions {
  std::int64_t capacity = 1 << 14;  ///< marks that a warp has room for
  Level level = Level::steps;
  int rounds = 0;        ///< of timing the kernel with and without marks, one after the other; 0: no timing
  sim::Machine machine;  ///< of the model
};

struct TracedRun {
  Subject subject;
  Recording recording;
  double plain_ms = 0, traced_ms = 0;  ///< medians over the rounds; 0 without rounds
};

/// Runs a validated call on its stream, as often as the options ask for, and waits for it. Its first launch warms
/// caches up, its last is the one that is recorded. Errors: invalid_value for a capacity out of range; runtime_error
/// for a call whose kernels have no marks, and what running the call returns.
Result<TracedRun> traced_run(const warploom_gemm& call, const TraceOptions& options);
Result<TracedRun> traced_run(const warploom_attention& call, const TraceOptions& options);

Status validate(const TraceOptions& options);

/// "rings", "steps".
Result<Level> parse_level(const std::string& name);

}  // namespace warploom::trace
