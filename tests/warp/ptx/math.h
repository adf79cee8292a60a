// kernels/ptx/math.h on the host (warp.h).
#pragma once

#include <limits>

namespace warploom::ptx {

inline float minus_infinity() {
  return -std::numeric_limits<float>::infinity();
}

}  // namespace warploom::ptx
