// The protocol of the one-pass backward kernel for Hopper (kernels/attention/attention_backward_hopper.cu): a scheduler
// warp that hands out work items, a loader warp for K and V (one slot) and for the tiles of Q and dO, and consumers
// that exchange their parts of dS through two score tiles, of which each reads all parts one step late.
#pragma once

#include "pipeline/attention_protocols.h"

namespace warploom::pipeline {

/// A score tile has a part for each consumer, which writes it and arrives on the full barrier.
struct ScoreRing {
  int first_part = 0, first_full = 0, first_empty = 0, parts = 0;
  static constexpr int kTiles = 2;
};

/// stored: a warp that stores them reads them too.
WARPLOOM_HD constexpr ScoreRing add_score_ring(Protocol& p, int consumers, bool stored) {
  const ScoreRing ring{p.num_slots, p.num_mbarriers, p.num_mbarriers + ScoreRing::kTiles, consumers};
  for (int tile = 0; tile < ScoreRing::kTiles; ++tile) {
    for (int part = 0; part < consumers; ++part) p.add_slot({"dS", tile, part});
  }
  for (int tile = 0; tile < ScoreRing::kTiles; ++tile) p.add_mbarrier({"dS_full", tile}, consumers);
  for (int tile = 0; tile < ScoreRing::kTiles; ++tile) p.add_mbarrier({"dS_empty", tile}, consumers + stored);
  return ring;
}

/// dS of step `step`, counted over all items: this consumer's part.
template <class Actor>
WARPLOOM_HD constexpr void write_scores(Actor& consumer, const ScoreRing& ring, int step, int who) {
  const int tile = step % ScoreRing::kTiles, round = step / ScoreRing::kTiles;
  consumer.wait(ring.first_empty + tile, round - 1);
  consumer.write(ring.first_part + tile * ring.parts + who, step);
  consumer.arrive(ring.first_full + tile, round);
}

/// dQ of that step, from all parts.
template <class Actor>
WARPLOOM_HD constexpr void read_scores(Actor& consumer, const ScoreRing& ring, int step) {
  const int tile = step % ScoreRing::kTiles, round = step / ScoreRing::kTiles;
  consumer.wait(ring.first_full + tile, round);
  for (int part = 0; part < ring.parts; ++part) consumer.read_begin(ring.first_part + tile * ring.parts + part, step);
  for (int part = 0; part < ring.parts; ++part) consumer.read_end(ring.first_part + tile * ring.parts + part, step);
  consumer.arrive(ring.first_empty + tile, round);
}

/// One tile of dQ on its way to a warp that adds it to the sums: a part for each consumer.
struct StagedSums {
  int first_part = 0, full = -1, empty = 0, parts = 0;  ///< full -1: consumers add their parts themselves
};

WARPLOOM_HD constexpr StagedSums add_staged_sums(Protocol& p, int consumers) {
  const StagedSums staged{p.num_slots, p.num_mbarriers, p.num_mbarriers + 1, consumers};
  for (int part = 0; part < consumers; ++part) p.add_slot({"dQ", part});
  p.add_mbarrier({"dQ_full"}, consumers);
  p.add_mbarrier({"dQ_empty"}, 1);
  return staged;
}

/// This consumer's part of the dQ of step `step`, counted over all items.
template <class Actor>
WARPLOOM_HD constexpr void stage_sums(Actor& consumer, const StagedSums& staged, int step, int who) {
  if (staged.full < 0) return;
  consumer.wait(staged.empty, step - 1);
  consumer.write(staged.first_part + who, step);
  consumer.arrive(staged.full, step);
}

/// Tiles of Q and dO: a full mbarrier a stage, and a named barrier by which all lanes of the consumers release it, who
/// have read what the loader tells about its rows.
struct TileRing {
  int stages = 0, first_slot = 0, first_full = 0, first_free = 0;
  int first_tables = -1;  ///< slots of what another warp lays out beside a tile; -1: nobody does
};

/// A role's place in it.
struct TileCursor {
  int passed = 0;

  WARPLOOM_HD constexpr int stage(const TileRing& ring) const { return passed % ring.stages; }
  WARPLOOM_HD constexpr int round(const TileRing& ring) const { return passed / ring.stages; }
};

WARPLOOM_HD constexpr TileRing add_tile_ring(Protocol& p, int stages, int consumers, bool tables) {
  TileRing ring{stages, p.num_slots, p.num_mbarriers, p.num_named};
  for (int s = 0; s < stages; ++s) {
    p.add_slot({"tile", s});
    p.add_mbarrier({"tile_full", s}, 1 + tables);
    p.add_named_barrier({"tile_free", s}, consumers * kWarpgroup + (1 + tables) * kWarp, kFirstStageId + s);
  }
  if (tables) ring.first_tables = p.num_slots;
  for (int s = 0; s < stages && tables; ++s) p.add_slot({"tables", s});
  return ring;
}

template <class Actor>
WARPLOOM_HD constexpr void wait_free(Actor& loader, const TileRing& ring, const TileCursor& at) {
  if (at.round(ring) > 0) loader.sync(ring.first_free + at.stage(ring));
}

/// A tile, or the note that an item sees none.
template <class Actor>
WARPLOOM_HD constexpr void fill(Actor& loader, const TileRing& ring, TileCursor& at, bool is_tile) {
  const int full = ring.first_full + at.stage(ring);
  wait_free(loader, ring, at);
  if (is_tile) {
    loader.expect(full, at.round(ring), 1);
    loader.load(ring.first_slot + at.stage(ring), at.passed, full, at.round(ring));
  } else {
    loader.arrive(full, at.round(ring));
  }
  ++at.passed;
}

/// What another warp lays out of a bias's tables beside the tile, or only its word that it has come so far.
template <class Actor>
WARPLOOM_HD constexpr void lay_out(Actor& warp, const TileRing& ring, TileCursor& at, bool is_tile) {
  wait_free(warp, ring, at);
  if (is_tile) warp.write(ring.first_tables + at.stage(ring), at.passed);
  warp.arrive(ring.first_full + at.stage(ring), at.round(ring));
  ++at.passed;
}

struct BackwardRings {
  Ring items, keys;
  TileRing tiles;
  int request = 0;  ///< mbarrier: the loader has come to the last item
  int clear = -1;   ///< mbarriers, one an item slot: the sums for dQ that the item adds to are clear; -1: none
  ScoreRing scores;
  StagedSums staged;
  bool overlaps = false;  ///< dQ of the step before is read while the products with this step's tile run
  Turns turns;            ///< in which consumers begin their tiles; none unless there are some
};

template <class Actor>
WARPLOOM_HD constexpr void schedule_backward(Actor& scheduler, const BackwardRings& rings) {
  Cursor at;
  for (int item = 0; scheduler.has_tile(item); ++item) {
    store(scheduler, rings.items, at);
    scheduler.wait(rings.request, item);
  }
  store(scheduler, rings.items, at);  // the end
}

/// K and V come after the first query tile, which needs not wait for the item before.
template <class Actor>
WARPLOOM_HD constexpr void load_backward(Actor& loader, const BackwardRings& rings) {
  Cursor item_at, key_at;
  TileCursor at;
  for (int item = 0;; ++item) {
    wait_full(loader, rings.items, item_at);
    if (!loader.has_tile(item)) break;
    loader.arrive(rings.request, item);
    for (int j = 0; j < loader.steps(item); ++j) {
      fill(loader, rings.tiles, at, true);
      if (j == 0) fill(loader, rings.keys, key_at);
    }
    if (loader.steps(item) == 0) fill(loader, rings.tiles, at, false);
    release(loader, rings.items, item_at);
  }
  // The named barriers end as they began.
  for (int stage = 0; stage < rings.tiles.stages; ++stage, ++at.passed) wait_free(loader, rings.tiles, at);
}

template <class Actor>
WARPLOOM_HD constexpr void consume_backward(Actor& consumer, const BackwardRings& rings, int who) {
  const TileRing& tiles = rings.tiles;
  Cursor item_at, key_at;
  TileCursor at;
  int step = 0;  // over all items
  open_turns(consumer, rings.turns, who);
  const auto wait_tile = [&] { consumer.wait(tiles.first_full + at.stage(tiles), at.round(tiles)); };
  const auto release_tile = [&] {
    consumer.signal(tiles.first_free + at.stage(tiles));
    ++at.passed;
  };
  for (int item = 0;; ++item) {
    wait_full(consumer, rings.items, item_at);
    if (!consumer.has_tile(item)) break;
    const int steps = consumer.steps(item);
    wait_tile();
    if (steps == 0) {
      release_tile();
    } else {
      wait_full(consumer, rings.keys, key_at);
      begin_read(consumer, rings.keys, key_at);
      for (int j = 0; j < steps; ++j) {
        if (j > 0) wait_tile();
        take_turn(consumer, rings.turns, who);
        consumer.read_begin(tiles.first_slot + at.stage(tiles), at.passed);
        if (tiles.first_tables >= 0) consumer.read_begin(tiles.first_tables + at.stage(tiles), at.passed);
        pass_turn(consumer, rings.turns, who);
        consumer.activate(j);
        write_scores(consumer, rings.scores, step, who);
        if (rings.overlaps && j > 0) {
          read_scores(consumer, rings.scores, step - 1);
          stage_sums(consumer, rings.staged, step - 1, who);
        }
        consumer.read_end_older(tiles.first_slot + at.stage(tiles), at.passed);
        if (tiles.first_tables >= 0) consumer.read_end_older(tiles.first_tables + at.stage(tiles), at.passed);
        release_tile();
        if (!rings.overlaps && j > 0) read_scores(consumer, rings.scores, step - 1);
        if (rings.clear >= 0 && j == 0) consumer.wait(rings.clear + item_at.slot, item_at.round);  // dQ's next
        ++step;
      }
      read_scores(consumer, rings.scores, step - 1);
      stage_sums(consumer, rings.staged, step - 1, who);
      end_read(consumer, rings.keys, key_at);
      release(consumer, rings.keys, key_at);
    }
    consumer.epilogue(item);
    release(consumer, rings.items, item_at);
  }
  close_turns(consumer, rings.turns, who, 0);
}

/// The warp that clears what of a bias's gradient no tile holds: it reads items, and has nothing to wait for in them.
template <class Actor>
WARPLOOM_HD constexpr void clear_gradient(Actor& clearer, const BackwardRings& rings) {
  Cursor at;
  for (int item = 0;; ++item) {
    wait_full(clearer, rings.items, at);
    if (!clearer.has_tile(item)) break;
    release(clearer, rings.items, at);
  }
}

/// The warp that stores the score tiles, which are those of a bias's gradient.
template <class Actor>
WARPLOOM_HD constexpr void store_gradient(Actor& storer, const BackwardRings& rings) {
  Cursor at;
  int step = 0;  // over all items
  for (int item = 0;; ++item) {
    wait_full(storer, rings.items, at);
    if (!storer.has_tile(item)) break;
    for (int j = 0; j < storer.steps(item); ++j, ++step) read_scores(storer, rings.scores, step);
    release(storer, rings.items, at);
  }
}

/// The warp that lays out what tiles need of a bias's tables.
template <class Actor>
WARPLOOM_HD constexpr void lay_out_tables(Actor& warp, const BackwardRings& rings) {
  Cursor item_at;
  TileCursor at;
  for (int item = 0;; ++item) {
    wait_full(warp, rings.items, item_at);
    if (!warp.has_tile(item)) break;
    for (int j = 0; j < warp.steps(item); ++j) lay_out(warp, rings.tiles, at, true);
    if (warp.steps(item) == 0) lay_out(warp, rings.tiles, at, false);
    release(warp, rings.items, item_at);
  }
  for (int stage = 0; stage < rings.tiles.stages; ++stage, ++at.passed) wait_free(warp, rings.tiles, at);
}

/// The warp that keeps the sums for dQ: it says of each item that they are clear, and counts the items that all roles
/// are done with, one late.
template <class Actor>
WARPLOOM_HD constexpr void keep_sums(Actor& keeper, const BackwardRings& rings) {
  Cursor at, before;
  for (int item = 0;; ++item) {
    wait_full(keeper, rings.items, at);
    const bool is_end = !keeper.has_tile(item);
    if (!is_end) {
      keeper.arrive(rings.clear + at.slot, at.round);
      release(keeper, rings.items, at);
    }
    if (item > 0) {
      keeper.wait(rings.items.first_empty + before.slot, before.round);
      before.advance(rings.items);
    }
    if (is_end) break;
  }
}

/// The warp that adds the consumers' dQ to the sums, in its turn among the CTAs.
template <class Actor>
WARPLOOM_HD constexpr void add_staged(Actor& adder, const BackwardRings& rings) {
  const StagedSums& staged = rings.staged;
  Cursor at;
  int step = 0;
  for (int item = 0;; ++item) {
    wait_full(adder, rings.items, at);
    if (!adder.has_tile(item)) break;
    for (int j = 0; j < adder.steps(item); ++j, ++step) {
      adder.wait(staged.full, step);
      for (int part = 0; part < staged.parts; ++part) adder.read_begin(staged.first_part + part, step);
      for (int part = 0; part < staged.parts; ++part) adder.read_end(staged.first_part + part, step);
      adder.arrive(staged.empty, step);
    }
    release(adder, rings.items, at);
  }
}

/// Who beside scheduler, loader and consumers reads items. writers: the clearer and the storer of a gradient; adder: of
/// sums in order, and the keeper.
enum class Others { none, writers, keeper, adder, tables };

WARPLOOM_HD constexpr Protocol describe_backward(const Sizes& n, Others others, bool overlaps, bool in_turns) {
  const bool in_order = others == Others::adder;
  Protocol p(n);
  BackwardRings rings;
  rings.overlaps = overlaps;
  if (in_turns) rings.turns = add_turns(p, n.consumers, kFirstBackwardTurnId);
  const bool two_more = others == Others::writers || in_order;
  const int readers = n.consumers + 1 + (others == Others::none ? 0 : two_more ? 2 : 1);
  rings.items = add_ring(p, "item", "item_full", "item_empty", 2, readers);
  rings.keys = add_ring(p, "KV", "KV_full", "KV_empty", 1, n.consumers);
  rings.tiles = add_tile_ring(p, n.stages, n.consumers, others == Others::tables);
  rings.request = p.num_mbarriers;
  p.add_mbarrier({"request"}, 1);
  if (others == Others::keeper || in_order) {
    rings.clear = p.num_mbarriers;
    for (int slot = 0; slot < rings.items.stages; ++slot) p.add_mbarrier({"clear", slot}, 1);
  }
  rings.scores = add_score_ring(p, n.consumers, others == Others::writers);
  if (in_order) rings.staged = add_staged_sums(p, n.consumers);
  Recorder scheduler = p.add_role({"scheduler"}, kWarp);
  schedule_backward(scheduler, rings);
  Recorder loader = p.add_role({"loader"}, kWarp);
  load_backward(loader, rings);
  if (others == Others::writers) {
    Recorder clearer = p.add_role({"clearer"}, kWarp);
    clear_gradient(clearer, rings);
    Recorder storer = p.add_role({"storer"}, kWarp);
    store_gradient(storer, rings);
  } else if (others == Others::tables) {
    Recorder tables = p.add_role({"tables"}, kWarp);
    lay_out_tables(tables, rings);
  } else if (rings.clear >= 0) {
    Recorder keeper = p.add_role({"keeper"}, kWarp);
    keep_sums(keeper, rings);
  }
  if (in_order) {
    Recorder adder = p.add_role({"adder"}, kWarp);
    add_staged(adder, rings);
  }
  if (in_order) {
    Recorder adder = p.add_role({"adder"}, kWarp);
    add_staged(adder, rings);
  }
  for (int c = 0; c < n.consumers; ++c) {
    Recorder consumer = p.add_role({"consumer", c}, kWarpgroup);
    consume_backward(consumer, rings, c);
  }
  return p;
}

/// dQ's sums cleared and converted beside the products.
WARPLOOM_HD constexpr Protocol hopper_backward(const Sizes& n) {
  return describe_backward(n, Others::keeper, /*overlaps=*/true, /*in_turns=*/false);
}

/// Tiles of 128 queries.
WARPLOOM_HD constexpr Protocol hopper_backward_turns(const Sizes& n) {
  return describe_backward(n, Others::keeper, /*overlaps=*/true, /*in_turns=*/true);
}

/// The same, deterministic: a warp adds dQ, which the consumers leave in shared memory, in the order of the keys.
WARPLOOM_HD constexpr Protocol hopper_backward_ordered(const Sizes& n) {
  return describe_backward(n, Others::adder, /*overlaps=*/true, /*in_turns=*/true);
}

/// float16.
WARPLOOM_HD constexpr Protocol hopper_backward_one_by_one(const Sizes& n) {
  return describe_backward(n, Others::keeper, /*overlaps=*/false, /*in_turns=*/false);
}

/// The sums cleared before the kernel: beside a bias without a gradient.
WARPLOOM_HD constexpr Protocol hopper_backward_cleared(const Sizes& n) {
  return describe_backward(n, Others::none, /*overlaps=*/true, /*in_turns=*/false);
}

/// With a bias and its gradient: R comes with its tile of Q and dO, and dS, which is the gradient's too, is stored by
/// TMA from where dQ reads it, before the score tile is released.
WARPLOOM_HD constexpr Protocol hopper_backward_bias(const Sizes& n) {
  return describe_backward(n, Others::writers, /*overlaps=*/true, /*in_turns=*/false);
}

/// With a bucketed bias: what a tile needs of its tables is laid out by a warp that fills a part of the tile's stage.
WARPLOOM_HD constexpr Protocol hopper_backward_tables(const Sizes& n) {
  return describe_backward(n, Others::tables, /*overlaps=*/true, /*in_turns=*/false);
}

}  // namespace warploom::pipeline
