#include "trace/order.h"

#include <algorithm>
#include <map>
#include <utility>

#include "problem/message.h"

namespace warploom::trace {
namespace {

using Filling = std::pair<int, std::int64_t>;

struct Checker {
  const Subject& subject;
  OrderCheck result = {};

  /// `first` may not come after `then`.
  void in_order(Cycles first, Cycles then, const auto&... what) {
    ++result.checked;
    if (first <= then) return;
    constexpr std::size_t kTold = 5;
    if (++result.violated; result.violations.size() < kTold)
      result.violations.push_back(message(what..., ": cycle ", first, " after cycle ", then));
  }
  std::string name(const Filling& filling) const {
    const RingShape& ring = subject.rings[static_cast<std::size_t>(filling.first)];
    return message(ring.name.empty() ? "ring" : ring.name, " filling ", filling.second);
  }
};

struct Ended {
  Sample sample;
  Cycles end;
};

std::vector<Ended> with_ends(const Track& track, Mark mark) {
  std::vector<Ended> result;
  for (std::size_t i = 0; i < track.samples.size(); ++i) {
    // The last mark of a strip that was full has no end.
    const bool last = i + 1 == track.samples.size();
    if (track.samples[i].mark != mark || (last && track.lost > 0)) continue;
    result.push_back({track.samples[i], last ? track.end : track.samples[i + 1].time});
  }
  return result;
}

void check_turns(Checker& checker, const CtaTrace& cta) {
  std::vector<std::vector<Ended>> turns;  // by consumer
  for (const Track& track : cta.tracks) {
    if (checker.subject.roles[static_cast<std::size_t>(track.strip)].product != ' ')
      turns.push_back(with_ends(track, Mark::turn));
  }
  for (std::size_t c = 0; turns.size() > 1 && c < turns.size(); ++c) {
    const bool last = c + 1 == turns.size();
    const std::vector<Ended>& mine = turns[c];
    const std::vector<Ended>& next = turns[last ? 0 : c + 1];
    for (std::size_t n = 0; n < mine.size() && n + (last ? 1 : 0) < next.size(); ++n) {
      checker.in_order(mine[n].end, next[n + (last ? 1 : 0)].end, "turn ", n, " of consumer ", c,
                       " came after the one that follows it");
    }
  }
}

}  // namespace

OrderCheck check_order(const Subject& subject, const CtaTrace& cta) {
  Checker checker{subject};
  std::map<Filling, Cycles> loads;
  std::map<Filling, std::vector<Cycles>> handed;  // by each consumer
  for (const Track& track : cta.tracks) {
    for (const Sample& sample : track.samples) {
      if (sample.mark == Mark::load) loads[{sample.ring, sample.number}] = sample.time;
      if (sample.mark == Mark::hand_over) handed[{sample.ring, sample.number}].push_back(sample.time);
    }
  }
  for (const Track& track : cta.tracks) {
    const std::string& who = subject.roles[static_cast<std::size_t>(track.strip)].name;
    for (const Sample& sample : track.samples) {
      if (sample.mark != Mark::landed) continue;
      const Filling filling{sample.ring, sample.number};
      if (const auto load = loads.find(filling); load != loads.end())
        checker.in_order(load->second, sample.time, checker.name(filling), " was loaded after it had landed");
      const Filling next{sample.ring, sample.number + subject.rings[static_cast<std::size_t>(sample.ring)].slots};
      if (const auto load = loads.find(next); load != loads.end())
        checker.in_order(sample.time, load->second, checker.name(next), " was loaded before what lay there had landed");
    }
    for (const Ended& had : with_ends(track, Mark::wait_full)) {
      const Filling filling{had.sample.ring, had.sample.number};
      if (const auto load = loads.find(filling); load != loads.end())
        checker.in_order(load->second, had.end, checker.name(filling), " was loaded after ", who, " had it");
      if (const auto parts = handed.find(filling); parts != handed.end()) {
        for (const Cycles part : parts->second)
          checker.in_order(part, had.end, checker.name(filling), " was handed over after ", who, " had it");
      }
    }
    for (const Sample& sample : track.samples) {
      if (sample.mark != Mark::wait_product) continue;
      const int ring = subject.products[static_cast<std::size_t>(sample.ring)].ring;
      const Filling next{ring, sample.number + subject.rings[static_cast<std::size_t>(ring)].slots};
      if (const auto load = loads.find(next); load != loads.end())
        checker.in_order(sample.time, load->second, checker.name(next), " was loaded before ", who,
                         " waited for the product that read what lay there");
    }
  }
  check_turns(checker, cta);
  return std::move(checker.result);
}

}  // namespace warploom::trace
