// Before softmax's backward pass: for each query row and head the log-sum-exp and the row sum of dO * O. Memory-bound:
// dO and O are read once.
//
// The text before this file defines warploom::kConfig, a BackwardRowTermsConfig.
#include "attention/backward_config.h"
#include "attention/backward_score.h"
#include "attention/work.h"
#include "ptx/grid_dependency.h"
#include "ptx/types.h"

namespace warploom {

constexpr int kLanes = lanes_of_row(kConfig);
constexpr int kChunks = kConfig.value_dim / geometry::kChunkValues;
using Element = ptx::ElementOf<kConfig.bfloat16>;

__device__ __forceinline__ float sum_of_products(const uint4& a, const uint4& b) {
  const ptx::uint32 left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    const float2 x = ptx::unpack<Element>(left[i]), y = ptx::unpack<Element>(right[i]);
    sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
  }
  return sum;
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kRowTermsThreads)
    backward_row_terms(const __grid_constant__ warploom::BackwardParams params) {
  using namespace warploom;
  ptx::launch_dependents();  // what reads the terms waits for all of them
  const AttentionCall& call = params.call;
  const int heads = call.schedule.heads;
  const long long index =
      (static_cast<long long>(blockIdx.x) * kRowTermsThreads + static_cast<int>(threadIdx.x)) / kLanes;
  const int chunk = threadIdx.x % kLanes;
  const bool exists = index < call.total_q * heads;  // the lanes of a row agree
  const long long row = exists ? index / heads : 0;
  const int head = static_cast<int>(index - row * heads);
  const int sequence = call.cu_seqlens_q == nullptr ? static_cast<int>(row / call.seqlen_q) : 0;
  const long long row_of_tensor = row - static_cast<long long>(sequence) * call.seqlen_q;
  float delta = 0;
  if (exists && chunk < kChunks) {
    const auto chunk_of = [&](const Tensor& tensor) {
      return *reinterpret_cast<const uint4*>(rows_of(tensor, sequence, row_of_tensor, head).data +
                                             chunk * geometry::kChunkBytes);
    };
    delta = sum_of_products(chunk_of(call.dout), chunk_of(call.out));
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) delta += __shfl_xor_sync(0xffffffffu, delta, offset);
  if (exists && chunk == 0) {
    const float lse = call.lse[sequence * call.lse_batch_stride + head * call.lse_head_stride + row_of_tensor];
    // A row that sees nothing has -inf; its probabilities are exp(S - inf) = 0.
    const float negated = -lse;
    params.row_terms[head * call.total_q + row] = {negated == __int_as_float(0x7f800000) ? negated : lse, delta};
  }
}
