// Checks a pipeline over a grid of sizes.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "check/explore.h"
#include "pipeline/shipped.h"

namespace warploom::check {

using pipeline::Sizes;

/// Makes a pipeline's protocol for given sizes; throws nothing.
using Describe = std::function<Protocol(const Sizes&)>;

/// Every combination of these is checked.
struct Grid {
  std::vector<int> stages = {1, 2, 3, 4};
  std::vector<int> steps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<int> consumers = {1, 2, 3};
  std::vector<int> tiles = {0, 1, 2, 3, 4};
  std::vector<bool> producer_exits_early = {false, true};
  std::vector<bool> uneven_tiles = {false, true};
};

struct Limits {
  std::size_t states = 300'000;  ///< per exploration
  int explored_sizes = 8;        ///< faulty sizes that are explored for each number of consumers, smallest first
  bool exhaustive = false;       ///< explore every size in full, also those that the proof covers
};

/// A fault of one kind at the smallest explored size that shows it.
struct SizedFinding {
  Sizes sizes;
  Finding finding;
};

struct Report {
  std::string pipeline;
  int sizes = 0;  ///< sizes checked
  int faulty_sizes = 0;
  long long steps = 0;  ///< steps of the proofs' interleavings
  long long explored_states = 0;
  int unfinished = 0;                  ///< explorations that reached Limits::states
  std::vector<SizedFinding> findings;  ///< at most one of each kind, by length of the interleaving
  std::string unexplained;             ///< a proof failed, and no exploration could finish: the proof's reason
  double milliseconds = 0;

  bool ok() const { return faulty_sizes == 0 && unfinished == 0; }
};

Report check(const std::string& name, const Describe& describe, const Grid& grid = {}, const Limits& limits = {});

/// The shipped pipeline of that name; nullptr when there is none.
const pipeline::Pipeline* find_pipeline(const std::string& name);

}  // namespace warploom::check
