#include "trace/timeline.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "problem/message.h"

namespace warploom::trace {
namespace {

using sim::Barrier;
using sim::Resource;

/// A filling of a ring.
using Filling = std::pair<int, std::int64_t>;

/// Names resources and barriers as they turn up, and writes spans down.
class Drawing {
 public:
  Drawing(const Subject& subject, sim::Run& run) : subject_(subject), run_(run) {}

  Resource resource(const std::string& name) {
    const auto [at, is_new] = resources_.try_emplace(name, static_cast<Resource>(run_.model.resources.size()));
    if (is_new) {
      run_.model.add_resource(name);
      run_.timeline.intervals.emplace_back();
    }
    return at->second;
  }
  Barrier barrier(const std::string& name) {
    const auto [at, is_new] = barriers_.try_emplace(name, static_cast<Barrier>(run_.model.barriers.size()));
    if (is_new) run_.model.add_barrier(name);
    return at->second;
  }
  const RingShape& ring(int number) const { return subject_.rings[static_cast<std::size_t>(number)]; }
  const ProductGroup& products(int number) const { return subject_.products[static_cast<std::size_t>(number)]; }
  std::string slot_name(const char* what, const Filling& filling) const {
    const RingShape& shape = ring(filling.first);
    return sim::numbered(message(shape.name, shape.name.empty() ? "" : " ", what), filling.second % shape.slots);
  }
  std::string memory_lane(const Filling& filling) const {
    const RingShape& shape = ring(filling.first);
    return sim::numbered(shape.name.empty() ? "MEM" : shape.name, filling.second % shape.slots);
  }

  /// Adds the operation to the executor and its span; the span's number.
  std::uint32_t add(std::uint32_t executor, sim::Operation operation, Cycles start, Cycles end) {
    std::vector<sim::Operation>& program = run_.model.executors[executor].program;
    sim::Span span;
    span.executor = executor;
    span.operation = static_cast<std::uint32_t>(program.size());
    span.asked = span.start = start;
    span.end = end;
    program.push_back(operation);
    run_.timeline.trace.spans.push_back(span);
    return static_cast<std::uint32_t>(run_.timeline.trace.spans.size() - 1);
  }
  void occupy(Resource resource, std::uint32_t executor, char tag, Cycles start, Cycles end) {
    if (end > start) run_.timeline.intervals[resource].push_back({start, end, executor, tag});
  }
  /// Arrival number `count` (from 1) on the barrier.
  void arrive(Barrier barrier, std::int64_t count, const sim::Arrival& arrival) {
    auto& lists = run_.timeline.trace.arrivals;
    if (lists.size() <= barrier) lists.resize(barrier + 1);
    auto& list = lists[barrier];
    if (static_cast<std::int64_t>(list.size()) < count) list.resize(static_cast<std::size_t>(count));
    sim::Arrival& known = list[static_cast<std::size_t>(count - 1)];
    if (arrival.span != sim::kNone && (known.span == sim::kNone || known.time < arrival.time)) known = arrival;
  }

 private:
  const Subject& subject_;
  sim::Run& run_;
  std::map<std::string, Resource> resources_;
  std::map<std::string, Barrier> barriers_;
};

/// When each filling was seen to land: by the watching warp, else when the first consumer had it.
std::map<Filling, Cycles> landings(const Subject& subject, const CtaTrace& cta) {
  std::map<Filling, Cycles> result;
  for (const Track& track : cta.tracks) {
    if (!subject.roles[static_cast<std::size_t>(track.strip)].watches) continue;
    for (const Sample& sample : track.samples) result[{sample.ring, sample.number}] = sample.time;
  }
  if (!result.empty()) return result;
  for (const Track& track : cta.tracks) {
    for (std::size_t i = 0; i < track.samples.size(); ++i) {
      const Sample& sample = track.samples[i];
      if (sample.mark != Mark::wait_full && sample.mark != Mark::product) continue;
      const bool waited = sample.mark == Mark::wait_full;
      const Cycles had = !waited ? sample.time : i + 1 < track.samples.size() ? track.samples[i + 1].time : track.end;
      const int ring = waited ? sample.ring : subject.products[static_cast<std::size_t>(sample.ring)].ring;
      const auto [at, is_new] = result.try_emplace({ring, sample.number}, had);
      if (!is_new) at->second = std::min(at->second, had);
    }
  }
  return result;
}

/// Writes one warp's marks down.
struct TrackDrawing {
  Drawing& drawing;
  const Track& track;
  std::uint32_t executor;
  char product;
  int consumer;  ///< among the consumers
  const std::map<Filling, Cycles>& landed;

  struct Issue {
    int group;
    std::int64_t number;
    Cycles time;
  };
  std::deque<Issue> issued = {};  ///< products that are under way, in their order
  Cycles last_product_end = 0;
  std::int64_t turns = 0;

  void wait(const std::string& name, std::int64_t count, Cycles start, Cycles end) {
    if (count < 1) return;  // the first round of an empty ring: nothing to wait for
    const Barrier barrier = drawing.barrier(name);
    drawing.arrive(barrier, count, {});
    drawing.add(executor, {sim::OperationKind::wait, ' ', 0, barrier, count, 0}, start, end);
  }

  void load(const Filling& filling, Cycles start, Cycles end) {
    const std::uint32_t issue =
        drawing.add(executor, {sim::OperationKind::busy, 'i', 0, 0, end - start, 0}, start, end);
    if (!drawing.ring(filling.first).loaded) {
      drawing.arrive(drawing.barrier(drawing.slot_name("full", filling)), round_of(filling) + 1,
                     {end, executor, issue, false});
      return;
    }
    const auto had = landed.find(filling);
    if (had == landed.end() || had->second < start) return;  // the consumer's marks are lost
    const Resource memory = drawing.resource(drawing.memory_lane(filling));
    const Barrier full = drawing.barrier(drawing.slot_name("full", filling));
    const std::uint32_t span = drawing.add(
        executor, {sim::OperationKind::async, 'L', memory, full, had->second - start, 0}, start, had->second);
    drawing.occupy(memory, executor, 'L', start, had->second);
    drawing.arrive(full, round_of(filling) + 1, {had->second, executor, span, true});
  }

  Resource tensor() { return drawing.resource(sim::numbered("TC", consumer)); }

  /// Issuing a product (which takes long when the tensor core's queue is full) and waiting for one: the warp does
  /// nothing else.
  std::uint32_t occupied_by_product(Cycles start, Cycles end) {
    return drawing.add(executor, {sim::OperationKind::use, product, tensor(), 0, end - start, 0}, start, end);
  }

  void wait_product(const Sample& sample, Cycles start, Cycles end) {
    const std::uint32_t span = occupied_by_product(start, end);
    const Filling read{drawing.products(sample.ring).ring, sample.number};
    const Barrier empty = drawing.barrier(drawing.slot_name("empty", read));
    drawing.arrive(empty, round_of(read) + 1, {end, executor, span, false});
    const auto waited = std::find_if(issued.begin(), issued.end(), [&](const Issue& issue) {
      return issue.group == sample.ring && issue.number == sample.number;
    });
    if (waited == issued.end()) return;
    draw_products(std::vector<Issue>(issued.begin(), waited + 1), end);
    issued.erase(issued.begin(), waited + 1);
  }

  /// Products that have ended by `end`, one after the other. When those but the last did is not known: each gets its
  /// share of the time, as its work is.
  void draw_products(const std::vector<Issue>& issues, Cycles end) {
    double left = 0;
    for (const Issue& issue : issues)
      for (const ProductGroup::Part& part : drawing.products(issue.group).parts) left += part.work;
    for (const Issue& issue : issues) {
      for (const ProductGroup::Part& part : drawing.products(issue.group).parts) {
        const Cycles start = std::max(issue.time, last_product_end);
        const auto taken = static_cast<double>(std::max<Cycles>(0, end - start)) * part.work / left;
        last_product_end = std::max(start, start + static_cast<Cycles>(taken));
        left -= part.work;
        drawing.occupy(tensor(), executor, product, start, last_product_end);
        if (!part.name.empty()) {
          drawing.occupy(drawing.resource(sim::numbered(part.name, consumer)), executor, product, start,
                         last_product_end);
        }
      }
    }
  }

  std::int64_t round_of(const Filling& filling) const { return filling.second / drawing.ring(filling.first).slots; }

  std::uint32_t work(char tag, Cycles start, Cycles end) {
    const Resource cores = drawing.resource(sim::numbered("FMA", consumer));
    drawing.occupy(cores, executor, tag, start, end);
    return drawing.add(executor, {sim::OperationKind::use, tag, cores, 0, end - start, 0}, start, end);
  }

  void hand_over(const Filling& filling, Cycles start, Cycles end) {
    const std::uint32_t span = work('h', start, end);
    const Barrier full = drawing.barrier(drawing.slot_name("full", filling));
    drawing.arrive(full, round_of(filling) + 1, {end, executor, span, false});
  }

  void draw(const Sample& sample, Cycles end) {
    const Filling filling{sample.ring, sample.number};
    switch (sample.mark) {
      case Mark::idle:
      case Mark::landed:
        return;
      case Mark::wait_full:
        return wait(drawing.slot_name("full", filling), round_of(filling) + 1, sample.time, end);
      case Mark::wait_empty:
        return wait(drawing.slot_name("empty", filling), round_of(filling), sample.time, end);
      case Mark::turn:
        return wait(sim::numbered("turn", consumer), ++turns, sample.time, end);
      case Mark::load:
        return load(filling, sample.time, end);
      case Mark::product:
        issued.push_back({sample.ring, sample.number, sample.time});
        occupied_by_product(sample.time, end);
        return;
      case Mark::wait_product:
        return wait_product(sample, sample.time, end);
      case Mark::hand_over:
        return hand_over(filling, sample.time, end);
      case Mark::scores:
        work('x', sample.time, end);
        return;
      case Mark::add:
        work('Q', sample.time, end);
        return;
      case Mark::epilogue:
        work('E', sample.time, end);
        return;
    }
  }

  void draw_all() {
    for (std::size_t i = 0; i < track.samples.size(); ++i) {
      draw(track.samples[i], i + 1 < track.samples.size() ? track.samples[i + 1].time : track.end);
    }
  }
};

/// Products of consumers that do not mark their steps, by what the others saw: a filling's is over when its slot comes
/// back to the producer, and has begun when the filling had landed and the one before it was over.
void draw_released_products(const Subject& subject, const CtaTrace& cta, const std::map<Filling, Cycles>& landed,
                            const std::vector<std::uint32_t>& consumers, Drawing& drawing) {
  Cycles last_end = 0;
  for (const Track& track : cta.tracks) {
    for (std::size_t i = 0; i < track.samples.size(); ++i) {
      const bool is_last = i + 1 == track.samples.size();
      if (is_last && track.lost > 0) continue;  // its end is not known
      const Sample& sample = track.samples[i];
      const Filling read{sample.ring, sample.number - drawing.ring(sample.ring).slots};
      const auto had = landed.find(read);
      if (sample.mark != Mark::wait_empty || had == landed.end()) continue;
      // Consumers that take turns have every second tile; those that share a tile are drawn as one.
      const std::size_t tile = static_cast<std::size_t>(read.second / std::max<std::int64_t>(1, subject.steps_of_tile));
      const std::size_t consumer =
          std::get<sim::GemmScenario>(subject.model).consumers > 1 ? tile % consumers.size() : 0;
      const Cycles end = is_last ? track.end : track.samples[i + 1].time;
      drawing.occupy(drawing.resource(sim::numbered("TC", static_cast<std::int64_t>(consumer))), consumers[consumer],
                     subject.roles[1 + consumer].product, std::max(had->second, last_end), end);
      last_end = end;
    }
  }
}

bool marks_products(const CtaTrace& cta) {
  return std::any_of(cta.tracks.begin(), cta.tracks.end(), [](const Track& track) {
    return std::any_of(track.samples.begin(), track.samples.end(),
                       [](const Sample& sample) { return sample.mark == Mark::product; });
  });
}

std::vector<std::string> notes(const Recording& recording, const CtaTrace& cta) {
  std::vector<std::string> lines = {message("CTA ", cta.cta, " on SM ", cta.sm, "; ", recording.ctas.size(),
                                            " CTAs recorded ", recording.marks, " marks")};
  std::int64_t lost = 0;
  for (const Track& track : cta.tracks) lost += track.lost;
  if (recording.lost > 0) {
    lines.push_back(message("the buffer was full: ", recording.lost, " marks were lost, ", lost,
                            " of them of this CTA, whose times end early; raise --capacity"));
  }
  return lines;
}

}  // namespace

sim::Run run_of(const Subject& subject, const Recording& recording, const CtaTrace& cta) {
  sim::Run run;
  run.title = subject.title;
  run.machine = sim::machine_of(subject.model);
  run.machine.clock_ghz = recording.clock_ghz;
  run.model.legend = subject.legend;
  run.notes = notes(recording, cta);

  Drawing drawing(subject, run);
  // Lanes stand in the order of the simulator's: tensor core, memory, CUDA cores.
  int consumers = 0;
  for (const Role& role : subject.roles) consumers += role.product != ' ' ? 1 : 0;
  for (int c = 0; c < consumers; ++c) {
    drawing.resource(sim::numbered("TC", c));
    for (const ProductGroup& group : subject.products) {
      for (const ProductGroup::Part& part : group.parts) {
        if (!part.name.empty()) drawing.resource(sim::numbered(part.name, c));
      }
    }
  }
  for (int r = 0; r < static_cast<int>(subject.rings.size()); ++r) {
    const RingShape& ring = subject.rings[static_cast<std::size_t>(r)];
    for (int slot = 0; ring.loaded && slot < ring.slots; ++slot) drawing.resource(drawing.memory_lane({r, slot}));
  }
  for (int c = 0; c < consumers; ++c) drawing.resource(sim::numbered("FMA", c));

  const std::map<Filling, Cycles> landed = landings(subject, cta);
  std::vector<std::uint32_t> consumer_executors;
  for (const Track& track : cta.tracks) {
    const Role& role = subject.roles[static_cast<std::size_t>(track.strip)];
    run.timeline.events += static_cast<std::int64_t>(track.samples.size());
    if (role.watches) continue;
    int consumer = 0;
    for (int strip = 0; strip < track.strip; ++strip) {
      consumer += subject.roles[static_cast<std::size_t>(strip)].product != ' ' ? 1 : 0;
    }
    run.model.add_executor({role.name, {}});
    const auto executor = static_cast<std::uint32_t>(run.model.executors.size() - 1);
    if (role.product != ' ') consumer_executors.push_back(executor);
    TrackDrawing{drawing, track, executor, role.product, consumer, landed}.draw_all();
    run.timeline.ends.push_back(track.end);
    run.timeline.makespan = std::max(run.timeline.makespan, track.end);
  }
  if (!marks_products(cta) && std::holds_alternative<sim::GemmScenario>(subject.model)) {
    draw_released_products(subject, cta, landed, consumer_executors, drawing);
  }
  run.timeline.trace.arrivals.resize(run.model.barriers.size());
  return run;
}

}  // namespace warploom::trace
