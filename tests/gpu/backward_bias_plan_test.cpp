// The gradient of a bias in a backward call's plan, without a GPU: who computes it, with which scratch memory, and
// where the sums of a table's block diagonals stand.
#include "gpu/backward_bias_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "gpu/backward_plan.h"
#include "gpu/backward_tiles.h"
#include "gpu/choose_plan.h"
#include "plan_calls.h"

namespace warploom::gpu {
namespace {

alignas(16) char memory[256];

/// A jagged HSTU call backward with a dense bias of its own for each sequence and head; planning reads no pointer.
warploom_attention call_of(int64_t batch, int64_t length, int64_t heads, int64_t dim) {
  warploom_attention call = jagged_call(batch, length, heads, dim);
  call.pass = WARPLOOM_BACKWARD;
  give_dense_bias(call, length);
  return call;
}

warploom_attention bucketed_call(int64_t batch, int64_t length, int64_t heads, int64_t dim, int64_t times) {
  warploom_attention call = call_of(batch, length, heads, dim);
  call.bias = {};
  warploom_bias& bias = call.bias;
  bias.kind = WARPLOOM_BUCKETED_BIAS;
  bias.position = bias.position_grad = reinterpret_cast<float*>(memory);
  bias.time = bias.time_grad = reinterpret_cast<float*>(memory);
  bias.timestamps = reinterpret_cast<int64_t*>(memory);
  bias.position_heads = heads;
  bias.num_positions = bias.position_head_stride = length;
  bias.time_heads = 1;
  bias.num_times = bias.time_head_stride = times;
  return call;
}

BackwardConfig main_config(const GpuPlan& plan) {
  for (const PlannedLaunch& launch : plan.launches) {
    if (launch.family == &kMmaBackward) return mma_backward_config(launch.config);
  }
  ADD_FAILURE() << "no main kernel";
  return {};
}

TEST(BackwardBiasPlan, WhatHasAnElementForEachPairIsWrittenByTheMainKernel) {
  warploom_attention call = call_of(8, 1024, 4, 128);
  EXPECT_EQ(families_of(*mma_backward_plan_of(call)), (Families{&kMmaBackward, &kBackwardDqSums}));
  EXPECT_EQ(main_config(*mma_backward_plan_of(call)).bias, BiasKind::rows16);
  EXPECT_TRUE(main_config(*mma_backward_plan_of(call)).bias_gradient);
  EXPECT_TRUE(main_config(*mma_backward_plan_of(call)).bias_aligned);
  call.bias.grad_row_stride = 1027;
  EXPECT_FALSE(main_config(*mma_backward_plan_of(call)).bias_aligned);
  call.bias.grad = nullptr;
  EXPECT_FALSE(main_config(*mma_backward_plan_of(call)).bias_gradient);
  EXPECT_TRUE(main_config(*mma_backward_plan_of(call)).bias_aligned);
  EXPECT_EQ(bias_gradient_by(call), BiasGradientBy::nobody);

  call = call_of(8, 1024, 4, 128);
  call.bias.kind = WARPLOOM_PACKED_BIAS;
  call.bias.rows = WARPLOOM_ROWS_KEY;
  call.bias.batch = 1;
  EXPECT_EQ(bias_gradient_by(call), BiasGradientBy::main_kernel);
}

TEST(BackwardBiasPlan, WhatPairsShareIsSummedAndNothingIsCleared) {
  warploom_attention call = call_of(8, 1000, 4, 128);
  call.bias.heads = 1;
  for (const bool deterministic : {false, true}) {
    call.flags = deterministic ? WARPLOOM_DETERMINISTIC : 0;
    const auto plan = mma_backward_plan_of(call);
    EXPECT_EQ(families_of(*plan),
              (Families{&kMmaBackward, &kMmaBackwardBias, deterministic ? &kMmaBackwardDq : &kBackwardDqSums}));
    EXPECT_FALSE(main_config(*plan).bias_gradient);
    EXPECT_EQ(plan->launches[1].ctas, 8 * 16 * 16);  // tiles of 64
    if (deterministic) {
      EXPECT_EQ(plan->scratch_bytes, 0u);
    }
  }
  call.bias.batch = 1;
  EXPECT_EQ(mma_backward_plan_of(call)->launches[1].ctas, 16 * 16);
  call.heads = call.key_heads = 1;
  call.batch = 1;
  EXPECT_EQ(bias_gradient_by(call), BiasGradientBy::main_kernel);  // there is nobody to share it with
}

TEST(BackwardBiasPlan, TablesHaveScratchMemoryThatGrowsWithTheLengthOnly) {
  warploom_attention call = bucketed_call(2, 1024, 4, 64, 100);
  call.flags = WARPLOOM_DETERMINISTIC;
  const auto plan = mma_backward_plan_of(call);
  EXPECT_EQ(families_of(*plan), (Families{&kMmaBackward, &kMmaBackwardBias, &kBackwardTableSums, &kMmaBackwardDq}));
  EXPECT_EQ(plan->launches[1].ctas, 2 * 4 * (16 + 16 - 1) * kDiagonalParts);
  EXPECT_EQ(plan->launches[2].ctas, 4 * 1024 + 100);
  warploom_attention longer = bucketed_call(2, 8192, 4, 64, 100);
  longer.flags = WARPLOOM_DETERMINISTIC;
  EXPECT_LT(mma_backward_plan_of(longer)->scratch_bytes, 9 * plan->scratch_bytes);

  warploom_attention large = bucketed_call(2, 1024, 4, 64, 1000);
  EXPECT_EQ(mma_backward_plan_of(large)->launches[1].ctas, 4 * plan->launches[1].ctas);  // so many passes
  large.bias.time_grad = nullptr;
  EXPECT_EQ(mma_backward_plan_of(large)->launches[1].ctas, plan->launches[1].ctas);
  EXPECT_EQ(mma_backward_plan_of(large)->launches[2].ctas, 4 * 1024);
}

TEST(BackwardBiasPlan, TheMainKernelAddsUpTablesUnlessTheyMustRepeatOrAreLarge) {
  warploom_attention call = bucketed_call(2, 1024, 4, 64, 129);
  const auto plan = mma_backward_plan_of(call);
  EXPECT_EQ(families_of(*plan), (Families{&kMmaBackward, &kBackwardTableTotals, &kBackwardDqSums}));
  EXPECT_TRUE(main_config(*plan).bias_gradient);
  EXPECT_EQ(plan->launches[1].ctas, (4 * 1024 + 129 + 255) / 256);
  EXPECT_EQ(bias_gradient_by(bucketed_call(2, 1024, 4, 64, 130)), BiasGradientBy::tables);
  call.bias.time_grad = nullptr;
  EXPECT_EQ(mma_backward_plan_of(call)->launches[1].ctas, 4 * 1024 / 256);
  call.bias.position_grad = nullptr;
  EXPECT_FALSE(main_config(*mma_backward_plan_of(call)).bias_gradient);
  call = bucketed_call(2, 1024, 4, 64, 129);
  call.flags = WARPLOOM_DETERMINISTIC;
  EXPECT_EQ(bias_gradient_by(call), BiasGradientBy::tables);
  EXPECT_FALSE(main_config(*mma_backward_plan_of(call)).bias_gradient);
}

TEST(BackwardBiasPlan, TotalsLieInTheClearedPartBehindTheSumsOfDq) {
  warploom_attention call = bucketed_call(3, 500, 2, 64, 30);
  call.op = WARPLOOM_SOFTMAX;
  const auto plan = mma_backward_plan_of(call);
  plan->bind_scratch(*plan, 0x100000);
  const auto& params = plan->launches[0].params_as<BackwardParams>();
  const auto totals = reinterpret_cast<uintptr_t>(params.bias_sums.totals);
  const int query_rows = main_config(*plan).query_rows;
  EXPECT_EQ(totals, reinterpret_cast<uintptr_t>(params.dq_sums) + dq_sums_bytes(call, query_rows));
  EXPECT_LE(totals + (2 * 500 + 30) * sizeof(float), 0x100000 + plan->cleared_bytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(params.row_terms), 0x100000 + plan->cleared_bytes);
  EXPECT_LE(plan->cleared_bytes + row_terms_bytes(call), plan->scratch_bytes);
}

TEST(BackwardBiasPlan, RecordsLieBehindTheRowTerms) {
  warploom_attention call = bucketed_call(3, 500, 2, 64, 30);
  call.op = WARPLOOM_SOFTMAX;
  call.flags = WARPLOOM_DETERMINISTIC;
  const auto plan = mma_backward_plan_of(call);
  plan->bind_scratch(*plan, 0x100000);
  const auto& params = plan->launches[0].params_as<BackwardParams>();
  const auto terms = reinterpret_cast<uintptr_t>(params.row_terms);
  const auto records = reinterpret_cast<uintptr_t>(params.bias_sums.records);
  EXPECT_GE(records, terms + static_cast<size_t>(2 * call.total_q) * sizeof(SoftmaxRowTerms));
  EXPECT_EQ(records + static_cast<size_t>(params.bias_sums.record_bytes), 0x100000 + plan->scratch_bytes);
}

TEST(BackwardBiasPlan, NoTwoBlockDiagonalsShareARecord) {
  constexpr int kTile = 64, kHeads = 2;
  for (const std::vector<int>& lengths : {std::vector<int>{0, 1, 63, 64, 65, 0, 128, 200}, {500, 1, 1, 0, 130}}) {
    std::set<long long> taken;
    long long first = 0;
    int sequence = 0;
    for (const int length : lengths) {
      const int tiles = (length + kTile - 1) / kTile;
      for (int diagonal = 0; diagonal < 2 * tiles - 1; ++diagonal) {
        for (int head = 0; head < kHeads; ++head) {
          for (int part = 0; part < kDiagonalParts; ++part) {
            const long long index = table_record_index(first, first, sequence, diagonal, part, head, kTile, kHeads);
            EXPECT_TRUE(taken.insert(index).second);
          }
        }
      }
      first += length;
      ++sequence;
    }
    EXPECT_LT(*taken.rbegin(), table_records(first, first, sequence, kTile, kHeads));
  }
}

TEST(BackwardBiasPlan, PartsOfDiagonalsHoldEveryTileOnce) {
  for (const int query_tiles : {1, 2, 5, 16}) {
    for (const int key_tiles : {1, 3, 16, 17}) {
      std::set<std::pair<int, int>> seen;
      std::set<int> records;
      DiagonalPart item{query_tiles, key_tiles, 0, 0};
      for (int n = 0; n < item.diagonals(); ++n) {
        item.behind = DiagonalPart::behind_of(query_tiles, n);
        const int record = item.behind + key_tiles - 1;
        EXPECT_TRUE(0 <= record && record < item.diagonals() && records.insert(record).second);
        for (item.part = 0; item.part < kDiagonalParts; ++item.part) {
          ASSERT_GE(item.steps(), 0);
          for (int step = 0; step < item.steps(); ++step) {
            const int query = item.query_tile(step), key = item.key_tile(step);
            EXPECT_TRUE(0 <= query && query < query_tiles && 0 <= key && key < key_tiles);
            EXPECT_TRUE(seen.insert({query, key}).second) << query << " " << key;
          }
        }
      }
      EXPECT_EQ(seen.size(), static_cast<size_t>(query_tiles * key_tiles));
    }
  }
}

TEST(BackwardBiasPlan, FactorsAreThoseThatDsLacks) {
  warploom_attention call = call_of(1, 128, 1, 64);
  call.flags = WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR;
  call.alpha = -3;
  call.divisor = 8;
  const auto factor = [&] { return mma_backward_plan_of(call)->launches[0].params_as<BackwardParams>().bias_factor; };
  EXPECT_FLOAT_EQ(factor(), -3.0f / 16);
  call.flags |= WARPLOOM_BIAS_NOT_SCALED;
  EXPECT_FLOAT_EQ(factor(), 1.0f / 16);
  call.op = WARPLOOM_SOFTMAX;
  call.flags = WARPLOOM_HAS_ALPHA;
  EXPECT_FLOAT_EQ(factor(), 1.0f);
}

TEST(BackwardBiasPlan, EveryHeadDimensionFitsEveryArchitecture) {
  for (const char* architecture : {"sm_80", "sm_86", "sm_90a", "sm_120"}) {
    const DeviceInfo device = device_of(architecture);
    const auto fits = [&](int bytes, int min_blocks) {
      return bytes <= device.shared_bytes_per_block && min_blocks * (bytes + 1024) <= device.shared_bytes_per_sm;
    };
    for (int dim = 8; dim <= 256; dim += 8) {
      for (const BiasKind bias : {BiasKind::rows16, BiasKind::rows32, BiasKind::bucketed}) {
        for (const bool rare : {false, true}) {
          BackwardConfig base;
          base.head_dim = base.value_dim = dim;
          base.bias = bias;
          base.bias_gradient = bias == BiasKind::bucketed;
          base.softmax = base.interval_mask = rare;
          const auto config = choose_backward_tile(base, device);
          ASSERT_TRUE(config.ok()) << architecture << " " << dim;
          EXPECT_TRUE(fits(shared_map(*config).bytes, config->min_blocks));
          BackwardDqConfig dq_base;
          dq_base.head_dim = dq_base.value_dim = dim;
          dq_base.bias = bias;
          const auto dq = choose_backward_dq_tile(dq_base, device);
          ASSERT_TRUE(dq.ok()) << architecture << " " << dim;
          EXPECT_LE(dq->stages, 2);
          BackwardBiasConfig sums_base;
          sums_base.head_dim = sums_base.value_dim = dim;
          sums_base.bias = bias;
          sums_base.softmax = sums_base.interval_mask = rare;
          const auto sums = choose_backward_bias_tile(sums_base, device);
          ASSERT_TRUE(sums.ok()) << architecture << " " << dim;
          EXPECT_TRUE(fits(shared_map(*sums).bytes, sums->min_blocks));
          EXPECT_EQ(sums->key_columns, 16 * sums->warps);
        }
      }
    }
  }
}

TEST(BackwardBiasPlan, DescriptionSaysWhoComputesTheGradient) {
  const DeviceInfo device = device_of("sm_90a");
  for (const warploom_attention& call : {call_of(2, 256, 4, 64), bucketed_call(2, 256, 4, 64, 20)}) {
    const auto json = nlohmann::json::parse(describe(*mma_backward_plan_of(call), call, device));
    EXPECT_EQ(json["config"]["bias"], call.bias.kind == WARPLOOM_DENSE_BIAS ? "rows16" : "bucketed");
    EXPECT_FALSE(json["bias_gradient"].get<std::string>().empty());
    EXPECT_GT(json["scratch_bytes"].get<int64_t>(), 0);
  }
}

}  // namespace
}  // namespace warploom::gpu
