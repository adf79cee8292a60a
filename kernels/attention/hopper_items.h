// Work items of the persistent backward kernels for Hopper: one warp takes them from a device counter, longest first,
// and hands them on through a ring in shared memory.
#pragma once

#include "attention/visibility.h"
#include "attention/work.h"
#include "pipeline/mbarrier_ring.h"
#include "pipeline/trace.h"

namespace warploom {

/// Who takes items: every CTA for itself.
struct TakesAlone {
  static __device__ __forceinline__ unsigned first() { return blockIdx.x; }
  static __device__ __forceinline__ unsigned next(unsigned* counters, int lane) {
    unsigned taken = 0;
    if (lane == 0) taken = atomicAdd(&counters[0], 1u);
    return gridDim.x + __shfl_sync(kAllLanes, taken, 0);
  }
};

/// The scheduler warp. Shared has `items` (a ring), `item(slot)` (with `work` and `is_end`) and `request`, a barrier at
/// which a loader says that it has come to the last item: an item taken earlier is one that an idle CTA cannot have.
/// OfKeys: items are tiles of TileRows keys, else of queries. prepare(item, lane): the rest of an item whose work is
/// there; prepare.end(work), where there is one: the rows to take items for. The end is an item by itself. Items: the
/// ring's number in the pen's marks. take: the numbers of the first item and of the next ones; counters[0] counts the
/// taken ones.
template <int TileRows, bool OfKeys, int Items, typename Pen, typename Shared, typename Prepare,
          typename Take = TakesAlone>
__device__ __forceinline__ void hand_out_items(const Pen& pen, const AttentionCall& call, unsigned* counters,
                                               const Shared& shared, int lane, Prepare prepare, Take take = {}) {
  // One tile an item when the schedule knew the longest sequence; a longer one's items come again, so much further on.
  // What is needed from item to item is read again: the producers have few registers.
  typename Shared::ItemCursor at;
  for (unsigned index = take.first(); index < static_cast<unsigned>(call.schedule.items());) {
    pen.mark(trace::Mark::wait_empty, Items, at.passed);
    shared.items.wait_empty(at);
    pen.mark(trace::Mark::load, Items, at.passed);
    if (lane == 0) shared.item(at.slot()).work = work_of(call, index, TileRows);
    __syncwarp();
    for (;;) {
      const Work& work = shared.item(at.slot()).work;
      if constexpr (requires { prepare.end(work); }) {
        if (work.first_row >= prepare.end(work)) break;
      } else {
        if (work.first_row >= (OfKeys ? work.slot_k : work.slot_q)) break;
      }
      prepare(shared.item(at.slot()), lane);
      __syncwarp();
      if (lane == 0) {
        shared.item(at.slot()).is_end = false;
        shared.items.publish(at);
      }
      pen.mark(trace::Mark::idle);
      ptx::mbarrier_wait(shared.request, at.passed & 1);
      at.advance();
      pen.mark(trace::Mark::wait_empty, Items, at.passed);
      shared.items.wait_empty(at);
      pen.mark(trace::Mark::load, Items, at.passed);
      Work& next = shared.item(at.slot()).work;
      static_assert(kWorkBytes % 4 == 0 && kWorkBytes / 4 <= 32);
      if (lane < kWorkBytes / 4) reinterpret_cast<int*>(&next)[lane] = reinterpret_cast<const int*>(&work)[lane];
      __syncwarp();
      if (lane == 0) next.first_row += static_cast<long long>(call.schedule.query_tiles) * TileRows;
      __syncwarp();
    }
    index = take.next(counters, lane);
  }
  pen.mark(trace::Mark::wait_empty, Items, at.passed);
  shared.items.wait_empty(at);
  pen.mark(trace::Mark::load, Items, at.passed);
  if (lane == 0) {
    shared.item(at.slot()).work = {};  // nothing to write
    shared.item(at.slot()).is_end = true;
    shared.items.publish(at);
    // The last CTA leaves the counters as it found them.
    if (atomicAdd(&counters[1], 1u) == gridDim.x - 1) {
      counters[0] = 0;
      counters[1] = 0;
    }
  }
}

}  // namespace warploom
