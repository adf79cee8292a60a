// What the host and the first rungs of the GEMM ladder agree on.
#pragma once

#include "gemm/gemm_config.h"
#include "geometry/swizzle.h"
#include "pipeline/trace_records.h"
#include "ptx/tensor_map.h"

namespace warploom::gemm_ladder {

inline constexpr int kTile = 128;  ///< rows and columns of C
inline constexpr int kStep = geometry::kPanelColumns;
inline constexpr int kOperandBytes = geometry::tile_bytes(kTile, kStep);
inline constexpr int kStageBytes = 2 * kOperandBytes;  ///< A, then B

/// The sizes of a rung, a row of ladder.json.
struct Rung {
  int stages;      ///< steps in shared memory
  int warpgroups;  ///< with the one that loads
  trace::Level trace = trace::Level::off;

  /// Of dynamic shared memory: the stages, and two mbarriers for each.
  WARPLOOM_HD constexpr int shared_bytes() const { return stages * (kStageBytes + 16); }
};

/// C = A B^T for A (rows x depth), B (columns x depth) and C of bfloat16, rows contiguous; columns and depth are
/// multiples of 8, depth at least 8.
struct Call {
  ptx::TensorMap a_map, b_map;  ///< (depth, rows) and (depth, columns), boxes of kStep x kTile, 128-byte swizzle
  const void* a;
  const void* b;
  void* out;
  int rows, columns, depth, steps;
  GemmSchedule schedule;  ///< the product's order of tiles
  trace::Sheet sheet;     ///< of a traced variant
};

}  // namespace warploom::gemm_ladder
