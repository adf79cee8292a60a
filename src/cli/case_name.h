// Problems by name, as in reports: hstu-jagged-B64-L256..2048-H4-D128-causal-ctx4-tgt64-bf16.
//
//   OPERATOR-SHAPE-HEADS-MASK[-EXTRA...]-DTYPE
//   OPERATOR   hstu | softmax
//   SHAPE      uniform-B<sequences>-L<length> | jagged-B<sequences>-L<shortest>..<longest> | movielens
//   HEADS      H<heads>[-Hkv<key heads>]-D<head dimension>[-Dv<value dimension>]
//   MASK       causal | full, then optionally left<n>, ctx<n> (contexts), tgt<n> (up to n targets a sequence)
//   EXTRA      rab (dense bias) | rab-drab (and its gradient) | rab-packed | rab-bucketed (position and time tables)
//   DTYPE      fp32 | bf16 | fp16
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/problem.h"
#include "warploom/status.h"

namespace warploom::cli {

struct Case {
  enum class Shape { uniform, jagged, movielens };

  bool softmax = false;
  Shape shape = Shape::uniform;
  std::int64_t batch = 8, shortest = 4096, longest = 4096;  ///< movielens: not used
  std::int64_t heads = 4, key_heads = 4, head_dim = 128, value_dim = 128;
  bool causal = true;
  std::int64_t left = -1;  ///< -1: unbounded
  std::int64_t contexts = 0, targets = 0;
  BiasForm bias = BiasForm::none;
  bool bias_gradient = false;
  std::uint32_t dtype = WARPLOOM_BFLOAT16;
};

/// The name that parse_case takes back.
std::string case_name(const Case& problem);

/// Errors: invalid_value that names the part that is wrong and what may stand there.
Result<Case> parse_case(const std::string& name);

/// The case with its lengths and counts drawn (seed 0). `movielens`: the lengths and timestamps of those histories;
/// error when the case needs them and there are none.
struct HistoryShape {
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> timestamps;
};
Result<ProblemConfig> config_of(const Case& problem, const HistoryShape& movielens);

}  // namespace warploom::cli
