#include "check/explore.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace warploom::check {
namespace {

/// What tells two fault-free states of one protocol apart. Every arrival so far was counted in the phase it was meant
/// for, so the barriers follow from the roles' positions and from what has landed.
struct Key {
  std::array<std::int16_t, pipeline::kMaxRoles> at{};
  std::array<std::int16_t, pipeline::kMaxSlots> slots{};  ///< filling and whether it has landed

  friend bool operator==(const Key&, const Key&) = default;
};

Key key_of(const State& state) {
  Key key;
  key.at = state.at;
  for (int s = 0; s < pipeline::kMaxSlots; ++s) {
    key.slots[s] = static_cast<std::int16_t>(state.slots[s].use * 2 + state.slots[s].in_flight);
  }
  return key;
}

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&key), sizeof key});
  }
};

/// How a state was first reached.
struct Origin {
  std::int32_t parent = -1;
  Event event;
};

class Explorer {
 public:
  Explorer(const Protocol& protocol, std::size_t max_states) : machine_(protocol), max_states_(max_states) {}

  Exploration run() {
    visit(machine_.initial(), {});
    while (!next_.empty() && result_.complete) {
      const auto layer = std::move(next_);
      next_.clear();
      for (const auto& [state, index] : layer) expand(state, index);
    }
    result_.states = seen_.size();
    return std::move(result_);
  }

 private:
  void visit(const State& state, Origin origin) {
    if (!seen_.insert(key_of(state)).second) return;
    origins_.push_back(origin);
    const auto index = static_cast<std::int32_t>(origins_.size() - 1);
    if (auto fault = machine_.missed_phase(state)) {
      report(*fault, index);
    } else if (seen_.size() >= max_states_) {
      result_.complete = false;
    } else {
      next_.push_back({state, index});
    }
  }

  void expand(const State& state, std::int32_t index) {
    const Protocol& protocol = machine_.protocol();
    bool moved = false;
    const auto attempt = [&](Event event) {
      if (!machine_.enabled(state, event)) return;
      moved = true;
      State after = state;
      if (auto fault = machine_.apply(after, event)) {
        report(*fault, index, event);
      } else {
        visit(after, {index, event});
      }
    };
    for (std::int8_t r = 0; r < protocol.num_roles; ++r) attempt({Event::Kind::operation, r});
    // Once all roles have returned nothing may land any more, so that counts as an end too.
    if (!moved && machine_.all_returned(state)) {
      if (auto fault = machine_.judge_end(state)) report(*fault, index);
      return;
    }
    for (std::int8_t s = 0; s < protocol.num_slots; ++s) attempt({Event::Kind::landing, s});
    if (!moved) {
      if (auto fault = machine_.judge_end(state)) report(*fault, index);
    }
  }

  void report(const Fault& fault, std::int32_t index, std::optional<Event> last = std::nullopt) {
    auto& findings = result_.findings;
    const auto same = [&](const Finding& finding) { return finding.fault.kind == fault.kind; };
    if (std::any_of(findings.begin(), findings.end(), same)) return;
    Finding finding{fault, {}};
    if (last) finding.interleaving.push_back(*last);
    for (; origins_[index].parent >= 0; index = origins_[index].parent) {
      finding.interleaving.push_back(origins_[index].event);
    }
    std::reverse(finding.interleaving.begin(), finding.interleaving.end());
    findings.push_back(std::move(finding));
  }

  Machine machine_;
  std::size_t max_states_;
  std::unordered_set<Key, KeyHash> seen_;
  std::vector<Origin> origins_;  // by order of first visit
  std::vector<std::pair<State, std::int32_t>> next_;
  Exploration result_;
};

}  // namespace

Exploration explore(const Protocol& protocol, std::size_t max_states) {
  return Explorer(protocol, max_states).run();
}

}  // namespace warploom::check
