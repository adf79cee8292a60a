// The quick way to the verdict: one interleaving, and a proof that every other is a reordering of independent steps.
//
// Roles are straight lines, so every interleaving performs the same steps; two can differ in outcome only if two steps
// that depend on one another (the same barrier, the same slot) happen in another order. `prove` runs one interleaving,
// records in vector clocks what happens before what because of the waits, and checks for every step that the clocks
// leave no other order:
//
//   wait for phase k     the role knew that phase k-1 had ended, and phase k+1 cannot end without it
//   arrival in phase k   the role knew that phase k-1 had ended
//   write of a slot      the writer knew that the last filling had landed and all its reads had ended
//   read of a slot       the reader knew that this filling had landed
//
// If all hold, every interleaving is free of faults. If one does not, some interleaving has a fault, and explore()
// finds the shortest. Both directions are argued in docs/protocol-checker.md and tested against the full exploration.
#pragma once

#include <string>

#include "check/machine.h"

namespace warploom::check {

struct Proof {
  bool holds = false;
  std::string reason;   ///< when it does not hold: the step that another interleaving could order otherwise
  long long steps = 0;  ///< steps of the interleaving that was run
};

/// The protocol must be well-formed.
Proof prove(const Protocol& protocol);

}  // namespace warploom::check
