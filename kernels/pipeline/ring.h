// A ring: a circular buffer of slots in shared memory, each with a full barrier (the producer's loads) and an empty
// barrier (one arrival a consumer). The same code runs in kernels and in the checker; see protocol.h for what an actor
// is.
#pragma once

#include "pipeline/protocol.h"

namespace warploom::pipeline {

/// Handles of a ring's slots and barriers; they follow one another.
struct Ring {
  int stages = 0;
  int first_slot = 0;
  int first_full = 0;
  int first_empty = 0;
};

/// A role's place in a ring. No division at run time.
struct Cursor {
  int slot = 0;
  int round = 0;

  WARPLOOM_HD constexpr void advance(const Ring& ring) {
    if (++slot == ring.stages) {
      slot = 0;
      ++round;
    }
  }
  /// Passes over steps that another consumer handles.
  WARPLOOM_HD constexpr void skip(const Ring& ring, int steps) {
    slot += steps;
    round += slot / ring.stages;
    slot %= ring.stages;
  }
};

/// Which filling of its slot the cursor stands at, counted over the whole ring.
WARPLOOM_HD constexpr int use_of(const Ring& ring, const Cursor& at) {
  return at.round * ring.stages + at.slot;
}

/// Barriers and slots of a ring. `readers`: how many consumers release each filling.
WARPLOOM_HD constexpr Ring add_ring(Protocol& protocol, const char* slot, const char* full, const char* empty,
                                    int stages, int readers) {
  Ring ring{stages, protocol.num_slots, protocol.num_mbarriers, protocol.num_mbarriers + stages};
  for (int s = 0; s < stages; ++s) protocol.add_slot({slot, s});
  for (int s = 0; s < stages; ++s) protocol.add_mbarrier({full, s}, 1);
  for (int s = 0; s < stages; ++s) protocol.add_mbarrier({empty, s}, readers);
  return ring;
}

/// Producer: waits until the slot is free. In round 0 that is the phase before the first (parity 1), which a fresh
/// mbarrier reports as ended.
template <class Actor>
WARPLOOM_HD constexpr void wait_empty(Actor& producer, const Ring& ring, const Cursor& at) {
  producer.wait(ring.first_empty + at.slot, at.round - 1);
}

/// Producer: fills the next slot with one TMA load.
template <class Actor>
WARPLOOM_HD constexpr void fill(Actor& producer, const Ring& ring, Cursor& at) {
  wait_empty(producer, ring, at);
  producer.expect(ring.first_full + at.slot, at.round, 1);
  producer.load(ring.first_slot + at.slot, use_of(ring, at), ring.first_full + at.slot, at.round);
  at.advance(ring);
}

/// Producer: fills the next slot with ordinary stores.
template <class Actor>
WARPLOOM_HD constexpr void store(Actor& producer, const Ring& ring, Cursor& at) {
  wait_empty(producer, ring, at);
  producer.write(ring.first_slot + at.slot, use_of(ring, at));
  producer.arrive(ring.first_full + at.slot, at.round);
  at.advance(ring);
}

/// Producer: before it returns, waits until everything that it filled has been let go.
template <class Actor>
WARPLOOM_HD constexpr void drain(Actor& producer, const Ring& ring, Cursor at) {
  for (int s = 0; s < ring.stages; ++s) {
    wait_empty(producer, ring, at);
    at.advance(ring);
  }
}

template <class Actor>
WARPLOOM_HD constexpr void wait_full(Actor& consumer, const Ring& ring, const Cursor& at) {
  consumer.wait(ring.first_full + at.slot, at.round);
}

/// Consumer: the slot is read from here (call wait_full first) ...
template <class Actor>
WARPLOOM_HD constexpr void begin_read(Actor& consumer, const Ring& ring, const Cursor& at) {
  consumer.read_begin(ring.first_slot + at.slot, use_of(ring, at));
}

/// ... to here. No read of this role is open afterwards.
template <class Actor>
WARPLOOM_HD constexpr void end_read(Actor& consumer, const Ring& ring, const Cursor& at) {
  consumer.read_end(ring.first_slot + at.slot, use_of(ring, at));
}

/// The same, while the read that began after it goes on.
template <class Actor>
WARPLOOM_HD constexpr void end_older_read(Actor& consumer, const Ring& ring, const Cursor& at) {
  consumer.read_end_older(ring.first_slot + at.slot, use_of(ring, at));
}

/// Consumer: gives the slot back and goes to the next.
template <class Actor>
WARPLOOM_HD constexpr void release(Actor& consumer, const Ring& ring, Cursor& at) {
  consumer.arrive(ring.first_empty + at.slot, at.round);
  at.advance(ring);
}

/// Consumer: a whole step whose read ends before the next step begins.
template <class Actor>
WARPLOOM_HD constexpr void consume(Actor& consumer, const Ring& ring, Cursor& at) {
  wait_full(consumer, ring, at);
  begin_read(consumer, ring, at);
  end_read(consumer, ring, at);
  release(consumer, ring, at);
}

}  // namespace warploom::pipeline
