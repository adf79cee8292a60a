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

// --- dK and dV: side 0 has K, Q and P, side 1 has V, dO and dS. Each side's scores are of its own ring's tiles, its
// sums of the other's.

struct KeysRings {
  static constexpr int kSlopes = 2;  ///< slots
  Ring items;
  int first_slope = 0;                              ///< slot
  int first_slope_full = 0, first_slope_empty = 0;  ///< named barriers of both consumers
  Ring residents[2];                                ///< K, V
  Ring tiles[2];                                    ///< Q, dO
  int request = 0;                                  ///< mbarrier: loader 0 has come to the last item
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

template <class Actor>
WARPLOOM_HD constexpr void consume_side(Actor& consumer, const KeysRings& rings, int side) {
  const Ring &scores = rings.tiles[side], &sums = rings.tiles[1 - side], &resident = rings.residents[side];
  Cursor item_at, finished_at, resident_at, score_at, sum_at;
  int slopes = 0;                           // passed
  bool pending = false, finishing = false;  // P or dS waits for its product; that product ends the item in finished_at
  int finished = 0;
  const auto begin_sums = [&] {
    wait_full(consumer, sums, sum_at);
    begin_read(consumer, sums, sum_at);
  };
  const auto sums_done = [&] {
    end_older_read(consumer, sums, sum_at);
    release(consumer, sums, sum_at);
    pending = false;
  };
  const auto end_item = [&] {
    consumer.epilogue(finished++);
    release(consumer, rings.items, finished_at);
    finishing = false;
  };
  for (int slot = 0; side == 1 && slot < KeysRings::kSlopes; ++slot) consumer.signal(rings.first_slope_empty + slot);
  for (int tile = 0;; ++tile) {
    wait_full(consumer, rings.items, item_at);
    const bool is_end = !consumer.has_tile(tile);
    const int steps = is_end ? 0 : consumer.steps(tile);
    for (int j = 0; j < steps; ++j) {
      wait_full(consumer, scores, score_at);
      if (j == 0) wait_full(consumer, resident, resident_at);
      const bool with_sums = pending;
      begin_read(consumer, resident, resident_at);
      begin_read(consumer, scores, score_at);
      if (side == 0 && with_sums) begin_sums();
      if (side == 1 && with_sums) sums_done();
      end_older_read(consumer, resident, resident_at);
      if (j + 1 == steps) release(consumer, resident, resident_at);
      const int slope = slopes % KeysRings::kSlopes;
      if (side == 0) {
        consumer.sync(rings.first_slope_empty + slope);
        consumer.write(rings.first_slope + slope, slopes);
        consumer.signal(rings.first_slope_full + slope);
      } else {
        consumer.sync(rings.first_slope_full + slope);
        consumer.read_begin(rings.first_slope + slope, slopes);
        consumer.read_end(rings.first_slope + slope, slopes);
        consumer.signal(rings.first_slope_empty + slope);
      }
      ++slopes;
      consumer.activate(j);
      end_older_read(consumer, scores, score_at);
      release(consumer, scores, score_at);
      if (side == 0 && with_sums) sums_done();
      if (finishing) end_item();
      pending = true;
      if (side == 1) begin_sums();
    }
    if (steps == 0) {
      if (pending) {
        if (side == 0) begin_sums();
        sums_done();
      }
      if (finishing) end_item();
      end_item();  // of the end, nothing is written
      wait_full(consumer, scores, score_at);
      wait_full(consumer, sums, sum_at);
      release(consumer, scores, score_at);
      release(consumer, sums, sum_at);
    }
    finishing = steps > 0;
    item_at.advance(rings.items);
    if (is_end) break;
  }
  // The barriers end as they began.
  for (int slot = 0; side == 0 && slot < KeysRings::kSlopes; ++slot) consumer.sync(rings.first_slope_empty + slot);
}

WARPLOOM_HD constexpr Protocol hopper_keys(const Sizes& n) {
  Protocol p(n);
  KeysRings rings;
  rings.items = add_ring(p, "item", "item_full", "item_empty", 2, 4);
  rings.residents[0] = add_ring(p, "K", "K_full", "K_empty", 1, 1);
  rings.residents[1] = add_ring(p, "V", "V_full", "V_empty", 1, 1);
  rings.tiles[0] = add_ring(p, "Q", "Q_full", "Q_empty", two_at_least(n.stages), 2);
  rings.tiles[1] = add_ring(p, "dO", "dO_full", "dO_empty", two_at_least(n.stages), 2);
  rings.first_slope = p.num_slots;
  rings.first_slope_full = p.num_named;
  rings.first_slope_empty = p.num_named + KeysRings::kSlopes;
  for (int slot = 0; slot < KeysRings::kSlopes; ++slot) p.add_slot({"slope", slot});
  for (int slot = 0; slot < KeysRings::kSlopes; ++slot) {
    p.add_named_barrier({"slope_full", slot}, 2 * kWarpgroup, kFirstSlopeFullId + slot);
  }
  for (int slot = 0; slot < KeysRings::kSlopes; ++slot) {
    p.add_named_barrier({"slope_empty", slot}, 2 * kWarpgroup, kFirstSlopeEmptyId + slot);
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
