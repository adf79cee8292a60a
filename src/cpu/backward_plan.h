// The backward pass's units of work and what they share.
#pragma once

#include <atomic>
#include <memory>

#include "cpu/plan.h"

namespace warploom::cpu {

/// Fills in the plan's backward part.
void cut_backward(const warploom_attention& call, Plan& plan);

}  // namespace warploom::cpu
