// What the simulator takes as parameters, measured (docs/tracer.md, "Calibration"). One kernel a quantity; thread 0 of
// each CTA writes the cycles that it saw, by the SM's own clock.
//
// The text before this file is empty: there is one variant.
#include "geometry/wgmma_descriptor.h"
#include "ptx/fence.h"
#include "ptx/math.h"
#include "ptx/mbarrier.h"
#include "ptx/named_barrier.h"
#include "ptx/shared_memory.h"
#include "ptx/tma.h"
#include "ptx/wgmma.h"

namespace warploom {

using ptx::uint32;

/// A stage of the model's GEMM: 64 columns of 128 rows of A and 256 of B.
constexpr uint32 kPartBytes = 24576, kStageBytes = 2 * kPartBytes;
constexpr int kStages = 4;

/// Loads of whole stages by one thread into a ring in shared memory.
struct StageRing {
  uint32 base;

  __device__ __forceinline__ uint32 barrier(int slot) const { return base + kStages * kStageBytes + slot * 8; }

  __device__ __forceinline__ void init() const {
    for (int slot = 0; slot < kStages; ++slot) ptx::mbarrier_init(barrier(slot), 1);
    ptx::fence_mbarrier_init();
  }
  __device__ __forceinline__ void load(int slot, const unsigned char* from) const {
    ptx::mbarrier_arrive_expect_tx(barrier(slot), kStageBytes);
    ptx::bulk_load(base + slot * kStageBytes, from, kPartBytes, barrier(slot));
    ptx::bulk_load(base + slot * kStageBytes + kPartBytes, from + kPartBytes, kPartBytes, barrier(slot));
  }
  __device__ __forceinline__ void wait(int slot, int round) const {
    ptx::mbarrier_wait(barrier(slot), static_cast<uint32>(round) & 1u);
  }
};

__device__ __forceinline__ unsigned long long timer_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

/// What a CTA saw.
struct Measured {
  long long cycles;
  unsigned long long start_ns, end_ns;
};

/// Between begin() and end() all threads of the CTA do what is measured.
struct Watch {
  Measured* result;
  long long start = 0;

  __device__ __forceinline__ void begin() {
    __syncthreads();
    if (threadIdx.x == 0) result[blockIdx.x].start_ns = timer_ns();
    start = clock64();
  }
  __device__ __forceinline__ void end() {
    __syncthreads();
    const long long cycles = clock64() - start;
    if (threadIdx.x != 0) return;
    result[blockIdx.x].cycles = cycles;
    result[blockIdx.x].end_ns = timer_ns();
  }
};

/// Keeps values alive: a sum that is never NaN-equal to itself is stored nowhere in practice.
__device__ __forceinline__ void consume(float value, Measured* result) {
  if (value == 0.123456789f) result[blockIdx.x].cycles = -1;
}

template <int Operation>
__device__ __forceinline__ float operate(float x) {
  if constexpr (Operation == 0) return ptx::ex2_approx(x);
  if constexpr (Operation == 1) return ptx::tanh_approx(x);
  return fmaf(x, 0.999f, 0.001f);
}

/// `count` times eight operations a thread, in eight chains that hide their latency.
template <int Operation>
__device__ __forceinline__ void rate(Measured* result, int count) {
  float chains[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) chains[i] = static_cast<float>(threadIdx.x + i) * -0.001f;
  Watch watch{result};
  watch.begin();
#pragma unroll 4
  for (int n = 0; n < count; ++n) {
#pragma unroll
    for (int i = 0; i < 8; ++i) chains[i] = operate<Operation>(chains[i]);
  }
  watch.end();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += chains[i];
  consume(sum, result);
}

}  // namespace warploom

using warploom::Measured;

extern "C" __global__ void __launch_bounds__(512) calibrate_exp(Measured* result, int count) {
  warploom::rate<0>(result, count);
}
extern "C" __global__ void __launch_bounds__(512) calibrate_tanh(Measured* result, int count) {
  warploom::rate<1>(result, count);
}
extern "C" __global__ void __launch_bounds__(512) calibrate_fma(Measured* result, int count) {
  warploom::rate<2>(result, count);
}

/// `count` loads of 1 KiB, one after the other, `stride` bytes apart: the way there and back.
extern "C" __global__ void calibrate_latency(Measured* result, int count, const unsigned char* memory,
                                             long long stride) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr uint32 kBytes = 1024;
  const uint32 base = ptx::shared_address(shared), barrier = base + kBytes;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  Watch watch{result};
  watch.begin();
  for (int n = 0; n < count && threadIdx.x == 0; ++n) {
    ptx::mbarrier_arrive_expect_tx(barrier, kBytes);
    ptx::bulk_load(base, memory + n * stride, kBytes, barrier);
    ptx::mbarrier_wait(barrier, n & 1);
  }
  watch.end();
}

/// `count` stages a CTA through a ring that is always full of loads. CTA c begins at c * cta_stride and stays within
/// `bytes` of memory.
extern "C" __global__ void calibrate_bandwidth(Measured* result, int count, const unsigned char* memory,
                                               long long bytes, long long cta_stride) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char shared[];
  const StageRing ring{ptx::shared_address(shared)};
  if (threadIdx.x == 0) ring.init();
  long long at = blockIdx.x * cta_stride % bytes;
  const auto load = [&](int n) {
    if (at + kStageBytes > bytes) at = 0;
    ring.load(n % kStages, memory + at);
    at += kStageBytes;
  };
  Watch watch{result};
  watch.begin();
  if (threadIdx.x == 0) {
    for (int n = 0; n < kStages && n < count; ++n) load(n);
    for (int n = 0; n < count; ++n) {
      ring.wait(n % kStages, n / kStages);
      if (n + kStages < count) load(n + kStages);
    }
  }
  watch.end();
}

/// Cycles of one thread to ask for a stage by TMA, the ring having room.
extern "C" __global__ void calibrate_issue_tma(Measured* result, int count, const unsigned char* memory) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char shared[];
  const StageRing ring{ptx::shared_address(shared)};
  if (threadIdx.x != 0) return;
  ring.init();
  long long cycles = 0;
  for (int round = 0; round < count; ++round) {
    const long long start = clock64();
    for (int slot = 0; slot < kStages; ++slot) ring.load(slot, memory + slot * kStageBytes);
    cycles += clock64() - start;
    for (int slot = 0; slot < kStages; ++slot) ring.wait(slot, round);
  }
  result[blockIdx.x] = {cycles / kStages, 0, 1};
}

/// Cycles of two warpgroups to ask for a stage by cp.async, nothing else being in flight.
extern "C" __global__ void __launch_bounds__(256)
    calibrate_issue_cp(Measured* result, int count, const unsigned char* memory) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 mine = ptx::shared_address(shared) + threadIdx.x * 16;
  long long cycles = 0;
  for (int round = 0; round < count; ++round) {
    __syncthreads();
    const long long start = clock64();
#pragma unroll
    for (uint32 at = 0; at < kStageBytes; at += 256 * 16)
      ptx::cp_async_16(mine + at, memory + threadIdx.x * 16 + at, true);
    ptx::cp_async_commit_group();
    cycles += clock64() - start;
    ptx::cp_async_wait_group<0>();
  }
  if (threadIdx.x == 0) result[blockIdx.x] = {cycles, 0, 1};
}

/// `count` times 16 bytes a thread from registers to shared memory.
extern "C" __global__ void __launch_bounds__(256) calibrate_register_copy(Measured* result, int count) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 mine = ptx::shared_address(shared) + threadIdx.x * 16;
  Watch watch{result};
  watch.begin();
#pragma unroll 8
  for (int n = 0; n < count; ++n) ptx::store_shared_16(mine + n % 8 * 4096, uint4{threadIdx.x, 1, 2, 3});
  watch.end();
}

/// `count` products of 64 x 256 x 64 in each of two warpgroups, operands random: the model's 128 x 256 x 64 step.
extern "C" __global__ void __launch_bounds__(256, 1) calibrate_tensor(Measured* result, int count) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 base = ptx::shared_address(shared);
  uint32 random = threadIdx.x * 2654435761u + blockIdx.x + 1;
  for (uint32 at = threadIdx.x * 4; at < kStageBytes; at += 256 * 4) {
    random = random * 1664525u + 1013904223u;
    // Two values of any sign and mantissa between 1/16 and 1.
    ptx::store_shared_4(base + at, (random & 0x807F807Fu) | 0x3D803D80u);
  }
  ptx::fence_proxy_async_shared();
  const uint32 a = geometry::descriptor_low(base + threadIdx.x / 128 * 64 * geometry::kPanelRowBytes);
  const uint32 b = geometry::descriptor_low(base + 128 * geometry::kPanelRowBytes);
  float d[128] = {};
  Watch watch{result};
  watch.begin();
  for (int n = 0; n < count; ++n) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
      ptx::wgmma_ss<ptx::Bfloat16, 256>(d, a + geometry::k_major_step(128, k), b + geometry::k_major_step(256, k), 1);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(d);
  }
  watch.end();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) sum += d[i];
  consume(sum, result);
}

/// `count` hand-overs from warpgroup to warpgroup and back by named barriers, as turns are.
extern "C" __global__ void __launch_bounds__(256) calibrate_turns(Measured* result, int count) {
  using namespace warploom;
  const int who = static_cast<int>(threadIdx.x) / 128;
  Watch watch{result};
  watch.begin();
  if (who == 1) ptx::named_barrier_arrive(1, 256);
  for (int n = 0; n < count; ++n) {
    ptx::named_barrier_sync(1 + who, 256);
    ptx::named_barrier_arrive(2 - who, 256);
  }
  if (who == 0) ptx::named_barrier_sync(1, 256);
  watch.end();
}

/// `count` hand-overs between two warps and back by mbarriers, as full and empty are.
extern "C" __global__ void __launch_bounds__(64) calibrate_mbarrier(Measured* result, int count) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 base = ptx::shared_address(shared);
  const uint32 who = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(base, 1);
    ptx::mbarrier_init(base + 8, 1);
    ptx::fence_mbarrier_init();
  }
  Watch watch{result};
  watch.begin();
  if (threadIdx.x % 32 == 0) {
    for (int n = 0; n < count; ++n) {
      if (who == 1) ptx::mbarrier_wait(base, n & 1);
      ptx::mbarrier_arrive(base + 8 * who);
      if (who == 0) ptx::mbarrier_wait(base + 8, n & 1);
    }
  }
  watch.end();
}
