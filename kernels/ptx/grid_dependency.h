// griddepcontrol: a kernel that was launched while the one before it still runs (PTX ISA, "griddepcontrol"). Without
// the wait it reads what the one before it has not written yet.
#pragma once

namespace warploom::ptx {

/// Waits until the kernels before this one have ended and their writes are visible.
__device__ __forceinline__ void grid_dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// The kernels after this one may start.
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace warploom::ptx
