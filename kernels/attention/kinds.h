// What varies between attention kernels besides sizes: the score function and the form of the bias.
#pragma once

namespace warploom {

enum class ScoreKind : int { silu, softmax };

enum class BiasKind : int {
  none,
  rows16,    ///< dense or packed, in q's 16-bit type
  rows32,    ///< dense or packed, float32
  bucketed,  ///< from tables, by position and time
};

}  // namespace warploom
