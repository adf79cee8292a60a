// Every way to fill a ring's slot (pipeline/copies.h), and prefetches into L2. Host side: bench/gpu_hopper_tests.py.
#include "pipeline/copies.h"
#include "ptx/tma_prefetch.h"

using namespace warploom;
using pipeline::Box;
using pipeline::CopiedRows;
using pipeline::PickedRows;
using pipeline::StridedRows;
using ptx::uint32;

constexpr int kSlots = 3, kRows = 40;
constexpr uint32 kRowBytes = 128, kSlotBytes = kRows * kRowBytes;
using Ring = pipeline::MbarrierRing<kSlots>;

/// Warp 0 fills a slot in each round, the others write what they find to `out`. `copy_of`: a round's copy.
template <typename CopyOf>
__device__ __forceinline__ void through_ring(int rounds, uint32 writers, uint4* out, const CopyOf& copy_of) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 slots = ptx::shared_address(shared);
  const Ring ring{slots + kSlots * kSlotBytes};
  const int readers = static_cast<int>(blockDim.x) - 32;
  if (threadIdx.x == 0) {
    ring.init(readers, writers);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  Ring::Cursor at;
  for (int round = 0; round < rounds; ++round, at.advance()) {
    const uint32 slot = slots + at.slot() * kSlotBytes;
    if (threadIdx.x < 32) {
      ring.wait_empty(at);
      pipeline::start_loading(ring, at, slot, copy_of.of(round));
    } else {
      ring.wait_full(at);
      for (uint32 byte = (threadIdx.x - 32) * 16; byte < kSlotBytes; byte += readers * 16) {
        out[(round * kSlotBytes + byte) / 16] = ptx::load_shared_16(slot + byte);
      }
      ring.release(at);
    }
  }
}

/// Round r begins at row 7 r of the table.
struct Rows {
  const char* table;
  long long stride;
  __device__ StridedRows of(int round) const { return {table + 7 * round * stride, stride, kRows, kRowBytes}; }
};

struct Boxes {
  const ptx::TensorMap* map;
  __device__ Box<2> of(int round) const { return {map, {0, 7 * round}, kSlotBytes}; }
};
extern "C" __global__ void boxes(const __grid_constant__ ptx::TensorMap map, int rounds, uint4* out) {
  if (threadIdx.x == 0) {
    for (int round = 0; round < rounds; ++round) ptx::tma_prefetch(&map, {0, 7 * round});
  }
  through_ring(rounds, 1, out, Boxes{&map});
}

extern "C" __global__ void strided_rows(const char* table, long long stride, int rounds, uint4* out) {
  if (threadIdx.x == 0) ptx::bulk_prefetch(table, kRowBytes);
  through_ring(rounds, 1, out, Rows{table, stride});
}

/// Round r takes the rows of numbers[kRows r] and after it.
struct Picked {
  const char* table;
  long long stride;
  const int* numbers;
  __device__ PickedRows of(int round) const { return {{table, stride, kRows, kRowBytes}, numbers + round * kRows}; }
};
extern "C" __global__ void picked_rows(const char* table, long long stride, const int* numbers, int rounds,
                                       uint4* out) {
  through_ring(rounds, 1, out, Picked{table, stride, numbers});
}

/// In round r the last r % 5 rows are missing.
struct Copied {
  Rows rows;
  __device__ CopiedRows of(int round) const { return {rows.of(round), kRows - round % 5}; }
};
extern "C" __global__ void copied_rows(const char* table, long long stride, int rounds, uint4* out) {
  through_ring(rounds, 32, out, Copied{{table, stride}});
}
