// Where the rows of a stored bias lie for a work item of a Hopper backward kernel.
#pragma once

#include "attention/bias_rows.h"
#include "attention/visibility.h"

namespace warploom {

/// What an item (with `work`) says of rows of R and of its gradient, which lie alike. By a warp.
template <int ElementBytes, typename Item>
__device__ __forceinline__ void place_bias(const AttentionCall& call, Item& item, int lane) {
  long long before = 0;
  if (call.bias.packed && item.work.sequence < call.sequences) {
    before = packed_elements_before(call, item.work.sequence, ElementBytes, lane, 32);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) before += __shfl_xor_sync(kAllLanes, before, offset);
  }
  if (lane != 0) return;
  item.packed_first = before;
  item.rows_of_bias = rows_of_bias(call.bias, item.work, before, ElementBytes);
}

}  // namespace warploom
