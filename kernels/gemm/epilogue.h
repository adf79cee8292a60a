// What becomes of the accumulators: D = act(alpha x + bias) + beta C, rounded and stored.
//
// 16-bit outputs leave through shared memory: stmatrix into swizzled panels of 64 columns, from where TMA stores them
// and cuts off what lies outside D. C arrives there the same way beforehand. float outputs and sums over a cluster are
// stored from the registers, four lanes writing 32 neighbouring bytes (16 of a 16-bit type).
#pragma once

#include "attention/silu.h"
#include "gemm/gemm_config.h"
#include "geometry/fragment.h"
#include "geometry/swizzle.h"
#include "ptx/fence.h"
#include "ptx/ldmatrix.h"
#include "ptx/mbarrier.h"
#include "ptx/named_barrier.h"
#include "ptx/stmatrix.h"
#include "ptx/tma.h"
#include "ptx/types.h"

namespace warploom {

using ptx::uint32;

template <GemmType>
struct ValueOf {
  using Type = float;
};
template <>
struct ValueOf<GemmType::float16> {
  using Type = ptx::Float16;
};
template <>
struct ValueOf<GemmType::bfloat16> {
  using Type = ptx::Bfloat16;
};
template <>
struct ValueOf<GemmType::float8_e4m3> {
  using Type = ptx::Float8E4M3;
};

/// Two neighbouring values as they stand in memory.
template <typename T>
__device__ __forceinline__ float2 load_pair(const T* from, bool second) {
  if constexpr (sizeof(T) == 4) {
    return second ? *reinterpret_cast<const float2*>(from) : float2{*reinterpret_cast<const float*>(from), 0};
  } else {
    return ptx::unpack<T>(second ? *reinterpret_cast<const uint32*>(from)
                                 : static_cast<uint32>(*reinterpret_cast<const unsigned short*>(from)));
  }
}

template <typename T>
__device__ __forceinline__ void store_pair(T* to, float2 x, bool second) {
  if constexpr (sizeof(T) == 4) {
    if (second) {
      *reinterpret_cast<float2*>(to) = x;
    } else {
      *to = x.x;
    }
  } else {
    const uint32 pair = ptx::pack<T>(x.x, x.y);
    if (second) {
      *reinterpret_cast<uint32*>(to) = pair;
    } else {
      *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(pair);
    }
  }
}

/// What the product is multiplied by: alpha, and the scales of 8-bit operands, which are read here, on the device.
template <GemmConfig Config>
__device__ __forceinline__ float product_scale(const GemmEnds& p) {
  float scale = p.alpha;
  if constexpr (Config.input == GemmType::float8_e4m3) {
    if (p.scale_a != nullptr) scale *= __ldg(p.scale_a);
    if (p.scale_b != nullptr) scale *= __ldg(p.scale_b);
  }
  return scale;
}

/// Two neighbours of the bias, from `column` on; 0 outside D.
template <typename Bias>
__device__ __forceinline__ uint32 bias_pair(const GemmEnds& p, int column) {
  const unsigned short* from = static_cast<const unsigned short*>(p.bias) + column;
  if (column + 1 < p.columns) return *reinterpret_cast<const uint32*>(from);
  return column < p.columns ? *from : 0;
}

/// The bias at a thread's columns of a tile, two neighbours in every eight. Where registers allow it is loaded before
/// the main loop, under which the latency hides.
template <GemmConfig Config, typename Bias>
struct BiasColumns {
  static constexpr bool kAhead = Config.bias && gemm_staged(Config);
  uint32 pairs[kAhead ? Config.tile_columns / 8 : 1];
  int first;

  __device__ __forceinline__ void load(const GemmEnds& p, int tile_column) {
    first = tile_column + static_cast<int>(threadIdx.x) % 4 * 2;
    if constexpr (kAhead) {
#pragma unroll
      for (int i = 0; i < Config.tile_columns / 8; ++i) pairs[i] = bias_pair<Bias>(p, first + 8 * i);
    }
  }
  /// Of the thread's columns in group `i` of eight; a constant.
  __device__ __forceinline__ float2 at(const GemmEnds& p, int i) const {
    if constexpr (kAhead) return ptx::unpack<Bias>(pairs[i]);
    if constexpr (Config.bias) return ptx::unpack<Bias>(bias_pair<Bias>(p, first + 8 * i));
    return {0, 0};
  }
};

/// silu(2 h) of two values with one reciprocal between them. Below z = -41 the result is not exact, but under 1e-16.
__device__ __forceinline__ float2 silu_of_halves_exact(float2 h) {
  constexpr float kMinusTwoLog2E = -2.885390081777927f;
  constexpr float kLargestExponent = 60;  // the product of two denominators stays finite
  const float2 denominator{1 + ptx::ex2_approx(fminf(h.x * kMinusTwoLog2E, kLargestExponent)),
                           1 + ptx::ex2_approx(fminf(h.y * kMinusTwoLog2E, kLargestExponent))};
  const float r = ptx::rcp_approx(denominator.x * denominator.y);
  return {(h.x + h.x) * (r * denominator.y), (h.y + h.y) * (r * denominator.x)};
}

/// In place, `Count` accumulators from d[first] on, a constant after unrolling: act(alpha x + bias). silu is taken by
/// tanh where no value of the warp's is below -6, and exactly else and for float outputs (attention/silu.h says why).
template <GemmConfig Config, int Count, typename Bias, int All>
__device__ __forceinline__ void activate(const GemmEnds& p, const BiasColumns<Config, Bias>& bias, int first,
                                         float (&d)[All]) {
  constexpr float kScale = Config.silu ? 0.5f : 1.0f;
  const float alpha = product_scale<Config>(p) * kScale;
#pragma unroll
  for (int i = first; i < first + Count; i += 2) {
    const float2 b = bias.at(p, i / 4);
    d[i] = fmaf(d[i], alpha, b.x * kScale);
    d[i + 1] = fmaf(d[i + 1], alpha, b.y * kScale);
  }
  if constexpr (Config.silu) {
    bool exact = Config.output == GemmType::float32;
    if constexpr (Config.output != GemmType::float32) {
      unsigned largest = 0;  // of negative floats the farthest from 0
#pragma unroll
      for (int i = first; i < first + Count; ++i) largest = max(largest, __float_as_uint(d[i]));
      exact = __any_sync(0xFFFFFFFFu, largest > __float_as_uint(kTanhLimit));
    }
    if (exact) {
#pragma unroll
      for (int i = first; i < first + Count; i += 2) {
        const float2 y = silu_of_halves_exact({d[i], d[i + 1]});
        d[i] = y.x;
        d[i + 1] = y.y;
      }
    } else {
#pragma unroll
      for (int i = first; i < first + Count; ++i) d[i] = silu_of_half(d[i]);
    }
  }
}

/// Two neighbouring values, finished and stored at (row, column) of a batch. `column` is even.
template <GemmConfig Config, typename Out>
__device__ __forceinline__ void finish_pair(const GemmEnds& p, int batch, int row, int column, float2 y) {
  if (row >= p.rows || column >= p.columns) return;
  const bool second = column + 1 < p.columns;
  if constexpr (Config.residual) {
    const float2 c = load_pair(static_cast<const Out*>(p.residual_data) + batch * p.residual_batch_stride +
                                   row * p.residual_row_stride + column,
                               second);
    y = {fmaf(p.beta, c.x, y.x), fmaf(p.beta, c.y, y.y)};
  }
  store_pair(static_cast<Out*>(p.out_data) + batch * p.out_batch_stride + row * p.out_row_stride + column, y, second);
}

/// Two neighbouring sums, activated, finished and stored.
template <GemmConfig Config, typename Bias, typename Out>
__device__ __forceinline__ void finish_sum(const GemmEnds& p, int batch, int row, int column, float2 sum) {
  float2 bias{0, 0};
  if constexpr (Config.bias) bias = ptx::unpack<Bias>(bias_pair<Bias>(p, column));
  const float alpha = product_scale<Config>(p);
  float2 y{fmaf(sum.x, alpha, bias.x), fmaf(sum.y, alpha, bias.y)};
  if constexpr (Config.silu) y = silu_of_halves_exact({0.5f * y.x, 0.5f * y.y});
  finish_pair<Config, Out>(p, batch, row, column, y);
}

/// Where a consumer stages its part of D, and the barriers of its threads.
struct Staging {
  uint32 address;
  uint32 residual_barrier;  ///< mbarrier on which C arrives
  int named_barrier;
};

/// One thread of the consumer: starts the loads of C for the tile at (row, column). The stores of the tile before it
/// must have left the staging memory.
template <GemmConfig Config>
__device__ __forceinline__ void start_residual(const GemmParams& p, const Staging& staging, int batch, int row,
                                               int column) {
  constexpr GemmSharedMap kMap = shared_map(Config);
  constexpr int kPanels = Config.tile_columns / geometry::kPanelColumns;
  static_assert(Config.staging_panels == kPanels, "C is loaded ahead as a whole");
  ptx::bulk_wait_group_read<0>();
  ptx::mbarrier_arrive_expect_tx(staging.residual_barrier, kPanels * kMap.staging_panel_bytes);
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    ptx::tma_load(&p.residual, staging.address + panel * kMap.staging_panel_bytes, staging.residual_barrier,
                  {column + panel * geometry::kPanelColumns, row, batch}, ptx::kEvictFirst);
  }
}

constexpr int kOfPanel = geometry::kPanelColumns / 2;  ///< a thread's values in 64 rows of a panel

/// A warp's 16 rows of a panel, finished, at `address`: the lane's place in its first 16 x 16 values. `first`: of the
/// thread's accumulators.
template <GemmConfig Config, typename Out, typename Bias, int Count>
__device__ __forceinline__ void stage_panel(const GemmParams& p, const BiasColumns<Config, Bias>& bias, uint32 address,
                                            int first, float (&d)[Count]) {
  activate<Config, kOfPanel>(p, bias, first, d);
#pragma unroll
  for (int chunk = 0; chunk < geometry::kPanelChunks; chunk += 2) {
    // Registers in the order of ldmatrix, which is that of A's fragments.
    const uint32 place = address ^ (chunk * geometry::kChunkBytes);
    const float* x = &d[first + chunk * 4];
    uint32 r[4];
    if constexpr (Config.residual) {
      uint32 c[4];
      ptx::ldmatrix_x4(c, place);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 old = ptx::unpack<Out>(c[i]);
        r[i] = ptx::pack<Out>(fmaf(p.beta, old.x, x[2 * i]), fmaf(p.beta, old.y, x[2 * i + 1]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i] = ptx::pack<Out>(x[2 * i], x[2 * i + 1]);
    }
    ptx::stmatrix_x4(place, r[0], r[1], r[2], r[3]);
  }
}

/// A consumer's part of D through shared memory, 64 rows a block. `parity`: of the phase in which C arrives.
template <GemmConfig Config, typename Bias, typename Out, int Blocks, int Count>
__device__ __forceinline__ void store_staged(const GemmParams& p, const Staging& staging, int batch, int row,
                                             int column, uint32 parity, const BiasColumns<Config, Bias>& bias,
                                             float (&d)[Blocks][Count]) {
  constexpr GemmSharedMap kMap = shared_map(Config);
  constexpr int kRows = gemm_consumer_rows(Config);
  constexpr int kPanels = Config.tile_columns / geometry::kPanelColumns;
  static_assert(kPanels % Config.staging_panels == 0);
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const uint32 lane_address =
      staging.address +
      geometry::swizzled_offset(kRows, thread / 32 * 16 + geometry::ldmatrix_row(lane), geometry::ldmatrix_chunk(lane));
#pragma unroll
  for (int first = 0; first < kPanels; first += Config.staging_panels) {
    if constexpr (Config.residual) {
      ptx::mbarrier_wait(staging.residual_barrier, parity);
    } else {
      if (thread == 0) ptx::bulk_wait_group_read<0>();
      ptx::named_barrier_sync(staging.named_barrier, 128);
    }
#pragma unroll
    for (int i = 0; i < Config.staging_panels; ++i) {
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {
        stage_panel<Config, Out>(p, bias,
                                 lane_address + i * kMap.staging_panel_bytes + block * 64 * geometry::kPanelRowBytes,
                                 (first + i) * kOfPanel, d[block]);
      }
    }
    ptx::fence_proxy_async_shared();
    ptx::named_barrier_sync(staging.named_barrier, 128);
    if (thread == 0) {
#pragma unroll
      for (int i = 0; i < Config.staging_panels; ++i) {
        ptx::tma_store(&p.out, staging.address + i * kMap.staging_panel_bytes,
                       {column + (first + i) * geometry::kPanelColumns, row, batch});
      }
      ptx::bulk_commit_group();
    }
  }
}

/// A consumer's part of D straight from the registers.
template <GemmConfig Config, typename Bias, typename Out, int Blocks, int Count>
__device__ __forceinline__ void store_direct(const GemmParams& p, int batch, int row, int column,
                                             const BiasColumns<Config, Bias>& bias, float (&d)[Blocks][Count]) {
#pragma unroll
  for (int block = 0; block < Blocks; ++block) {
    activate<Config, Count>(p, bias, 0, d[block]);
#pragma unroll
    for (int pair = 0; pair < Count / 2; ++pair) {
      const geometry::Element at = geometry::accumulator_element(static_cast<int>(threadIdx.x % 128), 2 * pair);
      finish_pair<Config, Out>(p, batch, row + block * 64 + at.row, column + at.column,
                               {d[block][2 * pair], d[block][2 * pair + 1]});
    }
  }
}

}  // namespace warploom
