#include "sim/work_list.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>

#include "sim/scenario.h"

namespace warploom::sim {

Status validate(const WorkProblem& problem) {
  const auto refuse = [](const char* name, std::int64_t value, const char* rule) {
    return Status::invalid_value(std::string(name) + " = " + std::to_string(value) + " must " + rule);
  };
  if (problem.length < 1 || problem.length > (1 << 20)) return refuse("length", problem.length, "lie in [1, 2^20]");
  if (problem.batch < 1 || problem.batch > (1 << 16)) return refuse("batch", problem.batch, "lie in [1, 2^16]");
  if (problem.heads < 1 || problem.heads > (1 << 12)) return refuse("heads", problem.heads, "lie in [1, 2^12]");
  if (problem.sms < 1 || problem.sms > 1024) return refuse("sms", problem.sms, "lie in [1, 1024]");
  if (Status status = validate(problem.attention); !status.ok()) return status;
  const double tiles = static_cast<double>(problem.length) / static_cast<double>(problem.attention.rows) + 1;
  if (tiles * static_cast<double>(problem.batch * problem.heads) > 4e6)
    return Status::invalid_value("length, batch and heads make more than 4,000,000 work items; take a smaller batch");
  return {};
}

Result<std::vector<Cycles>> item_costs(const WorkProblem& problem) {
  if (Status status = validate(problem); !status.ok()) return status;
  const std::int64_t groups = warpgroups(problem.attention.variant), tile_rows = groups * problem.attention.rows;
  const std::int64_t tiles = ceil_div(problem.length, tile_rows);
  std::map<std::int64_t, Cycles> known;
  std::vector<Cycles> of_tile;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t seen = problem.causal ? std::min((tile + 1) * tile_rows, problem.length) : problem.length;
    AttentionScenario scenario = problem.attention;
    scenario.blocks = groups * ceil_div(seen, scenario.keys);
    scenario.cheap_blocks = std::min(scenario.cheap_blocks, scenario.blocks);
    auto found = known.find(scenario.blocks);
    if (found == known.end()) {
      const Result<Run> run = run_scenario(scenario);
      if (!run.ok()) return run.status();
      found = known.emplace(scenario.blocks, run->timeline.makespan).first;
    }
    of_tile.push_back(found->second);
  }
  std::vector<Cycles> costs;
  for (std::int64_t i = 0; i < problem.batch * problem.heads; ++i)
    costs.insert(costs.end(), of_tile.begin(), of_tile.end());
  return costs;
}

Schedule schedule(const std::vector<Cycles>& costs, std::int64_t sms, Order order, Assignment assignment) {
  std::vector<std::size_t> list(costs.size());
  std::iota(list.begin(), list.end(), std::size_t{0});
  if (order == Order::longest_first)
    std::stable_sort(list.begin(), list.end(), [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });

  Schedule result;
  result.items.resize(static_cast<std::size_t>(sms));
  std::vector<Cycles> ends(static_cast<std::size_t>(sms), 0);
  using Free = std::pair<Cycles, std::size_t>;  // when, which SM
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  for (std::size_t sm = 0; sm < ends.size(); ++sm) free.push({0, sm});
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::size_t sm = i % ends.size();
    if (assignment == Assignment::dynamic) {
      sm = free.top().second;
      free.pop();
      free.push({ends[sm] + costs[list[i]], sm});
    }
    result.items[sm].push_back(list[i]);
    ends[sm] += costs[list[i]];
  }
  result.makespan = *std::max_element(ends.begin(), ends.end());
  result.tail = result.makespan - *std::min_element(ends.begin(), ends.end());
  const auto busy = static_cast<double>(std::accumulate(ends.begin(), ends.end(), Cycles{0}));
  if (result.makespan > 0)
    result.balance = 100 * busy / (static_cast<double>(sms) * static_cast<double>(result.makespan));
  return result;
}

Model schedule_model(const std::vector<Cycles>& costs, const Schedule& schedule) {
  Model model;
  model.legend = {{'A', "work item"}, {'B', "work item"}};
  for (std::size_t sm = 0; sm < schedule.items.size(); ++sm) {
    const Resource resource = model.add_resource(numbered("SM", static_cast<std::int64_t>(sm)));
    Executor executor{numbered("cta", static_cast<std::int64_t>(sm)), {}};
    for (std::size_t i = 0; i < schedule.items[sm].size(); ++i)
      executor.use(resource, costs[schedule.items[sm][i]], i % 2 == 0 ? 'A' : 'B');
    model.add_executor(std::move(executor));
  }
  return model;
}

const char* to_string(Order order) {
  return order == Order::in_order ? "in-order" : "longest-first";
}
const char* to_string(Assignment assignment) {
  return assignment == Assignment::fixed ? "static" : "dynamic";
}

}  // namespace warploom::sim
