// What can be wrong with a protocol.
#pragma once

#include <string>
#include <vector>

namespace warploom::check {

enum class FaultKind {
  deadlock,           ///< somebody waits for ever
  phase_reuse,        ///< a wait or an arrival takes another phase of the same parity for its own
  double_arrival,     ///< one arrival more than the phase has room for
  unbalanced_exit,    ///< a barrier is left in the middle of a phase when all roles have returned
  slot_overwritten,   ///< a slot is refilled before, or while, a consumer reads the old contents
  slot_not_full,      ///< a slot is read before its contents have landed
  barrier_id_reused,  ///< two barriers share one hardware barrier
  load_in_flight,     ///< all roles have returned while a load still writes to shared memory
  malformed,          ///< the description breaks a rule of the hardware (ids, counts); found without running it
};

inline constexpr int kFaultKinds = static_cast<int>(FaultKind::malformed) + 1;

/// "deadlock", "phase reuse", ...
const char* name_of(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::deadlock;
  std::string message;  ///< who, which barrier or slot, what was meant, what happened
};

}  // namespace warploom::check
