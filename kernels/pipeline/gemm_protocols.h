// The protocols of the GEMM main loops (docs/simulator.md, section 5). Per protocol: its layout, its roles, `describe`.
#pragma once

#include "pipeline/ring.h"
#include "pipeline/turns.h"

namespace warploom::pipeline {

// --- cp.async, S stages: every warpgroup copies its part of a stage and all read the whole stage.

struct CpAsyncRing {
  int stages = 0;
  int parts = 0;       ///< warpgroups, each with its part of every stage
  int first_slot = 0;  ///< stage s, part p is slot first_slot + s * parts + p
  int all_threads = 0;

  WARPLOOM_HD constexpr int slot(int use, int part) const { return first_slot + (use % stages) * parts + part; }
};

template <class Actor>
WARPLOOM_HD constexpr void run_cp_async(Actor& warps, const CpAsyncRing& ring, int part) {
  int use = 0;  // of step 0 of the tile
  for (int tile = 0; warps.has_tile(tile); ++tile) {
    const int steps = warps.steps(tile);
    for (int s = 0; s < ring.stages - 1; ++s) {
      if (s < steps) warps.copy(ring.slot(use + s, part), use + s);
      warps.commit();
    }
    for (int i = 0; i < steps; ++i) {
      // One barrier does for both: step i has landed for all, and all have finished step i-1, whose slot is refilled.
      // A single stage has no step in flight to hide behind: it is refilled first, and needs a barrier of its own.
      if (ring.stages > 1) warps.wait_groups(ring.stages - 2);
      warps.sync(ring.all_threads);
      const int ahead = i + ring.stages - 1;
      if (ahead < steps) warps.copy(ring.slot(use + ahead, part), use + ahead);
      warps.commit();  // an empty group in the last steps keeps the count right
      if (ring.stages == 1) {
        warps.wait_groups(0);
        warps.sync(ring.all_threads);
      }
      for (int p = 0; p < ring.parts; ++p) warps.read_begin(ring.slot(use + i, p), use + i);
      for (int p = 0; p < ring.parts; ++p) warps.read_end(ring.slot(use + i, p), use + i);
    }
    warps.sync(ring.all_threads);  // the next tile's first copies go to slots that others may still be reading
    warps.epilogue(tile);
    use += steps;
  }
}

WARPLOOM_HD constexpr Protocol cp_async_ring(const Sizes& n) {
  Protocol p(n);
  const CpAsyncRing ring{n.stages, n.consumers, p.num_slots,
                         p.add_named_barrier({"all"}, n.consumers * kWarpgroup, kAllThreadsId)};
  for (int s = 0; s < n.stages; ++s) {
    for (int part = 0; part < n.consumers; ++part) p.add_slot({"stage", s, part});
  }
  for (int part = 0; part < n.consumers; ++part) {
    Recorder warps = p.add_role({"warpgroup", part}, kWarpgroup);
    run_cp_async(warps, ring, part);
  }
  return p;
}

// --- Warp-specialized: one producer warp loads, all consumers read every stage.

template <class Actor>
WARPLOOM_HD constexpr void produce_steps(Actor& producer, const Ring& ring, bool exits_early) {
  Cursor at;
  for (int tile = 0; producer.has_tile(tile); ++tile) {
    for (int step = producer.steps(tile); step > 0; --step) fill(producer, ring, at);
  }
  if (!exits_early) drain(producer, ring, at);
}

template <class Actor>
WARPLOOM_HD constexpr void consume_steps(Actor& consumer, const Ring& ring) {
  Cursor at;
  for (int tile = 0; consumer.has_tile(tile); ++tile) {
    for (int step = consumer.steps(tile); step > 0; --step) consume(consumer, ring, at);
    consumer.epilogue(tile);
  }
}

WARPLOOM_HD constexpr Protocol specialized_ring(const Sizes& n) {
  Protocol p(n);
  const Ring ring = add_ring(p, "stage", "full", "empty", n.stages, n.consumers);
  Recorder producer = p.add_role({"producer"}, kWarp);
  produce_steps(producer, ring, n.producer_exits_early);
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_steps(consumer, ring);
  }
  return p;
}

// --- Ping-pong: consumer c has tiles c, c + count, ...; one main loop at a time, the others are in their epilogues.

template <class Actor>
WARPLOOM_HD constexpr void consume_in_turns(Actor& consumer, const Ring& ring, const Turns& turns, int who) {
  Cursor at;
  int tile = 0;
  open_turns(consumer, turns, who);
  for (; consumer.has_tile(tile); ++tile) {
    if (tile % turns.count != who) {
      at.skip(ring, consumer.steps(tile));
      continue;
    }
    take_turn(consumer, turns, who);
    for (int step = consumer.steps(tile); step > 0; --step) consume(consumer, ring, at);
    pass_turn(consumer, turns, who);  // before the epilogue
    consumer.epilogue(tile);
  }
  close_turns(consumer, turns, who, tile % turns.count);
}

WARPLOOM_HD constexpr Protocol ping_pong(const Sizes& n) {
  Protocol p(n);
  const Ring ring = add_ring(p, "stage", "full", "empty", n.stages, 1);
  const Turns turns = add_turns(p, n.consumers);
  Recorder producer = p.add_role({"producer"}, kWarp);
  produce_steps(producer, ring, n.producer_exits_early);
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_in_turns(consumer, ring, turns, c);
  }
  return p;
}

// --- The product GEMM (kernels/gemm): the two above, with the wgmmas of two steps in flight, so that the tensor core
// has the next step's before it has finished this one's. Both read a static schedule.

/// The reads of a work item: a slot is released one step late, once the tensor core has gone on to the next.
template <class Actor>
WARPLOOM_HD constexpr void consume_overlapped(Actor& consumer, const Ring& ring, Cursor& at, int steps) {
  if (steps == 0) return;
  Cursor oldest = at;
  wait_full(consumer, ring, at);
  begin_read(consumer, ring, at);
  at.advance(ring);
  for (int step = 1; step < steps; ++step) {
    wait_full(consumer, ring, at);
    begin_read(consumer, ring, at);
    at.advance(ring);
    end_older_read(consumer, ring, oldest);
    release(consumer, ring, oldest);
  }
  end_read(consumer, ring, oldest);
  release(consumer, ring, oldest);
}

/// The reads of a work item, each over before the next begins where they do not overlap.
template <bool Overlap, class Actor>
WARPLOOM_HD constexpr void consume_item(Actor& consumer, const Ring& ring, Cursor& at, int steps) {
  if constexpr (Overlap) {
    consume_overlapped(consumer, ring, at, steps);
  } else {
    for (; steps > 0; --steps) consume(consumer, ring, at);
  }
}

/// Cooperative: every consumer has its rows of every tile.
template <bool Overlap = true, class Actor>
WARPLOOM_HD constexpr void consume_cooperatively(Actor& consumer, const Ring& ring) {
  Cursor at;
  for (int tile = 0; consumer.has_tile(tile); ++tile) {
    consumer.prologue(tile);
    consume_item<Overlap>(consumer, ring, at, consumer.steps(tile));
    consumer.epilogue(tile);
  }
}

/// Ping-pong: one consumer's main loop runs under the other's epilogue.
template <bool Overlap = true, class Actor>
WARPLOOM_HD constexpr void consume_by_turns(Actor& consumer, const Ring& ring, const Turns& turns, int who) {
  Cursor at;
  int tile = 0;
  open_turns(consumer, turns, who);
  for (; consumer.has_tile(tile); ++tile) {
    if (tile % turns.count != who) {
      at.skip(ring, consumer.steps(tile));
      continue;
    }
    consumer.prologue(tile);
    take_turn(consumer, turns, who);
    consume_item<Overlap>(consumer, ring, at, consumer.steps(tile));
    pass_turn(consumer, turns, who);
    consumer.epilogue(tile);
  }
  close_turns(consumer, turns, who, tile % turns.count);
}

/// A ring of one slot cannot hold two steps: the kernel has at least two, and the checker is shown two.
inline constexpr int kOverlappedStages = 2;

WARPLOOM_HD constexpr Ring add_overlapped_ring(Protocol& p, int readers) {
  const int stages = p.sizes.stages < kOverlappedStages ? kOverlappedStages : p.sizes.stages;
  return add_ring(p, "stage", "full", "empty", stages, readers);
}

WARPLOOM_HD constexpr Protocol gemm_cooperative(const Sizes& n) {
  Protocol p(n);
  const Ring ring = add_overlapped_ring(p, n.consumers);
  Recorder producer = p.add_role({"producer"}, kWarp);
  produce_steps(producer, ring, n.producer_exits_early);
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_cooperatively(consumer, ring);
  }
  return p;
}

WARPLOOM_HD constexpr Protocol gemm_ping_pong(const Sizes& n) {
  Protocol p(n);
  const Ring ring = add_overlapped_ring(p, 1);
  const Turns turns = add_turns(p, n.consumers);
  Recorder producer = p.add_role({"producer"}, kWarp);
  produce_steps(producer, ring, n.producer_exits_early);
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_by_turns(consumer, ring, turns, c);
  }
  return p;
}

// --- Persistent: the producer takes work items from a counter and hands them over through a ring of tile slots; the
// hand-over after the last says that there is none.

inline constexpr int kTileSlots = 2;

template <class Actor>
WARPLOOM_HD constexpr void produce_tiles(Actor& producer, const Ring& tiles, const Ring& ring, bool exits_early) {
  Cursor tile_at, at;
  for (int tile = 0;; ++tile) {
    store(producer, tiles, tile_at);
    if (!producer.has_tile(tile)) break;
    for (int step = producer.steps(tile); step > 0; --step) fill(producer, ring, at);
  }
  if (exits_early) return;
  drain(producer, tiles, tile_at);
  drain(producer, ring, at);
}

template <class Actor>
WARPLOOM_HD constexpr void consume_tiles(Actor& consumer, const Ring& tiles, const Ring& ring) {
  Cursor tile_at, at;
  for (int tile = 0;; ++tile) {
    consume(consumer, tiles, tile_at);
    if (!consumer.has_tile(tile)) break;
    for (int step = consumer.steps(tile); step > 0; --step) consume(consumer, ring, at);
    consumer.epilogue(tile);
  }
}

WARPLOOM_HD constexpr Protocol persistent(const Sizes& n) {
  Protocol p(n);
  const Ring tiles = add_ring(p, "tile", "tile_full", "tile_empty", kTileSlots, n.consumers);
  const Ring ring = add_ring(p, "stage", "full", "empty", n.stages, n.consumers);
  Recorder producer = p.add_role({"producer"}, kWarp);
  produce_tiles(producer, tiles, ring, n.producer_exits_early);
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_tiles(consumer, tiles, ring);
  }
  return p;
}

}  // namespace warploom::pipeline
