// Conversions of floats to pairs of 16 bits, and the silu of a score.
#include "attention/silu.h"
#include "ptx/types.h"

using warploom::ptx::uint32;

extern "C" __global__ void pack_fp16(const float* from, uint32* out, int pairs) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < pairs) out[i] = warploom::ptx::pack<warploom::ptx::Float16>(from[2 * i], from[2 * i + 1]);
}

extern "C" __global__ void pack_bf16(const float* from, uint32* out, int pairs) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < pairs) out[i] = warploom::ptx::pack<warploom::ptx::Bfloat16>(from[2 * i], from[2 * i + 1]);
}

extern "C" __global__ void silu(const float* half_z, float* quick, float* exact, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  quick[i] = warploom::silu_of_half(half_z[i]);
  exact[i] = warploom::silu_of_half_exact(half_z[i]);
}

/// One thread for each group of 16 scores.
extern "C" __global__ void below_tanh_limit(const float* half_z, int* out, int groups) {
  const int group = blockIdx.x * blockDim.x + threadIdx.x;
  if (group >= groups) return;
  float h[2][2][4];
  for (int i = 0; i < 16; ++i) h[i / 8][i / 4 % 2][i % 4] = half_z[16 * group + i];
  out[group] = warploom::any_below_tanh_limit(h) ? 1 : 0;
}
