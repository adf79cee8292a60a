#include "check/proof.h"

#include <algorithm>
#include <utility>

namespace warploom::check {
namespace {

constexpr int kRoles = pipeline::kMaxRoles;

/// How many operations of each role happen before a point.
struct Clock {
  std::array<std::int16_t, kRoles> steps{};

  void join(const Clock& other) {
    for (int r = 0; r < kRoles; ++r) steps[r] = std::max(steps[r], other.steps[r]);
  }
};

/// What is known of one phase of a barrier.
struct Phase {
  Clock before_end;  ///< joined over its arrivals and loads
  bool has_loads = false;
  std::array<std::int16_t, kRoles>
      waited{};  ///< per role: its step count just after its first wait for this phase; 0: none
};

using Phases = std::vector<Phase>;  // by phase, grown on demand

Phase& at(Phases& phases, int phase) {
  if (static_cast<int>(phases.size()) <= phase) phases.resize(phase + 1);
  return phases[phase];
}

struct Filling {
  OpKind kind = OpKind::commit;  ///< load, copy or write; commit: none yet
  int role = 0;
  int step =
      0;  ///< the role's step count just after the write; for a copy, after the wait_group that covers it (0: none)
  int mbarrier = 0, phase = 0;
  std::array<std::int16_t, kRoles> read_until{};  ///< per role: its step count just after its last read ended
  std::array<bool, kRoles> reading{};
};

class Prover {
 public:
  explicit Prover(const Protocol& protocol)
      : protocol_(protocol),
        machine_(protocol),
        state_(machine_.initial()),
        mbarriers_(protocol.num_mbarriers),
        named_(protocol.num_named) {}

  Proof run() {
    Proof proof;
    proof.reason = find_shared_ids();
    if (proof.reason.empty()) proof.reason = run_all(proof.steps);
    if (proof.reason.empty()) proof.reason = find_late_waits();
    if (proof.reason.empty()) proof.reason = find_late_loads();
    proof.holds = proof.reason.empty();
    return proof;
  }

 private:
  /// Two barriers of one id that are both used.
  std::string find_shared_ids() const {
    std::array<bool, pipeline::kMaxMbarriers> mbarrier_used{};
    std::array<bool, pipeline::kMaxNamedBarriers> named_used{};
    for (int r = 0; r < protocol_.num_roles; ++r) {
      for (int i = 0; i < protocol_.roles[r].length; ++i) {
        const Op& op = protocol_.roles[r].ops[i];
        if (op.kind == OpKind::wait || op.kind == OpKind::arrive || op.kind == OpKind::expect) {
          mbarrier_used[op.object] = true;
        } else if (op.kind == OpKind::load) {
          mbarrier_used[op.barrier] = true;
        } else if (op.kind == OpKind::named_arrive || op.kind == OpKind::named_wait) {
          named_used[op.object] = true;
        }
      }
    }
    for (int a = 0; a < protocol_.num_mbarriers; ++a) {
      for (int b = 0; b < a; ++b) {
        if (mbarrier_used[a] && mbarrier_used[b] && protocol_.mbarriers[a].id == protocol_.mbarriers[b].id) {
          return machine_.mbarrier_name(a) + " and " + machine_.mbarrier_name(b) + " share an id";
        }
      }
    }
    for (int a = 0; a < protocol_.num_named; ++a) {
      for (int b = 0; b < a; ++b) {
        if (named_used[a] && named_used[b] && protocol_.named[a].id == protocol_.named[b].id) {
          return machine_.named_name(a) + " and " + machine_.named_name(b) + " share an id";
        }
      }
    }
    return "";
  }

  /// Any interleaving will do: each role in turn goes as far as it can, then everything lands.
  std::string run_all(long long& steps) {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::int8_t r = 0; r < protocol_.num_roles; ++r) {
        const Event event{Event::Kind::operation, r};
        while (machine_.enabled(state_, event)) {
          const Op& op = *machine_.next(state_, r);
          if (!ordered(r, op)) {
            return machine_.role_name(r) + " can do '" + machine_.describe(op) + "' (operation " +
                   std::to_string(state_.at[r]) + ") before something that it depends on";
          }
          if (auto fault = machine_.apply(state_, event)) return fault->message;
          advance(r, op);
          ++steps;
          progress = true;
        }
      }
      for (std::int8_t s = 0; s < protocol_.num_slots; ++s) {
        const Event event{Event::Kind::landing, s};
        if (!machine_.enabled(state_, event)) continue;
        if (auto fault = machine_.apply(state_, event)) return fault->message;
        ++steps;
        progress = true;
      }
    }
    const auto fault = machine_.judge_end(state_);
    return fault ? fault->message : "";
  }

  /// Whether the end of the phase happens before the point: somebody's wait for it does, or all its arrivals do and
  /// there are no loads to land. `under_way`: the barrier's phase in the interleaving that is run.
  static bool knows_end(const Clock& point, Phases& phases, int phase, int under_way) {
    if (phase < 0) return true;
    if (phase >= under_way) return false;
    const Phase& known = at(phases, phase);
    bool all_arrived = !known.has_loads;
    for (int r = 0; r < kRoles; ++r) {
      if (known.waited[r] != 0 && point.steps[r] >= known.waited[r]) return true;
      all_arrived = all_arrived && point.steps[r] >= known.before_end.steps[r];
    }
    return all_arrived;
  }

  bool knows_mbarrier(const Clock& point, int mbarrier, int phase) {
    return knows_end(point, mbarriers_[mbarrier], phase, state_.mbarriers[protocol_.mbarriers[mbarrier].id].phase);
  }

  bool knows_named(const Clock& point, int named, int use) {
    return knows_end(point, named_[named], use, state_.named[protocol_.named[named].id].use);
  }

  bool knows_landed(const Clock& point, const Filling& filling) {
    switch (filling.kind) {
      case OpKind::commit:
        return true;
      case OpKind::load:
        return knows_mbarrier(point, filling.mbarrier, filling.phase);
      default:
        return filling.step != 0 && point.steps[filling.role] >= filling.step;
    }
  }

  /// Whether the step's place among the steps that it depends on is the same in every interleaving.
  bool ordered(int role, const Op& op) {
    const Clock& point = clocks_[role];
    switch (op.kind) {
      case OpKind::wait:
      case OpKind::arrive:
      case OpKind::expect:
        return knows_mbarrier(point, op.object, op.phase - 1);
      case OpKind::named_arrive:
        return knows_named(point, op.object, op.phase - 1);
      case OpKind::load:
        if (!knows_mbarrier(point, op.barrier, op.phase - 1)) return false;
        [[fallthrough]];
      case OpKind::copy:
      case OpKind::write: {
        const Filling& old = fillings_[op.object];
        for (int r = 0; r < kRoles; ++r) {
          if (old.reading[r] || point.steps[r] < old.read_until[r]) return false;
        }
        return knows_landed(point, old);
      }
      case OpKind::read_begin:
        return knows_landed(point, fillings_[op.object]);
      default:
        return true;
    }
  }

  /// Moves the role's clock over the step, and notes what others will learn from it.
  void advance(int role, const Op& op) {
    Clock& clock = clocks_[role];
    const auto now = static_cast<std::int16_t>(clock.steps[role] + 1);
    if (op.kind == OpKind::wait && op.phase >= 0) {
      clock.join(at(mbarriers_[op.object], op.phase).before_end);
    } else if (op.kind == OpKind::named_wait) {
      clock.join(at(named_[op.object], op.phase).before_end);
    }
    clock.steps[role] = now;
    switch (op.kind) {
      case OpKind::wait:
        waits_.push_back({role, now, op.object, op.phase});
        if (op.phase >= 0) note_wait(at(mbarriers_[op.object], op.phase), role, now);
        break;
      case OpKind::named_wait:
        note_wait(at(named_[op.object], op.phase), role, now);
        break;
      case OpKind::arrive:
      case OpKind::expect:
        at(mbarriers_[op.object], op.phase).before_end.join(clock);
        break;
      case OpKind::named_arrive:
        at(named_[op.object], op.phase).before_end.join(clock);
        break;
      case OpKind::load:
        at(mbarriers_[op.barrier], op.phase).before_end.join(clock);
        at(mbarriers_[op.barrier], op.phase).has_loads = true;
        fillings_[op.object] = {op.kind, role, now, op.barrier, op.phase, {}, {}};
        break;
      case OpKind::copy:
        fillings_[op.object] = {op.kind, role, 0, 0, 0, {}, {}};
        break;
      case OpKind::write:
        fillings_[op.object] = {op.kind, role, now, 0, 0, {}, {}};
        break;
      case OpKind::wait_groups:
        for (int s = 0; s < protocol_.num_slots; ++s) {
          Filling& filling = fillings_[s];
          const bool own = filling.kind == OpKind::copy && filling.role == role && filling.step == 0;
          if (own && state_.slots[s].group < state_.groups[role] - op.use) filling.step = now;
        }
        break;
      case OpKind::read_begin:
        fillings_[op.object].reading[role] = true;
        break;
      case OpKind::read_end: {
        Filling& filling = fillings_[op.object];
        if (std::exchange(filling.reading[role], false)) filling.read_until[role] = now;
        break;
      }
      case OpKind::commit:
        break;
    }
  }

  static void note_wait(Phase& phase, int role, std::int16_t now) {
    if (phase.waited[role] == 0) phase.waited[role] = now;
  }

  /// A wait for phase k sleeps through it if phase k+1 can end without the waiter.
  std::string find_late_waits() {
    for (const Wait& wait : waits_) {
      const int next = wait.phase + 1;
      if (state_.mbarriers[protocol_.mbarriers[wait.mbarrier].id].phase <= next) continue;  // phase k+1 never ends
      if (at(mbarriers_[wait.mbarrier], next).before_end.steps[wait.role] < wait.step) {
        return "phase " + std::to_string(next) + " of " + machine_.mbarrier_name(wait.mbarrier) + " can end while " +
               machine_.role_name(wait.role) + " still waits for phase " + std::to_string(wait.phase);
      }
    }
    return "";
  }

  /// A load that no role waits for may still be under way when all have returned.
  std::string find_late_loads() {
    Clock end;
    for (int r = 0; r < kRoles; ++r) end.join(clocks_[r]);
    for (int s = 0; s < protocol_.num_slots; ++s) {
      if (!knows_landed(end, fillings_[s])) return "nobody waits for the last filling of " + machine_.slot_name(s);
    }
    return "";
  }

  struct Wait {
    int role;
    std::int16_t step;
    int mbarrier, phase;
  };

  const Protocol& protocol_;
  Machine machine_;
  State state_;
  std::array<Clock, kRoles> clocks_{};
  std::vector<Phases> mbarriers_, named_;
  std::array<Filling, pipeline::kMaxSlots> fillings_{};
  std::vector<Wait> waits_;
};

}  // namespace

Proof prove(const Protocol& protocol) {
  return Prover(protocol).run();
}

}  // namespace warploom::check
