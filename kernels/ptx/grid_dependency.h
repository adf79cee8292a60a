// griddepcontrol: a kernel that was launched while the one before it still runs (PTX ISA, "griddepcontrol"). Without
// the wait it reads what the one before it has not written yet. GPUs before Hopper start kernels one after the other,
// and nothing is needed there.
#pragma once

namespace warploom::ptx {

/// Waits until the kernels before this one have ended and their writes are visible.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The kernels after this one may start.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace warploom::ptx
