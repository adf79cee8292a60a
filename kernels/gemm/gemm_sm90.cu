// D = act(alpha A B^T + bias) + beta C on Hopper: A (M x K) and B (N x K) of 16-bit values, or 8-bit ones with a scale
// each, rows contiguous.
//
// Persistent and warp-specialized: one warp loads slots of 128 bytes a row of A and B by TMA into a ring, two
// warpgroups feed them to wgmma, either sharing the rows of a tile (cooperative) or taking whole tiles in turns, one's
// epilogue under the other's main loop (ping-pong). The barrier protocols are gemm_cooperative and gemm_ping_pong of
// pipeline/gemm_protocols.h, run here by the actors below. CTAs of a cluster either share B by multicast, or share out
// K and add their sums up through distributed shared memory in the order of their ranks.
//
// The text before this file defines warploom::kConfig, a GemmConfig.
#include "gemm/epilogue.h"
#include "gemm/gemm_config.h"
#include "geometry/wgmma_descriptor.h"
#include "pipeline/gemm_protocols.h"
#include "pipeline/trace.h"
#include "ptx/cluster.h"
#include "ptx/elect.h"
#include "ptx/shared_memory.h"
#include "ptx/warpgroup_registers.h"
#include "ptx/wgmma.h"

namespace warploom {

using In = ValueOf<kConfig.input>::Type;
using Out = ValueOf<kConfig.output>::Type;
using Bias = ValueOf<gemm_bias_type(kConfig)>::Type;

constexpr GemmSharedMap kMap = shared_map(kConfig);
constexpr int kConsumerRows = gemm_consumer_rows(kConfig);
constexpr int kBlocks = kConsumerRows / 64;
constexpr int kAccumulators = kConfig.tile_columns / 2;
constexpr int kDepth = gemm_depth(kConfig);
constexpr bool kPromotes = gemm_promotes(kConfig);
/// Two products under way; one whose sums are added up outside the tensor core ends before the next begins.
constexpr bool kOverlaps = !kPromotes;
constexpr int kCluster = gemm_cluster(kConfig);
constexpr int kBarrierBytes = 8;
/// Its slots and barriers are numbered from 0: full barriers, then empty ones.
constexpr pipeline::Ring kRing{kConfig.stages, 0, 0, kConfig.stages};
constexpr int kResidualBarrier = 2 * kConfig.stages;
constexpr pipeline::Turns kTurns{kConfig.consumers, 0};
constexpr int kFirstConsumerBarrier = pipeline::kFirstTurnId + kConfig.consumers;
constexpr int kAllConsumersBarrier = kFirstConsumerBarrier + kConfig.consumers;
static_assert(kConfig.stages >= pipeline::kOverlappedStages);
static_assert(kConsumerRows % 64 == 0 && kConfig.tile_columns % (gemm_staged(kConfig) ? 64 : 16) == 0 &&
              kConfig.tile_columns <= 256);
static_assert(!gemm_staged(kConfig) || (kConfig.output != GemmType::float32 && kConfig.split == 1));
static_assert(kConfig.multicast == 1 || kConfig.split == 1);
static_assert(!kConfig.ping_pong || kConfig.split == 1);
static_assert(!kConfig.shares_a || (kConfig.multicast > 1 && !gemm_staged(kConfig)));

/// What every role knows: the CTA's tiles, and where its barriers are.
struct Role : trace::Pen<kConfig.trace> {
  const GemmParams& p;
  uint32 base;  ///< of shared memory
  int rank;     ///< in the cluster
  GemmTile tile{};

  __device__ __forceinline__ uint32 barrier(int handle) const { return base + kMap.barriers + handle * kBarrierBytes; }

  __device__ __forceinline__ bool has_tile(int tile_of_cta) {
    const int index = static_cast<int>(blockIdx.x) / kCluster + tile_of_cta * p.clusters;
    if (index >= p.schedule.tiles()) return false;
    tile = p.schedule.tile(index);
    return true;
  }
  /// The CTAs that share out K take neighbouring parts, the first ones a step more where it does not divide.
  __device__ __forceinline__ int steps(int) const {
    if constexpr (kConfig.split == 1) return p.steps;
    return p.steps / kConfig.split + (rank < p.steps % kConfig.split ? 1 : 0);
  }
  __device__ __forceinline__ int first_step() const {
    if constexpr (kConfig.split == 1) return 0;
    const int more = p.steps % kConfig.split;
    return p.steps / kConfig.split * rank + (rank < more ? rank : more);
  }
  __device__ __forceinline__ int row() const {
    constexpr int kRows = gemm_cluster_rows(kConfig);
    return (tile.row * kRows + (kRows > 1 ? rank : 0)) * kConfig.tile_rows;
  }
  __device__ __forceinline__ int column() const {
    constexpr int kColumns = gemm_cluster_columns(kConfig);
    return (tile.column * kColumns + (kColumns > 1 ? rank : 0)) * kConfig.tile_columns;
  }

  __device__ __forceinline__ void wait_for(int mbarrier, int phase) const {
    ptx::mbarrier_wait(barrier(mbarrier), static_cast<uint32>(phase) & 1u);
  }
};

/// Which filling of the ring a wait for a phase of a full barrier is about.
__device__ __forceinline__ uint32 filling_of(int mbarrier, int phase) {
  return phase * kConfig.stages + mbarrier - kRing.first_full;
}

struct Producer : Role {
  int k = 0;
  int begin_k = 0, end_k = 0;  ///< where CTAs begin at different columns: of the tile

  __device__ __forceinline__ void wait(int mbarrier, int phase) const {
    mark(trace::Mark::wait_empty, 0, (phase + 1) * kConfig.stages + mbarrier - kRing.first_empty);
    wait_for(mbarrier, phase);
  }
  __device__ __forceinline__ int steps(int of_tile) {
    const int steps = Role::steps(of_tile);
    k = p.first_k + first_step() * kDepth;
    if constexpr (kConfig.shares_a) {
      begin_k = k;
      end_k = k + steps * kDepth;
      k += static_cast<int>(static_cast<unsigned>(tile.column) * steps / p.schedule.column_tiles) * kDepth;
    }
    return steps;
  }
  __device__ __forceinline__ void expect(int mbarrier, int, int) const {
    ptx::mbarrier_arrive_expect_tx(barrier(mbarrier), p.slot_loads);
  }
  __device__ __forceinline__ void load(int slot, int use, int mbarrier, int) {
    mark(trace::Mark::load, 0, use);
    const uint32 slot_a = base + kMap.slot + slot * kMap.slot_bytes;
#pragma unroll
    for (int panel = 0; panel < kConfig.panels; ++panel) {
      const uint32 a = slot_a + panel * kConfig.tile_rows * geometry::kPanelRowBytes;
      const uint32 b = slot_a + kMap.a_bytes + panel * kConfig.tile_columns * geometry::kPanelRowBytes;
      load_panel(a, b, barrier(mbarrier), k + panel * (kDepth / kConfig.panels));
    }
    k += kDepth;
    if constexpr (kConfig.shares_a) {
      if (k == end_k) k = begin_k;
    }
  }
  /// Each CTA of a multicasting cluster loads its share of one operand for all of them.
  __device__ __forceinline__ void load_panel(uint32 a, uint32 b, uint32 full, int from) const {
    constexpr unsigned short kAll = (1 << kConfig.multicast) - 1;
    if constexpr (kConfig.shares_a) {
      ptx::tma_load_multicast(&p.a, a + rank * p.share * geometry::kPanelRowBytes, full, kAll,
                              {from, row() + rank * p.share, tile.batch * p.a_batch});
    } else {
      ptx::tma_load(&p.a, a, full, {from, row(), tile.batch * p.a_batch});
    }
    if constexpr (kConfig.multicast == 1 || kConfig.shares_a) {
      ptx::tma_load(&p.b, b, full, {from, column(), tile.batch * p.b_batch});
    } else {
      constexpr int kShare = gemm_loaded_columns(kConfig);
      ptx::tma_load_multicast(&p.b, b + rank * kShare * geometry::kPanelRowBytes, full, kAll,
                              {from, column() + rank * kShare, tile.batch * p.b_batch});
    }
  }
};

struct Consumer : Role {
  int who = 0;
  int accumulate = 0;  ///< 0 for the first product of a tile
  uint32 tiles_done = 0;
  float d[kBlocks][kAccumulators];
  float sums[kBlocks][kAccumulators];  ///< of the slots before, where they are promoted
  BiasColumns<kConfig, Bias> bias;

  __device__ __forceinline__ void wait(int mbarrier, int phase) const {
    mark_step(trace::Mark::wait_full, 0, filling_of(mbarrier, phase));
    wait_for(mbarrier, phase);
  }
  __device__ __forceinline__ Staging staging() const {
    return {base + kMap.staging + who * kMap.staging_bytes, barrier(kResidualBarrier + who),
            kFirstConsumerBarrier + who};
  }
  __device__ __forceinline__ int first_row() const { return row() + (kConfig.ping_pong ? 0 : who * kConsumerRows); }

  __device__ __forceinline__ void prologue(int) {
    accumulate = 0;
    if constexpr (kPromotes) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < kAccumulators; ++i) d[block][i] = sums[block][i] = 0;
      }
    }
    bias.load(p, column());
    if constexpr (kConfig.residual && gemm_staged(kConfig)) {
      if (threadIdx.x % 128 == 0) start_residual<kConfig>(p, staging(), tile.batch, first_row(), column());
    }
  }
  /// Where a finished tile stands.
  __device__ __forceinline__ auto result_of() -> float (&)[kBlocks][kAccumulators] {
    if constexpr (kPromotes) {
      return sums;
    } else {
      return d;
    }
  }
  __device__ __forceinline__ void read_begin(int slot, int use) {
    mark_step(trace::Mark::product, 0, use);
    const uint32 a = base + kMap.slot + slot * kMap.slot_bytes;
    const uint32 a_low =
        geometry::descriptor_low(a + (kConfig.ping_pong ? 0 : who * kConsumerRows * geometry::kPanelRowBytes));
    const uint32 b_low = geometry::descriptor_low(a + kMap.a_bytes);
    if constexpr (kPromotes) promote();
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth; k += kDepth / kConfig.panels / 4) {
      const uint32 step = geometry::k_major_step(kConfig.tile_rows, k, sizeof(In));
      const uint32 step_b = geometry::k_major_step(kConfig.tile_columns, k, sizeof(In));
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        constexpr uint32 kBlockStep = 64 * geometry::kPanelRowBytes / geometry::kChunkBytes;
        ptx::wgmma_ss<In, kConfig.tile_columns>(d[block], a_low + step + block * kBlockStep, b_low + step_b,
                                                k == 0 ? accumulate : 1);
      }
    }
    ptx::wgmma_commit_group();
    accumulate = kPromotes ? 0 : 1;
  }
  /// Adds the last slot's sums to those before.
  __device__ __forceinline__ void promote() {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) sums[block][i] += d[block][i];
    }
  }
  __device__ __forceinline__ void read_end(int, int use) {
    mark_step(trace::Mark::wait_product, 0, use);
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) ptx::keep(d[block]);
  }
  __device__ __forceinline__ void read_end_older(int, int use) const {
    mark_step(trace::Mark::wait_product, 0, use);
    ptx::wgmma_wait_group<1>();
  }
  /// One arrival a consumer, in every CTA whose loads go to this slot.
  __device__ __forceinline__ void arrive(int mbarrier, int) const {
    if constexpr (kConfig.multicast == 1) {
      if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(barrier(mbarrier));
    } else {
      if (threadIdx.x % 128 < kConfig.multicast) ptx::mbarrier_arrive_remote(barrier(mbarrier), threadIdx.x % 128);
    }
  }
  __device__ __forceinline__ void sync(int turn) const {
    mark(trace::Mark::turn);
    ptx::named_barrier_sync(pipeline::kFirstTurnId + turn, 2 * pipeline::kWarpgroup);
    settle_marks(barrier(kRing.first_full));
  }
  __device__ __forceinline__ void signal(int turn) const {
    ptx::named_barrier_arrive(pipeline::kFirstTurnId + turn, 2 * pipeline::kWarpgroup);
  }
  __device__ __forceinline__ void epilogue(int) {
    mark(trace::Mark::epilogue, 0, tiles_done);
    if constexpr (kPromotes) promote();
    float(&result)[kBlocks][kAccumulators] = result_of();
    if constexpr (kConfig.split > 1) {
      store_sum(result);
    } else if constexpr (gemm_staged(kConfig)) {
      store_staged<kConfig, Bias, Out>(p, staging(), tile.batch, first_row(), column(), tiles_done & 1u, bias, result);
    } else {
      store_direct<kConfig, Bias, Out>(p, tile.batch, first_row(), column(), bias, result);
    }
    ++tiles_done;
    mark(trace::Mark::idle);
  }

  /// Adds up the sums of the cluster's CTAs, each a share of the tile: through the ring's memory, which no load will
  /// fill any more. Pair i of thread t stands at i * threads + t, so neighbours meet in no bank.
  __device__ __forceinline__ void store_sum(const float (&result)[kBlocks][kAccumulators]) const {
    constexpr int kThreads = kConfig.consumers * 128;
    constexpr int kPairs = kBlocks * kAccumulators / 2, kShare = kPairs / kConfig.split;
    static_assert(kPairs % kConfig.split == 0 && kPairs * kThreads * 8 <= kConfig.stages * kMap.slot_bytes);
    const uint32 mine = base + kMap.slot + (threadIdx.x - 128) * 8;
    ptx::named_barrier_sync(kAllConsumersBarrier, kThreads);  // the others have read their last slot
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float* pair = &result[i / (kAccumulators / 2)][i % (kAccumulators / 2) * 2];
      ptx::store_shared_8(mine + i * kThreads * 8, {pair[0], pair[1]});
    }
    ptx::cluster_sync();
#pragma unroll 4
    for (int i = rank * kShare; i < (rank + 1) * kShare; ++i) {
      float2 sum{0, 0};
#pragma unroll
      for (int from = 0; from < kConfig.split; ++from) {
        const float2 part = ptx::load_shared_cluster_8(ptx::map_shared(mine + i * kThreads * 8, from));
        sum = {sum.x + part.x, sum.y + part.y};
      }
      const geometry::Element at =
          geometry::accumulator_element(static_cast<int>(threadIdx.x % 128), i % (kAccumulators / 2) * 2);
      finish_sum<kConfig, Bias, Out>(p, tile.batch, first_row() + i / (kAccumulators / 2) * 64 + at.row,
                                     column() + at.column, sum);
    }
    ptx::cluster_arrive_relaxed();  // nobody leaves while its memory is read
    ptx::cluster_wait();
  }
};

/// All tiles of a consumer.
__device__ __forceinline__ void consume_all(Consumer& consumer, const pipeline::Ring& ring,
                                            const pipeline::Turns& turns) {
  if constexpr (kConfig.ping_pong) {
    pipeline::consume_by_turns<kOverlaps>(consumer, ring, turns, consumer.who);
  } else {
    pipeline::consume_cooperatively<kOverlaps>(consumer, ring);
  }
  // The stores read shared memory, which is the next CTA's once this one has ended.
  if (gemm_staged(kConfig) && threadIdx.x % 128 == 0) ptx::bulk_wait_group<0>();
}

/// A warp that only looks, so that a trace knows when loads land and no consumer has to say so. It takes no part in the
/// protocol: a slot is filled again hundreds of cycles after it has landed, and should the watcher miss that, it gives
/// up after a while.
struct Watcher : Role {
  bool missed = false;

  __device__ __forceinline__ void wait(int mbarrier, int phase) {
    constexpr int kMostLooks = 1 << 14;
    for (int looks = 0; !missed && !ptx::mbarrier_try_wait(barrier(mbarrier), static_cast<uint32>(phase) & 1u);) {
      missed = ++looks == kMostLooks;
    }
    if (!missed) mark(trace::Mark::landed, 0, filling_of(mbarrier, phase));
  }
  __device__ __forceinline__ void read_begin(int, int) const {}
  __device__ __forceinline__ void read_end(int, int) const {}
  __device__ __forceinline__ void arrive(int, int) const {}
  __device__ __forceinline__ void epilogue(int) const {}
};

__device__ __forceinline__ void init_barriers(uint32 base) {
  for (int stage = 0; stage < kConfig.stages; ++stage) {
    constexpr int kReaders = (kConfig.ping_pong ? 1 : kConfig.consumers) * kConfig.multicast;
    ptx::mbarrier_init(base + kMap.barriers + (kRing.first_full + stage) * kBarrierBytes, 1);
    ptx::mbarrier_init(base + kMap.barriers + (kRing.first_empty + stage) * kBarrierBytes, kReaders);
  }
  for (int c = 0; c < kConfig.consumers; ++c) {
    ptx::mbarrier_init(base + kMap.barriers + (kResidualBarrier + c) * kBarrierBytes, 1);
  }
  ptx::fence_mbarrier_init();
}

}  // namespace warploom

extern "C" __global__ void __cluster_dims__(warploom::kCluster, 1, 1)
    __launch_bounds__(warploom::gemm_threads(warploom::kConfig), 1)
        gemm(const __grid_constant__ warploom::GemmParams params) {
  using namespace warploom;
  extern __shared__ __align__(1024) unsigned char shared[];
  uint32 base = ptx::shared_address(shared);
  // With marks between its uses the compiler computes it anew in every step, from a register that is slow to read.
  if constexpr (kConfig.trace != trace::Level::off) base = ptx::in_register(static_cast<int>(base));
  const int rank = kCluster > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  // Copies that have an address: a constant of the file has none on the device.
  const pipeline::Ring ring = kRing;
  const pipeline::Turns turns = kTurns;
  if (threadIdx.x == 32) {
    ptx::tma_prefetch_map(&params.a);
    ptx::tma_prefetch_map(&params.b);
  }
  if (threadIdx.x == 0) init_barriers(base);
  if constexpr (kCluster > 1) {
    ptx::cluster_arrive_relaxed();  // before a copy or an arrival from another CTA can come
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
  // Two consumers share the registers of three warpgroups (168 a thread at launch); one has enough as it is.
  if (warpgroup == 0) {
    if constexpr (kConfig.consumers == 2) ptx::setmaxnreg_dec<40>();
    if (threadIdx.x / 32 == 0 && ptx::elect_one()) {
      if constexpr (kConfig.trace != trace::Level::off) {
        if (!trace::records(params.sheet)) {
          Producer quiet{{{params.sheet, false}, params, base, rank}};
          pipeline::produce_steps(quiet, ring, false);
          return;
        }
      }
      Producer producer{{{params.sheet}, params, base, rank}};
      producer.start_trace(0, true);
      pipeline::produce_steps(producer, ring, false);
      producer.finish_trace(0);
    }
    if (kConfig.trace != trace::Level::off && threadIdx.x == 32 && trace::records(params.sheet)) {
      Watcher watcher{{{params.sheet}, params, base, rank}};
      watcher.start_trace(kConfig.consumers + 1, true);
      pipeline::consume_steps(watcher, ring);
      watcher.finish_trace(kConfig.consumers + 1);
    }
  } else {
    if constexpr (kConfig.consumers == 2) ptx::setmaxnreg_inc<232>();
    if constexpr (kConfig.trace != trace::Level::off) {
      if (!trace::records(params.sheet)) {
        Consumer quiet{{{params.sheet, false}, params, base, rank}, warpgroup - 1};
        consume_all(quiet, ring, turns);
        return;
      }
    }
    Consumer consumer{{{params.sheet}, params, base, rank}, warpgroup - 1};
    consumer.start_trace(warpgroup, threadIdx.x % 128 == 0);
    consume_all(consumer, ring, turns);
    consumer.finish_trace(warpgroup);
  }
}
