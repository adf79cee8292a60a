// The barriers of one CTA as the hardware runs them, one step at a time.
//
// An mbarrier has a pending count, a transaction count and a phase, of which a wait sees only the parity. A named
// barrier has a count of arrived threads. Beside them the machine keeps what the hardware does not know, only to judge:
// the phase in full, who has arrived in it, which filling a slot holds and who is reading it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "check/fault.h"
#include "pipeline/protocol.h"

namespace warploom::check {

using pipeline::Op;
using pipeline::OpKind;
using pipeline::Protocol;

/// One step of an interleaving: the next operation of a role, or the landing of a slot's load.
struct Event {
  enum class Kind : std::uint8_t { operation, landing };
  Kind kind = Kind::operation;
  std::int8_t index = 0;  ///< role, or slot

  friend bool operator==(const Event&, const Event&) = default;
};

struct MbarrierState {
  std::int16_t phase = 0;
  std::int16_t pending = 0;
  std::int16_t transactions = 0;  ///< loads expected but not landed; below 0 when they landed first
  std::uint8_t arrived = 0;       ///< roles that have arrived in this phase
  std::int8_t user = -1;          ///< which of the protocol's barriers uses this one
};

struct NamedState {
  std::int16_t use = 0;
  std::int16_t threads = 0;  ///< arrived in this use
  std::uint8_t arrived = 0;  ///< roles
  std::int8_t user = -1;
};

struct SlotState {
  std::int16_t use = -1;    ///< which filling it holds, or is receiving
  std::int16_t group = 0;   ///< cp.async: the copying role's group
  std::int8_t writer = -1;  ///< role that issued it
  bool in_flight = false;
  bool by_copy = false;       ///< in flight: cp.async, else TMA
  std::uint8_t readers = 0;   ///< roles that are reading
  std::int8_t mbarrier = -1;  ///< TMA: gets the bytes
  std::int16_t phase = 0;     ///< TMA: in this phase, the author means
};

/// Mbarriers and named barriers are indexed by hardware id, slots by handle.
struct State {
  std::array<std::int16_t, pipeline::kMaxRoles> at{};      ///< next operation
  std::array<std::int16_t, pipeline::kMaxRoles> groups{};  ///< cp.async groups committed
  std::array<MbarrierState, pipeline::kMaxMbarriers> mbarriers{};
  std::array<NamedState, pipeline::kMaxNamedBarriers> named{};
  std::array<SlotState, pipeline::kMaxSlots> slots{};
};

class Machine {
 public:
  /// The protocol must outlive the machine, and malformed() must have found nothing.
  explicit Machine(const Protocol& protocol) : protocol_(&protocol) {}

  const Protocol& protocol() const { return *protocol_; }
  State initial() const;

  /// Whether the hardware would let the event happen now.
  bool enabled(const State& state, Event event) const;
  /// Performs an enabled event. A fault leaves the state of no further use.
  std::optional<Fault> apply(State& state, Event event) const;
  /// A phase that a role waiting now has slept through.
  std::optional<Fault> missed_phase(const State& state) const;
  /// For a state in which nothing is enabled or all roles have returned: what is wrong with it, if anything.
  std::optional<Fault> judge_end(const State& state) const;

  /// The next operation of a role; nullptr when it has returned.
  const Op* next(const State& state, int role) const;
  bool all_returned(const State& state) const;

  // Words for messages and pictures.
  std::string role_name(int role) const;
  std::string mbarrier_name(int handle) const;
  std::string named_name(int handle) const;
  std::string slot_name(int handle) const;
  /// "wait full[1] phase 2", ...
  std::string describe(const Op& op) const;
  /// What the event does in this state (before it happens).
  std::string describe(const State& state, Event event) const;
  /// Per barrier that is in use: phase, arrivals, transactions; per slot: contents. One line each.
  std::vector<std::string> describe(const State& state) const;

 private:
  std::optional<Fault> apply_operation(State& state, int role) const;
  std::optional<Fault> arrive(State& state, int role, const Op& op, int transactions) const;
  std::optional<Fault> begin_write(State& state, int role, const Op& op, bool in_flight) const;
  std::optional<Fault> read_begin(State& state, int role, const Op& op) const;
  std::optional<Fault> named_arrive(State& state, int role, const Op& op) const;
  std::optional<Fault> land(State& state, int slot) const;
  std::string roles_in(std::uint8_t mask) const;

  const Protocol* protocol_;
};

/// Faults of the description itself: tables too small, ids out of range, counts that no barrier takes. Shared ids are
/// not among them: an interleaving shows those.
std::vector<Fault> malformed(const Protocol& protocol);

}  // namespace warploom::check
