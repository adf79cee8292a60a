// TMA: copies of boxes of a tensor between global and shared memory (PTX ISA, "cp.async.bulk.tensor"), and of plain
// ranges of bytes (PTX ISA, "cp.async.bulk"). One thread issues a copy. Shared addresses are 128-byte aligned for
// tensors (1024 under the 128-byte swizzle), 16-byte for plain copies; coordinates are in elements, the innermost
// first, and that one is a multiple of 16 bytes (any other is an illegal instruction). A box may begin before the
// tensor where it is loaded, not where it is stored: a negative coordinate of a store is an illegal instruction, seen
// on the H200. Loads are cut off at the tensor's edge exactly, stores at whole 16 bytes.
//
// A load completes its bytes on an mbarrier. A store belongs to the issuing thread's bulk group: commit, then wait_read
// before the shared memory is written again, wait before the kernel ends or another thread reads the result. What a
// store reads must have been made visible by fence_proxy_async_shared in the threads that wrote it.
#pragma once

#include "ptx/tensor_map.h"
#include "ptx/types.h"

namespace warploom::ptx {

using CachePolicy = unsigned long long;

/// L2 policies as createpolicy.fractional encodes them for all of the accesses (PTX ISA, "createpolicy").
constexpr CachePolicy kEvictNormal = 0x1000000000000000ull;
constexpr CachePolicy kEvictFirst = 0x12F0000000000000ull;
constexpr CachePolicy kEvictLast = 0x14F0000000000000ull;

/// Fetches the map itself ahead of its first use (PTX ISA, "prefetch.tensormap").
__device__ __forceinline__ void tma_prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

namespace detail {

// Calls ROW(rank, the coordinates' text, their operands) for every rank. Operands 0-4 are the same for all: the address
// in shared memory, the map, the mbarrier, the L2 policy, the mask of CTAs.
#define WARPLOOM_TMA_RANKS(ROW)                                          \
  ROW(1, "{%5}", "r"(c[0]))                                              \
  ROW(2, "{%5, %6}", "r"(c[0]), "r"(c[1]))                               \
  ROW(3, "{%5, %6, %7}", "r"(c[0]), "r"(c[1]), "r"(c[2]))                \
  ROW(4, "{%5, %6, %7, %8}", "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3])) \
  ROW(5, "{%5, %6, %7, %8, %9}", "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]))

#define WARPLOOM_TMA_OPERANDS "r"(shared), "l"(map), "r"(barrier), "l"(policy), "h"(ctas)
#define WARPLOOM_TMA_LOAD(rank, box, ...)                                                                    \
  if constexpr (Rank == rank) {                                                                              \
    asm volatile("cp.async.bulk.tensor." #rank                                                               \
                 "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, " box \
                 "], [%2], %3;" ::WARPLOOM_TMA_OPERANDS,                                                     \
                 __VA_ARGS__                                                                                 \
                 : "memory");                                                                                \
  }
#define WARPLOOM_TMA_MULTICAST(rank, box, ...)                                                                  \
  if constexpr (Rank == rank) {                                                                                 \
    asm volatile("cp.async.bulk.tensor." #rank                                                                  \
                 "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint" \
                 " [%0], [%1, " box "], [%2], %4, %3;" ::WARPLOOM_TMA_OPERANDS,                                 \
                 __VA_ARGS__                                                                                    \
                 : "memory");                                                                                   \
  }
#define WARPLOOM_TMA_STORE(rank, box, ...)                                                                     \
  if constexpr (Rank == rank) {                                                                                \
    asm volatile("cp.async.bulk.tensor." #rank "d.global.shared::cta.tile.bulk_group.L2::cache_hint [%1, " box \
                 "], [%0], %3;" ::WARPLOOM_TMA_OPERANDS,                                                       \
                 __VA_ARGS__                                                                                   \
                 : "memory");                                                                                  \
  }
#define WARPLOOM_TMA_REDUCE_ADD(rank, box, ...)                                      \
  if constexpr (Rank == rank) {                                                      \
    asm volatile("cp.reduce.async.bulk.tensor." #rank                                \
                 "d.global.shared::cta.add.tile.bulk_group.L2::cache_hint [%1, " box \
                 "], [%0], %3;" ::WARPLOOM_TMA_OPERANDS,                             \
                 __VA_ARGS__                                                         \
                 : "memory");                                                        \
  }

}  // namespace detail

/// The box of the map at coordinates `c` to shared memory; its bytes (those outside the tensor, which are filled, too)
/// complete on `barrier`.
template <int Rank>
__device__ __forceinline__ void tma_load(const TensorMap* map, uint32 shared, uint32 barrier, const int (&c)[Rank],
                                         CachePolicy policy = kEvictNormal) {
  constexpr unsigned short ctas = 0;
  WARPLOOM_TMA_RANKS(WARPLOOM_TMA_LOAD)
}

/// The same to the same place of every CTA in the mask `ctas` of the cluster, and to the barrier of each.
template <int Rank>
__device__ __forceinline__ void tma_load_multicast(const TensorMap* map, uint32 shared, uint32 barrier,
                                                   unsigned short ctas, const int (&c)[Rank],
                                                   CachePolicy policy = kEvictNormal) {
  WARPLOOM_TMA_RANKS(WARPLOOM_TMA_MULTICAST)
}

/// Shared memory to the box; what lies outside the tensor is not written.
template <int Rank>
__device__ __forceinline__ void tma_store(const TensorMap* map, uint32 shared, const int (&c)[Rank],
                                          CachePolicy policy = kEvictNormal) {
  constexpr unsigned short ctas = 0;
  constexpr uint32 barrier = 0;
  WARPLOOM_TMA_RANKS(WARPLOOM_TMA_STORE)
}

/// Shared memory added to the box, element by element, each atomically (PTX ISA, "cp.reduce.async.bulk.tensor").
template <int Rank>
__device__ __forceinline__ void tma_reduce_add(const TensorMap* map, uint32 shared, const int (&c)[Rank],
                                               CachePolicy policy = kEvictNormal) {
  constexpr unsigned short ctas = 0;
  constexpr uint32 barrier = 0;
  WARPLOOM_TMA_RANKS(WARPLOOM_TMA_REDUCE_ADD)
}

/// `bytes` (a multiple of 16) to shared memory; they complete on `barrier` (PTX ISA, "cp.async.bulk").
__device__ __forceinline__ void bulk_load(uint32 shared, const void* global, uint32 bytes, uint32 barrier,
                                          CachePolicy policy = kEvictNormal) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

/// `bytes` (a multiple of 16) of this CTA's shared memory to what stands at `to` in CTA `rank` of the cluster; they
/// complete on the barrier at the place `barrier` there (PTX ISA, "cp.async.bulk", "mapa").
__device__ __forceinline__ void bulk_copy_to_cta(uint32 to, uint32 shared, uint32 bytes, uint32 barrier, uint32 rank) {
  asm volatile(
      "{\n.reg .b32 remote, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %4;\n"
      "mapa.shared::cluster.u32 remote_barrier, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [remote], [%1], %2, "
      "[remote_barrier];\n}" ::"r"(to),
      "r"(shared), "r"(bytes), "r"(barrier), "r"(rank)
      : "memory");
}

/// `bytes` (a multiple of 16) to global memory.
__device__ __forceinline__ void bulk_store(void* global, uint32 shared, uint32 bytes,
                                           CachePolicy policy = kEvictNormal) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(global),
               "r"(shared), "r"(bytes), "l"(policy)
               : "memory");
}

/// `bytes` (a multiple of 16) of floats added to global memory, each atomically (PTX ISA, "cp.reduce.async.bulk").
__device__ __forceinline__ void bulk_reduce_add_f32(void* global, uint32 shared, uint32 bytes,
                                                    CachePolicy policy = kEvictNormal) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, %3;" ::"l"(global),
      "r"(shared), "r"(bytes), "l"(policy)
      : "memory");
}

/// Closes the group of this thread's stores since the last one (PTX ISA, "cp.async.bulk.commit_group").
__device__ __forceinline__ void bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until at most `Newest` of this thread's groups are in flight (PTX ISA, "cp.async.bulk.wait_group").
template <int Newest>
__device__ __forceinline__ void bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Newest) : "memory");
}

/// The same, but only until their shared memory has been read.
template <int Newest>
__device__ __forceinline__ void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Newest) : "memory");
}

}  // namespace warploom::ptx
