// A bucketed bias in the one-pass Hopper backward kernel, and the gradients of its tables.
//
// A warp of the producer lays out what a query tile needs: the window of the position table, the queries' times, and
// how a consumer's warp gets the buckets of its part's differences, as hopper_bucketed.h does for the forward kernel.
// Here keys stand along the rows and queries along the columns. A warp sums its dS by position along the diagonals of
// its part, through shared memory, and by bucket; sums are added in global memory, so their order is not fixed.
#pragma once

#include "attention/bias_time_cells.h"
#include "attention/hopper_backward_producer.h"
#include "attention/hopper_backward_scores.h"
#include "ptx/math.h"
#include "ptx/reduction.h"
#include "ptx/registers.h"

namespace warploom {

constexpr int kWarpKeys = 16, kPartWarps = kKeys / kWarpKeys;

/// What the keys of an item need. Values as they are added to scores.
struct alignas(16) KeyBuckets {
  float table[kMostTimes + 3];
  long long times[kKeys];
  long long earliest[kPartWarps], latest[kPartWarps];  ///< of a warp's keys
};

/// What a query tile needs. window[0][x] is that of the elements whose query, in key coordinates, lies x - (kKeys - 1)
/// behind their key, both counted from the first one's; window[1][x] is that of x + 1.
struct alignas(16) QueryBuckets {
  static constexpr int kDiagonals = kKeys + kQueries - 1;

  float window[2][window_pitch(kKeys, kQueries)];
  long long times[kQueries];
  int relative[kQueries];  ///< to the first query's, where that fits an int
  TimesSeen seen[kPartWarps];
  int first_query;  ///< in key coordinates
  int padding[3];
};

/// Where a warp sums dS.
struct alignas(16) TableSums {
  static constexpr int kBlocks = kQueries / 8 + 1;  // diagonals of blocks of 8 x 8
  static constexpr int kPadding = 8;
  static constexpr int kPitch = 8 * kBlocks + 2 * kPadding;  // 24 mod 32: four rows of pairs meet in no bank
  static constexpr int kBucketsAtOnce = 32;

  union {
    float rows[8][kPitch];            ///< along the diagonals of blocks, by the key within a block; 0 beside them
    float lanes[kBucketsAtOnce][32];  ///< a bucket's, a lane
    float2 values[kQueries / 4][32];  ///< R that has been looked up, of two neighbouring queries a lane
  };
  unsigned short buckets[kQueries / 4][32];  ///< and their buckets, 8 bits each
  float first[32], last[32];                 ///< a lane's sums of the position table's ends
  float times[4][32];                        ///< and of some buckets,
  int bucket[4];                             ///< these; each in the place of its number mod 4
};
static_assert(!kConfig.table_bias ||
              (sizeof(KeyBuckets) == key_buckets_bytes(kKeys) && sizeof(QueryBuckets) == kMap.table_tile_bytes &&
               sizeof(TableSums) == table_sums_bytes(kQueries)));

__device__ __forceinline__ KeyBuckets& key_buckets(const Shared& shared, int item_slot) {
  return *reinterpret_cast<KeyBuckets*>(shared.bytes + kMap.table_items +
                                        item_slot * static_cast<int>(sizeof(KeyBuckets)));
}
__device__ __forceinline__ QueryBuckets& query_buckets(const Shared& shared, int stage) {
  return *reinterpret_cast<QueryBuckets*>(shared.bytes + kMap.table_tiles + stage * kMap.table_tile_bytes);
}
__device__ __forceinline__ BucketedTables& bucketed_tables(const Shared& shared) {
  return *reinterpret_cast<BucketedTables*>(shared.bytes + kMap.tables);
}

/// A consumer warp's part of a tile: how its keys and the tile's queries meet the tables.
struct TablePart {
  const HopperBackwardParams& params;
  const Shared& shared;
  const int item_slot, stage;

  using Scores = TransposedScores<kQueries>;

  /// Adds R to the warp's scores (backward_score.h, BiasedScale). Returns whether some R is -inf, which hide() is for.
  __device__ __forceinline__ bool add_to(Scores& s) const {
    const TimesSeen seen = tile().seen[warp_of_part()];
    if ((seen & kLooksUpTimes) != 0) return look_up(s);
    const int low = seen & 0xff, high = seen >> 8 & 0xff;
    const bool later = (seen & kLaterColumns) != 0;
    const KeyBuckets& of_keys = keys();
    add_positions(s, of_keys.table[later ? high : low]);
#pragma unroll 1
    for (int bucket = low; bucket < high; ++bucket) {
      const float step = of_keys.table[bucket + 1] - of_keys.table[bucket], of_earlier = later ? -step : step;
      int until[2];
      limits_of(until, bucket, later);
      for_each_side(until, [&](int n, int i, int) { s[0][n][i] += of_earlier; }, [](int, int, int) {});
    }
    return false;
  }

  /// What R = -inf hides becomes 0; before put_diagonals.
  __device__ __forceinline__ void hide(Scores& s) const {
    for_each_hidden([&](int pair, int i) { s[0][pair / 2][pair % 2 * 2 + i] = 0; });
  }
  __device__ __forceinline__ void hide(PackedScores<kQueries>& packed) const {
    for_each_hidden([&](int pair, int i) { packed[pair / 4][pair % 4] &= i == 0 ? 0xffff0000u : 0x0000ffffu; });
  }

  /// A lane's sums along the diagonals of blocks, to shared memory. Returns the sum of all.
  __device__ __forceinline__ float put_diagonals(const Scores& ds) const {
    float sums[TableSums::kBlocks][2] = {};
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n - i / 2 + 1][i % 2] += ds[0][n][i];
    }
    const int lane = lane_id();
    float* const to = &own_sums().rows[lane / 4][TableSums::kPadding + lane % 4 * 2];
    float total = 0;
#pragma unroll
    for (int b = 0; b < TableSums::kBlocks; ++b) {
      *reinterpret_cast<float2*>(to + 8 * b) = float2{sums[b][0], sums[b][1]};
      total += sums[b][0] + sums[b][1];
    }
    return total;
  }

  /// After put_diagonals, which gave `total`: sums dS by bucket, and adds it in global memory where the bucket changes.
  __device__ __forceinline__ void take(const Scores& ds, float total) const {
    const BiasSums& sums = params.backward.bias_sums;
    const TimesSeen seen = tile().seen[warp_of_part()];
    if (sums.time_gradient != nullptr && (seen & kLooksUpTimes) == 0) add_times(ds, total, seen);
    if ((seen & kLooksUpTimes) != 0) {  // in the place of the diagonals
      __syncwarp();
      if (sums.time_gradient != nullptr) add_looked_up(ds, seen & 0xff, seen >> 8 & 0xff);
      clear_padding(own_sums());
      __syncwarp();
      put_diagonals(ds);
    }
    if (sums.position_gradient == nullptr) return;
    TableSums& own = own_sums();
    const int nearest = nearest_position();
    if (nearest + kPartDiagonals - 1 <= 0) {
      own.first[lane_id()] += total;
    } else if (nearest >= params.backward.call.bias.num_positions - 1) {
      own.last[lane_id()] += total;
    }
    __syncwarp();
  }

  /// After take: the eight lanes of each query of a block, where a diagonal runs from key to key one query further.
  __device__ __forceinline__ void add_positions_gradient() const {
    const BiasSums& sums = params.backward.bias_sums;
    if (sums.position_gradient == nullptr) return;
    const int nearest = nearest_position(), last = params.backward.call.bias.num_positions - 1;
    if (nearest + kPartDiagonals - 1 <= 0 || nearest >= last) return;
    TableSums& own = own_sums();
    const int lane = lane_id();
    float* const table = position_totals();
    const bool is_inner = nearest > 0 && nearest + kPartDiagonals <= last;
#pragma unroll
    for (int first = 0; first < kPartDiagonals; first += 32) {
      const int x = first + lane;
      if (kPartDiagonals - first < 32 && x >= kPartDiagonals) break;
      float total = 0;
#pragma unroll
      for (int r = 0; r < 8; ++r) total += own.rows[r][TableSums::kPadding - 7 + x + r];
      const int position = nearest + x;
      if (is_inner) {
        ptx::red_add(table + position, total);
      } else if (position <= 0) {
        own.first[lane] += total;
      } else if (position >= last) {
        own.last[lane] += total;
      } else if (total != 0) {
        ptx::red_add(table + position, total);
      }
    }
    __syncwarp();
  }

  /// Before the first tile of the kernel.
  __device__ __forceinline__ void clear() const {
    TableSums& own = own_sums();
    const int lane = lane_id();
    clear_padding(own);
    own.first[lane] = own.last[lane] = 0;
#pragma unroll
    for (int place = 0; place < 4; ++place) {
      own.times[place][lane] = 0;
      if (lane == 0) own.bucket[place] = place;
    }
    __syncwarp();
  }

  /// After an item's last tile: what is kept of it.
  __device__ __forceinline__ void flush() const {
    const BiasSums& sums = params.backward.bias_sums;
    TableSums& own = own_sums();
    if (sums.position_gradient != nullptr) {
      float* const table = position_totals();
      add_lanes(own.first, table);
      add_lanes(own.last, table + params.backward.call.bias.num_positions - 1);
    }
    if (sums.time_gradient != nullptr) {
#pragma unroll 1
      for (int place = 0; place < 4; ++place) add_lanes(own.times[place], time_totals() + own.bucket[place]);
    }
    __syncwarp();
  }

 private:
  static constexpr int kBeforeAll = -0x7fffffff - 1, kAfterAll = 0x7fffffff;  // of relative times
  static constexpr int kPartDiagonals = 8 * TableSums::kBlocks + 7;  // of the blocks that a warp's part lies in

  // Where registers are scarce asked for again and again, or they and addresses would be kept through the main loop.
  static constexpr bool kKeepsNothing = kConfig.head_dim > 64 || kConfig.value_dim > 64;
  static __device__ __forceinline__ unsigned thread() { return kKeepsNothing ? ptx::opaque(threadIdx.x) : threadIdx.x; }
  static __device__ __forceinline__ int lane_id() { return static_cast<int>(thread()) % 32; }
  /// The warp's first key in the item.
  static __device__ __forceinline__ int first_key() { return warp_of_part() * kWarpKeys; }
  static __device__ __forceinline__ int warp_of_part() { return static_cast<int>(thread()) / 32; }
  __device__ __forceinline__ const QueryBuckets& tile() const { return query_buckets(shared, stage); }
  __device__ __forceinline__ const KeyBuckets& keys() const { return key_buckets(shared, item_slot); }
  __device__ __forceinline__ const Work& work() const { return shared.item(item_slot).work; }
  __device__ __forceinline__ TableSums& own_sums() const {
    return *reinterpret_cast<TableSums*>(shared.bytes + kMap.table_sums +
                                         warp_of_part() * static_cast<int>(sizeof(TableSums)));
  }
  __device__ __forceinline__ float* position_totals() const {
    const BiasSums& sums = params.backward.bias_sums;
    return sums.totals + (sums.position_heads == 1 ? 0ll : 1ll * work().head * params.backward.call.bias.num_positions);
  }
  __device__ __forceinline__ float* time_totals() const {
    const BiasSums& sums = params.backward.bias_sums;
    return sums.totals + sums.position_totals +
           (sums.time_heads == 1 ? 0ll : 1ll * work().head * params.backward.call.bias.num_times);
  }
  /// The position of diagonal 0 of the warp's blocks.
  __device__ __forceinline__ int nearest_position() const {
    return tile().first_query - static_cast<int>(work().first_row) - first_key() - (kWarpKeys - 1);
  }

  __device__ __forceinline__ const float2* window() const {
    const int lane = lane_id(), diagonal = kKeys - 1 - first_key() - lane / 4 + lane % 4 * 2;
    return reinterpret_cast<const float2*>(&tile().window[diagonal % 2][diagonal / 2 * 2]);
  }
  __device__ __forceinline__ float biased(float score, float r) const {
    if constexpr (kConfig.scaled_key) return score + r;
    return fmaf(score, biased_scale<kConfig.softmax>(params.backward.call).of_score, r);
  }

  /// Positions, and one value for all times.
  __device__ __forceinline__ void add_positions(Scores& s, float time) const {
    const float2* const pairs = window();
    // Eight keys further down is eight queries to the left.
    float2 lower = {pairs[-4].x + time, pairs[-4].y + time};
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
      const float2 upper = {pairs[4 * n].x + time, pairs[4 * n].y + time};
      float(&c)[4] = s[0][n];
      c[0] = biased(c[0], upper.x);
      c[1] = biased(c[1], upper.y);
      c[2] = biased(c[2], lower.x);
      c[3] = biased(c[3], lower.y);
      lower = upper;
    }
  }

  /// For a lane's two keys: queries up to limit[half], relative to the tile's first, are those on the earlier side of a
  /// threshold, with differences below it where queries are later, else from it on.
  __device__ __forceinline__ void limits_of(int (&limit)[2], int bucket, bool later) const {
    const long long threshold = static_cast<long long>(bucketed_tables(shared).thresholds[bucket]);
    const long long origin = tile().times[0];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long time = keys().times[first_key() + lane_id() / 4 + 8 * half] - origin;
      const long long wide = later ? time + threshold - 1 : time - threshold;
      limit[half] = static_cast<int>(min(max(wide, -0x80000000ll), 0x7fffffffll));
    }
  }
  /// until(n, i, query) for the elements whose query, relative to the tile's first, is not past limit[half], beyond(n,
  /// i, query) for the others.
  template <typename Until, typename Beyond>
  __device__ __forceinline__ void for_each_side(const int (&limit)[2], Until until, Beyond beyond) const {
    const int2* const columns = reinterpret_cast<const int2*>(&tile().relative[lane_id() % 4 * 2]);
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
      const int2 column = columns[4 * n];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = i % 2 == 0 ? column.x : column.y;
        if (query <= limit[i / 2]) {
          until(n, i, query);
        } else {
          beyond(n, i, query);
        }
      }
    }
  }

  /// Element by element; the buckets stay in shared memory. R takes the way through it, or the code of the look-ups
  /// would stand there for each element.
  __device__ __forceinline__ bool look_up(Scores& s) const {
    TableSums& own = own_sums();
    const int lane = lane_id();
#pragma unroll 2
    for (int pair = 0; pair < kQueries / 4; ++pair) look_up_pair(own, pair, lane);
    float least = 0;
#pragma unroll
    for (int pair = 0; pair < kQueries / 4; ++pair) {
      const float2 values = own.values[pair][lane];
      const float r[2] = {values.x, values.y};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = s[0][pair / 2][pair % 2 * 2 + i];
        score = biased(score, r[i]);
        least = fminf(least, r[i]);
      }
      if (pair % 4 == 3) asm volatile("" ::: "memory");  // not all loaded at once: registers
    }
    return __any_sync(kAllLanes, least == ptx::minus_infinity());
  }
  template <typename Body>
  __device__ __forceinline__ void for_each_hidden(Body body) const {
    const TableSums& own = own_sums();
    const int lane = lane_id();
#pragma unroll
    for (int pair = 0; pair < kQueries / 4; ++pair) {
      const float2 r = own.values[pair][lane];
      if (r.x == ptx::minus_infinity()) body(pair, 0);
      if (r.y == ptx::minus_infinity()) body(pair, 1);
      if (pair % 4 == 3) asm volatile("" ::: "memory");
    }
  }
  /// pair: 2 n + half.
  __device__ __forceinline__ void look_up_pair(TableSums& own, int pair, int lane) const {
    const BucketedTables& tables = bucketed_tables(shared);
    const float2 position = window()[4 * (pair / 2 - pair % 2)];
    const long long time = keys().times[first_key() + lane / 4 + pair % 2 * 8];
    int bucket[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned long long d = TimeBuckets::distance(time, tile().times[pair / 2 * 8 + lane % 4 * 2 + i]);
      bucket[i] = tables.reached[time_cell(d)];
      if (d >= tables.thresholds[bucket[i]]) ++bucket[i];
    }
    own.values[pair][lane] = {position.x + keys().table[bucket[0]], position.y + keys().table[bucket[1]]};
    own.buckets[pair][lane] = static_cast<unsigned short>(bucket[0] | bucket[1] << 8);
  }

  /// The sum of all lanes' values, to one entry.
  static __device__ __forceinline__ void add_one(float value, float* entry) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    if (lane_id() == 0 && value != 0) ptx::red_add(entry, value);
  }
  static __device__ __forceinline__ void add_lanes(float (&lanes)[32], float* entry) {
    const int lane = lane_id();
    const float value = lanes[lane];
    lanes[lane] = 0;
    add_one(value, entry);
  }
  static __device__ __forceinline__ void clear_padding(TableSums& own) {
    for (int n = lane_id(); n < 8 * 2 * TableSums::kPadding; n += 32) {
      const int column = n % (2 * TableSums::kPadding);
      own.rows[n / (2 * TableSums::kPadding)][column < TableSums::kPadding ? column : column + 8 * TableSums::kBlocks] =
          0;
    }
  }

  /// total: of the lane's ds.
  __device__ __forceinline__ void add_times(const Scores& ds, float total, TimesSeen seen) const {
    const int low = seen & 0xff, high = seen >> 8 & 0xff;
    const bool later = (seen & kLaterColumns) != 0;
    if (low == high) return keep(high, total);
    // Each bucket by itself, and no differences of sums: what is invisible must leave exact zeros.
    if (low + 1 == high) {
      int limit[2];
      limits_of(limit, low, later);
      float earlier = 0, others = 0;
      for_each_side(
          limit, [&](int n, int i, int) { earlier += ds[0][n][i]; }, [&](int n, int i, int) { others += ds[0][n][i]; });
      keep(low, later ? earlier : others);
      return keep(high, later ? others : earlier);
    }
    int before[2] = {later ? kBeforeAll : kAfterAll, later ? kBeforeAll : kAfterAll};
#pragma unroll 1
    for (int bucket = low; bucket <= high; ++bucket) {
      int limit[2] = {later ? kAfterAll : kBeforeAll, later ? kAfterAll : kBeforeAll};
      if (bucket < high) limits_of(limit, bucket, later);
      float sum = 0;
      const int after[2] = {later ? before[0] : limit[0], later ? before[1] : limit[1]};
      const int until[2] = {later ? limit[0] : before[0], later ? limit[1] : before[1]};
      for_each_side(
          until, [&](int n, int i, int query) { sum += query > after[i / 2] ? ds[0][n][i] : 0.0f; },
          [](int, int, int) {});
      keep(bucket, sum);
      before[0] = limit[0];
      before[1] = limit[1];
    }
  }

  /// Adds to a bucket's sums of the lanes. Mostly the buckets of a tile are those of the tile before.
  __device__ __forceinline__ void keep(int bucket, float sum) const {
    TableSums& own = own_sums();
    const int place = bucket % 4;
    if (own.bucket[place] != bucket) {
      add_lanes(own.times[place], time_totals() + own.bucket[place]);
      __syncwarp();
      if (lane_id() == 0) own.bucket[place] = bucket;
      __syncwarp();
    }
    own.times[place][lane_id()] += sum;
  }

  __device__ __forceinline__ void add_looked_up(const Scores& ds, int low, int high) const {
    TableSums& own = own_sums();
    const int lane = lane_id();
    constexpr int kAtOnce = TableSums::kBucketsAtOnce;
#pragma unroll 1
    for (int base = low; base <= high; base += kAtOnce) {
#pragma unroll 8
      for (int k = 0; k < kAtOnce; ++k) own.lanes[k][lane] = 0;
#pragma unroll
      for (int pair = 0; pair < kQueries / 4; ++pair) {
        const unsigned buckets = own.buckets[pair][lane];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int k = static_cast<int>(buckets >> 8 * i & 0xff) - base;
          if (k >= 0 && k < kAtOnce) own.lanes[k][lane] += ds[0][pair / 2][pair % 2 * 2 + i];
        }
        asm volatile("" ::: "memory");
      }
      __syncwarp();
      // Lane by lane from another place on, so that the lanes meet in no bank.
      float sum = 0;
#pragma unroll 8
      for (int n = 0; n < 32; ++n) sum += own.lanes[lane][(lane + n) % 32];
      if (base + lane <= high && sum != 0) ptx::red_add(time_totals() + base + lane, sum);
      __syncwarp();
    }
  }
};

}  // namespace warploom
