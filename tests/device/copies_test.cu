// cp.async, ldmatrix and the swizzled tile of tile/shared_tile.h, each beside plain loads on the host.
#include "geometry/fragment.h"
#include "ptx/ldmatrix.h"
#include "ptx/shared_memory.h"
#include "tile/shared_tile.h"

namespace {

using warploom::ptx::uint32;
namespace geometry = warploom::geometry;
namespace ptx = warploom::ptx;
namespace tile = warploom::tile;

/// Keeps a warp busy, so that its copies start long after the others'.
__device__ void delay(int cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

/// Reads a tile of Rows x Columns back through ldmatrix and writes it row-major, padded to a multiple of 16 columns.
template <int Rows, int Columns>
__device__ void write_blocks(uint32 base, unsigned short* out) {
  constexpr int kPadded = (Columns + 15) / 16 * 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int first_row = 16 * warp; first_row < Rows; first_row += 16 * warps) {
    const tile::BlockReader<Rows> reader(base, first_row);
    for (int k = 0; k < kPadded / 16; ++k) {
      uint32 registers[4];
      ptx::ldmatrix_x4(registers, reader.at(0, k));
      for (int i = 0; i < 4; ++i) {
        const geometry::Element e = geometry::a_element(lane, i);
        unsigned short* place = out + (first_row + e.row) * kPadded + 16 * k + e.column;
        place[0] = registers[i] & 0xffff;
        place[1] = registers[i] >> 16;
      }
    }
  }
}

template <int Rows, int Columns, int Threads>
__device__ void tile_round_trip(char* from, long long row_stride_bytes, int valid_rows, unsigned short* out) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 base = ptx::shared_address(shared);
  for (int i = threadIdx.x; i < geometry::tile_bytes(Rows, Columns) / 4; i += Threads) {
    ptx::store_shared_4(base + 4 * i, 0xffffffffu);  // NaN, twice
  }
  __syncthreads();
  tile::zero_padding<Rows, Columns, Threads>(base);
  tile::copy_rows_async<Rows, Columns, Threads>(base, {from, row_stride_bytes}, valid_rows);
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  __syncthreads();
  write_blocks<Rows, Columns>(base, out);
}

/// Registers of one 16x16 block from a 64-column panel at `column_block`, in one order of its fragments: plain and
/// transposed.
template <geometry::BlockOrder Order>
__device__ void ldmatrix_block(const unsigned short* panel, int row_block, int column_block, uint32* plain,
                               uint32* transposed) {
  __shared__ __align__(1024) unsigned char shared[64 * 128];
  const uint32 base = ptx::shared_address(shared);
  const int lane = threadIdx.x;
  for (int row = 0; row < 64; ++row) {
    const uint32 pair = panel[row * 64 + 2 * lane] | static_cast<uint32>(panel[row * 64 + 2 * lane + 1]) << 16;
    ptx::store_shared_4(base + geometry::swizzled_offset(64, row, lane / 4) + lane % 4 * 4, pair);
  }
  __syncwarp();
  const tile::BlockReader<64, Order> reader(base, 0);
  uint32 registers[4];
  ptx::ldmatrix_x4(registers, reader.at(row_block, column_block));
  for (int i = 0; i < 4; ++i) plain[4 * lane + i] = registers[i];
  ptx::ldmatrix_x4_trans(registers, reader.at(row_block, column_block));
  for (int i = 0; i < 4; ++i) transposed[4 * lane + i] = registers[i];
}

}  // namespace

extern "C" __global__ void ldmatrix_block_a(const unsigned short* panel, int row_block, int column_block, uint32* plain,
                                            uint32* transposed) {
  ldmatrix_block<geometry::BlockOrder::a>(panel, row_block, column_block, plain, transposed);
}
extern "C" __global__ void ldmatrix_block_b(const unsigned short* panel, int row_block, int column_block, uint32* plain,
                                            uint32* transposed) {
  ldmatrix_block<geometry::BlockOrder::b>(panel, row_block, column_block, plain, transposed);
}

/// Thread t copies chunk t where valid[t] is set; every chunk held garbage before.
extern "C" __global__ void zero_fill(const uint4* from, const int* valid, uint4* out) {
  __shared__ __align__(16) uint4 shared[128];
  const int t = threadIdx.x;
  shared[t] = make_uint4(~0u, ~0u, ~0u, ~0u);
  __syncthreads();
  ptx::cp_async_16(ptx::shared_address(shared + t), valid[t] ? from + t : nullptr, valid[t] != 0);
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  __syncthreads();
  out[t] = shared[(t + 32) % 128];  // another warp's chunk
}

/// Four warps fill a ring of three stages, each warp late in turn; every thread reads what other warps copied.
extern "C" __global__ void delayed_producers(const uint4* from, int rounds, int cycles, uint4* out) {
  constexpr int kStages = 3, kThreads = 128;
  __shared__ __align__(16) uint4 ring[kStages][kThreads];
  const int t = threadIdx.x, warp = t / 32;
  const auto fill = [&](int round) {
    if (round < rounds) {
      if (round % 4 == warp) delay(cycles);
      ptx::cp_async_16(ptx::shared_address(&ring[round % kStages][t]), from + round * kThreads + t, true);
    }
    ptx::cp_async_commit_group();
  };
  for (int round = 0; round < kStages - 1; ++round) fill(round);
  for (int round = 0; round < rounds; ++round) {
    ptx::cp_async_wait_group<kStages - 2>();
    __syncthreads();
    fill(round + kStages - 1);
    out[round * kThreads + t] = ring[round % kStages][(t + 32) % kThreads];
  }
}

/// wait_group<1> after three groups: the first two have landed for the thread that issued them, without a barrier.
extern "C" __global__ void oldest_groups_land_first(const uint4* from, uint4* out) {
  __shared__ __align__(16) uint4 shared[3][128];
  const int t = threadIdx.x;
  for (int group = 0; group < 3; ++group) {
    ptx::cp_async_16(ptx::shared_address(&shared[group][t]), from + group * 128 + t, true);
    ptx::cp_async_commit_group();
  }
  ptx::cp_async_wait_group<1>();
  for (int group = 0; group < 2; ++group) out[group * 128 + t] = shared[group][t];
  ptx::cp_async_wait_group<0>();
  out[2 * 128 + t] = shared[2][t];
}

/// Accumulators to 16-bit rows through swizzled shared memory: one warp, 16 rows of `Columns`.
template <int Columns>
__device__ void registers_round_trip(const float* values, uint4* out) {
  __shared__ __align__(1024) unsigned char shared[geometry::tile_bytes(16, Columns)];
  const uint32 base = ptx::shared_address(shared);
  const int lane = threadIdx.x;
  for (int n = 0; n < Columns / 8; ++n) {
    for (int half = 0; half < 2; ++half) {
      const geometry::Element e = geometry::c_element(lane, 2 * half);
      const float* pair = values + e.row * Columns + 8 * n + e.column;
      ptx::store_shared_4(base + geometry::swizzled_offset(16, e.row, n) + lane % 4 * 4,
                          ptx::pack<ptx::Float16>(pair[0], pair[1]));
    }
  }
  __syncwarp();
  for (int i = lane; i < 16 * (Columns / 8); i += 32) {
    out[i] = ptx::load_shared_16(base + geometry::swizzled_offset(16, i / (Columns / 8), i % (Columns / 8)));
  }
}

extern "C" __global__ void registers_to_global_24(const float* values, uint4* out) {
  registers_round_trip<24>(values, out);
}
extern "C" __global__ void registers_to_global_128(const float* values, uint4* out) {
  registers_round_trip<128>(values, out);
}

#define TILE_ROUND_TRIP(rows, columns, threads)                                                                   \
  extern "C" __global__ void tile_##rows##x##columns##_by_##threads(char* from, long long stride, int valid_rows, \
                                                                    unsigned short* out) {                        \
    tile_round_trip<rows, columns, threads>(from, stride, valid_rows, out);                                       \
  }
TILE_ROUND_TRIP(64, 8, 128)
TILE_ROUND_TRIP(64, 24, 128)
TILE_ROUND_TRIP(64, 64, 128)
TILE_ROUND_TRIP(32, 72, 128)
TILE_ROUND_TRIP(128, 128, 128)
TILE_ROUND_TRIP(128, 136, 256)
TILE_ROUND_TRIP(64, 200, 256)
TILE_ROUND_TRIP(128, 256, 256)
