#include "expression/program.h"

#include <algorithm>

namespace warploom::expression {

std::vector<bool> needed(const Graph& graph, const std::vector<int>& results) {
  std::vector<bool> result(static_cast<std::size_t>(graph.size()), false);
  for (const int node : results) result[static_cast<std::size_t>(node)] = true;
  for (int n = graph.size() - 1; n >= 0; --n) {
    if (!result[static_cast<std::size_t>(n)]) continue;
    for (const int operand : {graph[n].a, graph[n].b, graph[n].c}) {
      if (operand >= 0) result[static_cast<std::size_t>(operand)] = true;
    }
  }
  return result;
}

Program program_of(const Graph& graph, const std::vector<int>& results) {
  Program program;
  const auto size = static_cast<std::size_t>(graph.size());
  const std::vector<bool> used = needed(graph, results);
  std::vector<int> slot(size, -1), last_use(size, -1);
  for (int n = 0; n < graph.size(); ++n) {
    if (!used[static_cast<std::size_t>(n)]) continue;
    for (const int operand : {graph[n].a, graph[n].b, graph[n].c}) {
      if (operand >= 0) last_use[static_cast<std::size_t>(operand)] = n;
    }
  }
  for (const int node : results) last_use[static_cast<std::size_t>(node)] = graph.size();
  std::vector<int> free;
  for (int n = 0; n < graph.size(); ++n) {
    const auto at = static_cast<std::size_t>(n);
    if (!used[at]) continue;
    const Node& node = graph[n];
    if (arity(node.op) == 0) {
      slot[at] = program.slots++;
      if (node.op == Op::constant) program.constants.push_back({slot[at], node.value});
      if (node.op == Op::symbol) program.symbols.push_back({slot[at], node.index});
      if (node.op == Op::parameter) program.parameters.push_back({slot[at], node.index});
      continue;
    }
    const auto slot_of = [&](int operand) { return operand < 0 ? -1 : slot[static_cast<std::size_t>(operand)]; };
    const Step step = {node.op, -1, slot_of(node.a), slot_of(node.b), slot_of(node.c)};
    for (const int operand : {node.a, node.b, node.c}) {
      if (operand < 0 || arity(graph[operand].op) == 0 || last_use[static_cast<std::size_t>(operand)] != n) continue;
      const int left = slot_of(operand);
      if (std::find(free.begin(), free.end(), left) == free.end()) free.push_back(left);
    }
    if (free.empty()) free.push_back(program.slots++);
    slot[at] = free.back();
    free.pop_back();
    program.steps.push_back({step.op, slot[at], step.a, step.b, step.c});
  }
  for (const int node : results) program.results.push_back(slot[static_cast<std::size_t>(node)]);
  return program;
}

}  // namespace warploom::expression
