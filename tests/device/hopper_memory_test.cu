// TMA, bulk copies, mbarriers, named barriers, stmatrix, setmaxnreg and clusters. Host side: bench/gpu_hopper_tests.py.
#include "ptx/cluster.h"
#include "ptx/elect.h"
#include "ptx/fence.h"
#include "ptx/grid_dependency.h"
#include "ptx/mbarrier.h"
#include "ptx/named_barrier.h"
#include "ptx/shared_memory.h"
#include "ptx/stmatrix.h"
#include "ptx/tma.h"
#include "ptx/warpgroup_registers.h"

using namespace warploom::ptx;

/// Coordinates of a box.
struct Box {
  int c[5];
};

constexpr int kBarrierBytes = 1024;  // what follows is aligned for the widest swizzle

__device__ uint32 dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return shared_address(memory);
}

/// A block barrier over an initialised mbarrier.
__device__ void start_barrier(uint32 barrier, uint32 arrivals) {
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, arrivals);
    fence_mbarrier_init();
  }
  __syncthreads();
}

__device__ void copy_out(unsigned int* out, uint32 shared, int bytes) {
  for (int i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16) {
    *reinterpret_cast<uint4*>(out + i / 4) = load_shared_16(shared + i);
  }
}

__device__ void copy_in(uint32 shared, const unsigned int* from, int bytes) {
  for (int i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16) {
    store_shared_16(shared + i, *reinterpret_cast<const uint4*>(from + i / 4));
  }
}

/// The box as it lies in shared memory.
template <int Rank>
__device__ __forceinline__ void load_box(const TensorMap& map, const Box& box, int bytes, unsigned int* out) {
  const uint32 barrier = dynamic_shared(), tile = barrier + kBarrierBytes;
  start_barrier(barrier, 1);
  if (threadIdx.x == 0) {
    tma_prefetch_map(&map);
    mbarrier_arrive_expect_tx(barrier, bytes);
    int c[Rank];
    for (int i = 0; i < Rank; ++i) c[i] = box.c[i];
    tma_load(&map, tile, barrier, c, kEvictFirst);
  }
  mbarrier_wait(barrier, 0);
  copy_out(out, tile, bytes);
}

/// The box's image from global memory through shared memory into the tensor; `add`: on top of it.
template <int Rank>
__device__ __forceinline__ void store_box(const TensorMap& map, const Box& box, int bytes, int add,
                                          const unsigned int* image) {
  const uint32 tile = dynamic_shared() + kBarrierBytes;
  copy_in(tile, image, bytes);
  fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    int c[Rank];
    for (int i = 0; i < Rank; ++i) c[i] = box.c[i];
    if (add) {
      tma_reduce_add(&map, tile, c);
    } else {
      tma_store(&map, tile, c, kEvictLast);
    }
    bulk_commit_group();
    bulk_wait_group<0>();
  }
}

#define BOX_KERNELS(rank)                                                                                             \
  extern "C" __global__ void load_box_##rank(const __grid_constant__ TensorMap map, const __grid_constant__ Box box,  \
                                             int bytes, unsigned int* out) {                                          \
    load_box<rank>(map, box, bytes, out);                                                                             \
  }                                                                                                                   \
  extern "C" __global__ void store_box_##rank(const __grid_constant__ TensorMap map, const __grid_constant__ Box box, \
                                              int bytes, int add, const unsigned int* image) {                        \
    store_box<rank>(map, box, bytes, add, image);                                                                     \
  }
BOX_KERNELS(1)
BOX_KERNELS(2)
BOX_KERNELS(3)
BOX_KERNELS(4)
BOX_KERNELS(5)

/// Plain bulk copies: in, then out to `copy` and added to `sum`; every CTA adds.
extern "C" __global__ void bulk_copies(const unsigned int* from, int bytes, unsigned int* copy, float* sum) {
  const uint32 barrier = dynamic_shared(), tile = barrier + kBarrierBytes;
  start_barrier(barrier, 1);
  if (threadIdx.x != 0) return;
  mbarrier_arrive(barrier);  // phase 0 ends without bytes
  mbarrier_wait(barrier, 0);
  mbarrier_expect_tx(barrier, bytes);
  bulk_load(tile, from, bytes, barrier);
  mbarrier_arrive(barrier);
  mbarrier_wait(barrier, 1);
  bulk_store(copy, tile, bytes);
  bulk_commit_group();
  bulk_reduce_add_f32(sum, tile, bytes);
  bulk_commit_group();
  bulk_wait_group_read<0>();
  bulk_wait_group<0>();
}

/// Phases over many rounds: warp 0 writes a round's numbers into one of `kSlots` slots, the other warps read them.
extern "C" __global__ void phases(int rounds, unsigned int* errors) {
  constexpr int kSlots = 3;
  __shared__ unsigned int slots[kSlots][32];
  __shared__ unsigned long long barriers[2 * kSlots];
  const uint32 full = shared_address(barriers), empty = full + kSlots * 8;
  const int readers = blockDim.x / 32 - 1;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kSlots; ++s) {
      mbarrier_init(full + s * 8, 32);
      mbarrier_init(empty + s * 8, readers * 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  unsigned int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    const int s = round % kSlots;
    const uint32 parity = round / kSlots & 1;
    if (threadIdx.x < 32) {
      mbarrier_wait(empty + s * 8, parity ^ 1);
      slots[s][threadIdx.x] = round * 32 + threadIdx.x;
      mbarrier_arrive(full + s * 8);
    } else {
      while (!mbarrier_test_wait(full + s * 8, parity)) {
      }
      // Lane l reads what lane 31 - l of the writer wrote.
      wrong += slots[s][31 - threadIdx.x % 32] != round * 32 + 31 - threadIdx.x % 32;
      mbarrier_arrive(empty + s * 8);
    }
  }
  atomicAdd(errors, wrong);
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kSlots; ++s) {
      mbarrier_inval(full + s * 8);
      mbarrier_inval(empty + s * 8);
    }
  }
}

/// Two warps take turns by named barriers; each adds its number to a log that only turns keep in order.
extern "C" __global__ void turns(int rounds, unsigned int* log) {
  __shared__ unsigned int length;
  const int who = threadIdx.x / 32;
  if (threadIdx.x == 0) length = 0;
  __syncthreads();
  if (who == 1) named_barrier_arrive(1, 64);
  for (int round = 0; round < rounds; ++round) {
    named_barrier_sync(1 + who, 64);
    if (threadIdx.x % 32 == 0) {
      log[length] = who;
      length = length + 1;
    }
    __threadfence_block();
    __syncwarp();
    named_barrier_arrive(2 - who, 64);
  }
  if (who == 0) named_barrier_sync(1, 64);
}

/// More live registers in two warpgroups than the 168 that the launch gave each thread.
extern "C" __global__ void __launch_bounds__(384, 1) register_budget(const float* from, float* out) {
  if (threadIdx.x < 128) {
    setmaxnreg_dec<24>();
    if (threadIdx.x == 0) out[0] = from[0] + 1;
  } else {
    setmaxnreg_inc<240>();
    float x[200];
#pragma unroll
    for (int i = 0; i < 200; ++i) x[i] = from[i * 256 + threadIdx.x - 128];
    for (int round = 0; round < 3; ++round) {
#pragma unroll
      for (int i = 0; i < 200; ++i) x[i] = x[i] + x[(i + 1) % 200];
    }
#pragma unroll
    for (int i = 0; i < 200; ++i) out[256 + i * 256 + threadIdx.x - 128] = x[i];
  }
}

/// Fragments 0..3 of every lane to shared memory and out as it lies there: rows of 16 bytes, one an address.
template <int Count, bool Trans>
__device__ __forceinline__ void store_blocks(const unsigned int* fragments, unsigned int* out) {
  __shared__ __align__(16) unsigned int memory[128];
  const int lane = threadIdx.x;
  const uint32 address = shared_address(memory) + lane * 16;
  unsigned int r[4];
  for (int i = 0; i < 4; ++i) {
    r[i] = fragments[lane * 4 + i];
    memory[lane * 4 + i] = 0xFFFFFFFFu;
  }
  __syncwarp();
  if constexpr (Count == 1 && !Trans) stmatrix_x1(address, r[0]);
  if constexpr (Count == 1 && Trans) stmatrix_x1_trans(address, r[0]);
  if constexpr (Count == 2 && !Trans) stmatrix_x2(address, r[0], r[1]);
  if constexpr (Count == 2 && Trans) stmatrix_x2_trans(address, r[0], r[1]);
  if constexpr (Count == 4 && !Trans) stmatrix_x4(address, r[0], r[1], r[2], r[3]);
  if constexpr (Count == 4 && Trans) stmatrix_x4_trans(address, r[0], r[1], r[2], r[3]);
  __syncwarp();
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = memory[lane * 4 + i];
}

#define STMATRIX_KERNEL(name, count, trans)                                           \
  extern "C" __global__ void name(const unsigned int* fragments, unsigned int* out) { \
    store_blocks<count, trans>(fragments, out);                                       \
  }
STMATRIX_KERNEL(stmatrix_1, 1, false)
STMATRIX_KERNEL(stmatrix_2, 2, false)
STMATRIX_KERNEL(stmatrix_4, 4, false)
STMATRIX_KERNEL(stmatrix_1_trans, 1, true)
STMATRIX_KERNEL(stmatrix_2_trans, 2, true)
STMATRIX_KERNEL(stmatrix_4_trans, 4, true)

/// A cluster of two, many rounds: each CTA loads half of a box for both; a slot is filled again when both have released
/// it.
extern "C" __global__ void __cluster_dims__(2, 1, 1)
    multicast(const __grid_constant__ TensorMap map, int rounds, unsigned int* out) {
  constexpr int kHalf = 32 * 128;
  const uint32 full = dynamic_shared(), empty = full + 8, tile = full + kBarrierBytes;
  const uint32 rank = cluster_rank();
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(empty, 2);
    fence_mbarrier_init();
  }
  cluster_sync();
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) {
      mbarrier_wait(empty, (round & 1) ^ 1);
      mbarrier_arrive_expect_tx(full, 2 * kHalf);
      tma_load_multicast(&map, tile + rank * kHalf, full, 3, {0, round * 64 + static_cast<int>(rank) * 32});
    }
    mbarrier_wait(full, round & 1);
    copy_out(out + (rank * rounds + round) * (2 * kHalf / 4), tile, 2 * kHalf);
    __syncthreads();
    if (threadIdx.x < cluster_size()) mbarrier_arrive_remote(empty, threadIdx.x);
  }
  cluster_sync();
}

/// Which lanes are elected, each time.
extern "C" __global__ void elected(unsigned int* out) {
  for (int i = 0; i < 4; ++i) {
    const unsigned int lanes = __ballot_sync(0xFFFFFFFFu, elect_one());
    if (threadIdx.x == 0) out[i] = lanes;
  }
}

/// What the kernel before this one wrote, seen after the wait.
extern "C" __global__ void after_wait(const unsigned int* from, unsigned int* out) {
  grid_dependency_wait();
  launch_dependents();
  out[blockIdx.x * blockDim.x + threadIdx.x] = from[blockIdx.x * blockDim.x + threadIdx.x];
}
