// The device side of a ring (pipeline/ring.h describes and checks its protocol): a full and an empty mbarrier a slot.
#pragma once

#include "ptx/mbarrier.h"
#include "ptx/types.h"

namespace warploom::pipeline {

using ptx::uint32;

/// A slot, and the parity of its phase in one round.
template <int Slots>
struct RingSlot {
  int index;
  uint32 parity;

  __device__ __forceinline__ RingSlot next() const {
    constexpr bool kIsPowerOfTwo = (Slots & (Slots - 1)) == 0;
    const int following = kIsPowerOfTwo ? (index + 1) & (Slots - 1) : (index + 1) % Slots;
    return {following, parity ^ (following == 0 ? 1u : 0u)};
  }
};

/// A role's place in a ring of Slots slots: how many slots it has passed, below 2^32 where Slots is no power of two.
template <int Slots>
struct RingCursor {
  static_assert(Slots > 0);
  uint32 passed = 0;

  __device__ __forceinline__ int slot() const { return static_cast<int>(passed % Slots); }
  __device__ __forceinline__ uint32 parity() const { return passed / Slots & 1; }
  __device__ __forceinline__ RingSlot<Slots> place() const { return {slot(), parity()}; }
  __device__ __forceinline__ void advance() { ++passed; }
  __device__ __forceinline__ RingCursor before() const { return {passed - 1}; }
};

/// Its barriers in shared memory: Slots full ones, then Slots empty ones.
template <int Slots>
struct MbarrierRing {
  static constexpr int kBarrierBytes = 8;
  static constexpr int kBytes = 2 * Slots * kBarrierBytes;
  using Cursor = RingCursor<Slots>;
  using Slot = RingSlot<Slots>;

  uint32 barriers;

  __device__ __forceinline__ uint32 full(int slot) const { return barriers + slot * kBarrierBytes; }
  __device__ __forceinline__ uint32 empty(int slot) const { return barriers + (Slots + slot) * kBarrierBytes; }

  /// One thread; readers: arrivals that release a slot; writers: those that publish it.
  __device__ __forceinline__ void init(uint32 readers, uint32 writers = 1) const {
#pragma unroll
    for (int slot = 0; slot < Slots; ++slot) {
      ptx::mbarrier_init(full(slot), writers);
      ptx::mbarrier_init(empty(slot), readers);
    }
  }

  /// Producer. A fresh barrier reports the phase before the first as ended, so the first round does not wait.
  __device__ __forceinline__ void wait_empty(const Cursor& at) const {
    ptx::mbarrier_wait(empty(at.slot()), at.parity() ^ 1);
  }
  /// Producer, one thread: the slot will hold `bytes` when the TMA loads issued next are complete.
  __device__ __forceinline__ void expect(const Cursor& at, uint32 bytes) const {
    ptx::mbarrier_arrive_expect_tx(full(at.slot()), bytes);
  }
  /// The same, but publish() must come as well, for what ordinary stores put beside them.
  __device__ __forceinline__ void expect_and_publish_later(const Cursor& at, uint32 bytes) const {
    ptx::mbarrier_expect_tx(full(at.slot()), bytes);
  }
  /// Producer: the slot was filled with ordinary stores. One arrival.
  __device__ __forceinline__ void publish(const Cursor& at) const { ptx::mbarrier_arrive(full(at.slot())); }

  __device__ __forceinline__ void wait_full(const Slot& at) const { ptx::mbarrier_wait(full(at.index), at.parity); }
  __device__ __forceinline__ void wait_full(const Cursor& at) const { wait_full(at.place()); }
  /// Whether wait_full would not wait.
  __device__ __forceinline__ bool is_full(const Cursor& at) const {
    return ptx::mbarrier_test_wait(full(at.slot()), at.parity());
  }
  /// Consumer: one arrival.
  __device__ __forceinline__ void release(const Slot& at) const { ptx::mbarrier_arrive(empty(at.index)); }
  __device__ __forceinline__ void release(const Cursor& at) const { release(at.place()); }
};

}  // namespace warploom::pipeline
