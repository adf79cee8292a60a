// Rung 13: K's blocks arrive in the order in which mma takes them.
//
// An mma wants its two registers of B side by side. ldmatrix brought the four blocks of 16 keys x 16 columns in A's
// order, those of one mma two registers apart, so the compiler moved each of them: an instruction a register, half of
// what stood beside the mma of S. Other lanes' addresses, and they are where they belong. V's, transposed, always were.
#include "ladder/ladder.h"
#include "ptx/registers.h"

namespace warploom::ladder {

constexpr int kThreads = kRung.warps * 32;
constexpr int kKeys = kRung.key_columns;
constexpr int kKeyBlocks = kKeys / 8;  // n8 blocks of S
constexpr int kRowBlocks = 2;          // m16 blocks of a warp
constexpr int kWarpRows = 16 * kRowBlocks;
constexpr uint32 kTileBytes = kKeys * kRowBytes;
static_assert(kRung.stages == 2);
static_assert(kRung.query_rows == kWarpRows * kRung.warps);

using QueryReader = tile::BlockReader<kRung.query_rows>;
using KeyReader = tile::BlockReader<kKeys, geometry::BlockOrder::b>;
using ValueReader = tile::BlockReader<kKeys>;
using Scores = float[kRowBlocks][kKeyBlocks][4];
using Output = float[kRowBlocks][kValueBlocks][4];

constexpr float kLog2E = 1.4426950408889634f;

/// What the online softmax knows of a lane's two rows of an m16 block.
struct Rows {
  float base[2] = {ptx::minus_infinity(), ptx::minus_infinity()};
  float sum[2] = {0, 0};  ///< of the lane's elements
};

/// Starts the copy of a tile, 16 bytes a thread. Rows from `valid` on become zeros.
template <int Size>
__device__ __forceinline__ void copy_tile(uint32 tile, const tile::GlobalRows& from, int valid) {
  tile::copy_rows_async<Size, kDim, kThreads>(tile, from, valid);
}

/// S = Q K^T: a block of 16 keys is the B operand of two mma for each m16 block.
__device__ __forceinline__ void scores(Scores& s, const QueryReader& query, const KeyReader& keys) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
  }
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    uint32 q[kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) ptx::ldmatrix_x4(q[m], query.at(m, k));
#pragma unroll
    for (int n = 0; n < kKeyBlocks / 2; ++n) {
      uint32 b[4];
      ptx::ldmatrix_x4(b, keys.at(n, k));
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        ptx::mma_m16n8k16<Element>(s[m][2 * n], q[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(s[m][2 * n + 1], q[m], b[2], b[3]);
      }
    }
  }
}

/// Hides the keys from `valid` on.
__device__ __forceinline__ void apply_mask(Scores& s, int valid) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = n * 8 + geometry::c_element(lane(), e).column;
        if (key >= valid) s[m][n][e] = ptx::minus_infinity();
      }
    }
  }
}

/// How far, in powers of two, a row's maximum may outgrow its base.
constexpr float kSlack = 8;

/// Moves the base, and O and the sums with it, if it must, for one m16 block. scale: alpha log2(e).
__device__ __forceinline__ void move_base(const float (&s)[kKeyBlocks][4], Rows& rows, float (&o)[kValueBlocks][4],
                                          float scale) {
  float largest[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    largest[half] = s[0][2 * half];
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      largest[half] = fmaxf(largest[half], fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    largest[half] = largest_of_row(largest[half]) * scale;
  }
  const bool outgrown = largest[0] > rows.base[0] + kSlack || largest[1] > rows.base[1] + kSlack;
  if (__any_sync(0xffffffffu, outgrown)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = fmaxf(rows.base[half], largest[half]);
      const float shrink = ptx::ex2_approx(rows.base[half] - base);
      rows.base[half] = base;
      rows.sum[half] *= shrink;
#pragma unroll
      for (int n = 0; n < kValueBlocks; ++n) {
        o[n][2 * half] *= shrink;
        o[n][2 * half + 1] *= shrink;
      }
    }
  }
}

/// O += P V, where P = 2^(s scale - base). Two neighbouring n8 blocks of S are, packed, the A operand of a k16 step: no
/// shuffle.
__device__ __forceinline__ void accumulate_output(Output& o, const Scores& s, Rows (&rows)[kRowBlocks], float scale,
                                                  const ValueReader& values) {
#pragma unroll
  for (int k = 0; k < kKeyBlocks / 2; ++k) {
    uint32 p[kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &s[m][2 * k + i / 2][i % 2 * 2];
        const float first = ptx::ex2_approx(fmaf(pair[0], scale, -rows[m].base[i % 2]));
        const float second = ptx::ex2_approx(fmaf(pair[1], scale, -rows[m].base[i % 2]));
        rows[m].sum[i % 2] += first + second;
        p[m][i] = ptx::pack<Element>(first, second);
      }
    }
#pragma unroll
    for (int n = 0; n < kValueBlocks / 2; ++n) {
      uint32 b[4];  // transposed: keys run along the fragment's columns
      ptx::ldmatrix_x4_trans(b, values.at(k, n));
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        ptx::mma_m16n8k16<Element>(o[m][2 * n], p[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(o[m][2 * n + 1], p[m], b[2], b[3]);
      }
    }
  }
}

/// Puts an m16 block of O, each row divided by its sum, where Q was.
__device__ __forceinline__ void stage_rows(uint32 tile, const float (&o)[kValueBlocks][4], const float (&sum)[2],
                                           int first_row) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const geometry::Element at = geometry::c_element(lane(), 2 * half);
    const float scale = inverse_or_zero(sum[half]);
#pragma unroll
    for (int n = 0; n < kValueBlocks; ++n) {
      ptx::store_shared_4(tile + geometry::swizzled_offset(kRung.query_rows, first_row + at.row, n) + at.column * 2,
                          ptx::pack<Element>(o[n][2 * half] * scale, o[n][2 * half + 1] * scale));
    }
  }
}

}  // namespace warploom::ladder

extern "C" __global__ void __launch_bounds__(warploom::ladder::kThreads, warploom::ladder::kRung.min_blocks)
    attention(const __grid_constant__ warploom::ladder::Call call) {
  using namespace warploom;
  using namespace warploom::ladder;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 query = ptx::shared_address(shared);
  const uint32 keys = query + kRung.query_rows * kRowBytes;
  const uint32 values = keys + kRung.stages * kTileBytes;
  __shared__ Place place;
  if (threadIdx.x == 0) place = place_of(call, kRung.query_rows);
  __syncthreads();

  copy_tile<kRung.query_rows>(query, place.query, place.queries);
  copy_tile<kKeys>(keys, place.key, call.seqlen_k);
  copy_tile<kKeys>(values, place.value, call.seqlen_k);
  ptx::cp_async_commit_group();
  const QueryReader read_query(query, warp() * kWarpRows);
  Rows rows[kRowBlocks];
  Output o = {};
  const float scale = call.alpha * kLog2E;
  uint32 stage = 0;  // in bytes
  for (int key = 0; key < call.seqlen_k; key += kKeys) {
    const int valid = call.seqlen_k - key;
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // everybody's part of this tile has landed, and nobody reads the other stage any more
    const uint32 other = stage ^ kTileBytes;
    if (valid > kKeys) {
      copy_tile<kKeys>(keys + other, place.key.from(key + kKeys), valid - kKeys);
      copy_tile<kKeys>(values + other, place.value.from(key + kKeys), valid - kKeys);
      ptx::cp_async_commit_group();
    }

    Scores s;
    // Made anew for every tile: kept through the loop, the addresses of both would not fit into the registers.
    scores(s, read_query, KeyReader(ptx::opaque(keys) + stage, 0));
    if (valid < kKeys) apply_mask(s, valid);
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) move_base(s[m], rows[m], o[m], scale);
    accumulate_output(o, s, rows, scale, ValueReader(ptx::opaque(values) + stage, 0));
    stage = other;
  }
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
    for (float& sum : rows[m].sum) sum = sum_of_row(sum);
    stage_rows(query, o[m], rows[m].sum, warp() * kWarpRows + 16 * m);
  }
  __syncwarp();
#pragma unroll 4
  for (int i = lane(); i < kWarpRows * kChunks; i += 32) {
    const int row = warp() * kWarpRows + i / kChunks, chunk = i % kChunks;
    if (row >= place.queries) break;
    *reinterpret_cast<uint4*>(place.out.from(row).data + chunk * geometry::kChunkBytes) =
        ptx::load_shared_16(query + geometry::swizzled_offset(kRung.query_rows, row, chunk));
  }
}
