// Adds up the parts that attention_forward_split.cu has left (split.h), in the order of their chunks, and finishes the
// rows: O, LSE, and zeros for rows that are not used or belong to nobody. Memory-bound.
//
// One CTA a query row and head. Groups of threads, as many of them as a row has fours of columns, take every n-th part;
// then the groups' sums are added up in order.
//
// The text before this file defines warploom::kConfig, a CombineConfig.
#include "attention/softmax.h"
#include "attention/split.h"
#include "attention/split_config.h"
#include "attention/work.h"
#include "ptx/types.h"

namespace warploom {

using Element = ptx::ElementOf<kConfig.bfloat16>;
constexpr int kFours = kConfig.value_dim / 4;
constexpr int kLanes = kFours <= 2 ? 2 : kFours <= 4 ? 4 : kFours <= 8 ? 8 : kFours <= 16 ? 16 : kFours <= 32 ? 32 : 64;
constexpr int kGroups = kCombineThreads / kLanes;
constexpr int kWarps = kCombineThreads / 32;
constexpr int kMinBlocks = kFours <= 4 ? 3 : 4;  // of an SM: bounds the registers, which the shortest rows need more of
static_assert(kCombineThreads >= kMostChunks, "a thread knows one chunk's terms");

struct Shared {
  float4 sums[kGroups][kLanes];
  float factors[kMostChunks];  // negative: the row sees nothing of the chunk
  float of_warps[kWarps];
};

/// The result in all threads, in an order that depends on nothing but the threads' numbers.
template <typename Function>
__device__ __forceinline__ float reduce(float x, Function function, float* of_warps) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = function(x, __shfl_xor_sync(0xffffffffu, x, step));
  __syncthreads();  // the call before has been read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = of_warps[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) x = function(x, of_warps[warp]);
  return x;
}

struct Largest {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

/// A row's place in out and LSE.
struct Target {
  char* out;
  float* lse;  // null: not wanted
};

__device__ __forceinline__ Target target_of(const AttentionCall& call, int sequence, long long row, int head) {
  float* lse = nullptr;
  if (call.lse != nullptr) {
    lse = call.lse + sequence * call.lse_batch_stride + head * call.lse_head_stride + row;
  }
  return {rows_of(call.out, sequence, row, head).data, lse};
}

__device__ __forceinline__ void store(const Target& target, float4 sum, float factor, float lse) {
  const int four = threadIdx.x;
  if (four < kFours) {
    reinterpret_cast<uint2*>(target.out)[four] = {ptx::pack<Element>(sum.x * factor, sum.y * factor),
                                                  ptx::pack<Element>(sum.z * factor, sum.w * factor)};
  }
  if (four == 0 && target.lse != nullptr) *target.lse = lse;
}

/// n: the row among those of its parts.
__device__ __forceinline__ void combine(const SplitCall& p, Shared& shared, const Parts& parts, long long n,
                                        const Target& target, float scale) {
  const int chunk_of_thread = threadIdx.x;
  const PartTerms terms =
      chunk_of_thread < parts.chunks ? p.terms[parts.row(chunk_of_thread, n)] : PartTerms{ptx::minus_infinity(), 0.0f};
  float base = 0, total = 1;
  if constexpr (kConfig.softmax) {
    base = reduce(terms.sum == 0 ? ptx::minus_infinity() : terms.base, Largest(), shared.of_warps);
    if (base == ptx::minus_infinity()) base = 0;
  }
  const float factor = ptx::ex2_approx(terms.base - base);
  if constexpr (kConfig.softmax) {
    total = reduce(terms.sum == 0 ? 0.0f : factor * terms.sum, Sum(), shared.of_warps);
  }
  __syncthreads();  // the row before has been read
  shared.factors[chunk_of_thread] = terms.sum == 0 ? -1.0f : factor;
  __syncthreads();
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  float4 sum{0, 0, 0, 0};
  if (lane < kFours) {
    const float* const column = p.parts + 4 * lane;
#pragma unroll 8
    for (int chunk = group; chunk < parts.chunks; chunk += kGroups) {
      const float weight = shared.factors[chunk];
      float4 part{0, 0, 0, 0};  // no branch, so that many loads are in flight
      if (weight >= 0) part = *reinterpret_cast<const float4*>(column + parts.row(chunk, n) * kConfig.value_dim);
      sum.x = fmaf(weight, part.x, sum.x);
      sum.y = fmaf(weight, part.y, sum.y);
      sum.z = fmaf(weight, part.z, sum.z);
      sum.w = fmaf(weight, part.w, sum.w);
    }
  }
  shared.sums[group][lane] = sum;
  __syncthreads();
  if (group == 0) {
#pragma unroll
    for (int other = 1; other < kGroups; ++other) {
      const float4 more = shared.sums[other][lane];
      sum.x += more.x;
      sum.y += more.y;
      sum.z += more.z;
      sum.w += more.w;
    }
    if constexpr (kConfig.softmax) scale = total == 0 ? 0.0f : 1.0f / total;
    store(target, sum, scale, total == 0 ? ptx::minus_infinity() : (base + __log2f(total)) * kLn2);
  }
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kCombineThreads, warploom::kMinBlocks)
    attention_combine(const __grid_constant__ warploom::SplitCall params) {
  using namespace warploom;
  __shared__ Shared shared;
  const AttentionCall& call = params.call;
  const int head = blockIdx.x % (call.schedule.heads * params.packed_heads);
  const unsigned place = blockIdx.x / (call.schedule.heads * params.packed_heads);
  const int sequence = place / params.queries_at_once;
  long long i = place % params.queries_at_once;
  const Work work = work_of_sequence(call, sequence, head);
  if (work.slot_q > params.most_queries && sequence < call.sequences) return;  // another kernel's
  const Parts parts = parts_of(params, sequence, head / params.packed_heads, work.slot_q, work.first_q, work.first_k,
                               work.mask.seqlen_k);
  for (; i < work.slot_q; i += params.queries_at_once) {
    const Target target = target_of(call, sequence, work.tensor_q + i, head);
    if (i >= work.mask.seqlen_q) {
      store(target, float4{0, 0, 0, 0}, 0.0f, ptx::minus_infinity());
      continue;
    }
    const float scale =
        call.divisor_rows != nullptr ? 1.0f / call.divisor_rows[work.first_q + i] : call.inverse_divisor;
    combine(params, shared, parts, i * params.packed_heads + head % params.packed_heads, target, scale);
  }
}
