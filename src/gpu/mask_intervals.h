// A user's mask on a GPU: a small kernel writes its intervals to scratch memory, and the call goes on as one with an
// interval mask, on whatever kernels such calls run.
#pragma once

#include <optional>

#include "gpu/plan.h"
#include "gpu/scratch.h"

namespace warploom::gpu {

extern const KernelFamily kMaskIntervals;

/// A call without mask function, and the memory of its intervals, which is to live until the call's work is queued.
struct ExpandedCall {
  warploom_attention call;
  std::optional<Scratch> memory;
};

enum class MaskUse {
  plan,     ///< the intervals are never read
  compile,  ///< nor here, but the kernel is made ready
  run,      ///< the kernel is queued on the call's stream
};

/// `call` is resolved and validated; its device's context is current. A call without mask function comes back as it is.
/// Errors: runtime_error of memory, compiler or driver.
Result<ExpandedCall> expand_mask(const warploom_attention& call, const DeviceInfo& device, const Driver& cuda,
                                 MaskUse use);

}  // namespace warploom::gpu
