// How far a strided array reaches, so that a hostile stride cannot overflow the arithmetic of offsets.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace warploom {

/// No array of ours reaches further than this many elements from its first one; sums of a few offsets fit an int64.
inline constexpr int64_t kMaxElements = int64_t{1} << 60;

struct Axis {
  int64_t extent = 0;
  int64_t stride = 0;  ///< in elements; may be negative
};

/// Whether every element is within kMaxElements of the first one.
inline bool is_reachable(std::initializer_list<Axis> axes) {
  double reach = 0;
  for (const Axis& axis : axes) {
    if (axis.extent > 1) reach += static_cast<double>(axis.extent - 1) * std::abs(static_cast<double>(axis.stride));
  }
  return reach < static_cast<double>(kMaxElements);
}

/// Whether some axis repeats its elements (stride 0 over more than one of them), as in a broadcast array.
inline bool repeats_elements(std::initializer_list<Axis> axes) {
  for (const Axis& axis : axes) {
    if (axis.extent > 1 && axis.stride == 0) return true;
  }
  return false;
}

inline bool is_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

}  // namespace warploom
