// The functions of users' masks (src/expression) on a GPU, which count in whole numbers of 64 bits.
#pragma once

namespace warploom::mask_math {

/// The quotient rounded down; by 0: 0.
__device__ __forceinline__ long long divide(long long x, long long y) {
  if (y == 0) return 0;
  if (y == -1) return -x;
  return x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0);
}
__device__ __forceinline__ long long remainder(long long x, long long y) {
  return y == 0 ? 0 : x - y * divide(x, y);
}
__device__ __forceinline__ long long abs(long long x) {
  return x < 0 ? -x : x;
}
__device__ __forceinline__ long long sign(long long x) {
  return (x > 0 ? 1 : 0) - (x < 0 ? 1 : 0);
}
__device__ __forceinline__ long long min(long long x, long long y) {
  return x < y ? x : y;
}
__device__ __forceinline__ long long max(long long x, long long y) {
  return x > y ? x : y;
}
/// A column, from 0 to the sequence's length.
__device__ __forceinline__ int bound(long long x, int length) {
  return static_cast<int>(min(max(x, 0), length));
}

}  // namespace warploom::mask_math
