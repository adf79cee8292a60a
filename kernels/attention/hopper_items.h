// Work items of the persistent backward kernels for Hopper: one warp takes them from a device counter, longest first,
// and hands them on through a ring in shared memory.
#pragma once

#include "attention/visibility.h"
#include "attention/work.h"
#include "pipeline/mbarrier_ring.h"

namespace warploom {

/// The scheduler warp. Shared has `items` (a ring), `item(slot)` (with `work` and `is_end`) and `request`, a barrier at
/// which a loader says that it has come to the last item: an item taken earlier is one that an idle CTA cannot have.
/// OfKeys: items are tiles of TileRows keys, else of queries. prepare(item, lane): the rest of an item whose work is
/// there. The end is an item by itself.
template <int TileRows, bool OfKeys, typename Shared, typename Prepare>
__device__ __forceinline__ void hand_out_items(const AttentionCall& call, unsigned* counters, const Shared& shared,
                                               int lane, Prepare prepare) {
  // One tile an item when the schedule knew the longest sequence; a longer one's items come again, so much further on.
  // What is needed from item to item is read again: the producers have few registers.
  typename Shared::ItemCursor at;
  for (unsigned index = blockIdx.x; index < static_cast<unsigned>(call.schedule.items());) {
    shared.items.wait_empty(at);
    if (lane == 0) shared.item(at.slot()).work = work_of(call, index, TileRows);
    __syncwarp();
    for (;;) {
      const Work& work = shared.item(at.slot()).work;
      if (work.first_row >= (OfKeys ? work.slot_k : work.slot_q)) break;
      prepare(shared.item(at.slot()), lane);
      __syncwarp();
      if (lane == 0) {
        shared.item(at.slot()).is_end = false;
        shared.items.publish(at);
      }
      ptx::mbarrier_wait(shared.request, at.passed & 1);
      at.advance();
      shared.items.wait_empty(at);
      Work& next = shared.item(at.slot()).work;
      static_assert(kWorkBytes % 4 == 0 && kWorkBytes / 4 <= 32);
      if (lane < kWorkBytes / 4) reinterpret_cast<int*>(&next)[lane] = reinterpret_cast<const int*>(&work)[lane];
      __syncwarp();
      if (lane == 0) next.first_row += static_cast<long long>(call.schedule.query_tiles) * TileRows;
      __syncwarp();
    }
    unsigned taken = 0;
    if (lane == 0) taken = atomicAdd(&counters[0], 1u);
    index = gridDim.x + __shfl_sync(kAllLanes, taken, 0);
  }
  shared.items.wait_empty(at);
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
