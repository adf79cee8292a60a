// Shared memory: addresses, plain accesses, and asynchronous copies into it (PTX ISA, "cp.async").
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

/// The 32-bit address of a pointer into shared memory.
__device__ __forceinline__ uint32 shared_address(const void* pointer) {
  return static_cast<uint32>(__cvta_generic_to_shared(pointer));
}

/// 16 bytes from global to shared memory past L1, or 16 zero bytes when `valid` is false (then nothing is read).
__device__ __forceinline__ void cp_async_16(uint32 shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/// The first `bytes` (0..16) of 16 bytes from global to shared memory past L1, zeros after them; no more is read.
__device__ __forceinline__ void cp_async_16_part(uint32 shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/// 4 or 8 bytes from global to shared memory.
template <int Bytes>
__device__ __forceinline__ void cp_async_small(uint32 shared, const void* global) {
  static_assert(Bytes == 4 || Bytes == 8);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(Bytes) : "memory");
}

/// The same, or zeros when `valid` is false (then nothing is read).
template <int Bytes>
__device__ __forceinline__ void cp_async_small(uint32 shared, const void* global, bool valid) {
  static_assert(Bytes == 4 || Bytes == 8);
  const int bytes = valid ? Bytes : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(Bytes), "r"(bytes)
               : "memory");
}

/// Closes the group of the copies this thread has issued since the last one.
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// One of the arrivals that an mbarrier waits for, when this thread's copies so far are there (PTX ISA,
/// "cp.async.mbarrier.arrive", .noinc).
__device__ __forceinline__ void cp_async_mbarrier_arrive(uint32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Waits until at most `Newest` of this thread's groups are in flight. Other threads' copies need a barrier after it.
template <int Newest>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Newest) : "memory");
}

__device__ __forceinline__ void store_shared_4(uint32 address, uint32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared_8(uint32 address, float2 value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value.x), "f"(value.y) : "memory");
}

__device__ __forceinline__ void store_shared_float4(uint32 address, const float (&value)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value[0]), "f"(value[1]), "f"(value[2]),
               "f"(value[3])
               : "memory");
}

__device__ __forceinline__ void load_shared_float4(float (&value)[4], uint32 address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ float2 load_shared_float2(uint32 address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
  return value;
}

/// From any CTA of the cluster; `address` comes from map_shared (PTX ISA, "ld", .shared::cluster).
__device__ __forceinline__ float2 load_shared_cluster_8(uint32 address) {
  float2 value;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_shared_16(uint32 address, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

__device__ __forceinline__ void store_shared_2(uint32 address, unsigned short value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}

__device__ __forceinline__ uint32 load_shared_2(uint32 address) {
  unsigned short value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ uint32 load_shared_4(uint32 address) {
  uint32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ uint4 load_shared_16(uint32 address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace warploom::ptx
