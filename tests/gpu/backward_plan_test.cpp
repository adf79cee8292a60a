// The plan of a backward call: launches, tiles, scratch memory and arguments, without a GPU.
#include "gpu/backward_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu/backward_around.h"
#include "gpu/backward_tiles.h"
#include "plan_calls.h"
#include "warploom/warploom.h"

namespace warploom::gpu {
namespace {

/// A jagged backward call on a GPU; planning reads none of its pointers.
warploom_attention call_of(uint32_t op, int64_t batch, int64_t max_seqlen, int64_t heads, int64_t head_dim) {
  warploom_attention call = jagged_call(batch, max_seqlen, heads, head_dim);
  call.op = op;
  call.pass = WARPLOOM_BACKWARD;
  return call;
}

TEST(BackwardPlan, LaunchesOfEachOperatorAndMode) {
  const DeviceInfo device = device_of("sm_90a");
  warploom_attention hstu = call_of(WARPLOOM_HSTU, 8, 1024, 4, 128);
  warploom_attention softmax = call_of(WARPLOOM_SOFTMAX, 8, 1024, 4, 128);
  EXPECT_EQ(families_of(*mma_backward_plan_of(hstu, device)), (Families{&kMmaBackward, &kBackwardDqSums}));
  EXPECT_EQ(families_of(*mma_backward_plan_of(softmax, device)),
            (Families{&kBackwardRowTerms, &kMmaBackward, &kBackwardDqSums}));
  hstu.flags |= WARPLOOM_DETERMINISTIC;
  softmax.flags |= WARPLOOM_DETERMINISTIC;
  EXPECT_EQ(families_of(*mma_backward_plan_of(hstu, device)), (Families{&kMmaBackward, &kMmaBackwardDq}));
  EXPECT_EQ(families_of(*mma_backward_plan_of(softmax, device)),
            (Families{&kBackwardRowTerms, &kMmaBackward, &kMmaBackwardDq}));
}

TEST(BackwardPlan, ScratchHoldsTheSumsFirst) {
  const DeviceInfo device = device_of("sm_90a");
  warploom_attention call = call_of(WARPLOOM_SOFTMAX, 3, 1000, 4, 64);
  const auto plan = mma_backward_plan_of(call, device);
  const BackwardConfig config = mma_backward_config(plan->launches[1].config);
  const long long tiles = dq_tiles(call.total_q, 3, config.query_rows);
  const auto sums = static_cast<size_t>(tiles * 4 * config.query_rows * 64) * sizeof(float);
  EXPECT_GE(plan->cleared_bytes, sums);
  EXPECT_GE(plan->scratch_bytes, plan->cleared_bytes + static_cast<size_t>(4 * call.total_q) * sizeof(SoftmaxRowTerms));
  plan->bind_scratch(*plan, 0x10000);
  for (const size_t n : {0u, 1u, 2u}) {
    const auto& params = plan->launches[n].params_as<BackwardParams>();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(params.dq_sums), 0x10000u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(params.row_terms), 0x10000u + plan->cleared_bytes);
  }

  call.flags |= WARPLOOM_DETERMINISTIC;
  EXPECT_EQ(mma_backward_plan_of(call, device)->cleared_bytes, 0u);
  call.op = WARPLOOM_HSTU;
  EXPECT_EQ(mma_backward_plan_of(call, device)->scratch_bytes, 0u);
}

TEST(BackwardPlan, NoTwoSequencesShareATileOfSums) {
  for (const int query_rows : {32, 64, 128}) {
    for (const std::vector<int>& lengths :
         {std::vector<int>{0, 1, 63, 64, 65, 0, 128, 200}, {500, 1, 1, 1, 0, 31, 32}}) {
      long long first_q = 0, free_tile = 0;
      int sequence = 0;
      for (const int length : lengths) {
        const int tiles = (length + query_rows - 1) / query_rows;
        const long long tile_floats = 1LL * query_rows * 8;
        const long long first = dq_sums_offset(first_q, sequence, 0, 1, 0, query_rows, 8) / tile_floats;
        EXPECT_GE(first, free_tile);
        free_tile = first + tiles;
        first_q += length;
        ++sequence;
      }
      EXPECT_LE(free_tile, dq_tiles(first_q, sequence, query_rows));
    }
  }
}

TEST(BackwardPlan, EveryHeadDimensionFitsEveryArchitecture) {
  for (const char* architecture : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"}) {
    const DeviceInfo device = device_of(architecture);
    for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (int value_dim = 8; value_dim <= 256; value_dim += 8) {
        for (const bool softmax : {false, true}) {
          BackwardConfig base;
          base.head_dim = head_dim;
          base.value_dim = value_dim;
          base.softmax = softmax;
          base.bfloat16 = false;
          const auto config = choose_backward_tile(base, device);
          ASSERT_TRUE(config.ok()) << architecture << " " << head_dim << " " << value_dim;
          EXPECT_LE(shared_map(*config).bytes, device.shared_bytes_per_block);
          EXPECT_LE(config->min_blocks * (shared_map(*config).bytes + 1024), device.shared_bytes_per_sm);
          EXPECT_EQ(config->vector_reduction, device.major >= 9);
          EXPECT_EQ(config->warps % key_groups(*config), 0);
          BackwardDqConfig dq_base;
          dq_base.head_dim = head_dim;
          dq_base.value_dim = value_dim;
          const auto dq = choose_backward_dq_tile(dq_base, device);
          ASSERT_TRUE(dq.ok()) << architecture << " " << head_dim << " " << value_dim;
          EXPECT_LE(dq->min_blocks * (shared_map(*dq).bytes + 1024), device.shared_bytes_per_sm);
        }
      }
    }
  }
}

TEST(BackwardPlan, FactorsAreLeftToTheEnd) {
  const DeviceInfo device = device_of("sm_90a");
  warploom_attention call = call_of(WARPLOOM_HSTU, 1, 100, 1, 64);
  call.flags |= WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR;
  call.alpha = -3;
  call.divisor = 8;
  const auto hstu = mma_backward_plan_of(call, device);
  EXPECT_FLOAT_EQ(hstu->launches[0].params_as<BackwardParams>().score_factor, -3.0f / 16);
  EXPECT_FLOAT_EQ(hstu->launches[0].params_as<BackwardParams>().probability_factor, 0.125f);
  call.op = WARPLOOM_SOFTMAX;
  call.flags = WARPLOOM_HAS_ALPHA;
  const auto softmax = mma_backward_plan_of(call, device);
  EXPECT_FLOAT_EQ(softmax->launches[1].params_as<BackwardParams>().score_factor, -3);
  EXPECT_FLOAT_EQ(softmax->launches[1].params_as<BackwardParams>().probability_factor, 1);
}

TEST(BackwardPlan, KeyTilesCoverKeyHeadsAndTheLongestKeys) {
  warploom_attention call = call_of(WARPLOOM_HSTU, 4, 1000, 8, 64);
  call.key_heads = 2;
  const auto plan = mma_backward_plan_of(call, device_of("sm_90a"));
  const BackwardConfig config = mma_backward_config(plan->launches[0].config);
  const geometry::Schedule& schedule = plan->launches[0].params_as<BackwardParams>().call.schedule;
  EXPECT_EQ(schedule.heads, 2);
  EXPECT_EQ(schedule.query_tiles, (1000 + config.key_rows - 1) / config.key_rows);
  EXPECT_EQ(schedule.sequences, 5);  // and the rows after the last one
  EXPECT_TRUE(schedule.first_to_last);
  EXPECT_EQ(plan->launches[0].ctas, schedule.items());
  EXPECT_EQ(plan->launches[1].params_as<BackwardParams>().call.schedule.heads, 8);

  call.total_q = 0;
  EXPECT_GT(mma_backward_plan_of(call, device_of("sm_90a"))->launches[0].ctas, 0);  // dk and dv are still written
  EXPECT_EQ(mma_backward_plan_of(call, device_of("sm_90a"))->launches[1].ctas, 0);
}

TEST(BackwardPlan, DescriptionIsJson) {
  const warploom_attention call = call_of(WARPLOOM_SOFTMAX, 8, 4096, 4, 128);
  const DeviceInfo device = device_of("sm_90a");
  const auto json = nlohmann::json::parse(describe(*mma_backward_plan_of(call, device), call, device));
  EXPECT_EQ(json["config"]["score"], "softmax");
  EXPECT_EQ(json["launches"].size(), 3u);
  EXPECT_GT(json["scratch_bytes"].get<int64_t>(), 0);
}

}  // namespace
}  // namespace warploom::gpu
