// What the roles of the Hopper backward kernel with two CTAs a work item share: its types under kConfig, which stands
// in front of this file, the CTA's shared memory, and the mask from the side of the keys.
#pragma once

#include "attention/hopper_backward_pair_config.h"
#include "attention/hopper_items.h"
#include "attention/hopper_key_masking.h"
#include "attention/hopper_tiles.h"
#include "attention/visibility.h"
#include "attention/work.h"
#include "pipeline/mbarrier_ring.h"
#include "pipeline/trace.h"
#include "ptx/cluster.h"
#include "ptx/registers.h"

namespace warploom {

using geometry::Interval;
using trace::Mark;
using Element = ptx::Bfloat16;

constexpr HopperBackwardPairSharedMap kMap = shared_map(kConfig);
constexpr int kConsumers = 2;  // warpgroup 0: scores and dV; warpgroup 1: dK and dQ
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kKeys = kPairKeyRows, kQueries = kPairQueryRows;  // of a CTA, of a tile
constexpr int kItemKeys = kClusterCtas * kKeys;
constexpr int kRowBytes = geometry::kPanelRowBytes;
constexpr int kKeyPanels = geometry::panels_of(kConfig.head_dim), kValuePanels = geometry::panels_of(kConfig.value_dim);

/// The panels of the head that CTA `rank` sums dQ for: of four two; of three the outer one, and half of the middle one.
__device__ __forceinline__ int sum_panel(uint32 rank, int n) {
  const int side = static_cast<int>(rank);
  if constexpr (kKeyPanels == 4) return 2 * side + n;
  return n == 0 ? 2 * side : 1;
}

/// What the scheduler hands to the loaders and the consumers: the keys of both CTAs.
struct Item {
  Work work;  // head: of K and V; first_row: of the first CTA
  int sequence;
  bool is_end;
  geometry::Ranges queries;  // sequence masks: the query rows that see a key of either CTA
};
static_assert(sizeof(Item) <= kMap.item_bytes);

using ItemRing = pipeline::MbarrierRing<kMap.item_slots>;
using ResidentRing = pipeline::MbarrierRing<1>;
using QueryRing = pipeline::MbarrierRing<kConfig.stages>;
using DoutRing = pipeline::MbarrierRing<kConfig.dout_stages>;
template <int Side>
struct RingOf {
  using Type = QueryRing;
};
template <>
struct RingOf<1> {
  using Type = DoutRing;
};

/// A stage of dS; both CTAs' halves of it are freed together.
struct SlopeStages {
  uint32 barriers;
  static constexpr int kBytes = 3 * 8 * kConfig.slope_stages;

  static __device__ __forceinline__ int slot(uint32 tile) { return static_cast<int>(tile % kConfig.slope_stages); }
  static __device__ __forceinline__ uint32 parity(uint32 tile) { return tile / kConfig.slope_stages & 1; }
  __device__ __forceinline__ uint32 own_full(uint32 tile) const { return barriers + slot(tile) * 8; }
  __device__ __forceinline__ uint32 other_full(uint32 tile) const {
    return barriers + (kConfig.slope_stages + slot(tile)) * 8;
  }
  __device__ __forceinline__ uint32 empty(uint32 tile) const {
    return barriers + (2 * kConfig.slope_stages + slot(tile)) * 8;
  }
  __device__ __forceinline__ void init(uint32 own_writers, uint32 readers) const {
    for (uint32 slot = 0; slot < kConfig.slope_stages; ++slot) {
      ptx::mbarrier_init(own_full(slot), own_writers);
      ptx::mbarrier_init(other_full(slot), 1);
      ptx::mbarrier_init(empty(slot), readers);
    }
  }
};

/// The CTA's shared memory. Side 0 has K and the Q tiles, side 1 V and the dO tiles.
struct Shared {
  using ItemCursor = ItemRing::Cursor;
  unsigned char* bytes;
  uint32 address;
  uint32 rank;  // in the cluster
  ItemRing items;
  ResidentRing residents[2];
  QueryRing queries;
  DoutRing douts;
  SlopeStages slopes;
  uint32 request;  // barrier: the first loader has come to the last item
  uint32 mail_full, mail_empty;

  __device__ __forceinline__ explicit Shared(unsigned char* dynamic)
      : bytes(dynamic),
        address(ptx::shared_address(dynamic)),
        rank(ptx::cluster_rank()),
        items{address + kMap.barriers},
        residents{{items.barriers + ItemRing::kBytes}, {items.barriers + ItemRing::kBytes + ResidentRing::kBytes}},
        queries{residents[1].barriers + ResidentRing::kBytes},
        douts{queries.barriers + QueryRing::kBytes},
        slopes{douts.barriers + DoutRing::kBytes},
        request(slopes.barriers + SlopeStages::kBytes),
        mail_full(request + 8),
        mail_empty(request + 16) {}

  template <int Side>
  __device__ __forceinline__ const typename RingOf<Side>::Type& tiles() const {
    if constexpr (Side == 0) {
      return queries;
    } else {
      return douts;
    }
  }

  __device__ __forceinline__ uint32 peer() const { return rank ^ 1; }
  __device__ __forceinline__ Item& item(int slot) const {
    return *reinterpret_cast<Item*>(bytes + kMap.items + slot * kMap.item_bytes);
  }
  /// The next item's number for the other CTA, and from it.
  __device__ __forceinline__ volatile unsigned& outgoing() const {
    return *reinterpret_cast<volatile unsigned*>(bytes + kMap.mail);
  }
  __device__ __forceinline__ volatile unsigned& incoming() const {
    return *reinterpret_cast<volatile unsigned*>(bytes + kMap.mail + kMap.letter_bytes);
  }
  __device__ __forceinline__ volatile PairTileNote& note(int stage) const {
    return reinterpret_cast<volatile PairTileNote*>(bytes + kMap.notes)[stage];
  }
  __device__ __forceinline__ float* row_terms(int stage) const {
    return reinterpret_cast<float*>(bytes + kMap.row_terms + stage * kMap.row_terms_bytes);
  }
  __device__ __forceinline__ uint32* visible(int stage) const {
    return reinterpret_cast<uint32*>(bytes + kMap.visible + stage * kMap.visible_bytes);
  }
  __device__ __forceinline__ uint32 key() const { return address + kMap.key; }
  __device__ __forceinline__ uint32 value() const { return address + kMap.value; }
  __device__ __forceinline__ uint32 other_key() const { return address + kMap.other_key; }
  __device__ __forceinline__ uint32 query(int stage) const { return address + kMap.query + stage * kMap.query_bytes; }
  __device__ __forceinline__ uint32 dout(int stage) const { return address + kMap.dout + stage * kMap.dout_bytes; }
  __device__ __forceinline__ uint32 own_slopes(uint32 tile) const {
    return address + kMap.slopes + SlopeStages::slot(tile) * (2 * kMap.slope_bytes);
  }
  __device__ __forceinline__ uint32 other_slopes(uint32 tile) const { return own_slopes(tile) + kMap.slope_bytes; }

  /// The first of this CTA's keys, and of the other's, in the sequence.
  __device__ __forceinline__ int first_key(const Item& item) const {
    return static_cast<int>(item.work.first_row) + static_cast<int>(rank) * kKeys;
  }
  __device__ __forceinline__ int other_first_key(const Item& item) const {
    return static_cast<int>(item.work.first_row) + static_cast<int>(peer()) * kKeys;
  }
};

/// One arrival on a barrier of this CTA, and on that of the other at the same place.
__device__ __forceinline__ void arrive_on_both(uint32 barrier, uint32 peer) {
  ptx::mbarrier_arrive(barrier);
  ptx::mbarrier_arrive_remote(barrier, peer);
}

using Masking = KeyMasking<kConfig.interval_mask, kItemKeys, kQueries>;

}  // namespace warploom
