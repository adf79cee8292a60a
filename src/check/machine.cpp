#include "check/machine.h"

namespace warploom::check {
namespace {

using pipeline::Label;

std::string text(const Label& label) {
  std::string name = label.word;
  if (label.index >= 0) {
    name += '[';
    name += std::to_string(label.index);
    if (label.part >= 0) {
      name += '.';
      name += std::to_string(label.part);
    }
    name += ']';
  }
  return name;
}

std::uint8_t bit(int role) {
  return static_cast<std::uint8_t>(1u << role);
}

/// Notes which barrier uses the hardware barrier; false when it is another one's already.
bool claim(std::int8_t& user, int handle) {
  if (user < 0) user = static_cast<std::int8_t>(handle);
  return user == handle;
}

Fault shared_id(const std::string& name, const std::string& other) {
  return {FaultKind::barrier_id_reused,
          name + " is the same hardware barrier as " + other + ", which is in use; give each an id of its own"};
}

/// The end of a phase: the hardware flips the parity and reloads the count.
void end_phase_if_complete(MbarrierState& barrier, int arrivals) {
  if (barrier.pending != 0 || barrier.transactions != 0) return;
  ++barrier.phase;
  barrier.pending = static_cast<std::int16_t>(arrivals);
  barrier.arrived = 0;
}

}  // namespace

const char* name_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::deadlock:
      return "deadlock";
    case FaultKind::phase_reuse:
      return "phase reuse";
    case FaultKind::double_arrival:
      return "double arrival";
    case FaultKind::unbalanced_exit:
      return "unbalanced at exit";
    case FaultKind::slot_overwritten:
      return "slot overwritten";
    case FaultKind::slot_not_full:
      return "slot not full";
    case FaultKind::barrier_id_reused:
      return "barrier id used twice";
    case FaultKind::load_in_flight:
      return "load in flight at exit";
    case FaultKind::malformed:
      return "malformed";
  }
  return "";
}

State Machine::initial() const {
  State state;
  for (int b = 0; b < protocol_->num_mbarriers; ++b) {
    const auto& barrier = protocol_->mbarriers[b];
    state.mbarriers[barrier.id].pending = static_cast<std::int16_t>(barrier.arrivals);
  }
  return state;
}

const Op* Machine::next(const State& state, int role) const {
  const auto& program = protocol_->roles[role];
  return state.at[role] < program.length ? &program.ops[state.at[role]] : nullptr;
}

bool Machine::all_returned(const State& state) const {
  for (int r = 0; r < protocol_->num_roles; ++r) {
    if (next(state, r) != nullptr) return false;
  }
  return true;
}

bool Machine::enabled(const State& state, Event event) const {
  if (event.kind == Event::Kind::landing) return state.slots[event.index].in_flight;
  const int role = event.index;
  const Op* op = next(state, role);
  if (op == nullptr) return false;
  switch (op->kind) {
    case OpKind::wait: {
      const auto& barrier = state.mbarriers[protocol_->mbarriers[op->object].id];
      return (barrier.phase & 1) != static_cast<int>(op->parity);
    }
    case OpKind::named_wait:
      return state.named[protocol_->named[op->object].id].use > op->phase;
    case OpKind::wait_groups:
      for (int s = 0; s < protocol_->num_slots; ++s) {
        const SlotState& slot = state.slots[s];
        const bool own = slot.in_flight && slot.by_copy && slot.writer == role;
        if (own && slot.group < state.groups[role] - op->use) return false;
      }
      return true;
    default:
      return true;
  }
}

std::optional<Fault> Machine::apply(State& state, Event event) const {
  if (event.kind == Event::Kind::landing) return land(state, event.index);
  auto fault = apply_operation(state, event.index);
  ++state.at[event.index];
  return fault;
}

std::optional<Fault> Machine::apply_operation(State& state, int role) const {
  const Op& op = *next(state, role);
  switch (op.kind) {
    case OpKind::wait: {
      auto& barrier = state.mbarriers[protocol_->mbarriers[op.object].id];
      if (!claim(barrier.user, op.object)) return shared_id(mbarrier_name(op.object), mbarrier_name(barrier.user));
      if (barrier.phase == op.phase + 1) return std::nullopt;
      return Fault{FaultKind::phase_reuse, role_name(role) + " waits for phase " + std::to_string(op.phase) + " of " +
                                               mbarrier_name(op.object) + " with parity " + std::to_string(op.parity) +
                                               ", and passes while phase " + std::to_string(barrier.phase) +
                                               " is under way"};
    }
    case OpKind::arrive:
      return arrive(state, role, op, 0);
    case OpKind::expect:
      return arrive(state, role, op, op.use);
    case OpKind::load:
      return begin_write(state, role, op, true);
    case OpKind::copy:
      return begin_write(state, role, op, true);
    case OpKind::write:
      return begin_write(state, role, op, false);
    case OpKind::commit:
      ++state.groups[role];
      return std::nullopt;
    case OpKind::wait_groups:
      return std::nullopt;
    case OpKind::read_begin:
      return read_begin(state, role, op);
    case OpKind::read_end:
      state.slots[op.object].readers &= static_cast<std::uint8_t>(~bit(role));
      return std::nullopt;
    case OpKind::named_arrive:
      return named_arrive(state, role, op);
    case OpKind::named_wait:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Fault> Machine::arrive(State& state, int role, const Op& op, int transactions) const {
  const auto& meant = protocol_->mbarriers[op.object];
  auto& barrier = state.mbarriers[meant.id];
  if (!claim(barrier.user, op.object)) return shared_id(mbarrier_name(op.object), mbarrier_name(barrier.user));
  const auto who = [&] {
    return role_name(role) + " arrives on " + mbarrier_name(op.object) + " for phase " + std::to_string(op.phase);
  };
  if ((barrier.arrived & bit(role)) != 0) {
    return Fault{FaultKind::double_arrival, who() + ", but has already arrived in phase " +
                                                std::to_string(barrier.phase) + ", which is under way"};
  }
  if (barrier.phase > op.phase) {
    return Fault{FaultKind::double_arrival, who() + ", which has already had its " + std::to_string(meant.arrivals) +
                                                (meant.arrivals == 1 ? " arrival" : " arrivals") +
                                                "; it is counted in phase " + std::to_string(barrier.phase)};
  }
  if (barrier.phase < op.phase) {
    return Fault{FaultKind::phase_reuse, who() + ", but it is counted in phase " + std::to_string(barrier.phase) +
                                             ", which is still under way"};
  }
  barrier.arrived |= bit(role);
  --barrier.pending;
  barrier.transactions = static_cast<std::int16_t>(barrier.transactions + transactions);
  end_phase_if_complete(barrier, meant.arrivals);
  return std::nullopt;
}

std::optional<Fault> Machine::begin_write(State& state, int role, const Op& op, bool in_flight) const {
  SlotState& slot = state.slots[op.object];
  const auto who = [&] {
    return role_name(role) + " writes filling " + std::to_string(op.use) + " of " + slot_name(op.object);
  };
  if (slot.readers != 0) {
    return Fault{FaultKind::slot_overwritten,
                 who() + " while " + roles_in(slot.readers) + " still reads filling " + std::to_string(slot.use)};
  }
  if (slot.in_flight) {
    return Fault{FaultKind::slot_overwritten,
                 who() + " while filling " + std::to_string(slot.use) + " is still landing"};
  }
  slot.use = op.use;
  slot.writer = static_cast<std::int8_t>(role);
  slot.in_flight = in_flight;
  slot.by_copy = op.kind == OpKind::copy;
  slot.group = state.groups[role];
  slot.mbarrier = static_cast<std::int8_t>(op.barrier);
  slot.phase = op.phase;
  return std::nullopt;
}

std::optional<Fault> Machine::land(State& state, int index) const {
  SlotState& slot = state.slots[index];
  slot.in_flight = false;
  if (slot.by_copy) return std::nullopt;
  const auto& meant = protocol_->mbarriers[slot.mbarrier];
  auto& barrier = state.mbarriers[meant.id];
  if (!claim(barrier.user, slot.mbarrier)) return shared_id(mbarrier_name(slot.mbarrier), mbarrier_name(barrier.user));
  if (barrier.phase != slot.phase) {
    return Fault{FaultKind::phase_reuse, "the bytes of " + slot_name(index) + " land on " +
                                             mbarrier_name(slot.mbarrier) + " in phase " +
                                             std::to_string(barrier.phase) + " instead of phase " +
                                             std::to_string(slot.phase) + ", which nobody expected them in"};
  }
  --barrier.transactions;
  end_phase_if_complete(barrier, meant.arrivals);
  return std::nullopt;
}

std::optional<Fault> Machine::read_begin(State& state, int role, const Op& op) const {
  SlotState& slot = state.slots[op.object];
  const auto who = [&] {
    return role_name(role) + " reads " + slot_name(op.object) + " for filling " + std::to_string(op.use);
  };
  if (slot.use > op.use) {
    return Fault{FaultKind::slot_overwritten,
                 who() + ", which filling " + std::to_string(slot.use) + " has overwritten before it was read"};
  }
  if (slot.use < op.use || slot.in_flight) {
    std::string found = slot.use < 0 ? "it is empty" : "it holds filling " + std::to_string(slot.use);
    if (slot.in_flight) found = "filling " + std::to_string(slot.use) + " is still landing";
    return Fault{FaultKind::slot_not_full, who() + ", but " + found};
  }
  slot.readers |= bit(role);
  return std::nullopt;
}

std::optional<Fault> Machine::named_arrive(State& state, int role, const Op& op) const {
  const auto& meant = protocol_->named[op.object];
  auto& barrier = state.named[meant.id];
  if (!claim(barrier.user, op.object)) return shared_id(named_name(op.object), named_name(barrier.user));
  const auto who = [&] { return role_name(role) + " arrives at " + named_name(op.object); };
  if ((barrier.arrived & bit(role)) != 0) {
    return Fault{FaultKind::double_arrival, who() + " twice in use " + std::to_string(barrier.use)};
  }
  if (barrier.threads + protocol_->roles[role].threads > meant.threads) {
    return Fault{FaultKind::double_arrival, who() + " with " + std::to_string(protocol_->roles[role].threads) +
                                                " threads, but use " + std::to_string(barrier.use) + " lacks only " +
                                                std::to_string(meant.threads - barrier.threads) + " of " +
                                                std::to_string(meant.threads)};
  }
  if (barrier.use != op.phase) {
    return Fault{FaultKind::phase_reuse, who() + " for use " + std::to_string(op.phase) +
                                             " of it, but is counted in use " + std::to_string(barrier.use)};
  }
  barrier.arrived |= bit(role);
  barrier.threads = static_cast<std::int16_t>(barrier.threads + protocol_->roles[role].threads);
  if (barrier.threads == meant.threads) {
    ++barrier.use;
    barrier.threads = 0;
    barrier.arrived = 0;
  }
  return std::nullopt;
}

std::optional<Fault> Machine::missed_phase(const State& state) const {
  for (int r = 0; r < protocol_->num_roles; ++r) {
    const Op* op = next(state, r);
    if (op == nullptr || op->kind != OpKind::wait) continue;
    const int phase = state.mbarriers[protocol_->mbarriers[op->object].id].phase;
    if (phase > op->phase + 1) {
      return Fault{FaultKind::phase_reuse, role_name(r) + " waits for phase " + std::to_string(op->phase) + " of " +
                                               mbarrier_name(op->object) + ", but phase " + std::to_string(phase - 1) +
                                               " has ended too: the parity shows the phase it waits for as not ended"};
    }
  }
  return std::nullopt;
}

std::optional<Fault> Machine::judge_end(const State& state) const {
  if (!all_returned(state)) {
    std::string message;
    for (int r = 0; r < protocol_->num_roles; ++r) {
      const Op* op = next(state, r);
      if (op == nullptr) continue;
      message += (message.empty() ? "" : "; ") + role_name(r) + " is stuck in " + describe(*op);
      if (op->kind == OpKind::wait) {
        const auto& meant = protocol_->mbarriers[op->object];
        const auto& barrier = state.mbarriers[meant.id];
        message += " (phase " + std::to_string(barrier.phase) + " has " +
                   std::to_string(meant.arrivals - barrier.pending) + " of " + std::to_string(meant.arrivals) +
                   (meant.arrivals == 1 ? " arrival)" : " arrivals)");
      } else if (op->kind == OpKind::named_wait) {
        const auto& meant = protocol_->named[op->object];
        message +=
            " (" + std::to_string(state.named[meant.id].threads) + " of " + std::to_string(meant.threads) + " threads)";
      }
    }
    return Fault{FaultKind::deadlock, message};
  }
  std::string message;
  const auto add = [&message](const std::string& part) { message += (message.empty() ? "" : "; ") + part; };
  for (int s = 0; s < protocol_->num_slots; ++s) {
    if (state.slots[s].in_flight) add("filling " + std::to_string(state.slots[s].use) + " of " + slot_name(s));
  }
  if (!message.empty())
    return Fault{FaultKind::load_in_flight, "all roles have returned while there still lands: " + message};
  for (int b = 0; b < protocol_->num_mbarriers; ++b) {
    const auto& meant = protocol_->mbarriers[b];
    const auto& barrier = state.mbarriers[meant.id];
    if (barrier.user != b || (barrier.pending == meant.arrivals && barrier.transactions == 0)) continue;
    add(mbarrier_name(b) + " with " + std::to_string(meant.arrivals - barrier.pending) + " of " +
        std::to_string(meant.arrivals) + " arrivals in phase " + std::to_string(barrier.phase));
    if (barrier.transactions != 0) add(std::to_string(barrier.transactions) + " loads expected on it that never came");
  }
  for (int b = 0; b < protocol_->num_named; ++b) {
    const auto& barrier = state.named[protocol_->named[b].id];
    if (barrier.user != b || barrier.threads == 0) continue;
    add(named_name(b) + " with " + std::to_string(barrier.threads) + " of " +
        std::to_string(protocol_->named[b].threads) + " threads (" + roles_in(barrier.arrived) + ")");
  }
  if (message.empty()) return std::nullopt;
  return Fault{FaultKind::unbalanced_exit, "all roles have returned and leave " + message};
}

std::string Machine::role_name(int role) const {
  return text(protocol_->roles[role].name);
}
std::string Machine::mbarrier_name(int handle) const {
  return text(protocol_->mbarriers[handle].name);
}
std::string Machine::named_name(int handle) const {
  return text(protocol_->named[handle].name);
}
std::string Machine::slot_name(int handle) const {
  return text(protocol_->slots[handle].name);
}

std::string Machine::roles_in(std::uint8_t mask) const {
  std::string names;
  for (int r = 0; r < protocol_->num_roles; ++r) {
    if ((mask & bit(r)) != 0) names += (names.empty() ? "" : ", ") + role_name(r);
  }
  return names;
}

std::string Machine::describe(const Op& op) const {
  const std::string phase = op.phase < 0 ? " (fresh)" : " #" + std::to_string(op.phase),
                    use = " #" + std::to_string(op.use);
  switch (op.kind) {
    case OpKind::wait:
      return "wait " + mbarrier_name(op.object) + phase;
    case OpKind::arrive:
      return "arrive " + mbarrier_name(op.object) + phase;
    case OpKind::expect:
      return "expect " + mbarrier_name(op.object) + phase;
    case OpKind::load:
      return "load " + slot_name(op.object) + use;
    case OpKind::copy:
      return "copy " + slot_name(op.object) + use;
    case OpKind::commit:
      return "commit";
    case OpKind::wait_groups:
      return "wait_group " + std::to_string(op.use);
    case OpKind::write:
      return "write " + slot_name(op.object) + use;
    case OpKind::read_begin:
      return "read " + slot_name(op.object) + use;
    case OpKind::read_end:
      return "done " + slot_name(op.object) + use;
    case OpKind::named_arrive:
      return "arrive " + named_name(op.object) + phase;
    case OpKind::named_wait:
      return "sync " + named_name(op.object) + phase;
  }
  return "";
}

std::string Machine::describe(const State& state, Event event) const {
  if (event.kind == Event::Kind::operation) return describe(*next(state, event.index));
  return slot_name(event.index) + " #" + std::to_string(state.slots[event.index].use) + " lands";
}

std::vector<std::string> Machine::describe(const State& state) const {
  std::vector<std::string> lines;
  for (int b = 0; b < protocol_->num_mbarriers; ++b) {
    const auto& meant = protocol_->mbarriers[b];
    const auto& barrier = state.mbarriers[meant.id];
    std::string line = mbarrier_name(b) + ": phase " + std::to_string(barrier.phase) + " (parity " +
                       std::to_string(barrier.phase & 1) + "), " + std::to_string(meant.arrivals - barrier.pending) +
                       " of " + std::to_string(meant.arrivals) + " arrived";
    if (barrier.transactions != 0) line += ", " + std::to_string(barrier.transactions) + " to land";
    lines.push_back(line);
  }
  for (int b = 0; b < protocol_->num_named; ++b) {
    const auto& barrier = state.named[protocol_->named[b].id];
    lines.push_back(named_name(b) + ": use " + std::to_string(barrier.use) + ", " + std::to_string(barrier.threads) +
                    " of " + std::to_string(protocol_->named[b].threads) + " threads");
  }
  for (int s = 0; s < protocol_->num_slots; ++s) {
    const SlotState& slot = state.slots[s];
    std::string line = slot_name(s) + ": ";
    line += slot.use < 0 ? "empty" : (slot.in_flight ? "landing #" : "holds #") + std::to_string(slot.use);
    if (slot.readers != 0) line += ", read by " + roles_in(slot.readers);
    lines.push_back(line);
  }
  return lines;
}

std::vector<Fault> malformed(const Protocol& protocol) {
  std::vector<Fault> faults;
  const auto add = [&faults](std::string message) { faults.push_back({FaultKind::malformed, std::move(message)}); };
  if (protocol.overflow) {
    add("the protocol does not fit its tables; raise the kMax constants of kernels/pipeline/protocol.h");
    return faults;
  }
  for (int b = 0; b < protocol.num_mbarriers; ++b) {
    const auto& barrier = protocol.mbarriers[b];
    if (barrier.id < 0 || barrier.id >= pipeline::kMaxMbarriers) {
      add(text(barrier.name) + " has id " + std::to_string(barrier.id) + "; pass 0 to " +
          std::to_string(pipeline::kMaxMbarriers - 1));
    }
    if (barrier.arrivals < 1) {
      add(text(barrier.name) + " is initialised for " + std::to_string(barrier.arrivals) +
          " arrivals; an mbarrier needs at least 1");
    }
  }
  for (int b = 0; b < protocol.num_named; ++b) {
    const auto& barrier = protocol.named[b];
    if (barrier.id < 0 || barrier.id > 15) {
      add(text(barrier.name) + " has id " + std::to_string(barrier.id) + "; the hardware has named barriers 0 to 15");
    }
    if (barrier.threads < pipeline::kWarp || barrier.threads % pipeline::kWarp != 0) {
      add(text(barrier.name) + " counts " + std::to_string(barrier.threads) +
          " threads; bar.sync takes a multiple of the warp size, 32");
    }
  }
  return faults;
}

}  // namespace warploom::check
