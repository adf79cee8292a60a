// Attention's work items over the SMs of a GPU: order, assignment, tail (ours, docs/simulator.md).
#pragma once

#include <string>
#include <vector>

#include "sim/attention.h"
#include "sim/engine.h"

namespace warploom::sim {

enum class Order { in_order, longest_first };
enum class Assignment {
  fixed,    ///< item i of the order goes to SM i mod sms, known before the start
  dynamic,  ///< an SM that ends an item takes the next; the lowest-numbered SM first when several end at once
};

/// A batch of equally long sequences; an item is one query tile of one head of one sequence.
struct WorkProblem {
  AttentionScenario attention;  ///< its `blocks` is set for each item
  std::int64_t length = 4096;
  std::int64_t batch = 8;
  std::int64_t heads = 4;
  bool causal = true;
  std::int64_t sms = 132;
};

struct Schedule {
  std::vector<std::vector<std::size_t>> items;  ///< item numbers, one list an SM
  Cycles makespan = 0;
  Cycles tail = 0;     ///< from the first SM that has nothing left to the makespan
  double balance = 0;  ///< mean busy time over makespan, percent
};

Status validate(const WorkProblem& problem);

/// The items' costs in cycles, in the kernels' order: sequences, heads, query tiles. A tile has 64 rows a warpgroup
/// (attention.rows); a causal tile sees the key blocks up to its last row. Its cost is the simulated makespan of that
/// many blocks.
Result<std::vector<Cycles>> item_costs(const WorkProblem& problem);

/// Longest first keeps the order of equals.
Schedule schedule(const std::vector<Cycles>& costs, std::int64_t sms, Order order, Assignment assignment);

/// The schedule as a model (a resource and an executor for each SM), so that it can be run and drawn like any other.
Model schedule_model(const std::vector<Cycles>& costs, const Schedule& schedule);

const char* to_string(Order order);
const char* to_string(Assignment assignment);

}  // namespace warploom::sim
