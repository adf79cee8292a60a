// Short queries against long keys: what is split, how, and where the parts lie, without a GPU.
#include "gpu/split_plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "gpu/choose_plan.h"
#include "gpu/hopper_forward_plan.h"
#include "gpu/mma_forward_plan.h"
#include "plan_calls.h"

namespace warploom::gpu {
namespace {

char memory_q[16], memory_k[16];

/// A jagged softmax forward call with lengths of keys of its own; planning reads none of its pointers.
warploom_attention call_of(int64_t batch, int64_t max_q, int64_t max_k, int64_t heads, int64_t key_heads) {
  warploom_attention call = jagged_call(batch, max_q, heads, 128);
  call.op = WARPLOOM_SOFTMAX;
  call.key_heads = key_heads;
  call.total_k = batch * max_k;
  call.max_seqlen_k = max_k;
  call.cu_seqlens_q = memory_q;
  call.cu_seqlens_k = memory_k;
  return call;
}

warploom_attention dense(warploom_attention call) {
  call.cu_seqlens_q = call.cu_seqlens_k = nullptr;
  return call;
}

TEST(Split, OnlyCallsWhoseQueriesMayBeShorterThanTheirKeysAreSplit) {
  EXPECT_TRUE(splits_short_queries(call_of(4, 1, 9000, 8, 8)));
  EXPECT_TRUE(splits_short_queries(call_of(4, 4096, 9000, 8, 8))) << "some of the sequences may have short queries";
  warploom_attention same = call_of(4, 64, 64, 8, 8);
  same.cu_seqlens_k = same.cu_seqlens_q;
  EXPECT_FALSE(splits_short_queries(same)) << "every sequence has as many keys as queries";
  same.cu_seqlens_k = nullptr;
  EXPECT_FALSE(splits_short_queries(same));
  EXPECT_TRUE(splits_short_queries(dense(call_of(4, 64, 9000, 8, 8))));
  EXPECT_FALSE(splits_short_queries(dense(call_of(4, 65, 9000, 8, 8))));
  EXPECT_FALSE(splits_short_queries(dense(call_of(4, 64, 256, 8, 8)))) << "one chunk";
  warploom_attention backward = call_of(4, 1, 9000, 8, 8);
  backward.pass = WARPLOOM_BACKWARD;
  EXPECT_FALSE(splits_short_queries(backward));
}

TEST(Split, LaunchesAreThoseThatSomeSequenceMayNeed) {
  const DeviceInfo device = device_of("sm_90a");
  EXPECT_EQ(families_of(*plan_of(call_of(4, 16, 9000, 8, 8), device)), (Families{&kSplitForward, &kCombine}));
  EXPECT_EQ(families_of(*plan_of(call_of(4, 17, 9000, 8, 8), device)),
            (Families{&kSplitForward, &kSplitForward, &kCombine}));
  EXPECT_EQ(families_of(*plan_of(call_of(4, 17, 9000, 40, 1), device)), (Families{&kSplitForward, &kCombine}))
      << "40 heads of one query are more than 16 rows already";
  EXPECT_EQ(families_of(*plan_of(call_of(4, 65, 9000, 8, 8), device)),
            (Families{&kHopperForward, &kSplitForward, &kSplitForward, &kCombine}));
  EXPECT_EQ(families_of(*plan_of(dense(call_of(4, 64, 9000, 8, 8)), device)), (Families{&kSplitForward, &kCombine}));
  EXPECT_EQ(families_of(*plan_of(call_of(4, 65, 9000, 8, 8), device_of("sm_80")))[0], &kMmaForward);
  ::setenv("WARPLOOM_KERNELS", "unsplit", 1);
  EXPECT_EQ(families_of(*plan_of(call_of(4, 1, 9000, 8, 8), device)), Families{&kHopperForward});
  ::setenv("WARPLOOM_KERNELS", "mma.sync", 1);
  EXPECT_EQ(families_of(*plan_of(call_of(4, 65, 9000, 8, 8), device))[0], &kMmaForward);
  ::unsetenv("WARPLOOM_KERNELS");
}

TEST(Split, EachShortSequenceBelongsToOneLaunch) {
  const auto plan = plan_of(call_of(4, 300, 9000, 8, 4), device_of("sm_90a"));
  ASSERT_EQ(plan->launch_count, 4);
  EXPECT_EQ(plan->launches[0].params_as<HopperForwardParams>().call.queries_elsewhere, kShortQueries);
  const SplitCall& few = plan->launches[1].params_as<SplitCall>();
  const SplitCall& many = plan->launches[2].params_as<SplitCall>();
  EXPECT_EQ(few.packed_heads, 2);
  EXPECT_LE(few.fewest_rows, 2) << "one query row";
  EXPECT_EQ(few.most_rows + 1, many.fewest_rows);
  EXPECT_GE(many.most_rows, 2 * kShortQueries);
  const SplitCall& combine = plan->launches[3].params_as<SplitCall>();
  for (const SplitCall* p : {&few, &many, &combine}) {
    EXPECT_EQ(p->most_queries, kShortQueries);
    EXPECT_EQ(p->call.queries_elsewhere, 0);
    EXPECT_EQ(p->terms, few.terms);
    EXPECT_EQ(p->parts, few.parts);
  }
}

TEST(Split, HeadsAreNotPackedWhereTheBiasOrTheMaskTellsThemApart) {
  const DeviceInfo device = device_of("sm_90a");
  warploom_attention call = call_of(4, 1, 9000, 8, 2);
  EXPECT_EQ(plan_of(call, device)->launches[0].params_as<SplitCall>().packed_heads, 4);
  call.interval_heads = 8;
  call.num_intervals = 2;
  EXPECT_EQ(plan_of(call, device)->launches[0].params_as<SplitCall>().packed_heads, 1);
  call = call_of(4, 1, 9000, 8, 2);
  call.bias.kind = WARPLOOM_BUCKETED_BIAS;
  EXPECT_EQ(plan_of(call, device)->launches[0].params_as<SplitCall>().packed_heads, 1);
}

TEST(Split, ChunksAreFewEnoughForTheKernelThatAddsThemUp) {
  for (long long rows = 1; rows < 5000; rows = rows * 3 / 2 + 1) {
    for (long long keys = 1; keys < geometry::kUnbounded; keys = keys * 5 / 4 + 1) {
      const int seqlen_k = static_cast<int>(keys);
      for (const int groups : {1, 3, 8, 300}) {
        const Chunks chunks = chunks_of(rows, groups, seqlen_k);
        EXPECT_LE(chunks.count, kMostChunks);
        EXPECT_EQ(chunks.keys % kChunkUnit, 0);
        EXPECT_GE(chunks.keys, kFewestChunkKeys);
        EXPECT_GE(static_cast<long long>(chunks.keys) * chunks.count, keys);
        EXPECT_LT(static_cast<long long>(chunks.keys) * (chunks.count - 1), keys) << "no chunk is empty";
      }
    }
  }
}

TEST(Split, PartsOfSequencesLieBehindOneAnotherInsideTheMemory) {
  std::mt19937 random(1);
  const auto draw = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
  for (int trial = 0; trial < 3000; ++trial) {
    SplitCall p;
    p.packed_heads = 1 + draw(9);
    p.call.schedule.heads = 1 + draw(3);
    p.slots.by_keys = draw(1) == 1;
    p.slots.queries_each = draw(1) == 1 ? kShortQueries : 0;
    p.most_split_rows = (1 + draw(kShortQueries - 1)) * p.packed_heads;
    p.slots.row_tiles = static_cast<int>((p.most_split_rows + kRowTile - 1) / kRowTile);
    const int sequences = 1 + draw(6);
    long long queries = 0, keys = 0, end = 0;
    for (int b = 0; b < sequences; ++b) {
      const int lq = draw(kShortQueries), slot_k = draw(3) == 0 ? draw(200'000) : draw(3000), used_k = draw(slot_k);
      for (int group = 0; group < p.call.schedule.heads; ++group) {
        const Parts parts = parts_of(p, b, group, lq, queries, keys, used_k);
        EXPECT_GE(parts.row(0, 0), end);
        end = std::max(end, parts.row(parts.chunks, 0));
      }
      queries += lq;
      keys += slot_k;
    }
    EXPECT_LE(end, p.slots.before(sequences, queries, keys, p.packed_heads) * p.call.schedule.heads);
  }
}

TEST(Split, EveryChunkIsSomeCtasAndWavesAreFull) {
  for (const int chunks : {1, 2, 31, 32, 33, 128, 256}) {
    for (const long long tiles : {1, 7, 64, 256, 5000}) {
      for (const bool uneven : {false, true}) {
        const Share share = share_chunks(tiles, chunks, 4, 264, uneven);
        EXPECT_GE(share.splits * share.each, chunks);
        EXPECT_LT((share.splits - 1) * share.each, chunks) << "no CTA is without a chunk";
        EXPECT_EQ(share.ctas, tiles * share.splits);
      }
    }
  }
  EXPECT_EQ(share_chunks(1, 256, 4, 264, false).splits, 256) << "one sequence: a chunk a CTA";
  EXPECT_EQ(share_chunks(264, 256, 4, 264, false).splits, 1) << "the GPU is full without splitting";
  EXPECT_GE(share_chunks(264, 256, 4, 264, true).splits, 4) << "lengths differ";
}

TEST(Split, SplitsDependOnNoLengthThatLivesOnTheDevice) {
  const DeviceInfo device = device_of("sm_90a");
  warploom_attention call = call_of(8, 4, 100'000, 8, 1);
  call.max_seqlen_k = WARPLOOM_FROM_CU_SEQLENS;
  const auto plan = plan_of(call, device);
  EXPECT_GT(plan->launches[0].params_as<SplitCall>().splits, 1);
}

TEST(Split, EveryHeadDimensionFitsEveryArchitecture) {
  for (const char* architecture : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"}) {
    const DeviceInfo device = device_of(architecture);
    for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (const int value_dim : {8, 64, 128, 192, 256, head_dim}) {
        for (const uint32_t bias : {WARPLOOM_NO_BIAS, WARPLOOM_BUCKETED_BIAS, WARPLOOM_PACKED_BIAS}) {
          warploom_attention call = call_of(2, 64, 9000, 4, 4);
          call.head_dim = head_dim;
          call.value_dim = value_dim;
          call.bias.kind = bias;
          call.bias.dtype = WARPLOOM_FLOAT32;
          const auto plan = plan_of(call, device);
          for (int n = 0; n + 1 < plan->launch_count; ++n) {
            const PlannedLaunch& launch = plan->launches[static_cast<size_t>(n)];
            const AttentionForwardConfig config = mma_forward_config(launch.config);
            EXPECT_EQ(launch.shared_bytes, split_shared_map(config).bytes);
            EXPECT_LE(launch.shared_bytes, device.shared_bytes_per_block);
            EXPECT_LE(config.min_blocks * (launch.shared_bytes + 1024), device.shared_bytes_per_sm);
          }
        }
      }
    }
  }
}

TEST(Split, DescriptionNamesSplitsChunksAndScratch) {
  const DeviceInfo device = device_of("sm_90a");
  const warploom_attention call = dense(call_of(1, 1, 131'072, 8, 1));
  const auto json = nlohmann::json::parse(describe(*plan_of(call, device), call, device));
  EXPECT_EQ(json["split"]["packed_heads"], 8);
  EXPECT_EQ(json["split"]["launches"][0]["chunks"], 256);
  EXPECT_EQ(json["split"]["launches"][0]["splits"], 256);
  EXPECT_GE(json["scratch_bytes"], json["split"]["parts_bytes"]);
  const warploom_attention mixed = call_of(2, 500, 9000, 8, 8);
  const auto both = nlohmann::json::parse(describe(*plan_of(mixed, device), mixed, device));
  EXPECT_TRUE(both.contains("split"));
  EXPECT_TRUE(both.contains("config")) << "of the kernel for the longer queries";
}

}  // namespace
}  // namespace warploom::gpu
