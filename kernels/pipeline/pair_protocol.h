// The protocol of the attention backward pass on Hopper with two CTAs a work item
// (kernels/attention/attention_backward_pair_hopper.cu): the tiles of queries, of which each CTA loads half for both,
// and dS, which the CTAs send each other. (Work items, K and V go as in `hopper-keys`, two_kernel_protocols.h, but for
// their number, which one scheduler tells the other.)
#pragma once

#include "pipeline/two_kernel_protocols.h"

namespace warploom::pipeline {

/// What a CTA has of it. A stage of tiles is two slots, one for each CTA that loads it.
struct PairCta {
  Ring tiles[2];           ///< Q, dO; the second half's slots follow the first's
  int own = 0, other = 0;  ///< slots: dS of this CTA's keys, and of the other's
  int own_full = 0, other_full = 0, slopes_empty = 0;
};

struct PairRings {
  PairCta ctas[2];

  WARPLOOM_HD constexpr int slot(int cta, int side, int half, const Cursor& at) const {
    const Ring& ring = ctas[cta].tiles[side];
    return ring.first_slot + half * ring.stages + at.slot;
  }
};

/// Half of each tile, to both CTAs.
template <class Actor>
WARPLOOM_HD constexpr void load_for_both(Actor& loader, const PairRings& rings, int cta) {
  Cursor at[2];
  for (int tile = 0; loader.has_tile(tile); ++tile) {
    for (int j = 0; j < loader.steps(tile); ++j) {
      for (int side = 0; side < 2; ++side) {
        const Ring& own = rings.ctas[cta].tiles[side];
        wait_empty(loader, own, at[side]);
        loader.expect(own.first_full + at[side].slot, at[side].round, 2);
        for (int to = 0; to < 2; ++to) {
          const Ring& ring = rings.ctas[to].tiles[side];
          loader.load(rings.slot(to, side, cta, at[side]), use_of(ring, at[side]), ring.first_full + at[side].slot,
                      at[side].round);
        }
        at[side].advance(own);
      }
    }
  }
}

/// Reads of a tile by one consumer.
template <class Actor>
struct PairTile {
  Actor& consumer;
  const PairRings& rings;
  const int cta, side;

  WARPLOOM_HD constexpr const Ring& ring() const { return rings.ctas[cta].tiles[side]; }
  WARPLOOM_HD constexpr void wait(const Cursor& at) { wait_full(consumer, ring(), at); }
  WARPLOOM_HD constexpr void begin(const Cursor& at) {
    for (int half = 0; half < 2; ++half) consumer.read_begin(rings.slot(cta, side, half, at), use_of(ring(), at));
  }
  WARPLOOM_HD constexpr void end(const Cursor& at) {
    for (int half = 0; half < 2; ++half) consumer.read_end_older(rings.slot(cta, side, half, at), use_of(ring(), at));
  }
  /// In both CTAs.
  WARPLOOM_HD constexpr void release(const Cursor& at) {
    for (const PairCta& each : rings.ctas) consumer.arrive(each.tiles[side].first_empty + at.slot, at.round);
  }
};

/// Scores and dV, whose product ends in the next step.
template <class Actor>
WARPLOOM_HD constexpr void score_pair(Actor& consumer, const PairRings& rings, int cta) {
  const PairCta &own = rings.ctas[cta], &other = rings.ctas[1 - cta];
  PairTile<Actor> queries{consumer, rings, cta, 0}, douts{consumer, rings, cta, 1};
  Cursor query_at, dout_at, before;
  int step = 0;
  for (int tile = 0; consumer.has_tile(tile); ++tile) {
    const int steps = consumer.steps(tile);
    for (int j = 0; j < steps; ++j) {
      queries.wait(query_at);
      queries.begin(query_at);
      douts.wait(dout_at);
      douts.begin(dout_at);
      if (j > 0) {
        douts.end(before);
        douts.release(before);
      }
      consumer.activate(j);
      queries.end(query_at);
      consumer.wait(own.slopes_empty, step - 1);
      consumer.write(own.own, step);
      consumer.load(other.other, step, other.other_full, step);
      consumer.arrive(own.own_full, step);
      before = dout_at;
      query_at.advance(queries.ring());
      dout_at.advance(douts.ring());
      ++step;
    }
    if (steps > 0) {
      douts.end(before);
      douts.release(before);
    }
    consumer.epilogue(tile);
  }
}

/// dK and dQ.
template <class Actor>
WARPLOOM_HD constexpr void sum_pair(Actor& consumer, const PairRings& rings, int cta) {
  const PairCta& own = rings.ctas[cta];
  PairTile<Actor> queries{consumer, rings, cta, 0};
  Cursor query_at;
  int step = 0;
  for (int tile = 0; consumer.has_tile(tile); ++tile) {
    for (int j = 0; j < consumer.steps(tile); ++j) {
      consumer.wait(own.own_full, step);
      queries.wait(query_at);
      consumer.expect(own.other_full, step, 1);
      consumer.read_begin(own.own, step);
      queries.begin(query_at);
      consumer.wait(own.other_full, step);
      consumer.read_begin(own.other, step);
      queries.end(query_at);
      queries.release(query_at);
      consumer.read_end(own.own, step);
      consumer.read_end(own.other, step);
      for (const PairCta& each : rings.ctas) consumer.arrive(each.slopes_empty, step);
      query_at.advance(queries.ring());
      ++step;
    }
    consumer.epilogue(tile);
  }
}

/// A stage has a slot for each half, both behind one full barrier; both CTAs' readers release it.
WARPLOOM_HD constexpr Ring add_pair_ring(Protocol& p, const char* slot, const char* full, const char* empty, int stages,
                                         int cta) {
  Ring ring{stages, p.num_slots, p.num_mbarriers, p.num_mbarriers + stages};
  for (int half = 0; half < 2; ++half) {
    for (int s = 0; s < stages; ++s) p.add_slot({slot, cta, half * stages + s});
  }
  for (int s = 0; s < stages; ++s) p.add_mbarrier({full, cta, s}, 1);
  for (int s = 0; s < stages; ++s) p.add_mbarrier({empty, cta, s}, 2);
  return ring;
}

WARPLOOM_HD constexpr Protocol hopper_pair(const Sizes& n) {
  Protocol p(n);
  PairRings rings;
  const int query_stages = n.stages < 3 ? n.stages : 3;
  for (int cta = 0; cta < 2; ++cta) {
    PairCta& each = rings.ctas[cta];
    each.tiles[0] = add_pair_ring(p, "Q", "Q_full", "Q_empty", query_stages, cta);
    each.tiles[1] = add_pair_ring(p, "dO", "dO_full", "dO_empty", 2, cta);
    each.own = p.add_slot({"dS", cta});
    each.other = p.add_slot({"other_dS", cta});
    each.own_full = p.add_mbarrier({"dS_full", cta}, 1);
    each.other_full = p.add_mbarrier({"other_dS_full", cta}, 1);
    each.slopes_empty = p.add_mbarrier({"dS_empty", cta}, 2);
  }
  for (int cta = 0; cta < 2; ++cta) {
    Recorder loader = p.add_role({"loader", cta}, kWarp);
    load_for_both(loader, rings, cta);
    Recorder scores = p.add_role({"scores", cta}, kWarpgroup);
    score_pair(scores, rings, cta);
    Recorder sums = p.add_role({"sums", cta}, kWarpgroup);
    sum_pair(sums, rings, cta);
  }
  return p;
}

}  // namespace warploom::pipeline
