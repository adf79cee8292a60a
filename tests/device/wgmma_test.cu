// One wgmma product of every width, operand source and major, on operands copied into swizzled tiles. Host side:
// bench/gpu_hopper_tests.py.
#include "geometry/fragment.h"
#include "geometry/swizzle.h"
#include "geometry/wgmma_descriptor.h"
#include "ptx/fence.h"
#include "ptx/shared_memory.h"
#include "ptx/types.h"
#include "ptx/wgmma.h"

using namespace warploom;
using ptx::uint32;

/// Four wgmmas deep: 64 columns of 16-bit values, 128 of 8-bit ones.
constexpr int kSteps = 4;

/// rows x 128 bytes (times `panels`) of row-major global memory into panels.
__device__ void fill(uint32 tile, const uint4* from, int rows, int panels) {
  for (int i = threadIdx.x; i < rows * panels * geometry::kPanelChunks; i += 128) {
    const int row = i / (panels * geometry::kPanelChunks), chunk = i % (panels * geometry::kPanelChunks);
    ptx::store_shared_16(tile + geometry::swizzled_offset(rows, row, chunk), from[i]);
  }
}

/// D = C + A B^T; A as 64 rows of 128 bytes (K-major), or, transposed, as rows of K. Sums of small integers are exact.
template <typename T, int N, bool FromRegisters, bool TransposeB, bool TransposeA>
__device__ __forceinline__ void product(const uint4* a, const uint4* b, const float* c, float* d) {
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr int kDepth = kSteps * 32 / static_cast<int>(sizeof(T));
  constexpr int kPanelsOfN = (N + 63) / 64;
  const uint32 a_tile = ptx::shared_address(shared), b_tile = a_tile + 64 * 128;
  fill(a_tile, a, 64, 1);
  fill(b_tile, b, TransposeB ? kDepth : N, TransposeB ? kPanelsOfN : 1);
  ptx::fence_proxy_async_shared();
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto place = [&](int i) {
    return (warp * 16 + i / 2 % 2 * 8 + lane / 4) * N + i / 4 * 8 + lane % 4 * 2 + i % 2;
  };
  float x[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) x[i] = c[place(i)];
  const uint32 a_low = geometry::descriptor_low(a_tile, 64 * 128);
  const uint32 b_low = geometry::descriptor_low(b_tile, (TransposeB ? kDepth : 0) * 128);
  uint32 fragments[kSteps][4];
  if constexpr (FromRegisters) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const geometry::Element e = geometry::a_element(lane, i);
        fragments[step][i] = reinterpret_cast<const uint32*>(a)[(warp * 16 + e.row) * 32 + step * 8 + e.column / 2];
      }
    }
  }
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint32 along_k = geometry::k_major_step(64, step * 16);
    const uint32 b_step = TransposeB ? geometry::transposed_step(step * 16) : along_k;
    if constexpr (FromRegisters) {
      ptx::wgmma_rs<T, N, TransposeB>(x, fragments[step], b_low + b_step, 1);
    } else {
      const uint32 a_step = TransposeA ? geometry::transposed_step(step * 16) : along_k;
      ptx::wgmma_ss<T, N, TransposeB, TransposeA>(x, a_low + a_step, b_low + b_step, 1);
    }
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>(x);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[place(i)] = x[i];
}

#define PRODUCT(name, T, N, rs, tb, ta)                                                                              \
  extern "C" __global__ void __launch_bounds__(128) name(const uint4* a, const uint4* b, const float* c, float* d) { \
    product<T, N, rs, tb, ta>(a, b, c, d);                                                                           \
  }
#define OF_TYPE(type, T, N)                         \
  PRODUCT(type##_ss_##N, T, N, false, false, false) \
  PRODUCT(type##_rs_##N, T, N, true, false, false)
#define OF_16_BITS(type, T, N)                          \
  OF_TYPE(type, T, N)                                   \
  PRODUCT(type##_ss_tb_##N, T, N, false, true, false)   \
  PRODUCT(type##_ss_ta_##N, T, N, false, false, true)   \
  PRODUCT(type##_ss_ta_tb_##N, T, N, false, true, true) \
  PRODUCT(type##_rs_tb_##N, T, N, true, true, false)
#define OF_WIDTH(N)                  \
  OF_16_BITS(bf16, ptx::Bfloat16, N) \
  OF_TYPE(fp16, ptx::Float16, N)     \
  OF_TYPE(e4m3, ptx::Float8E4M3, N)  \
  OF_TYPE(e5m2, ptx::Float8E5M2, N)

// The width comes with the compilation (WIDTHS: a list of OF_WIDTH), so that several files compile at once.
WIDTHS
