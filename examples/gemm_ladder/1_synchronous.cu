// Rung 1: load, wait, multiply, wait.
//
// Every thread brings its share of a step from global memory through registers to shared memory; then all multiply.
// While loads are under way the tensor core is idle, and while it works nothing is under way.
#include "gemm_ladder/ladder.h"

extern "C" __global__ void __launch_bounds__(warploom::gemm_ladder::kThreads, 1)
    gemm(const __grid_constant__ warploom::gemm_ladder::Call call) {
  using namespace warploom;
  using namespace warploom::gemm_ladder;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 stage = ptx::shared_address(shared);
  const Place place = place_of(call);
  const int warpgroup = static_cast<int>(threadIdx.x / 128);

  Pen pen(call.sheet);
  pen.start_trace(warpgroup, threadIdx.x % 128 == 0);
  float d[kAccumulators];
  for (int step = 0; step < call.steps; ++step) {
    pen.mark(Mark::load, 0, step);
#pragma unroll
    for (int n = 0; n < kCopies; ++n) {
      const Copy copy = copy_of(n);
      const char* a = source_of(call.a, call.rows, call.depth, place.row, step * kStep, copy);
      const char* b = source_of(call.b, call.columns, call.depth, place.column, step * kStep, copy);
      const uint4 zero{0, 0, 0, 0};
      ptx::store_shared_16(stage + copy.offset(), a == nullptr ? zero : *reinterpret_cast<const uint4*>(a));
      ptx::store_shared_16(stage + kOperandBytes + copy.offset(),
                           b == nullptr ? zero : *reinterpret_cast<const uint4*>(b));
    }
    ptx::fence_proxy_async_shared();  // wgmma reads what these stores have written
    pen.mark(Mark::wait_full, 0, step);
    __syncthreads();
    pen.mark(Mark::product, 0, step);
    multiply(d, stage, warpgroup, step);
    pen.mark(Mark::wait_product, 0, step);
    finish(d);
    pen.mark(Mark::wait_empty, 0, step + 1);
    __syncthreads();  // nobody reads the stage any more
  }
  pen.mark(Mark::epilogue);
  store(call, place, d, warpgroup);
  pen.finish_trace(warpgroup);
}
