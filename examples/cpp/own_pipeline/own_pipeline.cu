// A warp-specialized kernel of one's own: y = A x for A (rows x 1024) of float, as fast as memory gives A away.
//
// One thread streams blocks of eight rows into a ring of stages by bulk copies; eight warps take a row of each block.
// The protocol is specialized_ring of pipeline/gemm_protocols.h: `warploom check specialized --stages 4 --consumers 8`.
#include "pipeline/mbarrier_ring.h"
#include "ptx/shared_memory.h"
#include "ptx/tma.h"

namespace own {

using namespace warploom;
using ptx::uint32;

constexpr int kColumns = 1024, kRows = 8, kStages = 4;
constexpr uint32 kRowBytes = 4 * kColumns, kStageBytes = kRows * kRowBytes;
constexpr int kChunks = kColumns / (4 * 32);  // of four floats, a lane and row
using Ring = pipeline::MbarrierRing<kStages>;

/// The CTA's blocks are blockIdx.x, blockIdx.x + gridDim.x, ...
__device__ void load_blocks(const Ring& ring, uint32 stages, const float* a, int rows) {
  Ring::Cursor at;
  for (int row = blockIdx.x * kRows; row < rows; row += gridDim.x * kRows, at.advance()) {
    const uint32 bytes = (rows - row < kRows ? rows - row : kRows) * kRowBytes;
    ring.wait_empty(at);
    ring.expect(at, bytes);
    ptx::bulk_load(stages + at.slot() * kStageBytes, a + static_cast<long long>(row) * kColumns, bytes,
                   ring.full(at.slot()), ptx::kEvictFirst);
  }
}

__device__ void multiply_blocks(const Ring& ring, uint32 stages, const float* x, float* y, int rows) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float4 mine[kChunks];  // what of x a lane's columns meet
  for (int n = 0; n < kChunks; ++n) mine[n] = reinterpret_cast<const float4*>(x)[n * 32 + lane];
  Ring::Cursor at;
  for (int row = blockIdx.x * kRows + warp; row - warp < rows; row += gridDim.x * kRows, at.advance()) {
    ring.wait_full(at);
    float sum = 0;
    for (int n = 0; n < kChunks; ++n) {
      const uint32 place = stages + at.slot() * kStageBytes + warp * kRowBytes + (n * 32 + lane) * 16;
      const uint4 v = ptx::load_shared_16(place);
      sum = fmaf(__uint_as_float(v.x), mine[n].x, fmaf(__uint_as_float(v.y), mine[n].y, sum));
      sum = fmaf(__uint_as_float(v.z), mine[n].z, fmaf(__uint_as_float(v.w), mine[n].w, sum));
    }
    __syncwarp();  // all lanes have read
    if (lane == 0) ring.release(at);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0 && row < rows) y[row] = sum;  // the last block may lack this warp's row
  }
}

}  // namespace own

/// x: 16-byte aligned, as a. Threads: kRows warps and one more; dynamic shared memory: kStages stages and the barriers.
extern "C" __global__ void __launch_bounds__((own::kRows + 1) * 32, 1)
    matrix_vector(const float* a, const float* x, float* y, int rows) {
  using namespace own;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32 stages = ptx::shared_address(shared);
  const Ring ring{stages + kStages * kStageBytes};
  if (threadIdx.x == 0) {
    ring.init(kRows);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x / 32 < kRows) {
    multiply_blocks(ring, stages, x, y, rows);
  } else if (threadIdx.x % 32 == 0) {
    load_blocks(ring, stages, a, rows);
  }
}
