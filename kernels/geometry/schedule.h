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

  WARPLOOM_HD constexpr long long items() const { return static_cast<long long>(query_tiles) * sequences * heads; }

  /// Item `index`, 0 <= index < items() < 2^31 (a grid's limit): every item exactly once.
  WARPLOOM_HD constexpr WorkItem item(long long index) const {
    const long long pairs = static_cast<long long>(sequences) * heads;
    const long long group = index / (static_cast<long long>(pairs_in_group) * query_tiles);
    const long long first_pair = group * pairs_in_group;
    const int pairs_here = static_cast<int>(pairs - first_pair < pairs_in_group ? pairs - first_pair : pairs_in_group);
    const int inside = static_cast<int>(index - first_pair * query_tiles);
    const int turn = inside / pairs_here;
    const long long pair = first_pair + inside % pairs_here;
    const int last_first = query_tiles - 1 - turn;
    const int tile = first_tile_is_long ? (turn == 0 ? 0 : last_first + 1) : last_first;
    return {tile, static_cast<int>(pair / heads), static_cast<int>(pair % heads)};
  }
};

}  // namespace warploom::geometry
