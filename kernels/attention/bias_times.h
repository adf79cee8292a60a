// The time table of a bucketed bias: buckets of differences of timestamps, and what of it a CTA keeps in shared memory.
#pragma once

#include "attention/call.h"
#include "geometry/mask.h"
#include "geometry/time_buckets.h"

namespace warploom {

/// Buckets of differences of timestamps: how many thresholds are <= |d|.
struct TimeBuckets {
  const unsigned long long* thresholds;  // increasing; a user's that is negative counts as 0
  int count;
  bool given;  // by the user

  __device__ __forceinline__ static TimeBuckets of(const BiasCall& bias) {
    if (bias.thresholds != nullptr) {
      return {reinterpret_cast<const unsigned long long*>(bias.thresholds), bias.num_times - 1, true};
    }
    return {geometry::kTimeThresholds.values, geometry::min_of(bias.num_times - 1, geometry::kDefaultTimeThresholds),
            false};
  }

  __device__ __forceinline__ unsigned long long at(int n) const {
    const unsigned long long value = thresholds[n];
    return given && static_cast<long long>(value) < 0 ? 0 : value;
  }

  static __device__ __forceinline__ unsigned long long distance(long long a, long long b) {
    const auto x = static_cast<unsigned long long>(a), y = static_cast<unsigned long long>(b);
    return a > b ? x - y : y - x;
  }

  /// The bucket of d, which is at least `low` and at most `high`.
  __device__ __forceinline__ int bucket(unsigned long long d, int low, int high) const {
    while (low < high) {
      const int middle = (low + high) / 2;
      if (at(middle) <= d) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  __device__ __forceinline__ int bucket(unsigned long long d) const { return bucket(d, 0, count); }
};

/// Tables of a bucketed bias in shared memory, for all warps: the thresholds and the head's time table, as far as they
/// fit.
struct alignas(16) StagedTimes {
  static constexpr int kMost = 128;  // a multiple of 32

  unsigned long long thresholds[kMost];  // the largest number there is after the last one
  unsigned small[kMost];                 // the same, what does not fit as the largest one that does
  float table[kMost + 1];

  /// By all threads of the CTA; a barrier must follow.
  __device__ __forceinline__ void fill(const AttentionCall& call, int head) {
    const BiasCall& bias = call.bias;
    if (bias.time == nullptr) return;
    const TimeBuckets buckets = TimeBuckets::of(bias);
    for (int n = threadIdx.x; n <= kMost; n += blockDim.x) {
      if (n < kMost) {
        thresholds[n] = n < buckets.count ? buckets.at(n) : ~0ull;
        small[n] = static_cast<unsigned>(min(thresholds[n], 0xffffffffull));
      }
      if (n <= buckets.count) table[n] = bias.time[head * bias.time_head_stride + n];
    }
  }
};

}  // namespace warploom
