// mbarrier: a barrier object of 8 bytes in shared memory that counts arrivals and the bytes of asynchronous copies
// (PTX ISA, "mbarrier"). Addresses are 32-bit shared-memory addresses (ptx/shared_memory.h), 8-byte aligned.
//
// With WARPLOOM_MBARRIER_TIME_LIMIT defined (in clocks), a wait that takes longer stops the kernel with a trap: a
// protocol that hangs becomes an error.
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

/// arrivals: how many end a phase (PTX ISA, "mbarrier.init").
__device__ __forceinline__ void mbarrier_init(uint32 barrier, uint32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// The memory may be used for something else afterwards (PTX ISA, "mbarrier.inval").
__device__ __forceinline__ void mbarrier_inval(uint32 barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Makes initialised barriers known to the asynchronous proxy and to the cluster; a barrier of the threads must follow
/// (PTX ISA, "fence.mbarrier_init").
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// One arrival, with release semantics for the CTA (PTX ISA, "mbarrier.arrive").
__device__ __forceinline__ void mbarrier_arrive(uint32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// One arrival, and `bytes` more that the phase waits for (PTX ISA, "mbarrier.arrive", .expect_tx).
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32 barrier, uint32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// `bytes` more that the phase waits for, without an arrival (PTX ISA, "mbarrier.expect_tx").
__device__ __forceinline__ void mbarrier_expect_tx(uint32 barrier, uint32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// One arrival on the barrier at the same place in CTA `rank` of the cluster (PTX ISA, "mapa", "mbarrier.arrive"). It
/// says that reads by wgmma, already waited for, are over; release.cluster would order ordinary writes too, by a fence
/// over the whole GPU that costs a third of a GEMM's speed.
__device__ __forceinline__ void mbarrier_arrive_remote(uint32 barrier, uint32 rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

/// Whether the phase of this parity has ended; does not wait (PTX ISA, "mbarrier.test_wait").
__device__ __forceinline__ bool mbarrier_test_wait(uint32 barrier, uint32 parity) {
  uint32 ended;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}

/// The same, after waiting for it for a while that the hardware sets (PTX ISA, "mbarrier.try_wait").
__device__ __forceinline__ bool mbarrier_try_wait(uint32 barrier, uint32 parity) {
  uint32 ended;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}

/// Waits until the phase of this parity has ended. A fresh barrier reports the phase before its first, of parity 1, as
/// ended.
__device__ __forceinline__ void mbarrier_wait(uint32 barrier, uint32 parity) {
#ifdef WARPLOOM_MBARRIER_TIME_LIMIT
  const long long start = clock64();
  while (!mbarrier_try_wait(barrier, parity)) {
    if (clock64() - start > WARPLOOM_MBARRIER_TIME_LIMIT) asm volatile("trap;");
  }
#else
  while (!mbarrier_try_wait(barrier, parity)) {
  }
#endif
}

}  // namespace warploom::ptx
