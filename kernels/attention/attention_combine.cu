// Adds up the parts that attention_forward_split.cu has left (split.h), in the order of their chunks, and finishes the
// rows: O, LSE, and zeros for rows that are not used or belong to nobody. Memory-bound.
//
// Where a sequence has few chunks, a warp adds up a row by itself; where it has more, all threads do: groups of them,
// as many as a row has fours of columns, take every n-th part, then the groups' sums are added up in order. Which of
// the two follows from the number of chunks alone, as the order of additions differs. How many rows a CTA has does not
// change it.
//
// The text before this file defines warploom::kConfig, a CombineConfig.
#include "attention/softmax.h"
#include "attention/split.h"
#include "attention/split_config.h"
#include "attention/work.h"
#include "ptx/grid_dependency.h"
#include "ptx/types.h"

namespace warploom {

using Element = ptx::ElementOf<kConfig.bfloat16>;
constexpr int kFours = kConfig.value_dim / 4;
constexpr int kLanes = kFours <= 2 ? 2 : kFours <= 4 ? 4 : kFours <= 8 ? 8 : kFours <= 16 ? 16 : kFours <= 32 ? 32 : 64;
constexpr int kGroups = kCombineThreads / kLanes;
constexpr int kWarps = kCombineThreads / 32;
constexpr int kMinBlocks = 3;    // of an SM: bounds the registers
constexpr int kWarpChunks = 32;  // of a row that a warp adds up
static_assert(kCombineThreads >= kMostChunks, "a thread knows one chunk's terms");

struct Shared {
  float4 sums[kGroups][kLanes];
  float weights[kMostChunks];
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

/// A query row and head: where its parts are, and where its results go.
struct Row {
  Parts parts;
  long long n;  // among the rows of its parts
  char* out;
  float* lse;  // null: not wanted
  float scale;
  bool exists, used;
};

/// Row `index` of the launch: query rows first + k * queries_at_once of a sequence are one after the other's, k = turn.
__device__ __forceinline__ Row row_of(const SplitCall& p, long long index, long long turn) {
  const AttentionCall& call = p.call;
  const int heads = call.schedule.heads * p.packed_heads;
  const int head = static_cast<int>(index % heads);
  const unsigned place = static_cast<unsigned>(index / heads);
  const int sequence = static_cast<int>(place / p.queries_at_once);
  const long long i = place % p.queries_at_once + turn * p.queries_at_once;
  Row row{};
  if (index >= p.combined_rows) return row;
  const Work work = work_of_sequence(call, sequence, head);
  // Longer queries are another kernel's.
  row.exists = i < work.slot_q && (work.slot_q <= p.most_queries || sequence >= call.sequences);
  if (!row.exists) return row;
  row.used = i < work.mask.seqlen_q;
  row.parts = parts_of(p, sequence, head / p.packed_heads, work.slot_q, work.first_q, work.first_k, work.mask.seqlen_k);
  row.n = i * p.packed_heads + head % p.packed_heads;
  row.out = rows_of(call.out, sequence, work.tensor_q + i, head).data;
  if (call.lse != nullptr) {
    row.lse = call.lse + sequence * call.lse_batch_stride + head * call.lse_head_stride + work.tensor_q + i;
  }
  row.scale =
      call.divisor_rows != nullptr && row.used ? 1.0f / call.divisor_rows[work.first_q + i] : call.inverse_divisor;
  return row;
}

/// Columns 4 * four to 4 * four + 3.
__device__ __forceinline__ void store(const Row& row, int four, float4 sum, float factor, float lse) {
  if (four < kFours) {
    reinterpret_cast<uint2*>(row.out)[four] = {ptx::pack<Element>(sum.x * factor, sum.y * factor),
                                               ptx::pack<Element>(sum.z * factor, sum.w * factor)};
  }
  if (four == 0 && row.lse != nullptr) *row.lse = lse;
}

__device__ __forceinline__ float log_sum(float base, float total) {
  return total == 0 ? ptx::minus_infinity() : (base + __log2f(total)) * kLn2;
}

/// Adds the parts of every step-th chunk from `first` on, weight(chunk) times. A negative weight: the part was not
/// written, and is not read. Loads go in batches, without a branch between them, so that many are in flight.
template <int Batch, typename Weight>
__device__ __forceinline__ float4 sum_of_parts(const float* parts, long long stride, int first, int step, int chunks,
                                               Weight weight) {
  float4 sum{0, 0, 0, 0};
#pragma unroll 1
  for (int chunk = first; chunk < chunks; chunk += Batch * step) {
    float4 part[Batch];
    float weights[Batch];
#pragma unroll
    for (int n = 0; n < Batch; ++n) {
      const int at = chunk + n * step;
      weights[n] = weight(at < chunks ? at : first);
      part[n] = float4{0, 0, 0, 0};
      if (at < chunks && weights[n] >= 0) part[n] = *reinterpret_cast<const float4*>(parts + at * stride);
    }
#pragma unroll
    for (int n = 0; n < Batch; ++n) {
      sum.x = fmaf(weights[n], part[n].x, sum.x);
      sum.y = fmaf(weights[n], part[n].y, sum.y);
      sum.z = fmaf(weights[n], part[n].z, sum.z);
      sum.w = fmaf(weights[n], part[n].w, sum.w);
    }
  }
  return sum;
}

/// What chunk's part counts in units of 2^base of the row; negative: the row sees nothing of the chunk.
__device__ __forceinline__ float weight_of(const PartTerms& terms, float base) {
  return terms.sum == 0 ? -1.0f : ptx::ex2_approx(terms.base - base);
}

__device__ __forceinline__ PartTerms terms_of(const SplitCall& p, const Row& row, int chunk) {
  return chunk < row.parts.chunks ? p.terms[row.parts.row(chunk, row.n)] : PartTerms{ptx::minus_infinity(), 0.0f};
}

/// A row of at most kWarpChunks chunks.
__device__ __forceinline__ void combine_by_warp(const SplitCall& p, const Row& row) {
  const int lane = threadIdx.x % 32;
  const PartTerms terms = terms_of(p, row, lane);
  float base = 0, total = 1, scale = row.scale;
  if constexpr (kConfig.softmax) {
    base = terms.sum == 0 ? ptx::minus_infinity() : terms.base;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) base = fmaxf(base, __shfl_xor_sync(0xffffffffu, base, step));
    if (base == ptx::minus_infinity()) base = 0;
  }
  const float weight = weight_of(terms, base);
  if constexpr (kConfig.softmax) {
    total = terms.sum == 0 ? 0.0f : weight * terms.sum;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    scale = total == 0 ? 0.0f : 1.0f / total;
  }
  const float* const parts = p.parts + row.parts.row(0, row.n) * kConfig.value_dim;
  const long long stride = row.parts.rows * kConfig.value_dim;
#pragma unroll
  for (int first = 0; first < kFours; first += 32) {
    const int four = first + lane < kFours ? first + lane : kFours - 1;
    const float4 sum = sum_of_parts<8>(parts + 4 * four, stride, 0, 1, row.parts.chunks,
                                       [weight](int chunk) { return __shfl_sync(0xffffffffu, weight, chunk); });
    store(row, first + lane, sum, scale, log_sum(base, total));
  }
}

/// A row by all threads of the CTA.
__device__ __forceinline__ void combine_by_cta(const SplitCall& p, Shared& shared, const Row& row) {
  const int chunk_of_thread = threadIdx.x;
  const PartTerms terms = terms_of(p, row, chunk_of_thread);
  float base = 0, total = 1, scale = row.scale;
  if constexpr (kConfig.softmax) {
    base = reduce(terms.sum == 0 ? ptx::minus_infinity() : terms.base, Largest(), shared.of_warps);
    if (base == ptx::minus_infinity()) base = 0;
  }
  const float mine = weight_of(terms, base);
  if constexpr (kConfig.softmax) {
    total = reduce(terms.sum == 0 ? 0.0f : mine * terms.sum, Sum(), shared.of_warps);
    scale = total == 0 ? 0.0f : 1.0f / total;
  }
  __syncthreads();  // the row before has been read
  shared.weights[chunk_of_thread] = mine;
  __syncthreads();
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  float4 sum{0, 0, 0, 0};
  if (lane < kFours) {
    sum = sum_of_parts<8>(p.parts + row.parts.row(0, row.n) * kConfig.value_dim + 4 * lane,
                          row.parts.rows * kConfig.value_dim, group, kGroups, row.parts.chunks,
                          [&shared](int chunk) { return shared.weights[chunk]; });
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
    store(row, lane, sum, scale, log_sum(base, total));
  }
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kCombineThreads, warploom::kMinBlocks)
    attention_combine(const __grid_constant__ warploom::SplitCall params) {
  using namespace warploom;
  __shared__ Shared shared;
  const long long first = static_cast<long long>(blockIdx.x) * params.rows_of_cta;
  const int warp = threadIdx.x / 32;
  ptx::grid_dependency_wait();
  // One turn when the host knew the longest query.
  for (long long turn = 0;; ++turn) {
    Row row{};
    if (warp < params.rows_of_cta) row = row_of(params, first + warp, turn);
    const bool many = row.used && row.parts.chunks > kWarpChunks;
    if (row.exists && !row.used) {
      for (int four = threadIdx.x % 32; four < kFours; four += 32) {
        store(row, four, float4{0, 0, 0, 0}, 0.0f, ptx::minus_infinity());
      }
    } else if (row.exists && !many) {
      combine_by_warp(params, row);
    }
    if (__syncthreads_or(many)) {
      for (int other = 0; other < params.rows_of_cta; ++other) {
        const Row shared_row = row_of(params, first + other, turn);
        if (shared_row.used && shared_row.parts.chunks > kWarpChunks) combine_by_cta(params, shared, shared_row);
      }
    }
    if (!__syncthreads_or(row.exists)) break;
  }
}
