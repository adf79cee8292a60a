// Rung 2: two stages in shared memory, and the next step in registers.
//
// The loads of the next step are issued before this step is multiplied, so that both are under way together; what has
// come is stored to the other stage afterwards. One barrier a step instead of two, and 32 registers a thread for the
// data on its way.
#include "gemm_ladder/ladder.h"

namespace warploom::gemm_ladder {

/// A thread's share of a step.
struct Registers {
  uint4 a[kCopies], b[kCopies];

  __device__ __forceinline__ void load(const Call& call, const Place& place, int step) {
#pragma unroll
    for (int n = 0; n < kCopies; ++n) {
      const Copy copy = copy_of(n);
      const char* from_a = source_of(call.a, call.rows, call.depth, place.row, step * kStep, copy);
      const char* from_b = source_of(call.b, call.columns, call.depth, place.column, step * kStep, copy);
      const uint4 zero{0, 0, 0, 0};
      a[n] = from_a == nullptr ? zero : *reinterpret_cast<const uint4*>(from_a);
      b[n] = from_b == nullptr ? zero : *reinterpret_cast<const uint4*>(from_b);
    }
  }
  __device__ __forceinline__ void store(uint32 stage) const {
#pragma unroll
    for (int n = 0; n < kCopies; ++n) {
      const uint32 offset = copy_of(n).offset();
      ptx::store_shared_16(stage + offset, a[n]);
      ptx::store_shared_16(stage + kOperandBytes + offset, b[n]);
    }
    ptx::fence_proxy_async_shared();  // wgmma reads what these stores have written
  }
};

}  // namespace warploom::gemm_ladder

extern "C" __global__ void __launch_bounds__(warploom::gemm_ladder::kThreads, 1)
    gemm(const __grid_constant__ warploom::gemm_ladder::Call call) {
  using namespace warploom;
  using namespace warploom::gemm_ladder;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 stages = ptx::shared_address(shared);
  const Place place = place_of(call);
  const int warpgroup = static_cast<int>(threadIdx.x / 128);

  Pen pen(call.sheet);
  pen.start_trace(warpgroup, threadIdx.x % 128 == 0);
  float d[kAccumulators];
  Registers next;
  pen.mark(Mark::load, 0, 0);
  next.load(call, place, 0);
  pen.mark(Mark::wait_full, 0, 0);
  next.store(stages);
  __syncthreads();
  for (int step = 0; step < call.steps; ++step) {
    const bool more = step + 1 < call.steps;
    if (more) {
      pen.mark(Mark::load, 0, step + 1);
      next.load(call, place, step + 1);
    }
    pen.mark(Mark::product, 0, step);
    multiply(d, stages + step % 2 * kStageBytes, warpgroup, step);
    pen.mark(Mark::wait_product, 0, step);
    finish(d);
    if (more) {
      pen.mark(Mark::wait_full, 0, step + 1);
      next.store(stages + (step + 1) % 2 * kStageBytes);
    }
    __syncthreads();  // the next step is there, and nobody reads this one any more
  }
  pen.mark(Mark::epilogue);
  store(call, place, d, warpgroup);
  pen.finish_trace(warpgroup);
}
