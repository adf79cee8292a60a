// Thread block clusters (PTX ISA, "barrier.cluster", "mapa", and the special registers %cluster_ctarank and
// %cluster_nctarank).
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

/// The CTA's number in its cluster.
__device__ __forceinline__ uint32 cluster_rank() {
  uint32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// How many CTAs the cluster has; 1 without one.
__device__ __forceinline__ uint32 cluster_size() {
  uint32 size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

/// All threads of the cluster: arrive with release semantics, and wait with acquire semantics.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
/// Without ordering memory: enough after fence_mbarrier_init, and for leaving together.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/// The address in the cluster's window of what stands at `address` in CTA `rank`.
__device__ __forceinline__ uint32 map_shared(uint32 address, uint32 rank) {
  uint32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

}  // namespace warploom::ptx
