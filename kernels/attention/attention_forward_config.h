// The forward kernel's compile-time configuration and shared-memory map: what host and kernel agree on. Its one
// argument is an AttentionCall.
#pragma once

#include "attention/kinds.h"
#include "geometry/host_device.h"
#include "geometry/mask.h"
#include "geometry/swizzle.h"

namespace warploom {

/// Everything that changes the generated code, nothing else. It is the compile key.
struct AttentionForwardConfig {
  ScoreKind score = ScoreKind::silu;
  BiasKind bias = BiasKind::none;
  bool softcap = false;  ///< softmax
  int head_dim = 64;     ///< D, a multiple of 8 up to 256
  int value_dim = 64;    ///< Dv, likewise
  bool bfloat16 = true;  ///< else float16
  bool interval_mask = false;
  int query_rows = 128;  ///< of a CTA; 16 or 32 a warp
  int key_columns = 64;  ///< of a tile; a multiple of 32
  int stages = 2;        ///< K and V tiles in shared memory, at least 2; 2 with a bias
  int warps = 4;
  int min_blocks = 2;  ///< CTAs that an SM must hold: bounds the registers
  int key_warps = 1;   ///< warps that share rows and divide a tile's columns (attention_forward_split.cu)
  int user_score = 0;  ///< a user's function instead of silu: the host's number of it, for the kernel any but 0
};

/// The tensor core reads 16 columns at a time; the odd half is filled with zeros inside the kernel.
WARPLOOM_HD constexpr int padded_dim(int dim) {
  return (dim + 15) / 16 * 16;
}

/// Byte offsets in dynamic shared memory.
struct AttentionForwardMap {
  int query = 0;  ///< Q, later O
  int key = 0;    ///< one tile a stage
  int value = 0;
  int key_bytes = 0;  ///< of one stage
  int value_bytes = 0;
  int bias = 0;          ///< rows: R of one tile; bucketed: its tables and what each warp needs of them
  int work = 0;          ///< what the CTA works on
  int bias_rows = 0;     ///< where R lies, and where a packed one's sequence begins
  int rows = 0;          ///< what each lane's row sees, row_bytes a thread
  int exponents = 0;     ///< silu in float16: the power of two by which a row of P and O is divided, one int a row
  int tile_numbers = 0;  ///< one int a stage
  int walk = 0;          ///< the ranges of a sequence mask, or one int a warp
  int bytes = 0;
  static constexpr int work_bytes = 96;
  static constexpr int bias_rows_bytes = 48;
  static constexpr int row_bytes = 16;
};

/// Bytes of shared memory for R.
WARPLOOM_HD constexpr int bias_bytes(const AttentionForwardConfig& config) {
  switch (config.bias) {
    case BiasKind::rows16:  // each row has 16 bytes more than the tile
      return config.query_rows * (2 * config.key_columns + 16);
    case BiasKind::rows32:
      return config.query_rows * (4 * config.key_columns + 16);
    case BiasKind::bucketed:
      return kStagedTimesBytes +
             config.warps * bucketed_warp_bytes(config.key_columns, config.query_rows / config.warps);
    default:
      return 0;
  }
}

WARPLOOM_HD constexpr AttentionForwardMap shared_map(const AttentionForwardConfig& config) {
  AttentionForwardMap map;
  const int wider = config.head_dim > config.value_dim ? config.head_dim : config.value_dim;
  const bool scales_rows = config.score == ScoreKind::silu && !config.bfloat16;
  map.key_bytes = geometry::tile_bytes(config.key_columns, config.head_dim);
  map.value_bytes = geometry::tile_bytes(config.key_columns, config.value_dim);
  map.key = map.query + geometry::tile_bytes(config.query_rows, wider);
  map.value = map.key + config.stages * map.key_bytes;
  map.bias = map.value + config.stages * map.value_bytes;
  map.work = map.bias + bias_bytes(config);
  map.bias_rows = map.work + map.work_bytes;
  map.rows = map.bias_rows + (config.bias == BiasKind::none ? 0 : map.bias_rows_bytes);
  map.exponents = map.rows + config.warps * 32 * map.row_bytes;
  map.tile_numbers =
      map.exponents + (scales_rows ? config.query_rows * config.key_warps * static_cast<int>(sizeof(int)) : 0);
  map.walk = map.tile_numbers + config.stages * static_cast<int>(sizeof(int));
  map.bytes = map.walk + (config.interval_mask ? config.warps * static_cast<int>(sizeof(int))
                                               : static_cast<int>(sizeof(geometry::Ranges)));
  return map;
}

}  // namespace warploom
