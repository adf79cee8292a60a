// Gradients of a bucketed bias's tables: dS summed by position and by bucket, a warp at a time, in an order that never
// changes (what becomes of a warp's sums is its kernel's to say).
#pragma once

#include "attention/bias_bucketed.h"

namespace warploom {

/// A sum for each lane and each of some buckets: 32 of them in two pieces of shared memory of 2 KiB ...
struct LaneSums {
  static constexpr int kBuckets = 32;
  float* first;
  int second;  // floats from one to the other

  __device__ __forceinline__ float* at(int bucket, int lane) const {
    return first + (bucket < 16 ? 0 : second) + bucket % 16 * 32 + lane;
  }
};
/// ... or as many as one piece holds.
template <int Buckets>
struct LaneSumsInOne {
  static constexpr int kBuckets = Buckets;
  float* first;

  __device__ __forceinline__ float* at(int bucket, int lane) const { return first + bucket * 32 + lane; }
};

/// The provider that also takes dS back.
template <int TileColumns, int WarpRows, bool KeyRows = false, int Sharing = 1, bool AllStaged = false>
class BucketedGradient : public BucketedBias<TileColumns, WarpRows, KeyRows, Sharing, AllStaged> {
 public:
  using Base = BucketedBias<TileColumns, WarpRows, KeyRows, Sharing, AllStaged>;
  using Base::Base;
  static constexpr int kBlocks = WarpRows / 16;
  using DS = float[kBlocks][TileColumns / 8][4];

  template <int Blocks, typename Function>
  __device__ __forceinline__ bool for_each(Function function) {
    seen_ = this->times_seen();
    return this->template for_each_of<Blocks>(seen_, function);
  }

  /// After for_each: adds ds to sums[bucket - first] of its pairs, as far as that is in [0, count). sums: of the warp.
  /// lanes: the warp's for now. Whether they were used.
  template <typename Lanes>
  __device__ __forceinline__ bool add_times(const DS& ds, float* sums, const Lanes& lanes, int first, int count) const {
    static_assert(Lanes::kBuckets <= 32);
    const typename Base::Range range = seen_.range;
    bool used = false;
    if (range.low == range.high) {
      float total = 0;
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int n = 0; n < TileColumns / 8; ++n) {
          for (const float x : ds[m][n]) total += x;
        }
      }
      add_one(total, sums, range.low - first, count);
    } else if (!this->large() && seen_.small && range.high - range.low <= Base::kMostCompared) {
      add_few(ds, range, sums, first, count);
    } else {
      used = true;
#pragma unroll 1
      for (int base = range.low; base <= range.high; base += Lanes::kBuckets) {
        add_many(ds, base, lanes);
        __syncwarp();
        // Lane by lane from another place on, so that the lanes meet in no bank.
        const int lane = threadIdx.x % 32;
        if (lane < Lanes::kBuckets) {
          float total = 0;
#pragma unroll 8
          for (int n = 0; n < 32; ++n) total += *lanes.at(lane, (lane + n) % 32);
          const int at = base + lane - first;
          if (base + lane <= range.high && at >= 0 && at < count) sums[at] += total;
        }
        __syncwarp();
      }
    }
    __syncwarp();
    return used;
  }

 private:
  /// The sum of all lanes' values, to one entry.
  static __device__ __forceinline__ void add_one(float value, float* sums, int at, int count) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(Base::kAll, value, step);
    if (threadIdx.x % 32 == 0 && at >= 0 && at < count) sums[at] += value;
  }

  /// Which of the buckets of a short range a difference lies in, counted from its first one.
  struct Nearby {
    unsigned thresholds[Base::kMostCompared];

    template <int Count>
    __device__ __forceinline__ void operator()(const unsigned (&d)[Count], int (&bucket)[Count]) const {
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        bucket[i] = 0;
#pragma unroll
        for (const unsigned threshold : thresholds) bucket[i] += d[i] >= threshold ? 1 : 0;
      }
    }
  };

  __device__ __forceinline__ void add_few(const DS& ds, typename Base::Range range, float* sums, int first,
                                          int count) const {
    Nearby nearby;
#pragma unroll
    for (int k = 0; k < Base::kMostCompared; ++k) {
      // Past the range's end none is reached.
      nearby.thresholds[k] = range.low + k < range.high ? this->staged_.small[range.low + k] : 0xffffffffu;
    }
    float totals[Base::kMostCompared + 1] = {};
    this->template visit_differences<kBlocks, int, int>(
        [&](int i, int n, int bucket) {
#pragma unroll
          for (int k = 0; k <= Base::kMostCompared; ++k) totals[k] += bucket == k ? ds[i / 4][n][i % 4] : 0.0f;
        },
        nearby);
#pragma unroll
    for (int k = 0; k <= Base::kMostCompared; ++k) {
      if (range.low + k <= range.high) add_one(totals[k], sums, range.low + k - first, count);
    }
  }

  /// Sums of each lane of its own for the buckets [base, base + Lanes::kBuckets).
  template <typename Lanes>
  __device__ __forceinline__ void add_many(const DS& ds, int base, const Lanes& lanes) const {
    const int lane = threadIdx.x % 32;
#pragma unroll 4
    for (int k = 0; k < Lanes::kBuckets; ++k) *lanes.at(k, lane) = 0;
    if (this->large()) {
      const TimeBuckets buckets = this->buckets_of_times();
      add_each<long long>(ds, base, lanes, typename Base::EachBucket{buckets, seen_.range});
      return;
    }
    const typename Base::StagedBuckets search{this->staged_, seen_.range};
    if (seen_.small) {
      add_each<int>(ds, base, lanes, search);
    } else {
      add_each<long long>(ds, base, lanes, search);
    }
  }

  /// The columns' loop stays one: few tiles come here, and its code, eight times, would take the others' registers.
  template <typename Time, typename Lanes, typename Buckets>
  __device__ __forceinline__ void add_each(const DS& ds, int base, const Lanes& lanes,
                                           const Buckets& buckets_of) const {
    const int lane = threadIdx.x % 32;
    Time rows[2 * kBlocks];
    this->times_of_rows(rows);
#pragma unroll 1
    for (int n = 0; n < TileColumns / 8; ++n) {
      decltype(Base::difference(Time(), Time())) d[4 * kBlocks];
      int buckets[4 * kBlocks];
      this->differences(rows, n, d);
      buckets_of(d, buckets);
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i) {
        float x = 0;
#pragma unroll
        for (int at = 0; at < TileColumns / 8; ++at) x = at == n ? ds[i / 4][at][i % 4] : x;
        const int k = buckets[i] - base;
        if (k >= 0 && k < Lanes::kBuckets) *lanes.at(k, lane) += x;
      }
    }
  }

  typename Base::TimesSeen seen_{{0, 0}, true};  // of the tile
};

/// Sums of dS along the diagonals of a warp's part of a tile, which stay in registers from tile to tile along a block
/// diagonal.
template <int TileColumns>
struct DiagonalSums {
  static constexpr int kBlocks = TileColumns / 8 + 1;
  static constexpr int kFloats = 2 * kBlocks * 32;  ///< of shared memory, a warp
  static constexpr int kDiagonals = 16 + TileColumns - 1;

  float sums[kBlocks][2];  // element (half, e) of block n: [n - half + 1][e]

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& block : sums) block[0] = block[1] = 0;
  }
  __device__ __forceinline__ void add(const float (&ds)[1][TileColumns / 8][4]) {
#pragma unroll
    for (int n = 0; n < TileColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n - i / 2 + 1][i % 2] += ds[0][n][i];
    }
  }
  /// Each lane's sums, to shared memory.
  __device__ __forceinline__ void put(float* to) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int e = 0; e < 2; ++e) to[(b * 2 + e) * 32 + threadIdx.x % 32] = sums[b][e];
    }
  }
  /// Diagonal x, whose elements' columns lie x - 15 behind their rows, of a warp's sums.
  static __device__ __forceinline__ float diagonal(const float* from, int x) {
    float total = 0;
    if (x < 0 || x >= kDiagonals) return total;
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 2; ++e) {
        // x = 15 - lane / 4 + lane % 4 * 2 + e + 8 * (n - half)
        const int eights = x - 15 + lane / 4 - lane % 4 * 2 - e;
        const int block = (eights + 8) / 8;
        if (eights + 8 >= 0 && eights % 8 == 0 && block < kBlocks) total += from[(block * 2 + e) * 32 + lane];
      }
    }
    return total;
  }
};

}  // namespace warploom
