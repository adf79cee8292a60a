// The protocols of the attention main loops. K and V have rings of their own; Q is a ring of one or two slots.
#pragma once

#include "pipeline/ring.h"
#include "pipeline/turns.h"

namespace warploom::pipeline {

struct AttentionRings {
  Ring queries, keys, values;
};

WARPLOOM_HD constexpr AttentionRings add_attention_rings(Protocol& p, int query_stages) {
  const int readers = p.sizes.consumers;
  const Ring queries = add_ring(p, "Q", "Q_full", "Q_empty", query_stages, readers);
  const Ring keys = add_ring(p, "K", "K_full", "K_empty", p.sizes.stages, readers);
  const Ring values = add_ring(p, "V", "V_full", "V_empty", p.sizes.stages, readers);
  return {queries, keys, values};
}

/// A role's places in the three rings.
struct AttentionCursors {
  Cursor queries, keys, values;
};

template <class Actor>
WARPLOOM_HD constexpr void drain(Actor& producer, const AttentionRings& rings, const AttentionCursors& at) {
  drain(producer, rings.queries, at.queries);
  drain(producer, rings.keys, at.keys);
  drain(producer, rings.values, at.values);
}

/// Loads in the order in which consumers wait: Q, K0, then {next K, this V}. A work item without visible keys loads
/// nothing.
template <class Actor>
WARPLOOM_HD constexpr void produce_attention(Actor& producer, const AttentionRings& rings, bool exits_early) {
  AttentionCursors at;
  for (int tile = 0; producer.has_tile(tile); ++tile) {
    const int steps = producer.steps(tile);
    if (steps == 0) continue;
    fill(producer, rings.queries, at.queries);
    fill(producer, rings.keys, at.keys);
    for (int j = 0; j < steps; ++j) {
      if (j + 1 < steps) fill(producer, rings.keys, at.keys);
      fill(producer, rings.values, at.values);
    }
  }
  if (!exits_early) drain(producer, rings, at);
}

// --- Two-stage (intra-warpgroup): S of the next step runs on the tensor core under the softmax of this one.

template <class Actor>
WARPLOOM_HD constexpr void consume_two_stage(Actor& consumer, const AttentionRings& rings) {
  AttentionCursors at;
  for (int tile = 0; consumer.has_tile(tile); ++tile) {
    const int steps = consumer.steps(tile);
    if (steps > 0) {
      wait_full(consumer, rings.queries, at.queries);
      begin_read(consumer, rings.queries, at.queries);
      wait_full(consumer, rings.keys, at.keys);
      begin_read(consumer, rings.keys, at.keys);  // S(0) issued
    }
    for (int j = 0; j < steps; ++j) {
      end_read(consumer, rings.keys, at.keys);  // S(j) is there
      release(consumer, rings.keys, at.keys);
      if (j + 1 < steps) {
        wait_full(consumer, rings.keys, at.keys);
        begin_read(consumer, rings.keys, at.keys);  // S(j+1) issued
      } else {
        end_read(consumer, rings.queries, at.queries);
        release(consumer, rings.queries, at.queries);
      }
      consumer.activate(j);
      consume(consumer, rings.values, at.values);  // P(j) V(j), waited for
    }
    consumer.epilogue(tile);
  }
}

WARPLOOM_HD constexpr Protocol two_stage_attention(const Sizes& n) {
  Protocol p(n);
  const AttentionRings rings = add_attention_rings(p, 1);
  Recorder producer = p.add_role({"producer"}, kWarp);
  produce_attention(producer, rings, n.producer_exits_early);
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_two_stage(consumer, rings);
  }
  return p;
}

// --- K/V rings with turns: in its turn a consumer issues S(j) and P(j-1) V(j-1) back to back, then passes the turn and
// waits for the results (docs/protocol-checker.md says where each wait stands and why).

template <class Actor>
WARPLOOM_HD constexpr void consume_attention_in_turns(Actor& consumer, const AttentionRings& rings, const Turns& turns,
                                                      int who) {
  AttentionCursors at;
  open_turns(consumer, turns, who);
  for (int tile = 0; consumer.has_tile(tile); ++tile) {
    const int steps = consumer.steps(tile);
    if (steps > 0) {
      wait_full(consumer, rings.queries, at.queries);
      begin_read(consumer, rings.queries, at.queries);
      for (int j = 0; j <= steps; ++j) {
        const bool scores = j < steps, output = j > 0;
        if (scores) wait_full(consumer, rings.keys, at.keys);
        take_turn(consumer, turns, who);
        if (scores) begin_read(consumer, rings.keys, at.keys);
        if (output) {
          wait_full(consumer, rings.values, at.values);
          begin_read(consumer, rings.values, at.values);
        }
        pass_turn(consumer, turns, who);
        if (scores) {
          end_read(consumer, rings.keys, at.keys);
          release(consumer, rings.keys, at.keys);
          consumer.activate(j);
        } else {
          end_read(consumer, rings.queries, at.queries);
          release(consumer, rings.queries, at.queries);
        }
        if (output) {
          end_read(consumer, rings.values, at.values);
          release(consumer, rings.values, at.values);
        }
      }
    }
    consumer.epilogue(tile);
  }
  close_turns(consumer, turns, who, 0);
}

WARPLOOM_HD constexpr Protocol attention_in_turns(const Sizes& n) {
  Protocol p(n);
  const AttentionRings rings = add_attention_rings(p, 1);
  const Turns turns = add_turns(p, n.consumers);
  Recorder producer = p.add_role({"producer"}, kWarp);
  produce_attention(producer, rings, n.producer_exits_early);
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_attention_in_turns(consumer, rings, turns, c);
  }
  return p;
}

// --- The whole of a persistent attention kernel: work items through a tile ring, two Q slots, K and V rings, a turn a
// step, and no seam between work items: the next item's first S is issued in the same turn as this one's last P V.

/// The order of waits crosses work items too: the next item's Q and K0 are loaded before this one's last V.
template <class Actor>
WARPLOOM_HD constexpr void produce_across_tiles(Actor& producer, const Ring& tiles, const AttentionRings& rings,
                                                bool exits_early) {
  AttentionCursors at;
  Cursor tile_at;
  bool value_due = false;  // the last item's last V has not been loaded yet
  for (int tile = 0;; ++tile) {
    store(producer, tiles, tile_at);
    const bool more = producer.has_tile(tile);
    const int steps = more ? producer.steps(tile) : 0;
    if (steps > 0) fill(producer, rings.queries, at.queries);
    for (int j = 0; j < steps; ++j) {
      fill(producer, rings.keys, at.keys);
      if (value_due) fill(producer, rings.values, at.values);
      value_due = true;
    }
    // A consumer that meets an item without keys, or the end, finishes what it has begun before it goes on.
    if (steps == 0 && value_due) {
      fill(producer, rings.values, at.values);
      value_due = false;
    }
    if (!more) break;
  }
  if (exits_early) return;
  drain(producer, tiles, tile_at);
  drain(producer, rings, at);
}

template <class Actor>
WARPLOOM_HD constexpr void consume_across_tiles(Actor& consumer, const Ring& tiles, const AttentionRings& rings,
                                                const Turns& turns, int who) {
  AttentionCursors at;
  Cursor tile_at;
  int unfinished = -1;  // the work item whose last P V is still to come
  open_turns(consumer, turns, who);
  for (int tile = 0;; ++tile) {
    consume(consumer, tiles, tile_at);
    const bool more = consumer.has_tile(tile);
    const int steps = more ? consumer.steps(tile) : 0;
    if (steps > 0) {
      wait_full(consumer, rings.queries, at.queries);
      begin_read(consumer, rings.queries, at.queries);
    }
    // Without keys there is no S to go with the last P V: a turn for it alone.
    for (int j = 0; j < steps || (steps == 0 && unfinished >= 0); ++j) {
      const bool scores = steps > 0, output = j > 0 || unfinished >= 0;
      if (scores) wait_full(consumer, rings.keys, at.keys);
      take_turn(consumer, turns, who);
      if (scores) begin_read(consumer, rings.keys, at.keys);
      if (output) {
        wait_full(consumer, rings.values, at.values);
        begin_read(consumer, rings.values, at.values);
      }
      pass_turn(consumer, turns, who);
      if (scores) {
        end_read(consumer, rings.keys, at.keys);
        release(consumer, rings.keys, at.keys);
        if (j + 1 == steps) {
          end_read(consumer, rings.queries, at.queries);
          release(consumer, rings.queries, at.queries);
        }
        consumer.activate(j);
      }
      if (output) {
        end_read(consumer, rings.values, at.values);
        release(consumer, rings.values, at.values);
      }
      if (unfinished >= 0) {
        consumer.epilogue(unfinished);
        unfinished = -1;
      }
    }
    if (!more) break;
    if (steps > 0) {
      unfinished = tile;
    } else {
      consumer.epilogue(tile);
    }
  }
  close_turns(consumer, turns, who, 0);
}

WARPLOOM_HD constexpr Protocol persistent_attention(const Sizes& n) {
  Protocol p(n);
  const Ring tiles = add_ring(p, "tile", "tile_full", "tile_empty", 2, n.consumers);
  const AttentionRings rings = add_attention_rings(p, 2);
  const Turns turns = add_turns(p, n.consumers);
  Recorder producer = p.add_role({"producer"}, kWarp);
  produce_across_tiles(producer, tiles, rings, n.producer_exits_early);
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_across_tiles(consumer, tiles, rings, turns, c);
  }
  return p;
}

}  // namespace warploom::pipeline
