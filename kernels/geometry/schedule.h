// The order of work items: an output tile of one head of one sequence.
//
// CTAs start in the order of their index, so the longest items get the lowest ones and the short ones fill the tail.
// Under a causal mask the last query tile is the longest. Heads go in groups, so that the keys and values of the heads
// that run at one time stay in L2.
#pragma once

#include "geometry/host_device.h"

namespace warploom::geometry {

struct WorkItem {
  int query_tile = 0;
  int sequence = 0;
  int head = 0;
};

struct Schedule {
  int query_tiles = 0;  ///< of the longest sequence
  int sequences = 0;
  int heads = 0;
  int pairs_in_group = 1;           ///< (sequence, head) pairs that run side by side
  bool first_tile_is_long = false;  ///< context rows see the whole history: tile 0 goes first
  bool first_to_last = false;       ///< tiles of keys, whose first one is the longest

  WARPLOOM_HD constexpr long long items() const { return static_cast<long long>(query_tiles) * sequences * heads; }

  /// Item `index`, 0 <= index < items() < 2^31 (a grid's limit): every item exactly once.
  WARPLOOM_HD constexpr WorkItem item(long long index) const {
    // Nothing here passes the number of items, so 32-bit divisions do: a long one costs a hundred instructions.
    const unsigned pairs = static_cast<unsigned>(sequences) * static_cast<unsigned>(heads);
    const unsigned at = static_cast<unsigned>(index);
    const unsigned tiles = static_cast<unsigned>(query_tiles), group_size = static_cast<unsigned>(pairs_in_group);
    const unsigned first_pair = at / (group_size * tiles) * group_size;
    const unsigned pairs_here = pairs - first_pair < group_size ? pairs - first_pair : group_size;
    const unsigned inside = at - first_pair * tiles;
    const int turn = static_cast<int>(inside / pairs_here);
    const unsigned pair = first_pair + inside % pairs_here;
    const int last_first = query_tiles - 1 - turn;
    const int tile = first_to_last ? turn : first_tile_is_long ? (turn == 0 ? 0 : last_first + 1) : last_first;
    const unsigned sequence = pair / static_cast<unsigned>(heads);
    return {tile, static_cast<int>(sequence), static_cast<int>(pair - sequence * static_cast<unsigned>(heads))};
  }
};

}  // namespace warploom::geometry
