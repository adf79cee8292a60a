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

// --- The forward kernel for Hopper (kernels/attention/attention_forward_hopper.cu): a scheduler warp that hands out
// work items and loads Q, a loader warp for K and V, and consumers that pass over tiles which none of their rows sees.

struct HopperRings {
  Ring items;
  AttentionRings tiles;
  int begun[4] = {};  ///< mbarriers, one an item slot: the loader has come to the item
  Ring bias;          ///< of R, where warps of their own bring it: slots beside those of K, under the same barriers
  bool brings_bias = false;
};

/// Whether Q has a slot for the next item. Then the next item's first product runs beside this one's last.
WARPLOOM_HD constexpr bool crosses_items(const HopperRings& rings) {
  return rings.tiles.queries.stages > 1;
}

/// The scheduler takes an item only when the loader has come to the one before, or when what the loader has not come to
/// is little: few steps, none before the last items, and fewer items than slots. The end is an item without rows.
template <class Actor>
WARPLOOM_HD constexpr void schedule_hopper(Actor& scheduler, const HopperRings& rings) {
  constexpr int kAheadSteps = 3, kLastItems = 2;
  Cursor item_at, query_at;
  int begun = 0, ahead = 0;  // the first item not known to be begun; steps of the items from there on
  for (int tile = 0; scheduler.has_tile(tile); ++tile) {
    store(scheduler, rings.items, item_at);
    fill(scheduler, rings.tiles.queries, query_at);
    ahead += scheduler.steps(tile);
    const int most_ahead = scheduler.has_tile(tile + kLastItems) ? kAheadSteps : 0;
    for (; ahead > most_ahead || tile + 1 - begun >= rings.items.stages; ++begun) {
      scheduler.wait(rings.begun[begun % rings.items.stages], begun / rings.items.stages);
      ahead -= scheduler.steps(begun);
    }
  }
  wait_empty(scheduler, rings.tiles.queries, query_at);
  scheduler.arrive(rings.tiles.queries.first_full + query_at.slot, query_at.round);
  store(scheduler, rings.items, item_at);
}

/// Passes a slot on without filling it.
template <class Actor>
WARPLOOM_HD constexpr void fill_nothing(Actor& producer, const Ring& ring, Cursor& at) {
  wait_empty(producer, ring, at);
  producer.arrive(ring.first_full + at.slot, at.round);
  at.advance(ring);
}

/// A V tile waits for the next K tile, also for that of the next item where Q has two slots. An item that sees no keys,
/// and the end, are one tile that nobody sees.
template <class Actor>
WARPLOOM_HD constexpr void load_hopper(Actor& loader, const HopperRings& rings) {
  const Ring &keys = rings.tiles.keys, &values = rings.tiles.values;
  Cursor item_at, key_at, value_at;
  bool value_due = false;
  const auto load_value = [&] {
    if (value_due) fill(loader, values, value_at);
    value_due = false;
  };
  for (int tile = 0;; ++tile) {
    if (!crosses_items(rings)) load_value();
    wait_full(loader, rings.items, item_at);
    if (!loader.has_tile(tile)) break;
    loader.arrive(rings.begun[tile % rings.items.stages], tile / rings.items.stages);
    for (int j = 0; j < loader.steps(tile); ++j) {
      fill(loader, keys, key_at);
      load_value();
      value_due = true;
    }
    if (loader.steps(tile) == 0) {
      load_value();
      fill_nothing(loader, keys, key_at);
      fill_nothing(loader, values, value_at);
    }
    release(loader, rings.items, item_at);
  }
  load_value();
  fill_nothing(loader, keys, key_at);
  fill_nothing(loader, values, value_at);
  release(loader, rings.items, item_at);
}

/// What brings R walks the items as the loader does: number `who` of `bringers`, which take turns with the key tiles.
template <class Actor>
WARPLOOM_HD constexpr void bring_hopper_bias(Actor& bringer, const HopperRings& rings, int who, int bringers) {
  Cursor item_at, at;
  int passed = 0;
  const auto bring = [&](bool stores) {
    if (passed++ % bringers != who) {
      at.advance(rings.bias);
    } else if (stores) {
      store(bringer, rings.bias, at);
    } else {
      fill_nothing(bringer, rings.bias, at);
    }
  };
  for (int tile = 0;; ++tile) {
    wait_full(bringer, rings.items, item_at);
    const bool is_end = !bringer.has_tile(tile);
    const int steps = is_end ? 0 : bringer.steps(tile);
    for (int j = 0; j < steps; ++j) bring(true);
    if (steps == 0) bring(false);
    release(bringer, rings.items, item_at);
    if (is_end) break;
  }
}

template <class Actor>
WARPLOOM_HD constexpr void consume_hopper(Actor& consumer, const HopperRings& rings, const Turns& turns, int who) {
  const Ring &queries = rings.tiles.queries, &keys = rings.tiles.keys, &values = rings.tiles.values;
  Cursor item_at, finished_at;
  AttentionCursors at;
  bool pending = false, finishing = false;  // P waits for its product with V; that product ends the item in finished_at
  int finished = 0;
  const auto output_done = [&] {
    end_read(consumer, values, at.values);
    release(consumer, values, at.values);
    pending = false;
  };
  const auto end_item = [&] {
    if (!finishing) return;
    consumer.epilogue(finished++);
    release(consumer, rings.items, finished_at);
    finishing = false;
  };
  open_turns(consumer, turns, who);
  for (int tile = 0;; ++tile) {
    wait_full(consumer, rings.items, item_at);
    const bool is_end = !consumer.has_tile(tile);
    const int steps = is_end ? 0 : consumer.steps(tile);
    // Under a causal mask the upper rows see fewer of the last tiles.
    const int unseen = turns.count - 1 - who;
    wait_full(consumer, queries, at.queries);
    if (!is_end) begin_read(consumer, queries, at.queries);
    for (int j = 0; j < steps || j == 0; ++j) {
      const bool sees = j < steps - unseen, last = j + 1 >= steps;
      wait_full(consumer, keys, at.keys);
      take_turn(consumer, turns, who);
      const bool output = sees && pending;
      if (sees) begin_read(consumer, keys, at.keys);
      if (output) {
        wait_full(consumer, values, at.values);
        begin_read(consumer, values, at.values);
      }
      pass_turn(consumer, turns, who);
      if (sees && rings.brings_bias) {
        begin_read(consumer, rings.bias, at.keys);
        end_read(consumer, rings.bias, at.keys);
      }
      if (sees) end_read(consumer, keys, at.keys);
      release(consumer, keys, at.keys);
      if (last) {
        if (!is_end) end_read(consumer, queries, at.queries);
        release(consumer, queries, at.queries);
      }
      const auto flush = [&] {
        if (pending) {
          wait_full(consumer, values, at.values);
          begin_read(consumer, values, at.values);
          output_done();
        }
        end_item();
      };
      if (sees) {
        consumer.activate(j);
        if (output) {
          output_done();
          end_item();
        }
        pending = true;
      } else {
        flush();
      }
      if (last) {
        finishing = true;
        if (!pending || queries.stages == 1) flush();
      }
      if (!sees) {
        wait_full(consumer, values, at.values);
        release(consumer, values, at.values);
      }
    }
    item_at.advance(rings.items);
    if (is_end) break;
  }
  close_turns(consumer, turns, who, 0);
}

WARPLOOM_HD constexpr Protocol hopper_attention_with(const Sizes& n, int query_stages, int bias_bringers = 0) {
  Protocol p(n);
  HopperRings rings;
  rings.items = add_ring(p, "item", "item_full", "item_empty", 4, n.consumers + 1 + bias_bringers);
  rings.tiles = add_attention_rings(p, query_stages);
  rings.brings_bias = bias_bringers > 0;
  if (rings.brings_bias) {
    rings.bias = rings.tiles.keys;
    rings.bias.first_slot = p.num_slots;
    for (int stage = 0; stage < n.stages; ++stage) {
      p.add_slot({"R", stage});
      p.mbarriers[rings.bias.first_full + stage].arrivals = 2;
    }
  }
  for (int slot = 0; slot < rings.items.stages; ++slot) rings.begun[slot] = p.add_mbarrier({"begun", slot}, 1);
  const Turns turns = add_turns(p, n.consumers);
  Recorder scheduler = p.add_role({"scheduler"}, kWarp);
  schedule_hopper(scheduler, rings);
  Recorder loader = p.add_role({"loader"}, kWarp);
  load_hopper(loader, rings);
  for (int who = 0; who < bias_bringers; ++who) {
    Recorder bringer = p.add_role({"bias", who}, kWarp);
    bring_hopper_bias(bringer, rings, who, bias_bringers);
  }
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_hopper(consumer, rings, turns, c);
  }
  return p;
}

WARPLOOM_HD constexpr Protocol hopper_attention(const Sizes& n) {
  return hopper_attention_with(n, 2);
}

/// No tile with a bias has more than three consumers, and they are alike.
WARPLOOM_HD constexpr Protocol hopper_attention_biased(Sizes n, int bringers) {
  if (n.consumers > 3) n.consumers = 3;
  return hopper_attention_with(n, 2, bringers);
}
/// With what brings R beside the keys. (Two warps copy, each its half of a tile in the same way.)
WARPLOOM_HD constexpr Protocol hopper_attention_bias(const Sizes& n) {
  return hopper_attention_biased(n, 1);
}
/// With two that take turns with the key tiles, as for a bucketed bias. With an odd number of slots each would miss
/// every other phase of a slot, and a parity does not tell so.
WARPLOOM_HD constexpr Protocol hopper_attention_bias_turns(const Sizes& given) {
  Sizes n = given;
  n.stages += n.stages % 2;
  return hopper_attention_biased(n, 2);
}

/// Heads so wide that shared memory holds one Q.
WARPLOOM_HD constexpr Protocol hopper_attention_one_query(const Sizes& n) {
  return hopper_attention_with(n, 1);
}

}  // namespace warploom::pipeline
