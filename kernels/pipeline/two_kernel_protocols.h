// The protocols of the attention backward pass on Hopper in two kernels: dK and dV
// (kernels/attention/attention_backward_keys_hopper.cu), and dQ (kernels/attention/attention_backward_dq_hopper.cu). A
// scheduler warp hands work items to two loader warps and the consumers. A step's product of P or dS ends in the next
// step, and holds the tile that it reads until then, so those rings have at least two slots.
#pragma once

#include "pipeline/attention_protocols.h"

namespace warploom::pipeline {

WARPLOOM_HD constexpr int two_at_least(int stages) {
  return stages < 2 ? 2 : stages;
}

/// Takes an item only when a loader has come to the one before. The end is an item by itself.
template <class Actor>
WARPLOOM_HD constexpr void schedule_items(Actor& scheduler, const Ring& items, int request) {
  Cursor item_at;
  for (int tile = 0; scheduler.has_tile(tile); ++tile) {
    store(scheduler, items, item_at);
    scheduler.wait(request, tile);
  }
  store(scheduler, items, item_at);
}

// --- dK and dV. The consumers own the tiles' scores in turn: a tile's owner reads K, V, Q and dO for them and hands
// the other consumer its operand. Consumer 0 sums dV, of dO tiles, consumer 1 dK, of Q tiles, its own and the other's.

struct KeysRings {
  Ring items;
  int first_handoff = 0;                                ///< slot; of each consumer
  int first_handoff_full = 0, first_handoff_empty = 0;  ///< named barriers of both consumers
  Ring residents[2];                                    ///< K, V
  Ring tiles[2];                                        ///< Q, dO
  int request = 0;                                      ///< mbarrier: loader 0 has come to the last item
};

/// An item that no query sees, and the end, are one tile of either ring without bytes.
template <class Actor>
WARPLOOM_HD constexpr void load_side(Actor& loader, const KeysRings& rings, int side) {
  Cursor item_at, resident_at, tile_at;
  for (int tile = 0;; ++tile) {
    wait_full(loader, rings.items, item_at);
    const bool is_end = !loader.has_tile(tile);
    const int steps = is_end ? 0 : loader.steps(tile);
    if (!is_end && side == 0) loader.arrive(rings.request, tile);
    if (steps > 0) fill(loader, rings.residents[side], resident_at);
    for (int j = 0; j < steps; ++j) fill(loader, rings.tiles[side], tile_at);
    if (steps == 0) fill_nothing(loader, rings.tiles[side], tile_at);
    release(loader, rings.items, item_at);
    if (is_end) break;
  }
}

/// A consumer's way through the tiles of all items.
template <class Actor>
struct KeysConsumer {
  Actor& consumer;
  const KeysRings& rings;
  const int side;

  int item = 0, step = 0;  ///< the next tile's
  Cursor tile_at{}, item_at{}, resident_at{};
  Cursor finished_at{};          ///< the first item that is not written
  int handed = 0, received = 0;  ///< tiles, by this consumer and by the other
  bool finishing = false;        ///< the item before has its sums, and is to be written

  WARPLOOM_HD constexpr int steps_of(int of_item) const {
    return consumer.has_tile(of_item) ? consumer.steps(of_item) : 0;
  }
  WARPLOOM_HD constexpr void wait_tile(const Cursor& at) {
    wait_full(consumer, rings.tiles[0], at);
    wait_full(consumer, rings.tiles[1], at);
  }
  WARPLOOM_HD constexpr void release_tile(int ring, Cursor at) { release(consumer, rings.tiles[ring], at); }
  WARPLOOM_HD constexpr void release_residents() {
    Cursor at = resident_at;
    release(consumer, rings.residents[0], at);
    release(consumer, rings.residents[1], resident_at);
  }
  WARPLOOM_HD constexpr void end_item(int of_item) {
    consumer.epilogue(of_item);
    release(consumer, rings.items, finished_at);
  }
  WARPLOOM_HD constexpr void finish() {
    if (finishing) end_item(item - 1);
    finishing = false;
  }
  WARPLOOM_HD constexpr void pass() {
    tile_at.advance(rings.tiles[0]);
    finishing = ++step >= steps_of(item);
    if (!finishing) return;
    ++item;
    step = 0;
    item_at.advance(rings.items);
  }
  /// The sums' product with the other consumer's tile.
  WARPLOOM_HD constexpr void begin_other(const Cursor& at) {
    consumer.sync(rings.first_handoff_full + 1 - side);
    consumer.read_begin(rings.first_handoff + 1 - side, received);
    begin_read(consumer, rings.tiles[1 - side], at);
  }
  WARPLOOM_HD constexpr void end_other(const Cursor& at) {
    consumer.read_end_older(rings.first_handoff + 1 - side, received++);
    end_older_read(consumer, rings.tiles[1 - side], at);
    release_tile(1 - side, at);
    consumer.signal(rings.first_handoff_empty + 1 - side);
  }
  WARPLOOM_HD constexpr bool pass_over() {
    finish();
    wait_full(consumer, rings.items, item_at);
    const bool is_end = !consumer.has_tile(item);
    end_item(item);  // of the end, nothing is written
    release_tile(0, tile_at);
    release_tile(1, tile_at);
    pass();
    finishing = false;
    return is_end;
  }

  /// A tile of its own, and in the sums before it the other's tile in front of it.
  WARPLOOM_HD constexpr void own_step(const Cursor& other_at, const Cursor& own_at, bool has_other, bool is_last) {
    finish();
    begin_read(consumer, rings.residents[0], resident_at);
    begin_read(consumer, rings.residents[1], resident_at);
    begin_read(consumer, rings.tiles[0], own_at);
    begin_read(consumer, rings.tiles[1], own_at);
    if (has_other) begin_other(other_at);
    end_older_read(consumer, rings.residents[0], resident_at);
    end_older_read(consumer, rings.residents[1], resident_at);
    if (is_last) release_residents();
    consumer.activate(handed);
    if (has_other) {
      end_other(other_at);
      pass();
    }
    end_older_read(consumer, rings.tiles[side], own_at);
    release_tile(side, own_at);
    consumer.sync(rings.first_handoff_empty + side);
    consumer.write(rings.first_handoff + side, handed++);
    consumer.signal(rings.first_handoff_full + side);
    finish();
    end_read(consumer, rings.tiles[1 - side], own_at);
    release_tile(1 - side, own_at);
    pass();
  }

  WARPLOOM_HD constexpr void walk() {
    for (bool may_have_other = side == 1;; may_have_other = true) {
      bool has_other = false;
      const Cursor other_at = tile_at;
      if (may_have_other) {
        wait_tile(tile_at);
        if (steps_of(item) == 0) {
          if (pass_over()) return;
        } else {
          has_other = true;
          wait_full(consumer, rings.items, item_at);
          release_tile(side, tile_at);
          if (step + 1 == steps_of(item)) release_residents();
        }
      }
      Cursor own_at = tile_at, own_item_at = item_at;
      const bool in_next = has_other && step + 1 == steps_of(item);
      if (has_other) own_at.advance(rings.tiles[0]);
      if (in_next) own_item_at.advance(rings.items);
      const int own_item = item + (in_next ? 1 : 0), own_step_of = in_next ? 0 : step + (has_other ? 1 : 0);
      wait_tile(own_at);
      if (steps_of(own_item) == 0) {
        if (has_other) {
          finish();
          begin_other(other_at);
          end_other(other_at);
          pass();
        }
        if (pass_over()) return;
      } else {
        wait_full(consumer, rings.items, own_item_at);
        wait_full(consumer, rings.residents[0], resident_at);
        wait_full(consumer, rings.residents[1], resident_at);
        own_step(other_at, own_at, has_other, own_step_of + 1 == steps_of(own_item));
      }
    }
  }
};

template <class Actor>
WARPLOOM_HD constexpr void consume_side(Actor& consumer, const KeysRings& rings, int side) {
  consumer.signal(rings.first_handoff_empty + 1 - side);
  KeysConsumer<Actor>{consumer, rings, side}.walk();
  consumer.sync(rings.first_handoff_empty + side);  // the barriers end as they began
}

WARPLOOM_HD constexpr Protocol hopper_keys(const Sizes& n) {
  Protocol p(n);
  KeysRings rings;
  rings.items = add_ring(p, "item", "item_full", "item_empty", 4, 4);
  rings.residents[0] = add_ring(p, "K", "K_full", "K_empty", 1, 2);
  rings.residents[1] = add_ring(p, "V", "V_full", "V_empty", 1, 2);
  rings.tiles[0] = add_ring(p, "Q", "Q_full", "Q_empty", two_at_least(n.stages), 2);
  rings.tiles[1] = add_ring(p, "dO", "dO_full", "dO_empty", two_at_least(n.stages), 2);
  rings.first_handoff = p.num_slots;
  rings.first_handoff_full = p.num_named;
  rings.first_handoff_empty = p.num_named + 2;
  for (int side = 0; side < 2; ++side) p.add_slot({"handoff", side});
  for (int side = 0; side < 2; ++side) {
    p.add_named_barrier({"handoff_full", side}, 2 * kWarpgroup, kFirstHandoffFullId + side);
  }
  for (int side = 0; side < 2; ++side) {
    p.add_named_barrier({"handoff_empty", side}, 2 * kWarpgroup, kFirstHandoffEmptyId + side);
  }
  rings.request = p.num_mbarriers;
  p.add_mbarrier({"request"}, 1);
  Recorder scheduler = p.add_role({"scheduler"}, kWarp);
  schedule_items(scheduler, rings.items, rings.request);
  for (int side = 0; side < 2; ++side) {
    Recorder loader = p.add_role({"loader", side}, kWarp);
    load_side(loader, rings, side);
  }
  for (int side = 0; side < 2; ++side) {
    Recorder consumer = p.add_role({"consumer", side}, kWarpgroup);
    consume_side(consumer, rings, side);
  }
  return p;
}

// --- dQ: Q and dO in a slot for each consumer, K and V in rings, and turns as in the forward kernel.

struct DqRings {
  Ring items;
  AttentionRings tiles;
  int request = 0;  ///< mbarrier: the loader of K and V has come to the last item
};

template <class Actor>
WARPLOOM_HD constexpr void load_items_queries(Actor& loader, const DqRings& rings) {
  Cursor item_at, query_at;
  for (int tile = 0;; ++tile) {
    wait_full(loader, rings.items, item_at);
    const bool is_end = !loader.has_tile(tile);
    for (int who = 0; !is_end && who < rings.tiles.queries.stages; ++who) fill(loader, rings.tiles.queries, query_at);
    release(loader, rings.items, item_at);
    if (is_end) break;
  }
}

/// An item that sees no key is one tile without bytes.
template <class Actor>
WARPLOOM_HD constexpr void load_items_keys(Actor& loader, const DqRings& rings) {
  const Ring &keys = rings.tiles.keys, &values = rings.tiles.values;
  Cursor item_at, key_at, value_at;
  for (int tile = 0;; ++tile) {
    wait_full(loader, rings.items, item_at);
    const bool is_end = !loader.has_tile(tile);
    if (!is_end) {
      loader.arrive(rings.request, tile);
      for (int j = 0; j < loader.steps(tile); ++j) {
        fill(loader, keys, key_at);
        fill(loader, values, value_at);
      }
      if (loader.steps(tile) == 0) {
        fill_nothing(loader, keys, key_at);
        fill_nothing(loader, values, value_at);
      }
    }
    release(loader, rings.items, item_at);
    if (is_end) break;
  }
}

template <class Actor>
WARPLOOM_HD constexpr void consume_dq(Actor& consumer, const DqRings& rings, const Turns& turns, int who) {
  const Ring &queries = rings.tiles.queries, &keys = rings.tiles.keys, &values = rings.tiles.values;
  Cursor item_at, query_at{who, 0}, key_at, sum_at, value_at;
  bool pending = false;  // dS waits for its product with the K tile in sum_at
  const auto sums_done = [&] {
    end_older_read(consumer, keys, sum_at);
    consumer.arrive(keys.first_empty + sum_at.slot, sum_at.round);
    pending = false;
  };
  open_turns(consumer, turns, who);
  for (int tile = 0;; ++tile) {
    wait_full(consumer, rings.items, item_at);
    if (!consumer.has_tile(tile)) {
      release(consumer, rings.items, item_at);
      break;
    }
    const int steps = consumer.steps(tile);
    // Under a causal mask the upper rows see fewer of the last tiles.
    const int unseen = turns.count - 1 - who;
    wait_full(consumer, queries, query_at);
    for (int j = 0; j < steps || j == 0; ++j) {
      const bool sees = j < steps - unseen, is_last = j + 1 >= steps;
      wait_full(consumer, keys, key_at);
      take_turn(consumer, turns, who);
      const bool with_sums = pending;
      if (sees) {
        if (with_sums) begin_read(consumer, keys, sum_at);
        begin_read(consumer, queries, query_at);
        begin_read(consumer, keys, key_at);
        if (with_sums) sums_done();
        wait_full(consumer, values, value_at);
        begin_read(consumer, values, value_at);
      }
      pass_turn(consumer, turns, who);
      if (!sees) {
        if (with_sums) {
          begin_read(consumer, keys, sum_at);
          sums_done();
        }
        wait_full(consumer, values, value_at);
      }
      if (sees) {
        end_read(consumer, values, value_at);
        end_read(consumer, queries, query_at);
      } else {
        consumer.arrive(keys.first_empty + key_at.slot, key_at.round);
      }
      release(consumer, values, value_at);
      if (sees) consumer.activate(j);
      if (is_last) {
        consumer.arrive(queries.first_empty + query_at.slot, query_at.round);
        query_at.skip(queries, queries.stages);
      }
      if (sees) {
        end_read(consumer, keys, key_at);
        pending = true;
        sum_at = key_at;
      }
      key_at.advance(keys);
    }
    if (pending) {
      begin_read(consumer, keys, sum_at);
      sums_done();
    }
    consumer.epilogue(tile);
    release(consumer, rings.items, item_at);
  }
  close_turns(consumer, turns, who, 0);
}

WARPLOOM_HD constexpr Protocol hopper_dq(const Sizes& n) {
  Protocol p(n);
  DqRings rings;
  rings.items = add_ring(p, "item", "item_full", "item_empty", 2, n.consumers + 2);
  rings.tiles.queries = add_ring(p, "Q", "Q_full", "Q_empty", n.consumers, 1);
  rings.tiles.keys = add_ring(p, "K", "K_full", "K_empty", two_at_least(n.stages), n.consumers);
  rings.tiles.values = add_ring(p, "V", "V_full", "V_empty", 1, n.consumers);
  rings.request = p.num_mbarriers;
  p.add_mbarrier({"request"}, 1);
  const Turns turns = add_turns(p, n.consumers);
  Recorder scheduler = p.add_role({"scheduler"}, kWarp);
  schedule_items(scheduler, rings.items, rings.request);
  Recorder key_loader = p.add_role({"loader", 0}, kWarp);
  load_items_keys(key_loader, rings);
  Recorder query_loader = p.add_role({"loader", 1}, kWarp);
  load_items_queries(query_loader, rings);
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_dq(consumer, rings, turns, c);
  }
  return p;
}

}  // namespace warploom::pipeline
