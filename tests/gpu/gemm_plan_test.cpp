#include "gpu/gemm_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <vector>

#include "fake_driver_fixture.h"
#include "gpu/reference_device.h"
#include "problem/gemm.h"

namespace warploom::gpu {
namespace {

DeviceInfo h200() {
  return *reference_device({9, 0, true});
}

void* const memory = reinterpret_cast<void*>(0x10000);

warploom_gemm product(int64_t rows, int64_t columns, int64_t depth) {
  warploom_gemm call;
  init_gemm(call);
  call.dtype = call.out_dtype = WARPLOOM_BFLOAT16;
  call.rows = rows;
  call.columns = columns;
  call.depth = depth;
  call.a = {memory, 0, depth};
  call.b = {memory, 0, depth};
  call.out = {memory, 0, columns};
  return call;
}

GemmConfig chosen(const warploom_gemm& call) {
  return gemm_candidates(call, h200()).front().config;
}

TEST(GemmSchedule, VisitsEveryTileOnce) {
  for (const auto& [rows, columns, batches, band] :
       {std::tuple{1, 1, 1, 8}, {7, 5, 1, 8}, {16, 3, 2, 8}, {33, 9, 3, 4}, {5, 1, 1, 1}, {64, 32, 1, 16}}) {
    const GemmSchedule schedule{rows, columns, batches, band};
    std::set<std::tuple<int, int, int>> seen;
    for (int i = 0; i < schedule.tiles(); ++i) {
      const GemmTile tile = schedule.tile(i);
      ASSERT_TRUE(tile.row >= 0 && tile.row < rows && tile.column >= 0 && tile.column < columns && tile.batch >= 0 &&
                  tile.batch < batches);
      seen.emplace(tile.row, tile.column, tile.batch);
    }
    EXPECT_EQ(static_cast<int>(seen.size()), rows * columns * batches);
  }
}

TEST(GemmSchedule, NeighboursShareABand) {
  const GemmSchedule schedule{64, 32, 1, 8};
  for (int first = 0; first + 64 <= schedule.tiles(); first += 64) {
    int lowest = 64, highest = 0;
    for (int i = first; i < first + 64; ++i) {
      lowest = std::min(lowest, schedule.tile(i).row);
      highest = std::max(highest, schedule.tile(i).row);
    }
    EXPECT_LT(highest - lowest, 8);
  }
}

TEST(GemmSharedMap, IsAlignedAndFitsTheDevice) {
  for (const KernelFamily* family : {&kGemm, &kGemmFewRows}) {
    for (const KernelVariant& variant : family->variants(h200(), true)) {
      const KernelRequest request = family->request(variant.config, {9, 0, true});
      EXPECT_NE(request.config_text.find("GemmConfig kConfig"), std::string::npos);
      EXPECT_EQ(variant.family, family);
      EXPECT_EQ("kernels/" + request.entry_file, family->source);
    }
  }
  for (const bool staged : {true, false}) {
    warploom_gemm call = product(4096, staged ? 4096 : 4100, 4096);
    for (const GemmCandidate& candidate : gemm_candidates(call, h200())) {
      if (candidate.config.few_rows) continue;
      const GemmSharedMap map = shared_map(candidate.config);
      EXPECT_LE(map.bytes, h200().shared_bytes_per_block);
      // Swizzled tiles start at multiples of 1024 bytes, barriers at multiples of 8.
      for (const int offset : {map.slot, map.a_bytes, map.slot_bytes, map.staging, map.staging_panel_bytes}) {
        EXPECT_EQ(offset % 1024, 0);
      }
      EXPECT_EQ(map.barriers % 8, 0);
    }
  }
}

TEST(GemmChoice, LargeProductsShareBigTilesAndSmallOnesFillTheGpu) {
  const GemmConfig large = chosen(product(8192, 8192, 8192));
  EXPECT_EQ(large.tile_rows * large.tile_columns, 128 * 256);
  EXPECT_EQ(large.multicast, 2);
  EXPECT_FALSE(large.ping_pong);
  // A short main loop hides its epilogue only in turns.
  EXPECT_TRUE(chosen(product(65536, 4096, 512)).ping_pong);
  warploom_gemm fused = product(65536, 2048, 1024);
  fused.bias = memory;
  fused.activation = WARPLOOM_SILU;
  const GemmConfig config = chosen(fused);
  EXPECT_TRUE(config.ping_pong && config.bias && config.silu && !config.residual);
  for (const int64_t rows : {1, 16, 64, 128, 256}) {
    const GemmCandidate best = gemm_candidates(product(rows, 4096, 4096), h200()).front();
    EXPECT_GE(best.tiles * gemm_cluster(best.config), 120) << rows;
    EXPECT_EQ(best.waves, 1) << rows;
  }
}

TEST(GemmChoice, FewRowsGoStraightToRegisters) {
  EXPECT_EQ(chosen(product(1, 4096, 4096)).tile_rows, 8);
  EXPECT_EQ(chosen(product(16, 4096, 4096)).tile_rows, 16);
  for (const int64_t rows : {1, 8, 16}) EXPECT_TRUE(chosen(product(rows, 4096, 4096)).few_rows) << rows;
  for (const int64_t rows : {64, 128, 4096}) EXPECT_FALSE(chosen(product(rows, 4096, 4096)).few_rows) << rows;
  warploom_gemm odd = product(1, 4096, 4090);
  odd.a.row_stride = odd.b.row_stride = 4096;
  EXPECT_FALSE(chosen(odd).few_rows) << "its last 16 bytes end outside of the matrix";
  warploom_gemm eight = product(1, 4096, 4096);
  eight.dtype = WARPLOOM_FLOAT8_E4M3;
  EXPECT_FALSE(chosen(eight).few_rows);
}

TEST(GemmChoice, EightBitOperandsHaveTilesOfTheirOwn) {
  warploom_gemm call = product(8192, 8192, 8192);
  call.dtype = WARPLOOM_FLOAT8_E4M3;
  for (const GemmCandidate& candidate : gemm_candidates(call, h200())) {
    EXPECT_EQ(candidate.config.input, GemmType::float8_e4m3);
    EXPECT_EQ(gemm_depth(candidate.config), 128);
    // Accumulators and the sums of the slots before, of a thread that has 232 registers.
    EXPECT_LE(2 * gemm_consumer_rows(candidate.config) / 64 * candidate.config.tile_columns / 2, 200);
  }
  const GemmCandidate eight = gemm_candidates(call, h200()).front();
  const GemmCandidate sixteen = gemm_candidates(product(8192, 8192, 8192), h200()).front();
  EXPECT_LT(eight.cycles, 0.6 * sixteen.cycles);
  for (const GemmCandidate& candidate : gemm_candidates(product(8192, 8192, 8192), h200())) {
    EXPECT_EQ(candidate.config.input, GemmType::bfloat16);
  }
}

TEST(GemmChoice, StoresDirectlyWhereTmaCannot) {
  EXPECT_TRUE(gemm_staged(chosen(product(4096, 4096, 4096))));
  EXPECT_FALSE(gemm_staged(chosen(product(4096, 4092, 4096)))) << "TMA stores whole 16 bytes";
  warploom_gemm odd = product(4096, 4096, 4096);
  odd.out.row_stride = 4098;
  EXPECT_FALSE(gemm_staged(chosen(odd)));
  warploom_gemm wide = product(4096, 4096, 4096);
  wide.out_dtype = WARPLOOM_FLOAT32;
  EXPECT_FALSE(gemm_staged(chosen(wide)));
  warploom_gemm broadcast = product(4096, 4096, 64);
  broadcast.batch = 2;
  broadcast.out.batch_stride = 4096 * 4096;
  broadcast.c = {memory, 0, 4096};
  broadcast.beta = 1;
  EXPECT_FALSE(gemm_staged(chosen(broadcast))) << "one C for the whole batch";
}

TEST(GemmPlan, CoversTheProduct) {
  for (const auto& [rows, columns, depth] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 8}, {4096, 4096, 4096}, {130, 264, 1000}, {256, 4096, 4096}}) {
    const warploom_gemm call = product(rows, columns, depth);
    const auto plan = std::make_unique<GpuPlan>();
    ASSERT_TRUE(plan_gemm(call, h200(), *plan).ok());
    const PlannedLaunch& launch = plan->launches[0];
    const GemmConfig config = chosen(call);
    EXPECT_EQ(launch.threads, gemm_threads(config));
    if (config.few_rows) {
      const FewRowsParams& params = launch.params_as<FewRowsParams>();
      EXPECT_GE(params.schedule.row_tiles * config.tile_rows, rows);
      EXPECT_GE(params.schedule.column_tiles * config.tile_columns, columns);
      EXPECT_EQ(params.depth, depth);
      EXPECT_EQ(launch.ctas, params.schedule.tiles());
      continue;
    }
    const GemmParams& params = launch.params_as<GemmParams>();
    EXPECT_GE(params.schedule.row_tiles * config.tile_rows * config.multicast, rows);
    EXPECT_GE(params.schedule.column_tiles * config.tile_columns, columns);
    EXPECT_GE(params.steps * gemm_depth(config), depth);
    EXPECT_LE(config.split, std::max(1, params.steps)) << "every CTA of a cluster has a step";
    EXPECT_EQ(launch.ctas, params.clusters * gemm_cluster(config));
  }
}

TEST(GemmPlan, EveryCtaOfASplitHasAStep) {
  for (const int64_t depth : {0, 8, 64, 65, 128, 4096}) {
    for (const int64_t rows : {1, 64, 200, 5000}) {
      for (const GemmCandidate& candidate : gemm_candidates(product(rows, 4096, depth), h200())) {
        EXPECT_LE(candidate.config.split, std::max<int64_t>(1, (depth + 63) / 64)) << rows << " x " << depth;
      }
    }
  }
}

TEST(GemmPlan, EmptyProductsLaunchNothing) {
  for (const warploom_gemm& call : {product(0, 64, 64), product(64, 0, 64)}) {
    const auto plan = std::make_unique<GpuPlan>();
    ASSERT_TRUE(plan_gemm(call, h200(), *plan).ok());
    EXPECT_EQ(plan->launches[0].ctas, 0);
  }
  for (const GemmCandidate& candidate : gemm_candidates(product(64, 64, 0), h200())) {
    const auto plan = std::make_unique<GpuPlan>();
    ASSERT_TRUE(plan_gemm(product(64, 64, 0), h200(), candidate, *plan).ok());
    if (candidate.config.few_rows) {
      EXPECT_EQ(plan->launches[0].params_as<FewRowsParams>().depth, 0);
      continue;
    }
    EXPECT_EQ(plan->launches[0].params_as<GemmParams>().steps, 1) << "zeros are added up";
    EXPECT_GE(plan->launches[0].params_as<GemmParams>().first_k, 1) << "beyond the one column of the map";
  }
}

TEST(GemmPlan, OtherDevicesAreRefused) {
  const auto plan = std::make_unique<GpuPlan>();
  const Status status = plan_gemm(product(64, 64, 64), *reference_device({8, 0, false}), *plan);
  EXPECT_EQ(status.code(), StatusCode::runtime_error);
  EXPECT_NE(status.message().find("Hopper"), std::string::npos);
}

TEST(GemmPlan, ExplainTellsTheChoice) {
  const warploom_gemm call = product(4096, 4096, 4096);
  const auto plan = std::make_unique<GpuPlan>();
  ASSERT_TRUE(plan_gemm(call, h200(), *plan).ok());
  const nlohmann::json json = nlohmann::json::parse(describe_gemm(call, h200(), *plan));
  EXPECT_EQ(json["config"]["tile_columns"], 256);
  ASSERT_GE(json["candidates"].size(), 4u);
  double before = 0;
  for (const auto& row : json["candidates"]) {
    EXPECT_GE(row["cycles"].get<double>(), before);
    before = row["cycles"];
  }
}

using GemmMaps = FakeDriverFixture;

TEST_F(GemmMaps, DescribeTheOperands) {
  warploom_gemm call = product(512, 4096, 200);
  call.b = {memory, 0, 208};
  call.batch = 3;
  call.a.batch_stride = 512 * 200;
  call.out.batch_stride = 512 * 4096;
  const auto plan = std::make_unique<GpuPlan>();
  ASSERT_TRUE(plan_gemm(call, h200(), *plan).ok());
  const int before = state().maps_encoded;
  ASSERT_TRUE(encode_gemm_maps(call, **driver(), plan->launches[0]).ok());
  const GemmConfig config = chosen(call);
  ASSERT_TRUE(gemm_staged(config));
  EXPECT_EQ(state().maps_encoded - before, 3);
  // The last one is D's.
  EXPECT_EQ(state().map_element, 9);
  EXPECT_EQ(state().map_swizzle, 3);
  EXPECT_EQ(state().map_dims[0], 4096u);
  EXPECT_EQ(state().map_dims[1], 512u);
  EXPECT_EQ(state().map_dims[2], 3u);
  EXPECT_EQ(state().map_strides[0], 4096u * 2);
  EXPECT_EQ(state().map_strides[1], 512u * 4096 * 2);
  EXPECT_EQ(state().map_box[0], 64u);
  EXPECT_EQ(state().map_box[1], static_cast<unsigned>(gemm_consumer_rows(config)));
  const GemmParams& params = plan->launches[0].params_as<GemmParams>();
  EXPECT_EQ(params.a_batch, 1);
  EXPECT_EQ(params.b_batch, 0) << "one B for the whole batch";
}

TEST_F(GemmMaps, OfEightBitOperandsCountBytes) {
  warploom_gemm call = product(512, 4096, 400);
  call.dtype = WARPLOOM_FLOAT8_E4M3;
  call.out_dtype = WARPLOOM_FLOAT32;  // stored without a map, so b's is the last
  const float scale = 1;
  call.scale_a = &scale;
  const auto plan = std::make_unique<GpuPlan>();
  ASSERT_TRUE(plan_gemm(call, h200(), *plan).ok());
  EXPECT_EQ(plan->launches[0].params_as<GemmParams>().scale_a, &scale);
  EXPECT_EQ(plan->launches[0].params_as<GemmParams>().scale_b, nullptr);
  EXPECT_EQ(plan->launches[0].params_as<GemmParams>().steps, 4);
  ASSERT_TRUE(encode_gemm_maps(call, **driver(), plan->launches[0]).ok());
  EXPECT_EQ(state().map_element, 0);
  EXPECT_EQ(state().map_dims[0], 400u);
  EXPECT_EQ(state().map_strides[0], 400u);
  EXPECT_EQ(state().map_box[0], 128u);
}

TEST_F(GemmMaps, ExistForAnEmptyDepthAndASingleRow) {
  for (warploom_gemm call : {product(64, 64, 0), product(1, 8, 8)}) {
    if (call.depth == 0) call.a.data = call.b.data = nullptr;
    const auto plan = std::make_unique<GpuPlan>();
    ASSERT_TRUE(plan_gemm(call, h200(), *plan).ok());
    const Status status = encode_gemm_maps(call, **driver(), plan->launches[0]);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

}  // namespace
}  // namespace warploom::gpu
