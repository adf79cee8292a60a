// A warp on the host: what device code needs to run as 32 threads that meet at every warp-wide instruction.
//
// The headers in ptx/ beside this one stand before those of kernels/ptx: shared memory is an array, an asynchronous
// copy happens at once, and each checks its alignment. So the address arithmetic and the logic of code that works a
// warp at a time are tested without a GPU, and under the sanitizers a read outside an array or a missing __syncwarp
// shows.
#pragma once

#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline

struct Dim {
  unsigned x = 0;
};
inline thread_local Dim threadIdx;
inline Dim blockDim{128};

struct float2 {
  float x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

using std::abs;
using std::max;
using std::min;

namespace warploom::warp {

alignas(1024) inline unsigned char shared[128 * 1024];

inline std::barrier<> meeting{32};
inline unsigned long long slots[32];

/// Every lane gives `value`; result(get) may look at any lane's: get(lane).
template <typename T, typename Result>
auto exchange(T value, Result result) {
  std::memcpy(&slots[threadIdx.x % 32], &value, sizeof value);
  meeting.arrive_and_wait();
  const auto get = [](unsigned lane) {
    T given;
    std::memcpy(&given, &slots[lane % 32], sizeof given);
    return given;
  };
  const auto found = result(get);
  meeting.arrive_and_wait();
  return found;
}

/// Runs `body` in the 32 lanes of warp `number` of a CTA.
inline void run(unsigned number, const std::function<void()>& body) {
  std::vector<std::jthread> lanes;
  for (unsigned lane = 0; lane < 32; ++lane) {
    lanes.emplace_back([&body, number, lane] {
      threadIdx.x = number * 32 + lane;
      body();
    });
  }
}

/// A wrapper's rule was broken; there is no way on from there.
inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace warploom::warp

template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  return warploom::warp::exchange(value, [=](auto get) { return get((threadIdx.x % 32) ^ mask); });
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
  return warploom::warp::exchange(predicate, [](auto get) {
    unsigned bits = 0;
    for (unsigned lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned>(get(lane)) << lane;
    return bits;
  });
}
inline int __any_sync(unsigned mask, bool predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, bool predicate) {
  return __ballot_sync(mask, predicate) == ~0u;
}
inline int __reduce_min_sync(unsigned, int value) {
  return warploom::warp::exchange(value, [](auto get) {
    int least = get(0);
    for (unsigned lane = 1; lane < 32; ++lane) least = std::min(least, get(lane));
    return least;
  });
}
inline void __syncwarp() {
  warploom::warp::meeting.arrive_and_wait();
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
