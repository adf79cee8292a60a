#include "trace/compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "problem/message.h"
#include "sim/json.h"

namespace warploom::trace {
namespace {

using sim::Cycles;

/// By tag, and by name for waits.
using Key = std::pair<std::string, std::string>;

struct Sum {
  std::int64_t count = 0;
  Cycles cycles = 0;
  std::set<std::uint32_t> warps = {};

  Activity activity(Cycles makespan) const {
    const double each = static_cast<double>(std::max<std::size_t>(1, warps.size()));
    Activity result;
    result.count = static_cast<double>(count) / each;
    result.mean = count == 0 ? 0 : static_cast<double>(cycles) / static_cast<double>(count);
    result.share = makespan == 0 ? 0 : 100.0 * static_cast<double>(cycles) / each / static_cast<double>(makespan);
    return result;
  }
};

struct Side {
  const sim::Run& run;
  std::map<Key, Sum> sums = {};

  void add(const Key& key, std::uint32_t warp, Cycles cycles, bool counts = true) {
    Sum& sum = sums[key];
    sum.count += counts ? 1 : 0;
    sum.cycles += cycles;
    sum.warps.insert(warp);
  }

  /// The tag's row; what the marks do not tell apart belongs to another's.
  void add_work(char tag, std::uint32_t warp, Cycles cycles) {
    const char joined = tag == 'D' ? 'E' : tag == 'o' ? 'x' : tag;
    add({std::string(1, joined), sim::tag_name(run.model, joined)}, warp, cycles, joined == tag);
  }

  bool is_tensor(sim::Resource resource) const { return run.model.resources[resource].starts_with("TC"); }

  void add_span(const sim::Span& span) {
    const sim::Operation& operation = run.model.executors[span.executor].program[span.operation];
    const bool on_tensor = (operation.kind == sim::OperationKind::use || operation.kind == sim::OperationKind::async) &&
                           is_tensor(operation.resource);
    switch (operation.kind) {
      case sim::OperationKind::use:
        if (on_tensor) return add({"", "waits: products"}, span.executor, span.end - span.asked);
        return add_work(operation.tag, span.executor, span.end - span.start);
      case sim::OperationKind::async:
        if (on_tensor) return;  // its lane tells
        return add_work(operation.tag, span.executor, span.end + operation.latency - span.asked);
      case sim::OperationKind::busy:
        return add_work(operation.tag, span.executor, span.end - span.start);
      case sim::OperationKind::wait: {
        // "K full[1]", "full[0]": one row for all rings and slots. The model's "ready" is its first product's end.
        std::string name = run.model.barriers[operation.barrier];
        name = name.substr(0, name.find('['));
        name = name.substr(name.rfind(' ') + 1);
        return add({"", "waits: " + (name == "ready" ? "products" : name)}, span.executor, span.end - span.start);
      }
      case sim::OperationKind::arrive:
        return;
    }
  }

  void add_all() {
    for (const sim::Span& span : run.timeline.trace.spans) add_span(span);
    for (sim::Resource r = 0; r < run.model.resources.size(); ++r) {
      if (!is_tensor(r)) continue;
      for (const sim::Interval& interval : run.timeline.intervals[r])
        add_work(interval.tag, interval.executor, interval.end - interval.start);
    }
  }

  /// Percent of the makespan in which some product is under way.
  double tensor_share() const {
    std::vector<std::pair<Cycles, Cycles>> all;
    for (sim::Resource r = 0; r < run.model.resources.size(); ++r) {
      if (!is_tensor(r)) continue;
      for (const sim::Interval& interval : run.timeline.intervals[r]) all.emplace_back(interval.start, interval.end);
    }
    std::sort(all.begin(), all.end());
    Cycles covered = 0, until = 0;
    for (const auto& [start, end] : all) {
      covered += std::max<Cycles>(0, end - std::max(start, until));
      until = std::max(until, end);
    }
    const Cycles makespan = run.timeline.makespan;
    return makespan == 0 ? 0 : 100.0 * static_cast<double>(covered) / static_cast<double>(makespan);
  }
};

double difference(const ComparedRow& row) {
  return row.measured.share - row.model.share;
}

std::string verdict_of(const std::vector<ComparedRow>& rows) {
  if (rows.empty()) return "nothing was recorded";
  const ComparedRow& row = rows.front();
  const double points = difference(row);
  return message("they differ most in ", row.tag.empty() ? "" : row.tag + " ", row.what, ": ",
                 sim::fixed(row.measured.share, 1), " % of the time measured, ", sim::fixed(row.model.share, 1),
                 " % in the model (", sim::fixed(row.measured.mean, 0), " cycles each, ", sim::fixed(row.model.mean, 0),
                 " in the model; ", points < 0 ? "" : "+", sim::fixed(points, 1), " points)");
}

}  // namespace

Comparison compare(const sim::Run& model, const sim::Run& measured) {
  Side predicted{model}, seen{measured};
  predicted.add_all();
  seen.add_all();
  Comparison result;
  result.model_makespan = model.timeline.makespan;
  result.measured_makespan = measured.timeline.makespan;
  result.model_tensor = predicted.tensor_share();
  result.measured_tensor = seen.tensor_share();
  // Tags are the same on both sides, their wording need not be: the measured side's counts.
  std::map<Key, std::pair<const Sum*, const Sum*>> joined;
  const auto key_of = [](const Key& key) { return key.first.empty() ? key : Key{key.first, ""}; };
  for (const auto& [key, sum] : predicted.sums) joined[key_of(key)].first = &sum;
  for (const auto& [key, sum] : seen.sums) joined[key_of(key)].second = &sum;
  for (const auto& [key, sums] : joined) {
    ComparedRow row;
    row.tag = key.first;
    row.what = !key.first.empty() ? sim::tag_name(sums.second != nullptr ? measured.model : model.model, key.first[0])
                                  : key.second;
    if (sums.first != nullptr) row.model = sums.first->activity(result.model_makespan);
    if (sums.second != nullptr) row.measured = sums.second->activity(result.measured_makespan);
    result.rows.push_back(row);
  }
  // What only one side tells apart stands at the end.
  std::stable_sort(result.rows.begin(), result.rows.end(), [](const ComparedRow& a, const ComparedRow& b) {
    const bool both_a = a.model.count > 0 && a.measured.count > 0, both_b = b.model.count > 0 && b.measured.count > 0;
    return both_a != both_b ? both_a : std::fabs(difference(a)) > std::fabs(difference(b));
  });
  result.verdict = verdict_of(result.rows);
  return result;
}

}  // namespace warploom::trace
