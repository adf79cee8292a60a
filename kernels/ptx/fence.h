// Fences between the proxies: wgmma and TMA access memory through the asynchronous proxy, ordinary loads and stores
// (stmatrix too) through the generic one (PTX ISA, "fence.proxy").
#pragma once

namespace warploom::ptx {

/// The thread's writes to shared memory come before what wgmma and TMA do after a barrier that follows. Each writing
/// thread executes it.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// The same for every memory.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

}  // namespace warploom::ptx
