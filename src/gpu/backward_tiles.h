// The tile tables of the backward kernels.
#pragma once

#include <vector>

#include "attention/backward_bias_config.h"
#include "gpu/device_call.h"
#include "gpu/driver.h"
#include "gpu/user_score.h"
#include "problem/sequence.h"
#include "warploom/status.h"

namespace warploom::gpu {

/// `base` (dimensions, type, score, mask, bias, whether dQ is summed) with the table's row for it on this device.
/// Error: runtime_error when its shared memory is too small.
Result<BackwardConfig> choose_backward_tile(const BackwardConfig& base, const DeviceInfo& device);
Result<BackwardDqConfig> choose_backward_dq_tile(const BackwardDqConfig& base, const DeviceInfo& device);
Result<BackwardBiasConfig> choose_backward_bias_tile(const BackwardBiasConfig& base, const DeviceInfo& device);

/// The row that is chosen (if one is), and with `whole_table` every other row for these dimensions too: those that
/// other devices choose. Other rows only at their widest.
std::vector<BackwardConfig> backward_tiles(const BackwardConfig& base, const DeviceInfo& device, bool whole_table);
std::vector<BackwardDqConfig> backward_dq_tiles(const BackwardDqConfig& base, const DeviceInfo& device,
                                                bool whole_table);
std::vector<BackwardBiasConfig> backward_bias_tiles(const BackwardBiasConfig& base, const DeviceInfo& device,
                                                    bool whole_table);

/// A call as far as its score and mask go; the biased ones that kernels are compiled for ahead: the common dimensions
/// and, with `whole_table` only, two of the rare combinations.
struct BiasedScore {
  int head_dim;
  bool softmax, softcap, bfloat16, interval_mask;
  BiasKind bias;
};
std::vector<BiasedScore> biased_scores(bool whole_table);

/// What a score says of the configuration of any of these kernels.
template <typename Config>
Config config_for(const BiasedScore& asked) {
  Config config;
  config.head_dim = config.value_dim = asked.head_dim;
  config.bfloat16 = asked.bfloat16;
  config.softmax = asked.softmax;
  config.softcap = asked.softcap;
  config.interval_mask = asked.interval_mask;
  config.bias = asked.bias;
  return config;
}

/// What a call says of it.
template <typename Config>
Config config_for(const warploom_attention& call) {
  const bool softmax = call.op == WARPLOOM_SOFTMAX;
  auto config =
      config_for<Config>(BiasedScore{static_cast<int>(call.head_dim), softmax, softmax && call.softcap != 0,
                                     call.dtype == WARPLOOM_BFLOAT16, has_interval_mask(call), bias_kind(call)});
  config.value_dim = static_cast<int>(call.value_dim);
  config.user_score = user_score_number(call);
  return config;
}

}  // namespace warploom::gpu
