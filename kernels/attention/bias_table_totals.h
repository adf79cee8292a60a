// Gradients of a bucketed bias's tables where their order need not repeat: each warp of attention_backward_mma.cu sums
// the dS of its part of a tile by position and by bucket, and adds the sums in global memory.
#pragma once

#include "attention/backward_config.h"
#include "attention/bias_bucketed_gradient.h"
#include "ptx/reduction.h"

namespace warploom {

/// What a warp keeps in shared memory for it, beside scores of Keys rows and Queries columns: table_totals_warp_bytes.
template <int Queries, int Keys>
struct alignas(16) TableTotalsWarp {
  static constexpr int kBlocks = Queries / 8 + Keys / 8 - 1;  // diagonals of blocks of 8 x 8
  static constexpr int kPadding = 8;
  static constexpr int kPitch = 8 * kBlocks + 2 * kPadding;  // 8 or 24 mod 32: four rows of pairs meet in no bank

  /// Sums along the diagonals of blocks, by the row and column within a block; 0 beside them.
  float rows[8][kPitch];
  float first[32], last[32];  // a lane's sums of the position table's ends
  float times[StagedTimes::kMost + 4];
  int head;  // whose sums these are
  int padding[3];
};

/// The provider that also takes dS back.
template <int Queries, int Keys, int Sharing>
class TableTotals : public BucketedGradient<Queries, Keys, true, Sharing, true> {
 public:
  using Base = BucketedGradient<Queries, Keys, true, Sharing, true>;
  using Warp = TableTotalsWarp<Queries, Keys>;
  using DS = typename Base::DS;

  /// warps: shared memory, a Warp for each warp.
  __device__ __forceinline__ TableTotals(const BackwardParams& p, const Work& work, unsigned char* shared,
                                         unsigned char* warps)
      : Base(p.call, work, BiasRows{}, shared), sums_(p.bias_sums), warps_(reinterpret_cast<Warp*>(warps)) {
    const int lane = ptx::lane_id();
    Warp& own = warp();
    clear_padding(own);
    own.first[lane] = own.last[lane] = 0;
    for (int n = lane; n < StagedTimes::kMost + 4; n += 32) own.times[n] = 0;
    if (lane == 0) own.head = work.head * p.call.heads_per_key_head;
    __syncwarp();
  }

  /// Before a tile of another query head: the sums so far belong to the one before.
  __device__ __forceinline__ void change_head(int head) {
    flush();
    if (ptx::lane_id() == 0) warp().head = head;
    __syncwarp();
  }

  /// Adds the dS of a tile. first_column: as it was given to start.
  __device__ __forceinline__ void add(const DS& ds, int first_column) {
    if (sums_.position_gradient != nullptr) add_positions(ds, first_column - this->first_row() - (Keys - 1));
    if (sums_.time_gradient == nullptr) return;
    using Lanes =
        LaneSumsInOne<sizeof(Warp::rows) / (32 * sizeof(float)) < 32 ? sizeof(Warp::rows) / (32 * sizeof(float)) : 32>;
    __syncwarp();  // the rows have been read
    Warp& own = warp();
    if (this->add_times(ds, own.times, Lanes{&own.rows[0][0]}, 0, this->bias_.num_times)) {
      clear_padding(own);
      __syncwarp();
    }
  }

  /// After the last tile.
  __device__ __forceinline__ void flush() {
    __syncwarp();
    Warp& own = warp();
    if (sums_.position_gradient != nullptr) {
      float* const table = position_totals(own.head);
      add_end(table, own.first);
      add_end(table + this->bias_.num_positions - 1, own.last);
    }
    if (sums_.time_gradient != nullptr) {
      float* const table = time_totals(own.head);
      for (int n = ptx::lane_id(); n < this->bias_.num_times; n += 32) {
        if (own.times[n] != 0) ptx::red_add(table + n, own.times[n]);
        own.times[n] = 0;
      }
    }
    __syncwarp();
  }

 private:
  __device__ __forceinline__ float* position_totals(int head) const {
    return sums_.totals + (sums_.position_heads == 1 ? 0ll : 1ll * head * this->bias_.num_positions);
  }
  __device__ __forceinline__ float* time_totals(int head) const {
    return sums_.totals + sums_.position_totals + (sums_.time_heads == 1 ? 0ll : 1ll * head * this->bias_.num_times);
  }

  // Opaque, or addresses would be kept through the main loop.
  __device__ __forceinline__ Warp& warp() const { return warps_[ptx::opaque(threadIdx.x) / 32]; }

  static __device__ __forceinline__ void clear_padding(Warp& own) {
    for (int n = ptx::lane_id(); n < 8 * 2 * Warp::kPadding; n += 32) {
      const int column = n % (2 * Warp::kPadding);
      own.rows[n / (2 * Warp::kPadding)][column < Warp::kPadding ? column : column + 8 * Warp::kBlocks] = 0;
    }
  }

  static __device__ __forceinline__ void add_end(float* entry, float (&lanes)[32]) {
    const int lane = ptx::lane_id();
    float total = lanes[lane];
    lanes[lane] = 0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(Base::kAll, total, step);
    if (lane == 0 && total != 0) ptx::red_add(entry, total);
  }

  /// nearest: the smallest r - j of the warp's pairs. A lane's elements first, then the eight lanes of each column
  /// through shared memory, where a diagonal runs from row to row one column further.
  __device__ __forceinline__ void add_positions(const DS& ds, int nearest) {
    float sums[Warp::kBlocks][2] = {};
#pragma unroll
    for (int m = 0; m < Keys / 16; ++m) {
#pragma unroll
      for (int n = 0; n < Queries / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n - 2 * m - i / 2 + Keys / 8 - 1][i % 2] += ds[m][n][i];
      }
    }
    const int lane = ptx::lane_id();
    Warp& own = warp();
    float* const to = &own.rows[lane / 4][Warp::kPadding + lane % 4 * 2];
#pragma unroll
    for (int b = 0; b < Warp::kBlocks; ++b) {
      *reinterpret_cast<float2*>(to + 8 * b) = float2{sums[b][0], sums[b][1]};
    }
    __syncwarp();
    constexpr int kDiagonals = 8 * Warp::kBlocks + 7;
    const int last = this->bias_.num_positions - 1;
    float* const table = position_totals(own.head);
#pragma unroll
    for (int first = 0; first < kDiagonals; first += 32) {
      const int x = first + lane;
      if (kDiagonals - first < 32 && x >= kDiagonals) break;
      float total = 0;
#pragma unroll
      for (int row = 0; row < 8; ++row) total += own.rows[row][Warp::kPadding - 7 + x + row];
      const int position = nearest + x;
      if (position <= 0) {
        own.first[lane] += total;
      } else if (position >= last) {
        own.last[lane] += total;
      } else if (total != 0) {
        ptx::red_add(table + position, total);
      }
    }
  }

  const BiasSums& sums_;
  Warp* const warps_;
};

}  // namespace warploom
