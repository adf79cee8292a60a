// The gradient of a bias that several pairs share, through mma.sync, for sm_80 and newer: dS summed in float32, always
// in the same order.
//
// Stored biases: a CTA owns a tile of the gradient and goes through the sequences and heads that share it. Bucketed
// ones: it owns a block diagonal of a sequence and head, whose tiles all hold the same differences r - j, so that the
// sums of the diagonals stay in registers from tile to tile; sums of times are kept a warp. S and dP are computed again
// for each tile; nothing is added in global memory.
//
// The text before this file defines warploom::kConfig, a BackwardBiasConfig.
#include "attention/backward_bias_config.h"
#include "attention/backward_rows.h"
#include "attention/bias_bucketed_gradient.h"

namespace warploom {

constexpr BackwardBiasSharedMap kMap = shared_map(kConfig);
constexpr int kTile = kConfig.key_columns;
static_assert(kTile == kQueryRows && kWorkBytes == kMap.work_bytes);
static_assert(sizeof(BiasRows) + sizeof(long long) <= kMap.bias_places_bytes);

using Diagonals = DiagonalSums<kTile>;
static_assert(kConfig.warps * Diagonals::kFloats * 4 <= geometry::tile_bytes(kTile, kConfig.head_dim) +
                                                            geometry::tile_bytes(kTile, kConfig.value_dim) +
                                                            2 * kTile * 128);

/// One tile of one sequence and head.
struct Step {
  int sequence, head;
  long long first_row;  // may be negative where rows count in key coordinates
  int first_key;
};

/// A tile of the gradient of a stored bias.
struct StoredItem {
  int sequence, head;  // 0 when they share the gradient
  long long row;       // of the gradient, the tile's first one
  int column;
  int heads;  // that share it

  __device__ __forceinline__ StoredItem(const BackwardParams& p, int pair, long long row_, int column_)
      : sequence(pair / p.bias_sums.heads),
        head(pair % p.bias_sums.heads),
        row(row_),
        column(column_),
        heads(p.bias_sums.heads == 1 ? p.call.schedule.heads : 1) {}

  __device__ __forceinline__ int steps(const BackwardParams& p) const {
    return heads * (p.bias_sums.sequences == 1 ? p.call.sequences : 1);
  }
  __device__ __forceinline__ Work work(const BackwardParams& p, int step) const {
    Work work = work_of_sequence(p.call, sequence + step / heads, head + step % heads);
    work.first_row = row - bias_row_of_query(p.call.bias, work);
    return work;
  }
  __device__ __forceinline__ int first_key(int) const { return column; }
};

/// A part of a block diagonal of a sequence and head.
struct DiagonalItem {
  const Work& pair;  // in shared memory; its first row is nobody's
  DiagonalPart tiles;

  __device__ __forceinline__ int steps(const BackwardParams&) const { return tiles.steps(); }
  __device__ __forceinline__ long long first_row(int step) const {
    return static_cast<long long>(tiles.query_tile(step)) * kTile;
  }
  __device__ __forceinline__ Work work(const BackwardParams&, int step) const {
    Work work = pair;
    work.first_row = first_row(step);
    return work;
  }
  __device__ __forceinline__ int first_key(int step) const { return tiles.key_tile(step) * kTile; }
};

__device__ __forceinline__ Interval rows_of_tile(const Work& work) {
  const int first = static_cast<int>(work.first_row);
  return {geometry::max_of(first, 0), geometry::min_of(first + kTile, work.mask.seqlen_q)};
}

/// dS of a tile: 0 where nothing is visible. By all threads; work: in shared memory. False: the tile sees nothing.
template <typename Provider>
__device__ __forceinline__ bool score_gradients(const BackwardParams& p, unsigned char* shared, const Work& work,
                                                Provider& bias, int first_key, Scores& ds) {
  const AttentionCall& call = p.call;
  const uint32 base = ptx::shared_address(shared);
  const Interval rows = rows_of_tile(work);
  const int first_row = static_cast<int>(work.first_row), warp_row = threadIdx.x / 32 * 16;
  const int lane_row = warp_row + threadIdx.x % 16;  // the row that this lane speaks for
  const bool row_exists = rows.contains(first_row + lane_row);
  const typename RowMask::Row row =
      RowMask::row(call, work, row_exists, row_exists ? lane_row : rows.begin - first_row);
  const Interval columns{first_key, first_key + kTile};
  const bool seen = row_exists && row.sees_any(columns);
  if (!__syncthreads_or(seen)) return false;  // nobody reads the tile before either

  tile::zero_padding<kTile, kConfig.head_dim, kThreads>(base + kMap.query);
  tile::zero_padding<kTile, kConfig.value_dim, kThreads>(base + kMap.dout);
  tile::zero_padding<kTile, kConfig.head_dim, kThreads>(base + kMap.key);
  tile::zero_padding<kTile, kConfig.value_dim, kThreads>(base + kMap.value);
  const int begin = rows.begin - first_row, end = rows.end - first_row;
  tile::copy_rows_async<kTile, kConfig.head_dim, kThreads>(
      base + kMap.query, rows_of(call.query, work.sequence, work.tensor_q + work.first_row, work.head), end, begin);
  tile::copy_rows_async<kTile, kConfig.value_dim, kThreads>(
      base + kMap.dout, rows_of(call.dout, work.sequence, work.tensor_q + work.first_row, work.head), end, begin);
  const int key_head = work.head / call.heads_per_key_head, keys = work.mask.seqlen_k - first_key;
  tile::copy_rows_async<kTile, kConfig.head_dim, kThreads>(
      base + kMap.key, rows_of(call.key, work.sequence, work.tensor_k + first_key, key_head), keys);
  tile::copy_rows_async<kTile, kConfig.value_dim, kThreads>(
      base + kMap.value, rows_of(call.value, work.sequence, work.tensor_k + first_key, key_head), keys);
  bias.start(first_key);
  const RowTerms terms = row_terms(p, work);
  ptx::cp_async_wait_group<0>();
  __syncthreads();

  // A row that does not exist counts as one that sees nothing: a table's NaN must not reach the sums from it.
  const bool whole = __all_sync(kAllLanes, row_exists && row.sees_all(columns));
  Scores s;
  products<(kConfig.head_dim + 15) / 16>(s, QueryReader(base + kMap.query, warp_row), KeyReader(base + kMap.key, 0));
  products<(kConfig.value_dim + 15) / 16>(ds, QueryReader(base + kMap.dout, warp_row), KeyReader(base + kMap.value, 0));
  const bool masks = add_bias(call, bias, s);
  apply_score(p, s, ds, terms);
  if (!whole) apply_mask(ds, row, first_key);
  if (masks) hide_masked(bias, ds);
  return true;
}

/// Calls body(step) for every step of the item that may see something, in order. By all threads.
template <typename Item, typename Body>
__device__ __forceinline__ void for_each_step(const BackwardParams& p, unsigned char* shared, const Item& item,
                                              Body body) {
  unsigned* const bits = reinterpret_cast<unsigned*>(shared + kMap.steps);
  const int count = item.steps(p);
  for (int first = 0; first < count; first += kThreads) {
    const int mine = first + static_cast<int>(threadIdx.x);
    bool sees = mine < count;
    if (sees && !kConfig.interval_mask) {  // a row's intervals are looked at when its tile's turn comes
      const Work work = item.work(p, mine);
      const int first_key = item.first_key(mine);
      sees = visible_to_any(work.mask, rows_of_tile(work)).intersects({first_key, first_key + kTile});
    }
    const unsigned word = __ballot_sync(kAllLanes, sees);
    __syncthreads();  // the words before have been read
    if (threadIdx.x % 32 == 0) bits[threadIdx.x / 32] = word;
    __syncthreads();
    for (int n = 0; n < kConfig.warps; ++n) {
      for (unsigned left = bits[n]; left != 0; left &= left - 1) body(first + n * 32 + __ffs(left) - 1);
    }
  }
}

/// A tile of the gradient: the sum of all steps.
__device__ __forceinline__ void sum_tile(const BackwardParams& p, unsigned char* shared, const StoredItem& item,
                                         long long packed_first, long long rows, long long columns,
                                         long long row_stride) {
  Work& work = *reinterpret_cast<Work*>(shared + kMap.work);
  BiasRows& places = *reinterpret_cast<BiasRows*>(shared + kMap.bias_places);
  Scores sums, ds;
  for (auto& block : sums[0]) {
    for (float& x : block) x = 0;
  }
  for_each_step(p, shared, item, [&](int step) {
    __syncthreads();  // nobody reads the step before
    if (threadIdx.x == 0) {
      work = item.work(p, step);
      places = bias_rows(p.call.bias, work, work.head, packed_first, kBiasElementBytes);
    }
    __syncthreads();
    Bias bias(p.call, work, places, shared + kMap.bias);
    if (!score_gradients(p, shared, work, bias, item.column, ds)) return;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      for (int i = 0; i < 4; ++i) sums[0][n][i] += ds[0][n][i];
    }
  });

  // Through the warp's tile of R.
  using Tile = RowsTile<Element, kConfig.bias == BiasKind::rows32, 16, kTile>;
  const BiasCall& gradient = p.bias_gradient;
  const int lane = threadIdx.x % 32;
  const long long first = item.row + threadIdx.x / 32 * 16;
  const long long element = item.sequence * gradient.batch_stride + item.head * gradient.head_stride + packed_first +
                            first * row_stride + item.column;
  const RowsPart part{static_cast<char*>(gradient.values) + element * kBiasElementBytes,
                      row_stride * kBiasElementBytes,
                      {0, static_cast<int>(min(max(rows - first, 0ll), 16ll))},
                      static_cast<int>(min(columns - item.column, static_cast<long long>(kTile))),
                      false,
                      gradient.aligned};
  const uint32 tile = ptx::shared_address(shared + kMap.bias) + threadIdx.x / 32 * Tile::kBytes;
  __syncwarp();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    const uint32 to = tile + row * Tile::kPitch + part.shift(row) + lane % 4 * 2 * kBiasElementBytes;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        Tile::put(to + (8 * n + e) * kBiasElementBytes, sums[0][n][2 * half + e] * p.bias_factor);
      }
    }
  }
  __syncwarp();
  Tile::store(tile, part, lane);
}

/// One CTA's tiles of a stored bias's gradient: one, or more where a packed one's sequence is longer than the schedule
/// knew.
__device__ __forceinline__ void sum_stored(const BackwardParams& p, unsigned char* shared) {
  const BiasSums& counts = p.bias_sums;
  const BiasCall& gradient = p.bias_gradient;
  const long long tiles = static_cast<long long>(counts.row_tiles) * counts.column_tiles;
  const int pair = static_cast<int>(blockIdx.x / tiles);
  const int tile = static_cast<int>(blockIdx.x % tiles);
  long long packed_first = 0, rows = gradient.num_rows, columns = gradient.num_columns, stride = gradient.row_stride;
  if (gradient.packed) {
    const Work slot = work_of_sequence(p.call, pair / counts.heads, 0);
    packed_first = packed_first_of(p.call, slot, kBiasElementBytes,
                                   reinterpret_cast<unsigned long long*>(shared + kMap.bias_places + sizeof(BiasRows)));
    columns = stride = packed_pitch(slot, kBiasElementBytes);
    rows = rows_of_bias(gradient, slot, packed_first, kBiasElementBytes);
  }
  for (long long row = tile / counts.column_tiles * kTile; row < rows; row += counts.row_tiles * kTile) {
    for (long long column = tile % counts.column_tiles * kTile; column < columns;
         column += counts.column_tiles * kTile) {
      sum_tile(p, shared, StoredItem(p, pair, row, static_cast<int>(column)), packed_first, rows, columns, stride);
    }
  }
}

/// The sums of a block diagonal, to its record.
__device__ __forceinline__ void sum_diagonal(const BackwardParams& p, unsigned char* shared, const DiagonalItem& item,
                                             int first_time) {
  Work& work = *reinterpret_cast<Work*>(shared + kMap.work);
  const BiasSums& sums = p.bias_sums;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const times = reinterpret_cast<float*>(shared + kMap.times) + warp * kTimesOfPass;
  // The warp's own rows of Q and dO hold a tile's sums of lanes, once its products are there.
  const LaneSums lanes{reinterpret_cast<float*>(shared + kMap.query + warp * 16 * geometry::kPanelRowBytes),
                       (kMap.dout - kMap.query) / static_cast<int>(sizeof(float))};
  static_assert(geometry::kPanelRowBytes == 128 && kBucketsAtOnce * 32 * 4 == 2 * 16 * geometry::kPanelRowBytes);
  for (int n = lane; n < kTimesOfPass; n += 32) times[n] = 0;
  Diagonals diagonals;
  diagonals.clear();
  __syncwarp();
  const bool positions = sums.position_gradient != nullptr && first_time == 0;
  for_each_step(p, shared, item, [&](int step) {
    __syncthreads();  // nobody reads the step before
    if (threadIdx.x == 0) work.first_row = item.first_row(step);
    __syncthreads();
    BucketedGradient<kTile, 16> bias(p.call, work, BiasRows{}, shared + kMap.bias);
    Scores ds;
    if (!score_gradients(p, shared, work, bias, item.first_key(step), ds)) return;
    if (positions) diagonals.add(ds);
    if (sums.time_gradient != nullptr) bias.add_times(ds, times, lanes, first_time, kTimesOfPass);
  });

  __syncthreads();
  const TableRecord layout = table_record(kTile, p.call.bias.num_times);
  const DiagonalPart& tiles = item.tiles;
  float* const record =
      sums.records + layout.floats * table_record_index(work.first_q, work.first_k, work.sequence,
                                                        tiles.behind + tiles.key_tiles - 1, tiles.part, work.head,
                                                        kTile, p.call.schedule.heads);
  if (positions) {
    float* const parts = reinterpret_cast<float*>(shared);  // Q, dO, K and V are not needed any more
    diagonals.put(parts + warp * Diagonals::kFloats);
    __syncthreads();
    // x counted over the whole tile: a warp's rows are its diagonals moved by 16.
    const int last = p.call.bias.num_positions - 1, nearest = tiles.behind * kTile + work.mask.offset() + kTile - 1;
    for (int x = threadIdx.x; x < 2 * kTile - 1; x += kThreads) {
      float total = 0;
      for (int w = 0; w < kConfig.warps; ++w) {
        total += Diagonals::diagonal(parts + w * Diagonals::kFloats, x - (kTile - 16) + 16 * w);
      }
      record[layout.diagonals + x] = total;
    }
    __syncthreads();
    if (threadIdx.x < 2) {
      float total = 0;
      for (int x = 0; x < 2 * kTile - 1; ++x) {
        const int position = nearest - x;
        const bool counts = threadIdx.x == 0 ? position <= 0 : last > 0 && position >= last;
        if (counts) total += record[layout.diagonals + x];
      }
      record[threadIdx.x == 0 ? layout.first : layout.last] = total;
    }
  }
  if (sums.time_gradient != nullptr) {
    const float* const all = reinterpret_cast<const float*>(shared + kMap.times);
    for (int n = threadIdx.x; n < kTimesOfPass && first_time + n < p.call.bias.num_times; n += kThreads) {
      float total = 0;
      for (int w = 0; w < kConfig.warps; ++w) total += all[w * kTimesOfPass + n];
      record[layout.times + first_time + n] = total;
    }
  }
  __syncthreads();  // the next diagonal's sums come here
}

/// One CTA's part of a block diagonal, or of several where a sequence is longer than the schedule knew. The main one
/// goes first: it is the longest.
__device__ __forceinline__ void sum_bucketed(const BackwardParams& p, unsigned char* shared) {
  const BiasSums& counts = p.bias_sums;
  const int heads = p.call.schedule.heads, pairs = p.call.sequences * heads;
  const int place = static_cast<int>(blockIdx.x) / pairs, pair = static_cast<int>(blockIdx.x) % pairs;
  const int turn = place / kDiagonalParts;
  const int first_time = turn % counts.time_passes * kTimesOfPass;
  Work& work = *reinterpret_cast<Work*>(shared + kMap.work);
  if (threadIdx.x == 0) work = work_of_sequence(p.call, pair / heads, pair % heads);
  __syncthreads();
  DiagonalItem item{
      work,
      {(work.mask.seqlen_q + kTile - 1) / kTile, (work.mask.seqlen_k + kTile - 1) / kTile, 0, place % kDiagonalParts}};
  if (item.tiles.query_tiles == 0 || item.tiles.key_tiles == 0) return;
  reinterpret_cast<StagedTimes*>(shared + kMap.bias)->fill(p.call, work.head);
  __syncthreads();
  for (int n = turn / counts.time_passes; n < item.tiles.diagonals(); n += counts.row_tiles) {
    item.tiles.behind = DiagonalPart::behind_of(item.tiles.query_tiles, n);
    sum_diagonal(p, shared, item, first_time);
  }
}

}  // namespace warploom

extern "C" __global__ void __launch_bounds__(warploom::kThreads, warploom::kConfig.min_blocks) attention_backward_bias(
    const __grid_constant__ warploom::BackwardParamsOf<warploom::kConfig.user_score != 0> params) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if constexpr (warploom::kBucketed) {
    warploom::sum_bucketed(params, shared);
  } else {
    warploom::sum_stored(params, shared);
  }
}
