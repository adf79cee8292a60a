// What the host and every rung of the ladder agree on.
#pragma once

#include "geometry/host_device.h"

namespace warploom::ladder {

inline constexpr int kDim = 128;
inline constexpr int kRowBytes = 2 * kDim;

/// The sizes of a rung, a row of ladder.json.
struct Rung {
  int query_rows;   ///< of a CTA
  int key_columns;  ///< keys of a tile
  int warps;
  int stages;      ///< K and V tiles in shared memory
  int min_blocks;  ///< CTAs that an SM must hold: bounds the registers

  /// Of dynamic shared memory: Q, and K and V of each stage.
  WARPLOOM_HD constexpr int shared_bytes() const { return kRowBytes * (query_rows + 2 * stages * key_columns); }
};

/// O = softmax(alpha Q K^T) V, alpha > 0, for tensors (sequences, rows, heads, 128) of bfloat16, rows contiguous.
struct Call {
  const void* query;
  const void* key;
  const void* value;
  void* out;
  int seqlen_q, seqlen_k, heads, sequences;
  float alpha;
};

}  // namespace warploom::ladder
