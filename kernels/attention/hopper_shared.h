// What the roles of the Hopper forward kernel share: its types under kConfig, which stands in front of this file, and
// the CTA's shared memory.
#pragma once

#include "attention/bias_rows.h"
#include "attention/hopper_forward_config.h"
#include "attention/hopper_rows.h"
#include "attention/work.h"
#include "geometry/mask.h"
#include "pipeline/mbarrier_ring.h"
#include "pipeline/trace.h"
#include "ptx/shared_memory.h"

namespace warploom {

using geometry::Interval;
using ptx::uint32;
using trace::Mark;

using Element = Either<kConfig.bfloat16, ptx::Bfloat16, ptx::Float16>::Type;
/// HSTU: tanh first (hopper_rows.h). Copied rows gain nothing by it and lack the registers.
constexpr bool kTanhFirst =
    kConfig.bfloat16 && (kConfig.bias == HopperBias::tensor_map || kConfig.bias == HopperBias::bucketed);
/// The score function.
using Rows = Either<kConfig.score == ScoreKind::softmax, SoftmaxRows<kConfig.softcap, kConfig.bias != HopperBias::none>,
                    HstuRows<kConfig.bfloat16, kConfig.scaled_query, kTanhFirst>>::Type;

constexpr HopperForwardSharedMap kMap = shared_map(kConfig);
constexpr int kWarpgroup = 128;
constexpr int kThreads = (kConfig.consumers + 1) * kWarpgroup;
constexpr int kQueryRows = kConfig.consumers * kWarpgroupRows;
constexpr int kKeys = kConfig.key_columns;
constexpr int kDepth = (kConfig.head_dim + 15) / 16;  // k16 of S
constexpr int kWarpRows = 16;
/// Whether a step that may end an item waits for its product with V before it turns the next scores into P. With two
/// consumers the tensor core would idle meanwhile; more of them lack the registers for both, and so do lists of
/// intervals or wide tiles of HSTU beside float16's exponents, and wide heads of softmax beside a computed bias.
constexpr bool kEndsItemFirst = kConfig.consumers > 2 ||
                                (kConfig.score == ScoreKind::softmax && kConfig.bias == HopperBias::bucketed &&
                                 kConfig.query_stages == 1) ||
                                (!kConfig.bfloat16 &&
                                 (kConfig.interval_mask || (kConfig.score == ScoreKind::silu && kKeys == 128)));
constexpr bool kBiased = kConfig.bias != HopperBias::none;
constexpr bool kMappedBias = kConfig.bias == HopperBias::tensor_map;
constexpr bool kCopiedBias = is_copied(kConfig.bias);
constexpr bool kBucketed = kConfig.bias == HopperBias::bucketed;
constexpr bool kFloatBias = kConfig.bias == HopperBias::float_rows;
/// Copied rows may begin between two multiples of 16 bytes.
constexpr bool kShiftedBias = kFloatBias || kConfig.bias == HopperBias::shifted_rows;
/// A consumer's arrivals on a key tile: its elected thread's, or its warps', which read R by themselves.
constexpr int kKeyReleases = kBiased ? 4 : 1;
static_assert(!kBiased || (!kConfig.interval_mask && !kConfig.softcap));
/// Warps of the producer that bring R, and their arrivals on a key tile: what is copied arrives by itself, lane by
/// lane.
constexpr int kBiasWarps = kBucketed ? kBucketedWarps : kCopiedBias ? kCopyingWarps : 0;
constexpr int kBiasPublications = kBucketed ? 1 : 32 * kBiasWarps;
constexpr int kPanelValues = geometry::kPanelColumns;
static_assert(kKeys % 16 == 0 && kKeys <= 256 && kConfig.consumers >= 1 && kConfig.consumers <= kMaxConsumers);

/// A warp's rows of copied R.
using BiasTile = RowsTile<Element, kFloatBias, kWarpRows, kCopiedBias ? kKeys : kPanelValues>;

/// What the scheduler hands to the loader and the consumers.
struct Item {
  Work work;
  int sequence, first_key, key_head;       // where K and V begin in their tensor maps
  bool is_end;                             // no item: everybody stops
  int tiles;                               // of keys that it sees, about
  int bias_row, bias_head, bias_sequence;  // where a dense bias begins in its tensor map
  // Sequence masks: the columns that the rows see, the first run of tiles of them, and the columns that some and that
  // all of a consumer's rows see.
  geometry::Ranges ranges;
  Interval first_run;
  Interval seen[kMaxConsumers], common[kMaxConsumers];
  // Copied rows of R: bytes by which the first one begins after a multiple of 16, and by how much a row moves that.
  int bias_shift, bias_row_shift;
};
static_assert(sizeof(Item) <= kMap.item_bytes);

using ItemRing = pipeline::MbarrierRing<kItemSlots>;
using QueryRing = pipeline::MbarrierRing<kConfig.query_stages>;
using KeyRing = pipeline::MbarrierRing<kConfig.stages>;

/// The CTA's shared memory.
struct Shared {
  unsigned char* bytes;
  uint32 address;
  ItemRing items;
  QueryRing queries;
  KeyRing keys, values;
  uint32 begun_barriers;

  __device__ __forceinline__ explicit Shared(unsigned char* dynamic)
      : bytes(dynamic),
        address(ptx::shared_address(dynamic)),
        items{address + kMap.barriers},
        queries{items.barriers + ItemRing::kBytes},
        keys{queries.barriers + QueryRing::kBytes},
        values{keys.barriers + KeyRing::kBytes},
        begun_barriers(values.barriers + KeyRing::kBytes) {}

  /// Barrier of an item slot: the loader has come to the item.
  __device__ __forceinline__ uint32 begun(int slot) const { return begun_barriers + slot * ItemRing::kBarrierBytes; }
  __device__ __forceinline__ Item& item(int slot) const {
    return *reinterpret_cast<Item*>(bytes + kMap.items + slot * kMap.item_bytes);
  }
  /// What row `row` of the item in a slot sees.
  __device__ __forceinline__ geometry::VisibleColumns& row(int slot, int row) const {
    return reinterpret_cast<geometry::VisibleColumns*>(bytes + kMap.rows)[slot * kQueryRows + row];
  }
  __device__ __forceinline__ volatile KeyTileNote& note(int stage) const {
    return reinterpret_cast<volatile KeyTileNote*>(bytes + kMap.notes)[stage];
  }
  __device__ __forceinline__ uint32 query(int stage, int consumer) const {
    return address + kMap.query + (stage * kConfig.consumers + consumer) * kMap.query_bytes;
  }
  __device__ __forceinline__ uint32 bias(int stage, int consumer) const {
    return address + kMap.bias + (stage * kConfig.consumers + consumer) * kMap.bias_bytes;
  }
  /// Where the rows lie that one of the warps copies.
  __device__ __forceinline__ BiasRows& bias_rows(int warp) const {
    static_assert(sizeof(BiasRows) <= kBiasRowsBytes);
    return *reinterpret_cast<BiasRows*>(bytes + kMap.bias_tables + warp * kBiasRowsBytes);
  }
  /// Where a consumer's warp puts 16 rows of 64 columns of O on their way out.
  __device__ __forceinline__ uint32 staging(int consumer, int warp) const {
    return address + kMap.output + (consumer * 4 + warp) * kWarpRows * geometry::kPanelRowBytes;
  }
  __device__ __forceinline__ uint32 key(int stage) const { return address + kMap.key + stage * kMap.key_bytes; }
  __device__ __forceinline__ uint32 value(int stage) const { return address + kMap.value + stage * kMap.value_bytes; }
};

}  // namespace warploom
