// Results that would overwrite what is still being read.
#pragma once

#include "warploom/status.h"
#include "warploom/warploom.h"

namespace warploom {

/// Whether a validated call's results share memory with each other or with what the call reads. Error: invalid_value
/// that names both arrays. Arrays that lie within each other's gaps (parts of one packed tensor) are told from those
/// that overlap by where they begin alone. Looks at no memory.
Status check_aliases(const warploom_attention& call);

/// The same for a product, whose c may be its out.
Status check_aliases(const warploom_gemm& call);

}  // namespace warploom
