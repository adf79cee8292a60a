// Compile-time configuration of the kernels for short queries against long keys: what host and kernels agree on.
#pragma once

#include "attention/attention_forward_config.h"

namespace warploom {

/// Byte offsets in dynamic shared memory of attention_forward_split.cu, behind those of the forward kernel.
struct SplitMap {
  int work = 0;
  int terms = 0;     ///< a row's of each key warp
  int exchange = 0;  ///< the accumulators of one key warp
  int bytes = 0;
  static constexpr int work_bytes = 160;
  static constexpr int terms_bytes = 8;
};

WARPLOOM_HD constexpr SplitMap split_shared_map(const AttentionForwardConfig& config) {
  SplitMap map;
  map.work = (shared_map(config).bytes + 15) / 16 * 16;
  map.terms = map.work + map.work_bytes;
  map.exchange = map.terms + (config.key_warps > 1 ? config.key_warps * config.query_rows * map.terms_bytes : 0);
  map.bytes = map.exchange + (config.key_warps > 1 ? config.query_rows * padded_dim(config.value_dim) * 4 : 0);
  return map;
}

/// Of attention_combine.cu.
struct CombineConfig {
  bool softmax = false;
  int value_dim = 64;
  bool bfloat16 = true;
};

inline constexpr int kCombineThreads = 256;

}  // namespace warploom
