// Turns: named barriers that make consumers use the tensor core one after the other (ping-pong), and the one table of
// named barrier ids. Consumer w waits in bar.sync of its own barrier; its predecessor does bar.arrive there.
#pragma once

#include "pipeline/protocol.h"

namespace warploom::pipeline {

/// Ids of named barriers. 0 is __syncthreads.
inline constexpr int kAllThreadsId = 0;
inline constexpr int kFirstTurnId = 1;
/// The warps that share keys in the backward kernel through mma.sync, one barrier a group; it has no turns.
inline constexpr int kFirstKeyGroupId = 1;
/// A stage of the Hopper backward kernel's tiles is free again.
inline constexpr int kFirstStageId = 1;
/// What consumers hand over in the kernel for dK and dV, likewise: full ones, then empty ones.
inline constexpr int kFirstHandoffFullId = 1;
inline constexpr int kFirstHandoffEmptyId = 3;
inline constexpr int kFirstWarpgroupId = 5;  ///< one a consumer, for its own 128 threads
/// The turns of the Hopper backward kernel, beside its stages.
inline constexpr int kFirstBackwardTurnId = 7;
inline constexpr int kBackwardEndId = 9;  ///< its consumers, whose shared memory is for other things now

struct Turns {
  int count = 0;  ///< consumers that take turns; with one there is nothing to order
  int first = 0;  ///< handle of consumer 0's barrier
};

WARPLOOM_HD constexpr Turns add_turns(Protocol& protocol, int consumers, int first_id = kFirstTurnId) {
  const Turns turns{consumers, protocol.num_named};
  for (int w = 0; consumers > 1 && w < consumers; ++w) {
    protocol.add_named_barrier({"turn", w}, 2 * kWarpgroup, first_id + w);
  }
  return turns;
}

template <class Actor>
WARPLOOM_HD constexpr void take_turn(Actor& consumer, const Turns& turns, int who) {
  if (turns.count > 1) consumer.sync(turns.first + who);
}

template <class Actor>
WARPLOOM_HD constexpr void pass_turn(Actor& consumer, const Turns& turns, int who) {
  if (turns.count > 1) consumer.signal(turns.first + (who + 1) % turns.count);
}

/// Before the first turn: the last consumer gives it to consumer 0.
template <class Actor>
WARPLOOM_HD constexpr void open_turns(Actor& consumer, const Turns& turns, int who) {
  if (who == turns.count - 1) pass_turn(consumer, turns, who);
}

/// After the last turn somebody is left with a turn that nobody wants: `next` takes it, so that the barriers end as
/// they began.
template <class Actor>
WARPLOOM_HD constexpr void close_turns(Actor& consumer, const Turns& turns, int who, int next) {
  if (who == next) take_turn(consumer, turns, who);
}

}  // namespace warploom::pipeline
