// A tile of rows of one head by TMA, through a map over (columns, rows, heads, sequences).
#pragma once

#include "geometry/swizzle.h"
#include "ptx/tma.h"

namespace warploom::tile {

/// Rows `row`.. of one head to a tile of Rows rows and Dim columns, panel by panel. One thread.
template <int Rows, int Dim>
__device__ __forceinline__ void tma_load_rows(const ptx::TensorMap* map, ptx::uint32 tile, ptx::uint32 barrier, int row,
                                              int head, int sequence) {
#pragma unroll
  for (int panel = 0; panel < geometry::panels_of(Dim); ++panel) {
    ptx::tma_load<4>(map, tile + panel * Rows * geometry::kPanelRowBytes, barrier,
                     {panel * geometry::kPanelColumns, row, head, sequence});
  }
}

}  // namespace warploom::tile
