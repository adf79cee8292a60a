// The vector kernels, compiled once for each instruction set.
#pragma once

#include "cpu/plan.h"
#include "cpu/scratch.h"
#include "warploom/status.h"

namespace warploom::cpu {

class BackwardState;
struct ProductTile;

struct Kernels {
  const char* name;
  /// Items or units [begin, end) of the plan.
  void (*forward)(const Plan& plan, size_t begin, size_t end, Scratch& scratch);
  void (*backward)(const Plan& plan, BackwardState& state, size_t begin, size_t end, Scratch& scratch);
  /// One tile of a product's result.
  void (*multiply)(const warploom_gemm& call, const ProductTile& tile, Scratch& scratch);
  /// count consecutive values to and from float32 (float16, bfloat16: to nearest even); float8_e4m3 is read only.
  void (*load_values)(const void* source, uint32_t dtype, int64_t count, float* target);
  void (*store_values)(const float* source, int64_t count, uint32_t dtype, void* target);
  /// A score function at `count` points; null: not wanted.
  void (*evaluate_score)(const expression::ScoreFunction& function, const float* parameters, const float* z,
                         int64_t count, float* values, float* slopes);
};

/// Those of the best instruction set that this processor has (or that limit_instruction_set allows); null when it has
/// none of those compiled in.
const Kernels* kernels();
/// The error of a call when there are none.
Status no_vectors();

/// Tests: the targets compiled in that this processor has, best first; use only the named one from now on (null: the
/// best).
int supported_targets(const Kernels** targets, int capacity);
void use_target(const Kernels* target);

}  // namespace warploom::cpu
