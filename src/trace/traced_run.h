// Runs a call with the marks of its kernel on, and reads them back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gpu/gemm_plan.h"
#include "gpu/module.h"
#include "sim/machine.h"
#include "trace/recording.h"
#include "trace/subject.h"
#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom::trace {

struct TraceOptions {
  /// The CTA to show. -1: one whose recording slows the kernel down least; of products the last, as none has fewer
  /// tiles, of attention, whose CTAs take work when they are free, the first.
  std::int64_t cta = -1;
  std::int64_t record = 1;          ///< CTAs that record, from `cta` on; 0: all
  std::string kernel;               ///< of a call with several marked ones: its name; empty: the first
  std::int64_t capacity = 1 << 14;  ///< marks that a warp has room for
  Level level = Level::steps;
  int rounds = 0;        ///< of timing the kernel with and without marks, one after the other; 0: no timing
  sim::Machine machine;  ///< of the model
};

struct TracedRun {
  std::int64_t cta = 0;  ///< the one to show
  Subject subject;
  Recording recording;
  double plain_ms = 0, traced_ms = 0;  ///< medians over the rounds; 0 without rounds
};

/// Runs a validated call on its stream, as often as the options ask for, and waits for it. Its first launch warms
/// caches up, its last is the one that is recorded. Errors: invalid_value for an option out of range, a CTA that the
/// launch does not have, a kernel that the call does not run or that has no marks (naming those that have);
/// runtime_error for a call whose kernels have none, and what running the call returns.
Result<TracedRun> traced_run(const warploom_gemm& call, const TraceOptions& options);
Result<TracedRun> traced_run(const warploom_attention& call, const TraceOptions& options);

/// The same of a product with the first of its candidates that `wanted` takes.
Result<TracedRun> traced_run(const warploom_gemm& call, const std::function<bool(const gpu::GemmCandidate&)>& wanted,
                             const TraceOptions& options);

/// Kernels that are not the library's own.
struct KernelsElsewhere {
  std::function<Result<const gpu::LoadedKernel*>(const gpu::PlannedLaunch&)> load;
  Subject subject;
};

/// The same of a plan whose launches are such kernels; its device is current.
Result<TracedRun> traced_run(gpu::GpuPlan& plan, const gpu::Driver& driver, int device, const KernelsElsewhere& kernels,
                             const TraceOptions& options);

Status validate(const TraceOptions& options);

/// "rings", "steps".
Result<Level> parse_level(const std::string& name);

}  // namespace warploom::trace
