// The plan of a GPU call: tile, schedule, arguments and refusals, without a GPU.
#include "gpu/plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "warploom/warploom.h"

namespace warploom::gpu {
namespace {

DeviceInfo device_of(const char* architecture) {
  return *reference_device(*parse_architecture(architecture));
}

/// A jagged HSTU forward call on a GPU; planning reads none of its pointers.
warploom_attention call_of(int64_t batch, int64_t max_seqlen, int64_t heads, int64_t head_dim) {
  static char memory[16];
  warploom_attention call;
  warploom_attention_init(&call);
  call.device = WARPLOOM_CUDA;
  call.dtype = WARPLOOM_BFLOAT16;
  call.batch = batch;
  call.heads = call.key_heads = heads;
  call.head_dim = call.value_dim = head_dim;
  call.total_q = call.total_k = batch * max_seqlen;
  call.max_seqlen_q = call.max_seqlen_k = max_seqlen;
  call.cu_seqlens_q = memory;
  call.right = 0;
  return call;
}

TEST(Plan, EveryHeadDimensionFitsEveryArchitecture) {
  for (const char* architecture : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"}) {
    const DeviceInfo device = device_of(architecture);
    for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (int value_dim = 8; value_dim <= 256; value_dim += 8) {
        for (const bool interval_mask : {false, true}) {
          const auto config = choose_config(head_dim, value_dim, true, interval_mask, device);
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
  for (const HstuForwardConfig& config : configurations(device_of("sm_90a"), true)) {
    const HstuForwardSharedMap map = shared_map(config);
    const int rows = config.query_rows, keys = config.key_columns;
    EXPECT_GE(map.key, geometry::tile_bytes(rows, config.head_dim));
    EXPECT_GE(map.key, geometry::tile_bytes(rows, config.value_dim)) << "O is staged where Q was";
    EXPECT_EQ(map.value, map.key + config.stages * geometry::tile_bytes(keys, config.head_dim));
    EXPECT_EQ(map.work, map.value + config.stages * geometry::tile_bytes(keys, config.value_dim));
    EXPECT_EQ(map.rows, map.work + map.work_bytes);
    EXPECT_EQ(map.exponents, map.rows + config.warps * 32 * map.row_bytes);
    EXPECT_GT(map.bytes, map.walk);
    for (const int tile : {map.query, map.key, map.value, map.key_bytes, map.value_bytes}) EXPECT_EQ(tile % 128, 0);
    for (const int part : {map.work, map.rows}) EXPECT_EQ(part % 16, 0);
  }
}

TEST(Plan, ConfigurationsHoldEveryDimensionMaskAndTypeOnce) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    const DeviceInfo device = device_of(architecture);
    std::set<std::array<int, 9>> seen;
    std::set<std::tuple<int, bool, bool>> served;
    for (const HstuForwardConfig& config : configurations(device, true)) {
      EXPECT_TRUE(seen.insert(members(config)).second);
      served.emplace(config.head_dim, config.bfloat16, config.interval_mask);
    }
    EXPECT_EQ(served.size(), 32u * 2 * 2);
    EXPECT_LT(configurations(device, false).size(), seen.size());
  }
}

TEST(Plan, ScheduleCoversTheLongestSequenceAndTheRowsAfterTheLast) {
  const auto plan = plan_hstu_forward(call_of(3, 1000, 2, 64), device_of("sm_90a"));
  ASSERT_TRUE(plan.ok());
  const geometry::Schedule& schedule = plan->params.schedule;
  EXPECT_GE(schedule.query_tiles * plan->config.query_rows, 1000);
  EXPECT_LT((schedule.query_tiles - 1) * plan->config.query_rows, 1000);
  EXPECT_EQ(schedule.sequences, 4) << "three sequences, and the rows that belong to nobody";
  EXPECT_EQ(plan->ctas, schedule.items());
  EXPECT_FALSE(schedule.first_tile_is_long);

  warploom_attention contexts = call_of(3, 1000, 2, 64);
  contexts.num_contexts_all = 4;
  EXPECT_TRUE(plan_hstu_forward(contexts, device_of("sm_90a"))->params.schedule.first_tile_is_long);

  warploom_attention dense = call_of(3, 1000, 2, 64);
  dense.cu_seqlens_q = nullptr;
  EXPECT_EQ(plan_hstu_forward(dense, device_of("sm_90a"))->params.schedule.sequences, 3);
}

TEST(Plan, EmptyBatchStillWritesRowsThatBelongToNobody) {
  warploom_attention call = call_of(0, 0, 2, 64);
  call.total_q = call.total_k = 5;
  EXPECT_GT(plan_hstu_forward(call, device_of("sm_90a"))->ctas, 0);
  call.total_q = call.total_k = 0;
  EXPECT_EQ(plan_hstu_forward(call, device_of("sm_90a"))->ctas, 0);
}

TEST(Plan, ScalarsFollowTheirDefaults) {
  warploom_attention call = call_of(2, 100, 4, 64);
  call.key_heads = 2;
  HstuForwardParams params = plan_hstu_forward(call, device_of("sm_90a"))->params;
  EXPECT_FLOAT_EQ(params.half_alpha, 0.0625f);
  EXPECT_FLOAT_EQ(params.inverse_divisor, 0.01f);
  EXPECT_EQ(params.heads_per_key_head, 2);
  EXPECT_EQ(params.left, geometry::kUnbounded);
  call.flags = WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR;
  call.alpha = -3;
  call.divisor = 8;
  params = plan_hstu_forward(call, device_of("sm_90a"))->params;
  EXPECT_FLOAT_EQ(params.half_alpha, -1.5f);
  EXPECT_FLOAT_EQ(params.inverse_divisor, 0.125f);
}

TEST(Plan, MoreTilesThanALaunchTakesIsRefused) {
  const auto plan = plan_hstu_forward(call_of(int64_t{1} << 20, 1 << 20, 4, 64), device_of("sm_90a"));
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("Split the batch"), std::string::npos);
}

TEST(Plan, WhatIsNotServedIsNamed) {
  const auto refusal = [](auto change) {
    warploom_attention call = call_of(1, 8, 1, 64);
    change(call);
    const Status status = check_served(call);
    EXPECT_EQ(status.code(), StatusCode::runtime_error);
    return status.message();
  };
  EXPECT_NE(refusal([](auto& c) { c.op = WARPLOOM_SOFTMAX; }).find("softmax"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.bias.kind = WARPLOOM_DENSE_BIAS; }).find("bias"), std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.pass = WARPLOOM_BACKWARD; }).find("backward"), std::string::npos);
  EXPECT_TRUE(check_served(call_of(1, 8, 1, 64)).ok());
}

TEST(Plan, DevicesBeforeAmpereAndUnknownArchitecturesAreRefused) {
  DeviceInfo old = device_of("sm_80");
  old.major = 7;
  EXPECT_FALSE(plan_hstu_forward(call_of(1, 8, 1, 64), old).ok());
  EXPECT_FALSE(reference_device({7, 5, false}).ok());
}

TEST(Plan, DescriptionIsJsonWithTheConfig) {
  const warploom_attention call = call_of(8, 4096, 4, 128);
  const DeviceInfo device = device_of("sm_90a");
  const auto json = nlohmann::json::parse(describe(*plan_hstu_forward(call, device), call, device));
  EXPECT_EQ(json["architecture"], "sm_90a");
  EXPECT_EQ(json["config"]["head_dim"], 128);
  EXPECT_GT(json["shared_memory_bytes"], 0);
}

}  // namespace
}  // namespace warploom::gpu
