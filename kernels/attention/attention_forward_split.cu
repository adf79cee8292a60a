// Attention forward for short queries against long keys, through mma.sync: the parts of O that the chunks of a
// sequence's keys give (split.h). attention_combine.cu adds them up.
//
// One CTA takes one tile of rows and some neighbouring chunks of its sequence. Its main loop is that of
// attention_forward_mma.cu with one more step: between the last tile of a chunk and the first one of the next it writes
// the part and starts from nothing, while the ring goes on filling. Where a tile has few rows, the warps divide its
// columns (key_warps) and what they have is added up before it is written: such calls wait for memory, and one warp
// alone would not keep up with it.
//
// The text before this file defines warploom::kConfig, an AttentionForwardConfig.
#include "attention/forward_steps.h"
#include "attention/split.h"
#include "attention/split_config.h"
#include "ptx/grid_dependency.h"

namespace warploom {

constexpr SplitMap kSplitMap = split_shared_map(kConfig);
constexpr int kKeyWarps = kConfig.key_warps;
static_assert(kWarpColumns % 16 == 0 && kChunkUnit % kConfig.key_columns == 0);
static_assert(kKeyWarps == 1 || kRowBlocks == 1, "the exchange holds one m16 block a warp");

/// A CTA's row tile and chunks, in shared memory.
struct SplitWork {
  Work work;  // first_row: of the tile's first row; head: its first one
  Parts parts;
  long long rows, first;  // of the sequence that are used; the tile's first one (packed)
  int first_chunk, end_chunk;
};
static_assert(sizeof(SplitWork) <= SplitMap::work_bytes);

/// False when the launch has nothing to do here.
__device__ __forceinline__ bool find_work(const SplitCall& p, SplitWork& s) {
  Work& work = s.work;
  work = work_of(p.call, blockIdx.x, /*tile_rows=*/1);
  const int item = static_cast<int>(work.first_row);
  const int group = work.head;
  work.head *= p.packed_heads;
  const long long rows = work.slot_q * p.packed_heads;
  if (work.slot_q > p.most_queries || rows < p.fewest_rows || rows > p.most_rows) return false;
  s.parts = parts_of(p, work.sequence, group, work.slot_q, work.first_q, work.first_k, work.mask.seqlen_k);
  s.rows = static_cast<long long>(work.mask.seqlen_q) * p.packed_heads;
  s.first = static_cast<long long>(item % p.row_tiles) * kConfig.query_rows;
  const int split = item / p.row_tiles, each = (s.parts.chunks + p.splits - 1) / p.splits;
  s.first_chunk = geometry::min_of(split * each, s.parts.chunks);
  s.end_chunk = geometry::min_of(s.first_chunk + each, s.parts.chunks);
  return s.first_chunk < s.end_chunk;
}

/// The row of the tile in rows of q: counted from the tile's first query row, and the head from the tile's first one.
struct PackedRow {
  int query, head;

  __device__ __forceinline__ PackedRow(const SplitCall& p, const SplitWork& s, int row) {
    const long long n = s.first + row;
    query = static_cast<int>(n / p.packed_heads - s.work.first_row);
    head = static_cast<int>(n % p.packed_heads);
  }
};

__device__ __forceinline__ void load_query(const SplitCall& p, const SplitWork& s, uint32 tile, int rows) {
  constexpr int kChunks = kConfig.head_dim / geometry::kChunkValues;
  for (int row = threadIdx.x / geometry::kPanelChunks; row < kConfig.query_rows;
       row += kThreads / geometry::kPanelChunks) {
    const PackedRow at(p, s, row);
    const char* const source =
        rows_of(p.call.query, s.work.sequence, s.work.tensor_q + s.work.first_row + at.query, s.work.head + at.head)
            .data;
    for (int chunk = threadIdx.x % geometry::kPanelChunks; chunk < kChunks; chunk += geometry::kPanelChunks) {
      ptx::cp_async_16(tile + geometry::swizzled_offset(kConfig.query_rows, row, chunk),
                       source + chunk * geometry::kChunkBytes, row < rows);
    }
  }
}

/// Adds up what the warps that share rows have, into the first of them: in a fixed order, from the last one down.
/// terms: the first warp's, of its row in each half.
__device__ __forceinline__ void add_up_key_warps(Output& o, PartTerms (&terms)[2], unsigned char* shared) {
  const int lane = threadIdx.x % 32, row_warp = threadIdx.x / 32 % kRowWarps, key_warp = threadIdx.x / 32 / kRowWarps;
  PartTerms* const all = reinterpret_cast<PartTerms*>(shared + kSplitMap.terms) + row_warp * kKeyWarps * 16;
  const uint32 exchange = ptx::shared_address(shared) + kSplitMap.exchange + row_warp * kValueBlocks * 32 * 16;
  for (int half = 0; half < 2; ++half) {
    if (lane % 4 == 0) all[key_warp * 16 + half * 8 + lane / 4] = terms[half];
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const PartTerms* const row = all + half * 8 + lane / 4;
    float base = row[0].base, sum = 0;
    for (int warp = 1; warp < kKeyWarps; ++warp) base = fmaxf(base, row[warp * 16].base);
    const float origin = base == ptx::minus_infinity() ? 0.0f : base;
    for (int warp = 0; warp < kKeyWarps; ++warp) {
      sum += row[warp * 16].sum * ptx::ex2_approx(row[warp * 16].base - origin);
    }
    const float factor = ptx::ex2_approx(terms[half].base - origin);
#pragma unroll
    for (int n = 0; n < kValueBlocks; ++n) {
      o[0][n][2 * half] *= factor;
      o[0][n][2 * half + 1] *= factor;
    }
    terms[half] = {base, sum};
  }
#pragma unroll 1
  for (int from = kKeyWarps - 1; from > 0; --from) {
    if (key_warp == from) {
#pragma unroll
      for (int n = 0; n < kValueBlocks; ++n) {
        const float(&c)[4] = o[0][n];
        ptx::store_shared_16(exchange + (n * 32 + lane) * 16, uint4{__float_as_uint(c[0]), __float_as_uint(c[1]),
                                                                    __float_as_uint(c[2]), __float_as_uint(c[3])});
      }
    }
    __syncthreads();
    if (key_warp == from - 1) {
#pragma unroll
      for (int n = 0; n < kValueBlocks; ++n) {
        const uint4 c = ptx::load_shared_16(exchange + (n * 32 + lane) * 16);
        o[0][n][0] += __uint_as_float(c.x);
        o[0][n][1] += __uint_as_float(c.y);
        o[0][n][2] += __uint_as_float(c.z);
        o[0][n][3] += __uint_as_float(c.w);
      }
    }
    __syncthreads();
  }
}

/// Writes the chunk's part. seen: the CTA has visited a tile of it.
__device__ __forceinline__ void store_part(const SplitCall& p, unsigned char* shared, const SplitWork& s, Output& o,
                                           Score& score, int chunk, bool seen) {
  if (seen) score.finish();
  const int lane = threadIdx.x % 32, row_warp = threadIdx.x / 32 % kRowWarps, key_warp = threadIdx.x / 32 / kRowWarps;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
    PartTerms terms[2] = {score.part_terms(m, 0), score.part_terms(m, 1)};
    if constexpr (kKeyWarps > 1) {
      if (seen) add_up_key_warps(o, terms, shared);
    }
    if (key_warp != 0) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long n = s.first + row_warp * kWarpRows + m * 16 + half * 8 + lane / 4;
      if (n >= s.rows) continue;
      const long long row = s.parts.row(chunk, n);
      if (lane % 4 == 0) p.terms[row] = seen ? terms[half] : PartTerms{ptx::minus_infinity(), 0.0f};
      if (!seen) continue;
      float* const to = p.parts + row * kConfig.value_dim + lane % 4 * 2;
#pragma unroll
      for (int block = 0; block < kConfig.value_dim / 8; ++block) {
        *reinterpret_cast<float2*>(to + block * 8) = {o[m][block][2 * half], o[m][block][2 * half + 1]};
      }
    }
  }
}

/// One tile of rows against the CTA's chunks.
__device__ __forceinline__ void attend(const SplitCall& p, unsigned char* shared, const SplitWork& s) {
  const AttentionCall& call = p.call;
  const Work& work = s.work;
  const uint32 base = ptx::shared_address(shared);
  int* const tile_numbers = reinterpret_cast<int*>(shared + kMap.tile_numbers);
  const int row_warp = threadIdx.x / 32 % kRowWarps, key_warp = threadIdx.x / 32 / kRowWarps;
  const int lane_row = row_warp * kWarpRows + threadIdx.x % 32 % kWarpRows;  // the row that this lane speaks for
  const long long left = s.rows - s.first;
  const int rows = left < kConfig.query_rows ? static_cast<int>(left) : kConfig.query_rows;
  const bool row_exists = lane_row < rows;
  const int tiles_of_chunk = s.parts.chunk_keys / kConfig.key_columns, end_tile = s.end_chunk * tiles_of_chunk;

  typename Masking::Walk walk =
      Masking::walk(call, shared, work, PackedRow(p, s, rows - 1).query + 1, s.first_chunk * tiles_of_chunk);
  typename Masking::Row& kept_row = reinterpret_cast<typename Masking::Row*>(shared + kMap.rows)[threadIdx.x];
  kept_row = Masking::row(call, work, row_exists, PackedRow(p, s, lane_row).query);
  // Beyond the last chunk's end there are other CTAs' tiles.
  const auto next_tile = [&] {
    const int number = walk.tile();
    return number < end_tile ? number : -1;
  };

  int* const exponents = reinterpret_cast<int*>(shared + kMap.exponents) + threadIdx.x / 32 * kWarpRows;
  if constexpr (kScalesRows) exponents[threadIdx.x % 32 % kWarpRows] = 0;
  tile::zero_padding<kConfig.query_rows, kConfig.head_dim, kThreads>(base + kMap.query);
#pragma unroll
  for (int stage = 0; stage < kConfig.stages; ++stage) {
    tile::zero_padding<kConfig.key_columns, kConfig.head_dim, kThreads>(base + kMap.key + stage * kMap.key_bytes);
  }
  const int first_tile = next_tile();
  if (first_tile >= 0) load_query(p, s, base + kMap.query, rows);
  const int key_head = work.head / call.heads_per_key_head;
  const tile::GlobalRows keys = rows_of(call.key, work.sequence, work.tensor_k, key_head);
  const tile::GlobalRows values = rows_of(call.value, work.sequence, work.tensor_k, key_head);
  const auto load_next_tile = [&](int stage) {
    const int number = next_tile();
    if (threadIdx.x == 0) tile_numbers[stage] = number;
    if (number >= 0) {
      const int first_key = number * kConfig.key_columns;
      tile::copy_rows_async<kConfig.key_columns, kConfig.head_dim, kThreads>(
          base + kMap.key + stage * kMap.key_bytes, keys.from(first_key), work.mask.seqlen_k - first_key);
      tile::copy_rows_async<kConfig.key_columns, kConfig.value_dim, kThreads>(
          base + kMap.value + stage * kMap.value_bytes, values.from(first_key), work.mask.seqlen_k - first_key);
      walk.advance();
    }
    ptx::cp_async_commit_group();  // an empty group keeps the count of groups in step with the tiles
  };
#pragma unroll
  for (int stage = 0; stage < kConfig.stages - 1; ++stage) load_next_tile(stage);

  Output o;
  clear(o);
  const QueryReader query(base + kMap.query, row_warp * kWarpRows);
  const KeyReader key(base + kMap.key, key_warp * kWarpColumns);
  const ValueReader value(base + kMap.value, key_warp * kWarpColumns);

  Score score(call, exponents);
  Bias bias(call, work, *reinterpret_cast<const BiasRows*>(shared + kMap.bias_rows), shared + kMap.bias);
  int next = first_tile;
  if (kBiased && next >= 0) bias.start(next * kConfig.key_columns);

  int chunk = s.first_chunk;
  bool seen = false;  // a tile of this chunk
  constexpr int kInFlight = kBiased ? 1 : kConfig.stages - 2;
  for (int stage = 0;; stage = stage + 1 == kConfig.stages ? 0 : stage + 1) {
    ptx::cp_async_wait_group<kInFlight>();
    __syncthreads();  // every thread's part of this tile is there, and nobody reads the stage that is filled next
    const int number = tile_numbers[stage];
    if (number >= 0) {
      if constexpr (kBiased) next = next_tile();
      load_next_tile(stage == 0 ? kConfig.stages - 1 : stage - 1);
    }
    // The end, or a tile of a later chunk: what there is belongs to this one.
    while (chunk < s.end_chunk && (number < 0 || number >= (chunk + 1) * tiles_of_chunk)) {
      store_part(p, shared, s, o, score, chunk, seen);
      ++chunk;
      if (!seen) continue;
      seen = false;
      clear(o);
      __syncwarp();  // the exponents have been read
      if constexpr (kScalesRows) exponents[threadIdx.x % 32 % kWarpRows] = 0;
      __syncwarp();
      score = Score(call, exponents);
    }
    if (number < 0) break;
    seen = true;

    const int first_column = number * kConfig.key_columns + key_warp * kWarpColumns;
    const Interval columns{first_column, first_column + kWarpColumns};
    const typename Masking::Row row = kept_row;
    const uint32 seeing = __ballot_sync(kAllLanes, row.sees_any(columns));
    const int next_column = next * kConfig.key_columns;
    if (seeing == 0) {
      if constexpr (kBiased) {
        bias.template wait<1>();
        if (next >= 0) bias.start(next_column);
      }
      continue;
    }
    consume<kRowBlocks>(o, score, bias, query,
                        KeyTile{key.moved(stage * kMap.key_bytes), value.moved(stage * kMap.value_bytes), first_column,
                                next_column, __all_sync(kAllLanes, !row_exists || row.sees_all(columns)) != 0},
                        row);
  }
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, warploom::kConfig.min_blocks)
    attention_forward_split(const __grid_constant__ warploom::SplitCall params) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char shared[];
  ptx::launch_dependents();  // what adds up waits for this kernel's end, but is there by then
  SplitWork& s = *reinterpret_cast<SplitWork*>(shared + kSplitMap.work);
  if (!__syncthreads_or(threadIdx.x == 0 && find_work(params, s))) return;
  if constexpr (kBucketed) {
    reinterpret_cast<StagedTimes*>(shared + kMap.bias)->fill(params.call, s.work.head);
    __syncthreads();
  } else if constexpr (kBiased) {
    find_bias_rows(params.call, shared, s.work);
  }
  // One tile a CTA when the host knew the longest query; a longer one takes more turns.
  while (s.first < s.rows) {
    __syncthreads();  // everybody has read where the last tile was
    if (threadIdx.x == 0) s.work.first_row = s.first / params.packed_heads;
    __syncthreads();
    attend(params, shared, s);
    __syncthreads();
    if (threadIdx.x == 0) s.first += static_cast<long long>(params.row_tiles) * kConfig.query_rows;
    __syncthreads();
  }
}
