// What the roles of a Hopper backward kernel over tiles of keys share: its types under kConfig, a HopperBackwardConfig
// which stands in front of this file, and the CTA's shared memory.
#pragma once

#include "attention/hopper_backward_config.h"
#include "attention/work.h"
#include "geometry/mask.h"
#include "pipeline/mbarrier_ring.h"
#include "pipeline/trace.h"
#include "pipeline/turns.h"
#include "ptx/named_barrier.h"
#include "ptx/shared_memory.h"

namespace warploom {

using geometry::Interval;
using ptx::uint32;
using trace::Mark;
using Element = ptx::ElementOf<kConfig.bfloat16>;

constexpr HopperBackwardSharedMap kMap = shared_map(kConfig);
constexpr int kWarpgroup = 128;
constexpr int kThreads = (kConfig.consumers + 1) * kWarpgroup;
constexpr int kKeys = kConfig.key_rows;
constexpr int kQueries = kConfig.query_rows;
constexpr int kDepth = (kConfig.head_dim + 15) / 16;        // k16 of S
constexpr int kValueDepth = (kConfig.value_dim + 15) / 16;  // k16 of dP
constexpr int kRowBytes = geometry::kPanelRowBytes;

/// What the scheduler hands to the loader and the consumers.
struct Item {
  Work work;                // head: of K and V
  int sequence;             // of the tensor maps
  bool is_end;              // no item: everybody stops
  geometry::Ranges seeing;  // sequence masks: the query rows that see a key
  long long packed_first;   // bias_rows, gradient_rows: where the sequence begins in a packed bias, in elements,
  int rows_of_bias;         // and its rows
  int context_tiles;        // orders_sums: tiles of queries in front that see a key by rows of contexts
};
static_assert(sizeof(Item) <= kMap.item_bytes && sizeof(Work) == kWorkBytes && kMap.work_bytes == kWorkBytes);

using ItemRing = pipeline::MbarrierRing<kBackwardItemSlots>;
constexpr int kKeySlots = key_slots(kConfig), kKeySlotBytes = kKeySlots == 1 ? 0 : (kMap.query - kMap.key) / kKeySlots;
using KeyRing = pipeline::MbarrierRing<kKeySlots>;
using TileRing = pipeline::MbarrierRing<kConfig.stages>;
using ScoreRing = pipeline::MbarrierRing<2>;
using SumsRing = pipeline::MbarrierRing<1>;

/// The CTA's shared memory.
struct Shared {
  unsigned char* bytes;
  uint32 address;
  ItemRing items;
  KeyRing keys;      // K and V
  TileRing tiles;    // Q and dO with their notes; stages are released by named barriers
  ScoreRing scores;  // the score tiles
  uint32 request;    // barrier: the loader has come to the last item
  uint32 landing;    // barrier: of loads that the loader itself waits for
  uint32 clear;      // clears_sums, a barrier an item slot: the sums that the item adds to are clear
  SumsRing staged;   // orders_sums: a tile's dQ from the consumers

  __device__ __forceinline__ explicit Shared(unsigned char* dynamic)
      : bytes(dynamic),
        address(ptx::shared_address(dynamic)),
        items{address + kMap.barriers},
        keys{items.barriers + ItemRing::kBytes},
        tiles{keys.barriers + KeyRing::kBytes},
        scores{tiles.barriers + TileRing::kBytes},
        request(scores.barriers + ScoreRing::kBytes),
        landing(request + kMap.barrier_bytes),
        clear(landing + kMap.barrier_bytes),
        staged{clear + (kConfig.clears_sums ? kBackwardItemSlots : 0) * kMap.barrier_bytes} {}

  __device__ __forceinline__ uint32 clear_of(int item_slot) const { return clear + item_slot * kMap.barrier_bytes; }

  __device__ __forceinline__ Item& item(int slot) const {
    return *reinterpret_cast<Item*>(bytes + kMap.items + slot * kMap.item_bytes);
  }
  __device__ __forceinline__ volatile QueryTileNote& note(int stage) const {
    return reinterpret_cast<volatile QueryTileNote*>(bytes + kMap.notes)[stage];
  }
  __device__ __forceinline__ float* row_terms(int stage) const {
    return reinterpret_cast<float*>(bytes + kMap.row_terms + stage * kMap.row_terms_bytes);
  }
  __device__ __forceinline__ uint32* visible(int stage) const {
    return reinterpret_cast<uint32*>(bytes + kMap.visible + stage * kMap.visible_bytes);
  }
  /// float16: of a warp (counted over the consumers).
  __device__ __forceinline__ volatile int& exponent(int buffer, int warp) const {
    return reinterpret_cast<volatile int*>(bytes + kMap.exponents)[buffer * 4 * kConfig.consumers + warp];
  }
  __device__ __forceinline__ volatile BiasTileNote& bias_note(int stage) const {
    return reinterpret_cast<volatile BiasTileNote*>(bytes + kMap.bias_notes)[stage];
  }
  __device__ __forceinline__ volatile int& bias_shift(int stage) const {
    return reinterpret_cast<volatile int*>(bytes + kMap.bias_shifts)[stage];
  }
  /// converts_sums: a tile of dQ's sums, and what it belongs to.
  __device__ __forceinline__ uint32 sums() const { return address + kMap.sums; }
  __device__ __forceinline__ Work& converted() const { return *reinterpret_cast<Work*>(bytes + kMap.converted); }
  __device__ __forceinline__ uint32 key(int slot = 0) const { return address + kMap.key + slot * kKeySlotBytes; }
  __device__ __forceinline__ uint32 value(int slot = 0) const { return address + kMap.value + slot * kKeySlotBytes; }
  __device__ __forceinline__ uint32 query(int stage) const { return address + kMap.query + stage * kMap.query_bytes; }
  __device__ __forceinline__ uint32 dout(int stage) const { return address + kMap.dout + stage * kMap.dout_bytes; }
  __device__ __forceinline__ uint32 score_tile(int buffer) const {
    return address + kMap.scores + buffer * kMap.score_bytes;
  }
  __device__ __forceinline__ uint32 bias(int stage) const { return address + kMap.bias + stage * kMap.bias_bytes; }
};

/// A consumer's warp has read a stage; the loader, and who lays out tables, wait until all have.
constexpr int kFreeThreads = kThreads - kWarpgroup + 32 * (1 + kConfig.table_bias);
__device__ __forceinline__ void free_barrier_arrive(int stage) {
  ptx::named_barrier_arrive(pipeline::kFirstStageId + stage, kFreeThreads);
}
__device__ __forceinline__ void free_barrier_sync(int stage) {
  ptx::named_barrier_sync(pipeline::kFirstStageId + stage, kFreeThreads);
}

}  // namespace warploom
