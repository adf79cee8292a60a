// kernels/ptx/registers.h on the host (warp.h).
#pragma once

#include "warp.h"

namespace warploom::ptx {

inline int lane_id() {
  return static_cast<int>(threadIdx.x % 32);
}
inline unsigned opaque(unsigned value) {
  return value;
}

}  // namespace warploom::ptx
