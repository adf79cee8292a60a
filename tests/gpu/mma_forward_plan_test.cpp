// The plan of a GPU call: tile, schedule, arguments and refusals, without a GPU.
#include "gpu/mma_forward_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "attention/call.h"
#include "gpu/choose_plan.h"
#include "plan_calls.h"
#include "warploom/warploom.h"

namespace warploom::gpu {
namespace {

/// A plan that must succeed.
std::unique_ptr<GpuPlan> mma_plan_of(const warploom_attention& call, const DeviceInfo& device) {
  auto plan = std::make_unique<GpuPlan>();
  plan->architecture = compile_architecture(device);
  const Status status = plan_mma_forward(call, device, *plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

const AttentionCall& params_of(const GpuPlan& plan) {
  return plan.launches[0].params_as<AttentionCall>();
}

TEST(Plan, EveryHeadDimensionFitsEveryArchitecture) {
  for (const char* architecture : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"}) {
    const DeviceInfo device = device_of(architecture);
    for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (int value_dim = 8; value_dim <= 256; value_dim += 8) {
        for (const BiasKind bias : {BiasKind::none, BiasKind::rows16, BiasKind::rows32, BiasKind::bucketed}) {
          AttentionForwardConfig asked;
          asked.head_dim = head_dim;
          asked.value_dim = value_dim;
          asked.bias = bias;
          const auto config = choose_config(asked, device);
          ASSERT_TRUE(config.ok()) << architecture << " " << head_dim << " " << value_dim;
          EXPECT_EQ(config->head_dim, head_dim);
          EXPECT_EQ(config->value_dim, value_dim);
          const int bytes = shared_map(*config).bytes;
          EXPECT_LE(bytes, device.shared_bytes_per_block);
          EXPECT_LE(config->min_blocks * (bytes + 1024), device.shared_bytes_per_sm);
          const int rows_of_warp = config->query_rows / config->warps;
          EXPECT_TRUE(rows_of_warp == 16 || rows_of_warp == 32);
        }
      }
    }
  }
}

TEST(Plan, PartsOfSharedMemoryFollowOneAnotherAligned) {
  for (const KernelVariant& variant : kMmaForward.variants(device_of("sm_90a"), true)) {
    const AttentionForwardConfig config = mma_forward_config(variant.config);
    const AttentionForwardMap map = shared_map(config);
    const int rows = config.query_rows, keys = config.key_columns;
    EXPECT_GE(map.key, geometry::tile_bytes(rows, config.head_dim));
    EXPECT_GE(map.key, geometry::tile_bytes(rows, config.value_dim)) << "O is staged where Q was";
    EXPECT_EQ(map.value, map.key + config.stages * geometry::tile_bytes(keys, config.head_dim));
    EXPECT_EQ(map.bias, map.value + config.stages * geometry::tile_bytes(keys, config.value_dim));
    EXPECT_EQ(map.work, map.bias + bias_bytes(config));
    EXPECT_GE(map.rows, map.work + map.work_bytes);
    EXPECT_EQ(map.exponents, map.rows + config.warps * 32 * map.row_bytes);
    EXPECT_GT(map.bytes, map.walk);
    for (const int tile : {map.query, map.key, map.value, map.key_bytes, map.value_bytes, map.bias})
      EXPECT_EQ(tile % 128, 0);
    for (const int part : {map.work, map.bias_rows, map.rows}) EXPECT_EQ(part % 16, 0);
  }
}

TEST(Plan, ConfigurationsHoldEveryDimensionMaskAndTypeOnce) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    const DeviceInfo device = device_of(architecture);
    std::set<ConfigKey> seen;
    std::set<std::tuple<int, bool, bool, int>> served;
    for (const KernelVariant& variant : kMmaForward.variants(device, true)) {
      EXPECT_TRUE(seen.insert(variant.config).second);
      const AttentionForwardConfig config = mma_forward_config(variant.config);
      if (config.bias != BiasKind::none || config.softcap) continue;
      served.emplace(variant.head_dim, variant.bfloat16, variant.interval_mask, static_cast<int>(config.score));
    }
    EXPECT_EQ(served.size(), 32u * 2 * 2 * 2);
    EXPECT_LT(kMmaForward.variants(device, false).size(), seen.size());
  }
}

TEST(Plan, ScheduleCoversTheLongestSequenceAndTheRowsAfterTheLast) {
  const auto plan = mma_plan_of(jagged_call(3, 1000, 2, 64), device_of("sm_90a"));
  const geometry::Schedule& schedule = params_of(*plan).schedule;
  const int query_rows = mma_forward_config(plan->launches[0].config).query_rows;
  EXPECT_GE(schedule.query_tiles * query_rows, 1000);
  EXPECT_LT((schedule.query_tiles - 1) * query_rows, 1000);
  EXPECT_EQ(schedule.sequences, 4) << "three sequences, and the rows that belong to nobody";
  EXPECT_EQ(plan->launches[0].ctas, schedule.items());
  EXPECT_FALSE(schedule.first_tile_is_long);

  warploom_attention contexts = jagged_call(3, 1000, 2, 64);
  contexts.num_contexts_all = 4;
  EXPECT_TRUE(params_of(*mma_plan_of(contexts, device_of("sm_90a"))).schedule.first_tile_is_long);

  warploom_attention dense = jagged_call(3, 1000, 2, 64);
  dense.cu_seqlens_q = nullptr;
  EXPECT_EQ(params_of(*mma_plan_of(dense, device_of("sm_90a"))).schedule.sequences, 3);
}

TEST(Plan, EmptyBatchStillWritesRowsThatBelongToNobody) {
  warploom_attention call = jagged_call(0, 0, 2, 64);
  call.total_q = call.total_k = 5;
  EXPECT_GT(mma_plan_of(call, device_of("sm_90a"))->launches[0].ctas, 0);
  call.total_q = call.total_k = 0;
  EXPECT_EQ(mma_plan_of(call, device_of("sm_90a"))->launches[0].ctas, 0);
}

TEST(Plan, ScalarsFollowTheirDefaults) {
  warploom_attention call = jagged_call(2, 100, 4, 64);
  call.key_heads = 2;
  AttentionCall params = params_of(*mma_plan_of(call, device_of("sm_90a")));
  EXPECT_FLOAT_EQ(params.alpha, 0.125f);
  EXPECT_FLOAT_EQ(params.inverse_divisor, 0.01f);
  EXPECT_EQ(params.heads_per_key_head, 2);
  EXPECT_EQ(params.left, geometry::kUnbounded);
  call.flags = WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR;
  call.alpha = -3;
  call.divisor = 8;
  params = params_of(*mma_plan_of(call, device_of("sm_90a")));
  EXPECT_FLOAT_EQ(params.alpha, -3);
  EXPECT_FLOAT_EQ(params.inverse_divisor, 0.125f);
}

TEST(Plan, MoreTilesThanALaunchTakesIsRefused) {
  const auto plan = std::make_unique<GpuPlan>();
  const Status status = choose_plan(jagged_call(int64_t{1} << 20, 1 << 20, 4, 64), device_of("sm_90a"), nullptr, *plan);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("Split the batch"), std::string::npos);
}

TEST(Plan, DevicesBeforeAmpereAndUnknownArchitecturesAreRefused) {
  DeviceInfo old = device_of("sm_80");
  old.major = 7;
  EXPECT_FALSE(choose_plan(jagged_call(1, 8, 1, 64), old, nullptr, *std::make_unique<GpuPlan>()).ok());
  EXPECT_FALSE(reference_device({7, 5, false}).ok());
}

TEST(Plan, DescriptionIsJsonWithTheConfig) {
  const warploom_attention call = jagged_call(8, 4096, 4, 128);
  const DeviceInfo device = device_of("sm_90a");
  const auto json = nlohmann::json::parse(describe(*mma_plan_of(call, device), call, device));
  EXPECT_EQ(json["architecture"], "sm_90a");
  EXPECT_EQ(json["config"]["head_dim"], 128);
  EXPECT_GT(json["launches"][0]["shared_memory_bytes"], 0);
}

}  // namespace
}  // namespace warploom::gpu
