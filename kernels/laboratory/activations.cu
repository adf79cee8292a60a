// Ways to compute silu and 2^x in a warp's scores, measured against each other (bench/gpu_activations.py): clocks of a
// tile, alone and beside the tensor core's products of a head, and values for their errors.
//
// Macros name the Form, and the head dimension whose products run beside; 0: none.
#include "attention/silu.h"
#include "laboratory/activation_forms.h"
#include "ptx/mma.h"

#ifndef WARPLOOM_FORM
#define WARPLOOM_FORM tanh
#define WARPLOOM_HEAD_DIM 0
#endif

namespace warploom {

using ptx::uint32;

constexpr Form kForm = Form::WARPLOOM_FORM;
constexpr int kHeadDim = WARPLOOM_HEAD_DIM;

/// A warp's tile: 16 rows x 64 keys, 32 scores a lane.
constexpr int kKeyBlocks = 8;
constexpr int kDepth = kHeadDim / 16;       // k16 of S
constexpr int kValueBlocks = kHeadDim / 8;  // n8 of O

using Scores = float[1][kKeyBlocks][4];
using Probabilities = uint32[kKeyBlocks / 2][4];

/// Packs function(score, its number in the lane), two at a time.
template <typename Function>
__device__ __forceinline__ void pack_each(const Scores& s, Probabilities& p, Function function) {
#pragma unroll
  for (int i = 0; i < kKeyBlocks * 2; ++i) {
    const float* pair = &s[0][i / 2][i % 2 * 2];
    p[i / 4][i % 4] = ptx::pack<ptx::Bfloat16>(function(pair[0], 2 * i), function(pair[1], 2 * i + 1));
  }
}

/// Scores in, P out, packed in the places of an A operand's registers.
__device__ __forceinline__ void activate(const Scores& s, Probabilities& p) {
  if (kForm == Form::tanh_guarded && __any_sync(kWholeWarp, any_below_tanh_limit(s))) {
    pack_each(s, p, [](float x, int) { return silu_of_half_exact(x); });
  } else {
    pack_each(s, p, [](float x, int element) { return value_of<kForm>(x, element); });
  }
}

}  // namespace warploom

/// `steps` tiles a warp; thread 0 of each CTA writes its clocks.
extern "C" __global__ void __launch_bounds__(128, 3) activation_clocks(long long* clocks, int steps) {
  using namespace warploom;
  const uint32 lane = threadIdx.x % 32;
  // Small numbers, so that no score is far down: 2^-6 in bfloat16, and what the compiler can't know.
  uint32 operand[4], values[2];
  for (uint32& x : operand) x = 0x3c803c80u + (lane & static_cast<uint32>(steps >> 30));
  for (uint32& x : values) x = operand[0];
  Scores s;
  Probabilities p;
  float o[kHeadDim == 0 ? 1 : kValueBlocks][4] = {};
  uint32 sum = 0;
  __syncthreads();
  const long long begin = clock64();
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      // Another number in every step and element, or what follows would be computed once.
      for (int i = 0; i < 4; ++i) s[0][n][i] = __int_as_float(0xbe000000 + 64 * step + 4 * n + i);
    }
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) ptx::mma_m16n8k16<ptx::Bfloat16>(s[0][n], operand, values[0], values[1]);
    }
    activate(s, p);
    if constexpr (kHeadDim == 0) {
#pragma unroll
      for (int k = 0; k < kKeyBlocks / 2; ++k) sum ^= p[k][0] ^ p[k][1] ^ p[k][2] ^ p[k][3];
    } else {
#pragma unroll
      for (int k = 0; k < kKeyBlocks / 2; ++k) {
#pragma unroll
        for (int n = 0; n < kValueBlocks; ++n) ptx::mma_m16n8k16<ptx::Bfloat16>(o[n], p[k], values[0], values[1]);
      }
    }
  }
  for (auto& block : o) {
    for (float x : block) sum ^= __float_as_uint(x);
  }
  __syncthreads();
  const long long end = clock64();
  // The sum is written where nobody looks, so that it must be computed.
  if (threadIdx.x == 0) clocks[blockIdx.x] = end - begin;
  if (sum == 0x12345679u) clocks[blockIdx.x] = 0;
}

/// out[i]: the form's result for x[i], in float32 where it has one; for silu's forms x is z / 2.
extern "C" __global__ void activation_values(const float* x, float* out, int count) {
  using namespace warploom;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  if constexpr (kForm == Form::tanh_guarded) {
    out[i] = x[i] < kTanhLimit ? silu_of_half_exact(x[i]) : silu_of_half(x[i]);
  } else {
    out[i] = value_of<kForm>(x[i], 0);
  }
}
