// The HSTU forward kernel's compile-time configuration, shared-memory map and parameters: what host and kernel agree
// on.
#pragma once

#include "geometry/host_device.h"
#include "geometry/mask.h"
#include "geometry/schedule.h"
#include "geometry/swizzle.h"

namespace warploom {

/// Everything that changes the generated code, nothing else. It is the compile key.
struct HstuForwardConfig {
  int head_dim = 64;     ///< D, a multiple of 8 up to 256
  int value_dim = 64;    ///< Dv, likewise
  bool bfloat16 = true;  ///< else float16
  bool interval_mask = false;
  int query_rows = 128;  ///< of a CTA; 16 or 32 a warp
  int key_columns = 64;  ///< of a tile; a multiple of 32
  int stages = 2;        ///< K and V tiles in shared memory, at least 2
  int warps = 4;
  int min_blocks = 2;  ///< CTAs that an SM must hold: bounds the registers
};

/// The tensor core reads 16 columns at a time; the odd half is filled with zeros inside the kernel.
WARPLOOM_HD constexpr int padded_dim(int dim) {
  return (dim + 15) / 16 * 16;
}

/// Byte offsets in dynamic shared memory.
struct HstuForwardSharedMap {
  int query = 0;  ///< Q, later O
  int key = 0;    ///< one tile a stage
  int value = 0;
  int key_bytes = 0;  ///< of one stage
  int value_bytes = 0;
  int work = 0;          ///< what the CTA works on
  int rows = 0;          ///< what each lane's row sees, row_bytes a thread
  int exponents = 0;     ///< float16: the power of two by which a row of P and O is divided, one int a row
  int tile_numbers = 0;  ///< one int a stage
  int walk = 0;          ///< the ranges of a sequence mask, or one int a warp
  int bytes = 0;
  static constexpr int work_bytes = 80;
  static constexpr int row_bytes = 16;
};

WARPLOOM_HD constexpr HstuForwardSharedMap shared_map(const HstuForwardConfig& config) {
  HstuForwardSharedMap map;
  const int wider = config.head_dim > config.value_dim ? config.head_dim : config.value_dim;
  map.key_bytes = geometry::tile_bytes(config.key_columns, config.head_dim);
  map.value_bytes = geometry::tile_bytes(config.key_columns, config.value_dim);
  map.key = map.query + geometry::tile_bytes(config.query_rows, wider);
  map.value = map.key + config.stages * map.key_bytes;
  map.work = map.value + config.stages * map.value_bytes;
  map.rows = map.work + map.work_bytes;
  map.exponents = map.rows + config.warps * 32 * map.row_bytes;
  map.tile_numbers = map.exponents + (config.bfloat16 ? 0 : config.query_rows * static_cast<int>(sizeof(int)));
  map.walk = map.tile_numbers + config.stages * static_cast<int>(sizeof(int));
  map.bytes = map.walk + (config.interval_mask ? config.warps * static_cast<int>(sizeof(int))
                                               : static_cast<int>(sizeof(geometry::Ranges)));
  return map;
}

/// Strides in elements.
struct TensorStrides {
  long long batch = 0;  ///< dense batches only
  long long row = 0;
  long long head = 0;
};

/// The kernel's one argument. Pointers are device memory; null where something is absent.
struct HstuForwardParams {
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  void* out = nullptr;
  TensorStrides query_strides, key_strides, value_strides, out_strides;

  const void* cu_seqlens_q = nullptr;  ///< null: a dense batch of seqlen_q x seqlen_k
  const void* cu_seqlens_k = nullptr;
  const int* seqused_q = nullptr;
  const int* seqused_k = nullptr;
  const int* num_contexts = nullptr;
  const int* num_targets = nullptr;
  int seqused_q_all = -1;  ///< when the pointer is null; negative: not given
  int seqused_k_all = -1;
  int num_contexts_all = -1;
  int num_targets_all = -1;
  bool cu_seqlens_q_64 = false;  ///< int64, else int32
  bool cu_seqlens_k_64 = false;
  bool target_window_from_history_end = false;
  int seqlen_q = 0;
  int seqlen_k = 0;
  long long total_q = 0;  ///< rows of q; those after the last sequence are written as 0

  int left = 0;
  int right = 0;
  int target_group_size = 1;
  const int* intervals = nullptr;  ///< (heads or 1, total_q, num_intervals, 2)
  long long interval_head_stride = 0;
  int num_intervals = 0;

  int sequences = 0;
  int heads_per_key_head = 1;
  float half_alpha = 0;
  float inverse_divisor = 1;
  const float* divisor_rows = nullptr;  ///< (total_q); replaces inverse_divisor
  geometry::Schedule schedule;          ///< a jagged batch has one more sequence: the rows after the last one
};

}  // namespace warploom
