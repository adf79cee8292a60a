// A graph's nodes as the steps of an interpreter that works on arrays of many values.
#pragma once

#include <vector>

#include "expression/graph.h"

namespace warploom::expression {

/// Arrays that an interpreter holds at once.
inline constexpr int kMaxSlots = 64;
inline constexpr int kMaxSteps = 512;

struct Step {
  Op op;
  int to;       ///< the slot that it writes; one of the operands' where they are not needed any more
  int a, b, c;  ///< slots; -1: none
};

struct Program {
  struct Constant {
    int slot;
    double value;
  };
  struct Input {
    int slot, index;
  };
  std::vector<Constant> constants;  ///< their slots and those of the inputs are never written by a step
  std::vector<Input> symbols, parameters;
  std::vector<Step> steps;
  std::vector<int> results;  ///< slots
  int slots = 0;
};

/// The steps that compute `results`.
Program program_of(const Graph& graph, const std::vector<int>& results);
/// Which nodes `results` need.
std::vector<bool> needed(const Graph& graph, const std::vector<int>& results);

}  // namespace warploom::expression
