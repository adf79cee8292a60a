// Rung 3: cp.async and a ring of stages.
//
// Copies go from global to shared memory without passing through registers, so that as many steps can be under way as
// shared memory holds: the latency of a load is hidden behind several steps. The protocol is run_cp_async of
// pipeline/gemm_protocols.h, which `warploom check cp-async` checks.
#include "gemm_ladder/ladder.h"

namespace warploom::gemm_ladder {

constexpr int kStages = kRung.stages;

/// Starts the thread's share of a step.
__device__ __forceinline__ void copy_step(const Call& call, const Place& place, int step, uint32 stage) {
#pragma unroll
  for (int n = 0; n < kCopies; ++n) {
    const Copy copy = copy_of(n);
    const char* a = source_of(call.a, call.rows, call.depth, place.row, step * kStep, copy);
    const char* b = source_of(call.b, call.columns, call.depth, place.column, step * kStep, copy);
    ptx::cp_async_16(stage + copy.offset(), a, a != nullptr);
    ptx::cp_async_16(stage + kOperandBytes + copy.offset(), b, b != nullptr);
  }
}

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
  for (int step = 0; step < kStages - 1; ++step) {
    pen.mark(Mark::load, 0, step);
    if (step < call.steps) copy_step(call, place, step, stages + step * kStageBytes);
    ptx::cp_async_commit_group();
  }
  float d[kAccumulators];
  for (int step = 0; step < call.steps; ++step) {
    pen.mark(Mark::wait_full, 0, step);
    ptx::cp_async_wait_group<kStages - 2>();
    ptx::fence_proxy_async_shared();  // wgmma reads what these copies have written
    __syncthreads();                  // this step has landed for all, and nobody reads the one before any more
    const int ahead = step + kStages - 1;
    pen.mark(Mark::load, 0, ahead);
    if (ahead < call.steps) copy_step(call, place, ahead, stages + ahead % kStages * kStageBytes);
    ptx::cp_async_commit_group();  // an empty group in the last steps keeps the count right
    pen.mark(Mark::product, 0, step);
    multiply(d, stages + step % kStages * kStageBytes, warpgroup, step);
    pen.mark(Mark::wait_product, 0, step);
    finish(d);
  }
  pen.mark(Mark::epilogue);
  store(call, place, d, warpgroup);
  pen.finish_trace(warpgroup);
}
