// Every interleaving of a protocol, breadth first, so that the first one to show a fault is a shortest one.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "check/machine.h"

namespace warploom::check {

/// A fault and the interleaving that leads to it; the last event is the one that shows it (a deadlock and a barrier
/// left unbalanced show after the last event).
struct Finding {
  Fault fault;
  std::vector<Event> interleaving;
};

struct Exploration {
  std::vector<Finding> findings;  ///< at most one of each kind, a shortest one; empty: no fault
  std::size_t states = 0;
  bool complete = true;  ///< false: max_states was reached first
};

/// An interleaving ends where a fault shows, so a fault that only ever follows another one is not reported. The
/// protocol must be well-formed.
Exploration explore(const Protocol& protocol, std::size_t max_states);

}  // namespace warploom::check
