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

}  // namespace warploom::pipeline
