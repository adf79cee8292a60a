#include "check/check.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "check/proof.h"

namespace warploom::check {
namespace {

std::vector<Sizes> all_sizes(const Grid& grid) {
  std::vector<Sizes> sizes;
  for (int stages : grid.stages) {
    for (int steps : grid.steps) {
      for (int consumers : grid.consumers) {
        for (int tiles : grid.tiles) {
          for (bool early : grid.producer_exits_early) {
            for (bool uneven : grid.uneven_tiles) {
              if (uneven && (tiles < 2 || steps == 0) && grid.uneven_tiles.size() > 1) continue;  // the same as even
              sizes.push_back({stages, steps, consumers, tiles, early, uneven});
            }
          }
        }
      }
    }
  }
  return sizes;
}

int total_operations(const Protocol& protocol) {
  int total = 0;
  for (int r = 0; r < protocol.num_roles; ++r) total += protocol.roles[r].length;
  return total;
}

struct Suspect {
  Sizes sizes;
  int operations;
  std::string reason;
};

/// Keeps the shortest interleaving of each kind.
void keep(std::vector<SizedFinding>& findings, const Sizes& sizes, const Finding& finding) {
  for (SizedFinding& known : findings) {
    if (known.finding.fault.kind != finding.fault.kind) continue;
    if (finding.interleaving.size() < known.finding.interleaving.size()) known = {sizes, finding};
    return;
  }
  findings.push_back({sizes, finding});
}

}  // namespace

Report check(const std::string& name, const Describe& describe, const Grid& grid, const Limits& limits) {
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.pipeline = name;
  std::vector<Suspect> suspects;
  for (const Sizes& sizes : all_sizes(grid)) {
    const Protocol protocol = describe(sizes);
    ++report.sizes;
    if (const auto faults = malformed(protocol); !faults.empty()) {
      ++report.faulty_sizes;
      for (const Fault& fault : faults) keep(report.findings, sizes, {fault, {}});
      continue;
    }
    const Proof proof = prove(protocol);
    report.steps += proof.steps;
    if (!proof.holds) ++report.faulty_sizes;
    if (!proof.holds || limits.exhaustive) suspects.push_back({sizes, total_operations(protocol), proof.reason});
  }
  std::stable_sort(suspects.begin(), suspects.end(),
                   [](const Suspect& a, const Suspect& b) { return a.operations < b.operations; });
  if (!limits.exhaustive) {
    // Some faults need company: the smallest sizes of each number of consumers.
    std::map<int, int> explored;
    std::erase_if(suspects,
                  [&](const Suspect& suspect) { return ++explored[suspect.sizes.consumers] > limits.explored_sizes; });
  }
  for (const Suspect& suspect : suspects) {
    const Protocol protocol = describe(suspect.sizes);
    const Exploration exploration = explore(protocol, limits.states);
    report.explored_states += static_cast<long long>(exploration.states);
    if (!exploration.complete) ++report.unfinished;
    for (const Finding& finding : exploration.findings) keep(report.findings, suspect.sizes, finding);
    if (exploration.findings.empty() && !suspect.reason.empty()) report.unexplained = suspect.reason;
  }
  if (!report.findings.empty()) report.unexplained.clear();
  std::stable_sort(report.findings.begin(), report.findings.end(), [](const SizedFinding& a, const SizedFinding& b) {
    return a.finding.interleaving.size() < b.finding.interleaving.size();
  });
  report.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return report;
}

const pipeline::Pipeline* find_pipeline(const std::string& name) {
  for (const auto& pipeline : pipeline::kShippedPipelines) {
    if (name == pipeline.name) return &pipeline;
  }
  return nullptr;
}

}  // namespace warploom::check
