// The plan of attention with short queries against long keys (kernels/attention/split.h): its tile table, how many CTAs
// share a sequence's keys, and the scratch memory between its kernels.
#pragma once

#include "attention/split.h"
#include "attention/split_config.h"
#include "gpu/plan.h"

namespace warploom::gpu {

extern const KernelFamily kSplitForward;
extern const KernelFamily kCombine;

/// Query rows of a short query. A sequence's own lengths and the form of the call decide whether its keys are split,
/// never the sequences beside it: they must not change a bit of its result.
inline constexpr int kShortQueries = 64;

/// Whether sequences with short queries are split: in a forward call with lengths of keys of their own, or a dense one
/// whose queries are short and whose keys make more than one chunk.
bool splits_short_queries(const warploom_attention& call);

/// Whether the call, which splits, says that all of its queries are short: then no other kernel is needed.
bool has_only_short_queries(const warploom_attention& call);

/// How a launch's chunks are shared out.
struct Share {
  int splits;      ///< CTAs of a row tile
  int each;        ///< chunks of a CTA, at most
  long long ctas;  ///< of the launch
  int at_once;     ///< CTAs that the GPU holds
};

/// tiles: row tiles of all sequences and heads. A wave of CTAs lasts as long as its chunks and the filling of a CTA's
/// ring; the number of splits with the shortest waves in all is taken. uneven: lengths differ, so that there should be
/// several waves.
Share share_chunks(long long tiles, int chunks, int tiles_of_chunk, int at_once, bool uneven);

/// Adds the launches for short queries to the plan of a call that splits and whose max_seqlen_q is known: an empty one
/// where all queries are short, else that of the kernel that computes the others (with plan.queries_elsewhere set).
/// Errors: runtime_error for a device whose shared memory is too small and for more work than one launch takes.
Status add_split_launches(const warploom_attention& call, const DeviceInfo& device, GpuPlan& plan);

}  // namespace warploom::gpu
