// Rung 4: a warp that only loads.
//
// One thread asks the TMA unit for a whole step with two instructions, and mbarriers say what has landed and what is
// free again. The other warpgroups only multiply: no addresses, no copies, no barrier of all threads, and they may be a
// step apart. The protocol is specialized_ring of pipeline/gemm_protocols.h, which `warploom check specialized` checks.
#include "gemm_ladder/ladder.h"
#include "pipeline/mbarrier_ring.h"
#include "ptx/tma.h"

namespace warploom::gemm_ladder {

constexpr int kStages = kRung.stages;
static_assert(kRung.warpgroups == kWarpgroups + 1);
using Ring = pipeline::MbarrierRing<kStages>;

}  // namespace warploom::gemm_ladder

extern "C" __global__ void __launch_bounds__(warploom::gemm_ladder::kThreads + 128, 1)
    gemm(const __grid_constant__ warploom::gemm_ladder::Call call) {
  using namespace warploom;
  using namespace warploom::gemm_ladder;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 stages = ptx::shared_address(shared);
  const Ring ring{stages + kStages * kStageBytes};
  const Place place = place_of(call);
  if (threadIdx.x == 0) {
    ring.init(kWarpgroups);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  Pen pen(call.sheet);
  Ring::Cursor at;
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  if (warpgroup == kWarpgroups) {
    if (threadIdx.x % 128 != 0) return;
    pen.start_trace(0, true);
    for (int step = 0; step < call.steps; ++step, at.advance()) {
      const uint32 stage = stages + at.slot() * kStageBytes;
      pen.mark(Mark::wait_empty, 0, step);
      ring.wait_empty(at);
      pen.mark(Mark::load, 0, step);
      ring.expect(at, kStageBytes);
      ptx::tma_load(&call.a_map, stage, ring.full(at.slot()), {step * kStep, place.row});
      ptx::tma_load(&call.b_map, stage + kOperandBytes, ring.full(at.slot()), {step * kStep, place.column});
    }
    pen.finish_trace(0);
  } else {
    pen.start_trace(1 + warpgroup, threadIdx.x % 128 == 0);
    float d[kAccumulators];
    for (int step = 0; step < call.steps; ++step, at.advance()) {
      pen.mark(Mark::wait_full, 0, step);
      ring.wait_full(at);
      pen.mark(Mark::product, 0, step);
      multiply(d, stages + at.slot() * kStageBytes, warpgroup, step);
      pen.mark(Mark::wait_product, 0, step);
      finish(d);
      if (threadIdx.x % 128 == 0) ring.release(at);
    }
    pen.mark(Mark::epilogue);
    store(call, place, d, warpgroup);
    pen.finish_trace(1 + warpgroup);
  }
}
