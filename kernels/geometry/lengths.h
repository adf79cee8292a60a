// Lengths and counts of sequences as a call gives them: cumulative lengths of either width, and per-sequence values
// that are an array, one number for all, or not given. The host and the kernels read them the same way.
#pragma once

#include "geometry/host_device.h"

namespace warploom::geometry {

/// Entry b of an array of 64-bit (`wide`) or 32-bit ints. Int64: the compiler's own name of the wide type.
template <typename Int64>
WARPLOOM_HD constexpr Int64 cumulative(const void* values, bool wide, long long b) {
  return wide ? static_cast<const Int64*>(values)[b] : static_cast<const int*>(values)[b];
}

/// The array's entry b, else the value for all where the sequence has rows, else (all < 0) `absent`.
WARPLOOM_HD constexpr int per_sequence(const int* values, int all, long long b, int slot, int absent) {
  if (values != nullptr) return values[b];
  if (all < 0) return absent;
  return slot > 0 ? all : 0;
}

}  // namespace warploom::geometry
