// What the roles of the Hopper kernel for dK and dV share: its types under kConfig, which stands in front of this file,
// the CTA's shared memory, and the mask from the side of the keys.
#pragma once

#include "attention/bias_rows.h"
#include "attention/hopper_backward_keys_config.h"
#include "attention/hopper_items.h"
#include "attention/hopper_key_masking.h"
#include "attention/hopper_tiles.h"
#include "attention/visibility.h"
#include "attention/work.h"
#include "pipeline/mbarrier_ring.h"
#include "ptx/registers.h"

namespace warploom {

using geometry::Interval;
using trace::Mark;
using Element = ptx::ElementOf<kConfig.bfloat16>;

constexpr HopperBackwardKeysSharedMap kMap = shared_map(kConfig);
constexpr int kConsumers = 2;  // warpgroup 0 sums dV, warpgroup 1 dK
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kKeys = kBackwardKeyRows, kQueries = kConfig.query_rows;  // of a tile

/// What the scheduler hands to the loaders and the consumers: a tile of keys.
struct Item {
  Work work;
  int sequence, first_query, first_key;  // where Q and K begin in their tensor maps
  bool is_end;                           // no item: everybody stops
  geometry::Ranges queries;              // sequence masks: the query rows that see a key
  long long packed_first;                // stored_bias: where the sequence begins in a packed one, in elements,
  int rows_of_bias;                      // and its rows
};
static_assert(sizeof(Item) <= kMap.item_bytes);

constexpr int kBiasElementBytes = 2;
constexpr bool kGradientRows = true, kClearsChunks = true;
constexpr int kClearingWarps = 1 + kConsumers * kWarpgroup / 32;
/// Where a query tile's part of a stored bias and of its gradient lie, from the item's first key on.
struct BiasPlace {
  RowsPart values, gradient;
};
static_assert(sizeof(BiasPlace) <= kMap.bias_place_bytes && kMap.biases % 8 == 0);

using ItemRing = pipeline::MbarrierRing<kMap.item_slots>;
using ResidentRing = pipeline::MbarrierRing<1>;
using TileRing = pipeline::MbarrierRing<kConfig.stages>;

/// The CTA's shared memory. Ring 0 has Q tiles, ring 1 dO tiles.
struct Shared {
  using ItemCursor = ItemRing::Cursor;
  unsigned char* bytes;
  uint32 address;
  ItemRing items;
  ResidentRing residents[kConsumers];
  TileRing tiles[kConsumers];
  uint32 request;  // barrier: the first loader has come to the last item

  __device__ __forceinline__ explicit Shared(unsigned char* dynamic)
      : bytes(dynamic),
        address(ptx::shared_address(dynamic)),
        items{address + kMap.barriers},
        residents{{items.barriers + ItemRing::kBytes}, {items.barriers + ItemRing::kBytes + ResidentRing::kBytes}},
        tiles{{residents[1].barriers + ResidentRing::kBytes},
              {residents[1].barriers + ResidentRing::kBytes + TileRing::kBytes}},
        request(tiles[1].barriers + TileRing::kBytes) {}

  __device__ __forceinline__ Item& item(int slot) const {
    return *reinterpret_cast<Item*>(bytes + kMap.items + slot * kMap.item_bytes);
  }
  __device__ __forceinline__ volatile QueryTilePlace& note(int side, int stage) const {
    return reinterpret_cast<volatile QueryTilePlace*>(bytes + kMap.notes)[side * kConfig.stages + stage];
  }
  __device__ __forceinline__ BiasPlace& bias_place(int stage) const {
    return *reinterpret_cast<BiasPlace*>(bytes + kMap.biases + stage * kMap.bias_place_bytes);
  }
  /// One float a row: softmax's lse (side 0) or delta (side 1); HSTU's divisor.
  __device__ __forceinline__ uint32 terms(int side, int stage) const {
    return address + kMap.terms + (side * kConfig.stages + stage) * kMap.terms_bytes;
  }
  /// K, V.
  __device__ __forceinline__ uint32 resident(int side) const { return address + (side == 0 ? kMap.key : kMap.value); }
  /// Q, dO.
  __device__ __forceinline__ uint32 tile(int side, int stage) const {
    return address + (side == 0 ? kMap.query + stage * kMap.query_bytes : kMap.dout + stage * kMap.dout_bytes);
  }
  /// P^T or dS^T that consumer `side` hands to the other one, keys along the rows.
  __device__ __forceinline__ uint32 handoff(int side) const {
    return address + kMap.handoff + side * kMap.handoff_bytes;
  }
  /// float16: by which power of two this thread's warp, of consumer `side`, has divided it.
  __device__ __forceinline__ volatile int& exponent(int side) const {
    return reinterpret_cast<volatile int*>(bytes +
                                           kMap.exponents)[side * (kWarpgroup / 32) + threadIdx.x % kWarpgroup / 32];
  }
};

using Masking = KeyMasking<kConfig.interval_mask, kKeys, kQueries>;

/// Of a thread's scores of a tile, S^T, the ones whose query does not see the key: bit 4 n + 2 half + j. All lanes of a
/// warp: each speaks for two queries, whose bits the others fetch.
__device__ __forceinline__ uint32 hidden_scores(const AttentionCall& call, const Work& work, int head,
                                                int first_query) {
  const int lane = ptx::lane_id();  // opaque, or what follows from it would be kept through the main loop
  const int first_key = static_cast<int>(work.first_row) + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16;
  uint32 keys = 0;  // of query `lane`, and 16 bits further of query `lane` + 32
#pragma unroll 1
  for (int word = 0; word < 2; ++word) {
    const int query = first_query + word * 32 + lane;
    if (query < work.mask.seqlen_q) {
      keys |= (Masking::row(call, work, head, query).bits(first_key) & 0xffffu) << (16 * word);
    }
  }
  uint32 hidden = 0;
#pragma unroll 1  // or all of it at once takes registers
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32 unseen = ~__shfl_sync(kAllLanes, keys, 8 * n + lane % 4 * 2 + j) >> (lane / 4);
      // Keys lane / 4 and 8 further, of the query and of that 32 further.
      const uint32 bits = (unseen & 1) | (unseen >> 8 & 1) << 2 | (unseen >> 16 & 1) << 16 | (unseen >> 24 & 1) << 18;
      hidden |= bits << (4 * n + j);
    }
  }
  return hidden;
}

}  // namespace warploom
