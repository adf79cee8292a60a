// The bias in attention_backward_mma.cu, whose scores stand with keys along their rows: R is read beside each query
// tile, the gradient of a dense or packed one that is not broadcast is written as it comes, and those of tables are
// added up.
#pragma once

#include "attention/backward_steps.h"
#include "attention/bias_bucketed.h"
#include "attention/bias_key_rows.h"
#include "attention/bias_place.h"
#include "attention/bias_table_totals.h"

namespace warploom {

constexpr int kWarpKeys = kKeyBlocks * 16;

/// Where R and its gradient lie, for all threads.
struct BiasPlaces {
  BiasRows values, gradient;
  geometry::Interval gradient_rows;  // all of the sequence's, counted as query rows
  unsigned long long sum;
};
static_assert(sizeof(BiasPlaces) <= kMap.bias_places_bytes);

/// A dense or packed bias.
class StoredBias {
 public:
  static constexpr bool kFloat32 = kConfig.bias == BiasKind::rows32;
  static constexpr int kElementBytes = kFloat32 ? 4 : 2;
  using Rows = KeyRowsBias<Element, kFloat32, kWarpQueries, kWarpKeys>;
  static_assert(kConfig.bias == BiasKind::none || kConfig.bias == BiasKind::bucketed ||
                kConfig.warps * Rows::kBytes == bias_bytes(kConfig));

  /// For all tiles of the CTA's sequence and key head. By all threads.
  static __device__ __forceinline__ void prepare(const BackwardParams& p, unsigned char* shared, const Work& work) {
    BiasPlaces& places = *reinterpret_cast<BiasPlaces*>(shared + kMap.bias_places);
    const int head = work.head * p.call.heads_per_key_head;
    const long long packed_first =
        place_bias(p.call, p.call.bias, work, head, kElementBytes, &places.values, &places.sum);
    if (!kConfig.bias_gradient || threadIdx.x != 0) return;
    const int first = -bias_row_of_query(p.bias_gradient, work);
    places.gradient = bias_rows(p.bias_gradient, work, head, packed_first, kElementBytes);
    // What lies past the keys of a packed row becomes 0 with them.
    if (p.bias_gradient.packed) places.gradient.columns = static_cast<int>(packed_pitch(work, kElementBytes));
    places.gradient_rows = {first, first + rows_of_bias(p.bias_gradient, work, packed_first, kElementBytes)};
    if (work.sequence >= p.call.sequences) places.gradient_rows = {};  // the rows that belong to nobody
  }
  /// Columns of the CTA's sequence that the kernel writes in some way: keys, and what the gradient has past them.
  static __device__ __forceinline__ long long columns(const BackwardParams& p, unsigned char* shared,
                                                      const Work& work) {
    if (!kConfig.bias_gradient || work.sequence >= p.call.sequences) return work.slot_k;
    return max(work.slot_k, 0ll + reinterpret_cast<const BiasPlaces*>(shared + kMap.bias_places)->gradient.columns);
  }

  __device__ __forceinline__ StoredBias(const BackwardParams& p, unsigned char* shared, const Work& work)
      : p_(p),
        work_(work),
        places_(*reinterpret_cast<const BiasPlaces*>(shared + kMap.bias_places)),
        tile_(ptx::shared_address(shared + kMap.bias)) {}

  __device__ __forceinline__ void begin(QueryTile, bool) {}
  __device__ __forceinline__ void start(QueryTile tile) const { Rows::start(own_tile(), part(places_.values, tile)); }
  template <typename Function>
  __device__ __forceinline__ bool for_each(QueryTile tile, Function function) const {
    return Rows::for_each(own_tile(), part(places_.values, tile), function);
  }
  __device__ __forceinline__ void take_gradient(QueryTile tile, const Scores& ds) const {
    if constexpr (kConfig.bias_gradient) {
      Rows::write(own_tile(), part(places_.gradient, tile), ds, p_.bias_factor);
    }
  }
  __device__ __forceinline__ void finish() const {}
  /// The gradient's query rows [begin, end) of a head become 0 for the CTA's keys.
  __device__ __forceinline__ void clear_gradient(int head, int begin, int end) const {
    if constexpr (kConfig.bias_gradient) {
      const geometry::Interval rows = intersect({begin, end}, places_.gradient_rows);
      const RowsPart to =
          RowsPart::of(places_.gradient, head, rows.begin, static_cast<int>(work_.first_row), kElementBytes);
      constexpr int kChunks = kConfig.key_rows * kElementBytes / geometry::kChunkBytes + 1;
      const int row_bytes = geometry::min_of(to.columns, kConfig.key_rows) * kElementBytes;
      for (int i = thread(); i < (rows.end - rows.begin) * kChunks; i += kThreads) {
        clear_chunk(to, i / kChunks, i % kChunks, row_bytes);
      }
    }
  }

 private:
  // Opaque, or addresses would be kept through the main loop.
  static __device__ __forceinline__ int thread() { return static_cast<int>(ptx::opaque(threadIdx.x)); }
  __device__ __forceinline__ uint32 own_tile() const { return tile_ + thread() / 32 * Rows::kBytes; }
  __device__ __forceinline__ RowsPart part(const BiasRows& rows, QueryTile tile) const {
    RowsPart part = RowsPart::of(rows, tile.head, tile.number * kConfig.query_rows + warp_part(thread()) * kWarpQueries,
                                 static_cast<int>(work_.first_row) + warp_key(thread()), kElementBytes);
    part.aligned = kConfig.bias_aligned;  // known to the compiler, which leaves the other case out
    return part;
  }

  const BackwardParams& p_;
  const Work& work_;
  const BiasPlaces& places_;
  uint32 tile_;
};

/// Tables that are read only.
class ReadTables : public BucketedBias<kWarpQueries, kWarpKeys, true, kSharing> {
 public:
  __device__ __forceinline__ ReadTables(const BackwardParams& p, const Work& work, unsigned char* shared,
                                        unsigned char*)
      : BucketedBias(p.call, work, BiasRows{}, shared) {}
  __device__ __forceinline__ void change_head(int) const {}
  __device__ __forceinline__ void add(const Scores&, int) const {}
  __device__ __forceinline__ void flush() const {}
};

/// One from tables.
class TableBias {
 public:
  using Provider = Either<kConfig.bias_gradient, TableTotals<kWarpQueries, kWarpKeys, kSharing>, ReadTables>::Type;
  static constexpr int kReaderBytes =
      static_cast<int>(sizeof(StagedTimes)) + kConfig.warps * static_cast<int>(sizeof(ReadTables::Warp));
  static_assert(kConfig.bias != BiasKind::bucketed ||
                kReaderBytes + (kConfig.bias_gradient
                                    ? kConfig.warps * static_cast<int>(sizeof(TableTotalsWarp<kWarpQueries, kWarpKeys>))
                                    : 0) ==
                    bias_bytes(kConfig));

  static __device__ __forceinline__ void prepare(const BackwardParams& p, unsigned char* shared, const Work& work) {
    reinterpret_cast<StagedTimes*>(shared + kMap.bias)->fill(p.call, work.head * p.call.heads_per_key_head);
    __syncthreads();
  }

  __device__ __forceinline__ TableBias(const BackwardParams& p, unsigned char* shared, const Work& work)
      : p_(p),
        work_(work),
        staged_(*reinterpret_cast<StagedTimes*>(shared + kMap.bias)),
        provider_(p, work, shared + kMap.bias, shared + kMap.bias + kReaderBytes) {}

  /// By all threads, before a tile: its head's table of times, where it is another head's.
  __device__ __forceinline__ void begin(QueryTile tile, bool other_head) {
    if (!other_head) return;
    staged_.fill(p_.call, query_head(tile));
    provider_.change_head(query_head(tile));
    __syncthreads();
  }
  __device__ __forceinline__ void start(QueryTile tile) { provider_.start(first_column(tile), query_head(tile)); }
  template <typename Function>
  __device__ __forceinline__ bool for_each(QueryTile, Function function) {
    return provider_.template for_each<kKeyBlocks>(function);
  }
  __device__ __forceinline__ void take_gradient(QueryTile tile, const Scores& ds) {
    provider_.add(ds, first_column(tile));
  }
  __device__ __forceinline__ void finish() { provider_.flush(); }
  __device__ __forceinline__ void clear_gradient(int, int, int) const {}
  static __device__ __forceinline__ long long columns(const BackwardParams&, unsigned char*, const Work& work) {
    return work.slot_k;
  }

 private:
  __device__ __forceinline__ int query_head(QueryTile tile) const {
    return work_.head * p_.call.heads_per_key_head + tile.head;
  }
  /// Of the warp's queries, in key coordinates.
  __device__ __forceinline__ int first_column(QueryTile tile) const {
    return tile.number * kConfig.query_rows + warp_part() * kWarpQueries + work_.mask.offset();
  }

  const BackwardParams& p_;
  const Work& work_;
  StagedTimes& staged_;
  Provider provider_;
};

/// None.
struct NoBias {
  static __device__ __forceinline__ void prepare(const BackwardParams&, unsigned char*, const Work&) {}
  __device__ __forceinline__ NoBias(const BackwardParams&, unsigned char*, const Work&) {}
  __device__ __forceinline__ void begin(QueryTile, bool) const {}
  __device__ __forceinline__ void start(QueryTile) const {}
  __device__ __forceinline__ void take_gradient(QueryTile, const Scores&) const {}
  __device__ __forceinline__ void finish() const {}
  __device__ __forceinline__ void clear_gradient(int, int, int) const {}
  static __device__ __forceinline__ long long columns(const BackwardParams&, unsigned char*, const Work& work) {
    return work.slot_k;
  }
};

template <BiasKind Kind>
struct BiasOf {
  using Type = StoredBias;
};
template <>
struct BiasOf<BiasKind::none> {
  using Type = NoBias;
};
template <>
struct BiasOf<BiasKind::bucketed> {
  using Type = TableBias;
};
using Bias = BiasOf<kConfig.bias>::Type;

/// s becomes what the biased score function takes (backward_score.h). Whether some R may be -inf.
template <typename Bias>
__device__ __forceinline__ bool add_bias(const AttentionCall& call, Bias& bias, QueryTile tile, Scores& s) {
  const BiasedScale scale = biased_scale<kConfig.softmax>(call);
  return bias.for_each(tile, [&](int m, int n, int e, float r) { s[m][n][e] = scale.of(s[m][n][e], r); });
}

/// Of the gradient's rows what no visited query tile holds becomes 0 for the CTA's keys. next(tile): the tile after it.
template <typename Bias, typename Next>
__device__ __forceinline__ void clear_unseen(const Bias& bias, int heads, int rows, Next next) {
  QueryTile tile{-1, 0};
  int seen = -geometry::kUnbounded;  // rows below it are done
  for (int head = 0; head < heads;) {
    tile = next(tile);
    for (; head < (tile.number < 0 ? heads : tile.head); ++head, seen = -geometry::kUnbounded) {
      bias.clear_gradient(head, seen, geometry::kUnbounded);
    }
    if (tile.number < 0) break;
    bias.clear_gradient(head, seen, tile.number * kConfig.query_rows);
    seen = geometry::min_of((tile.number + 1) * kConfig.query_rows, rows);
  }
}

/// P and dS of what R = -inf hides become 0.
template <typename Bias>
__device__ __forceinline__ void hide_masked(Bias& bias, QueryTile tile, Scores& s, Scores& dp) {
  bias.for_each(tile, [&](int m, int n, int e, float r) {
    if (r == ptx::minus_infinity()) s[m][n][e] = dp[m][n][e] = 0;
  });
}

}  // namespace warploom
