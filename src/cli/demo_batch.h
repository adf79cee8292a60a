// The batch of `warploom demo`: histories become HSTU attention's inputs.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/problem.h"
#include "history/history.h"

namespace warploom::cli {

/// A causal HSTU problem with a position + time bias over the histories: a row is an event, its q, k and v are random
/// vectors of its item (the same seed gives the same ones), timestamps are the events' own.
Problem make_demo_problem(const history::Histories& histories, std::int64_t heads, std::int64_t head_dim,
                          std::uint32_t dtype, std::uint64_t seed);

/// A problem of only these sequences, with copies of their rows: inputs, out and gradients. Its divisor is the whole
/// batch's, so that equal rows must give equal results.
Problem copy_sequences(const Problem& whole, const std::vector<std::int64_t>& sequences);

/// Rows of `score matrices` and their sums over the batch, for what fusing saves.
struct BatchWork {
  double pairs = 0;         ///< sum of L^2
  double padded_pairs = 0;  ///< B * Lmax^2
  std::int64_t longest = 0;
};
BatchWork work_of(const std::vector<std::int64_t>& lengths);

}  // namespace warploom::cli
