// The plan of a forward call on Hopper: which calls it takes, tile, order of items and arguments, without a GPU.
#include "gpu/hopper_forward_plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "gpu/choose_plan.h"
#include "plan_calls.h"
#include "warploom/warploom.h"

namespace warploom::gpu {
namespace {

/// A jagged HSTU forward call on a GPU; planning reads none of its pointers.
warploom_attention call_of(int64_t batch, int64_t max_seqlen, int64_t heads, int64_t head_dim) {
  warploom_attention call = jagged_call(batch, max_seqlen, heads, head_dim);
  give_rows(call, {&call.q, &call.k, &call.v, &call.out});
  return call;
}

/// The name of the first kernel that a call takes.
std::string kernel_of(const warploom_attention& call, const char* architecture = "sm_90a") {
  const auto plan = std::make_unique<GpuPlan>();
  const Status status = choose_plan(call, device_of(architecture), nullptr, *plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan->launches[0].family->name;
}

TEST(HopperPlan, TakesForwardCallsThatTensorMapsDescribe) {
  const std::string hopper = kHopperForward.name;
  warploom_attention call = call_of(4, 100, 2, 64);
  EXPECT_EQ(kernel_of(call), hopper);
  call.op = WARPLOOM_SOFTMAX;
  EXPECT_EQ(kernel_of(call), hopper);
  EXPECT_NE(kernel_of(call, "sm_80"), hopper);
  EXPECT_NE(kernel_of(call, "sm_100"), hopper);
  const auto differs = [&](auto change) {
    warploom_attention other = call_of(4, 100, 2, 64);
    change(other);
    return kernel_of(other) != hopper;
  };
  const auto dense_bias = [](auto& c) {
    c.bias.kind = WARPLOOM_DENSE_BIAS;
    c.bias.dtype = c.dtype;
    c.bias.values = c.q.data;
    c.bias.batch = 1;
    c.bias.heads = c.heads;
    c.bias.num_rows = c.bias.num_columns = c.max_seqlen_k;
    c.bias.row_stride = 104;
    c.bias.head_stride = 104 * 100;
  };
  EXPECT_FALSE(differs(dense_bias));
  const auto with_bias = [&](auto change) {
    return [&dense_bias, change](auto& c) {
      dense_bias(c);
      change(c);
    };
  };
  const auto bucketed_bias = [](auto& c) {
    c.bias.kind = WARPLOOM_BUCKETED_BIAS;
    c.bias.time = static_cast<const float*>(c.q.data);
    c.bias.time_heads = 1;
    c.bias.num_times = kMostTimes;
    c.bias.timestamps = static_cast<const int64_t*>(c.q.data);
  };
  EXPECT_FALSE(differs(bucketed_bias));
  EXPECT_TRUE(differs([&](auto& c) {
    bucketed_bias(c);
    c.bias.num_times = kMostTimes + 1;
  }));
  EXPECT_TRUE(differs([&](auto& c) {
    bucketed_bias(c);
    c.bias.time_bucket = c.bias.timestamps;
  })) << "thresholds of the caller's may stand close together";
  EXPECT_TRUE(differs(with_bias([](auto& c) {
    c.op = WARPLOOM_SOFTMAX;
    c.softcap = 2;
  })));
  EXPECT_TRUE(differs([](auto& c) { c.total_k = 0; })) << "a tensor without rows has no map";
  EXPECT_TRUE(differs([](auto& c) { c.k.row_stride = 2 * 64 + 4; })) << "8 bytes: not a multiple of 16";
  EXPECT_TRUE(differs([](auto& c) { c.v.head_stride = int64_t{1} << 40; }));
  EXPECT_TRUE(differs([](auto& c) { c.total_q = int64_t{1} << 31; })) << "coordinates are 32-bit";
  EXPECT_FALSE(differs([](auto& c) {
    c.heads = c.key_heads = 1;
    c.q.head_stride = 3;  // never used
  }));
}

TEST(HopperPlan, RowsOfABiasComeByTmaWhereATensorMapDescribesThem) {
  const auto bias_with = [](auto change) {
    warploom_attention call = call_of(4, 100, 2, 64);
    call.bias.kind = WARPLOOM_DENSE_BIAS;
    call.bias.dtype = call.dtype;
    call.bias.values = call.q.data;
    call.bias.batch = 1;
    call.bias.heads = call.heads;
    call.bias.num_rows = call.bias.num_columns = call.max_seqlen_k;
    call.bias.row_stride = 104;
    call.bias.head_stride = 104 * 100;
    change(call.bias);
    const auto plan = std::make_unique<GpuPlan>();
    EXPECT_TRUE(choose_plan(call, device_of("sm_90a"), nullptr, *plan).ok());
    EXPECT_EQ(plan->launches[0].family, &kHopperForward);
    return hopper_forward_config(plan->launches[0].config).bias;
  };
  EXPECT_EQ(bias_with([](auto&) {}), HopperBias::tensor_map);
  EXPECT_EQ(bias_with([](auto& bias) { bias.row_stride = 100; }), HopperBias::shifted_rows) << "200 bytes";
  EXPECT_EQ(bias_with([](auto& bias) { bias.dtype = WARPLOOM_FLOAT32; }), HopperBias::float_rows);
  EXPECT_EQ(bias_with([](auto& bias) { bias.kind = WARPLOOM_PACKED_BIAS; }), HopperBias::rows);
  EXPECT_EQ(bias_with([](auto& bias) {
              bias.kind = WARPLOOM_PACKED_BIAS;
              bias.head_stride = 100;
            }),
            HopperBias::shifted_rows);
}

TEST(HopperPlan, TheEnvironmentKeepsCallsToMmaSync) {
  const warploom_attention call = call_of(4, 100, 2, 64);
  ::setenv("WARPLOOM_KERNELS", "mma.sync", 1);
  EXPECT_NE(kernel_of(call), kHopperForward.name);
  ::setenv("WARPLOOM_KERNELS", "wgmma", 1);
  const Status status = choose_plan(call, device_of("sm_90a"), nullptr, *std::make_unique<GpuPlan>());
  ::unsetenv("WARPLOOM_KERNELS");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("WARPLOOM_KERNELS = wgmma"), std::string::npos);
}

TEST(HopperPlan, EveryPairOfHeadDimensionsFits) {
  const DeviceInfo device = device_of("sm_90a");
  HopperForwardConfig wanted;
  for (wanted.head_dim = 8; wanted.head_dim <= 256; wanted.head_dim += 8) {
    for (wanted.value_dim = 8; wanted.value_dim <= 256; wanted.value_dim += 8) {
      for (const HopperBias bias : {HopperBias::none, HopperBias::none, HopperBias::tensor_map, HopperBias::rows,
                                    HopperBias::shifted_rows, HopperBias::float_rows, HopperBias::bucketed}) {
        wanted.interval_mask = bias == HopperBias::none && !wanted.interval_mask;
        wanted.bias = bias;
        const Result<HopperForwardConfig> config = choose_hopper_config(wanted, device);
        ASSERT_TRUE(config.ok()) << config.status().message();
        // PTX ISA, "setmaxnreg": the CTA's registers are those of its launch, a multiple of 8 a thread.
        const RegisterBudget budget = register_budget(*config);
        const int launched = 65536 / ((config->consumers + 1) * 128) / 8 * 8;
        EXPECT_LE(budget.producer + config->consumers * budget.consumer, launched * (config->consumers + 1));
        EXPECT_EQ(config->key_columns % 16, 0);
        EXPECT_EQ(shared_map(*config).value % 1024, 0) << "tiles under the 128-byte swizzle";
      }
    }
  }
}

TEST(HopperPlan, QueryCarriesAlphaOnlyWhereThatIsExact) {
  const DeviceInfo device = device_of("sm_90a");
  const auto scaled = [&](auto change) {
    warploom_attention call = call_of(4, 100, 2, 64);
    change(call);
    const auto plan = std::make_unique<GpuPlan>();
    EXPECT_TRUE(plan_hopper_forward(call, device, nullptr, *plan).ok());
    return hopper_forward_config(plan->launches[0].config).scaled_query;
  };
  const auto with_alpha = [](double alpha) {
    return [alpha](auto& c) {
      c.flags |= WARPLOOM_HAS_ALPHA;
      c.alpha = alpha;
    };
  };
  EXPECT_TRUE(scaled(with_alpha(0.125)));
  EXPECT_TRUE(scaled(with_alpha(-4)));
  EXPECT_FALSE(scaled(with_alpha(0.1)));
  EXPECT_FALSE(scaled(with_alpha(0)));
  EXPECT_FALSE(scaled(with_alpha(0x1p-60)));
  EXPECT_FALSE(scaled([&](auto& c) {
    with_alpha(0.125)(c);
    c.dtype = WARPLOOM_FLOAT16;
  })) << "float16 loses digits below 2^-14";
  EXPECT_FALSE(scaled([&](auto& c) {
    with_alpha(0.125)(c);
    c.op = WARPLOOM_SOFTMAX;
  }));
}

TEST(HopperPlan, WideHeadsHaveTurns) {
  const DeviceInfo device = device_of("sm_90a");
  const auto turns = [&](uint32_t op, int dim) {
    warploom_attention call = call_of(4, 100, 2, dim);
    call.op = op;
    const auto plan = std::make_unique<GpuPlan>();
    EXPECT_TRUE(plan_hopper_forward(call, device, nullptr, *plan).ok());
    return hopper_forward_config(plan->launches[0].config).turns;
  };
  EXPECT_FALSE(turns(WARPLOOM_HSTU, 64));
  for (const int dim : {72, 128, 256}) EXPECT_TRUE(turns(WARPLOOM_HSTU, dim));
  EXPECT_FALSE(turns(WARPLOOM_SOFTMAX, 64));
  EXPECT_FALSE(turns(WARPLOOM_SOFTMAX, 128));
  EXPECT_TRUE(turns(WARPLOOM_SOFTMAX, 136));
}

TEST(HopperPlan, GroupsKeepKeysAndValuesInL2) {
  const DeviceInfo device = device_of("sm_90a");
  const auto schedule = [&](const warploom_attention& call) {
    const auto plan = std::make_unique<GpuPlan>();
    EXPECT_TRUE(plan_hopper_forward(call, device, nullptr, *plan).ok());
    return plan->launches[0].params_as<HopperForwardParams>().call.schedule;
  };
  // 128 pairs of 1 MiB each, and the rows after the last sequence: four groups of 33.
  EXPECT_EQ(schedule(call_of(32, 1024, 4, 256)).pairs_in_group, 33);
  // Long sequences: the SMs meet in the same keys.
  EXPECT_EQ(schedule(call_of(8, 4096, 4, 256)).pairs_in_group, 36);
  EXPECT_EQ(schedule(call_of(1, 8, 1, 8)).pairs_in_group, 2);
}

TEST(HopperPlan, LaunchesNoMoreCtasThanSmsAndItems) {
  const DeviceInfo device = device_of("sm_90a");
  const auto ctas = [&](const warploom_attention& call) {
    const auto plan = std::make_unique<GpuPlan>();
    EXPECT_TRUE(plan_hopper_forward(call, device, nullptr, *plan).ok());
    EXPECT_TRUE(plan->scratch_left_cleared);
    return plan->launches[0].ctas;
  };
  EXPECT_EQ(ctas(call_of(8, 4096, 4, 64)), device.sm_count);
  EXPECT_EQ(ctas(call_of(1, 8, 1, 64)), 2);
}

TEST(HopperPlan, DescriptionIsJsonWithTheConfig) {
  const warploom_attention call = call_of(8, 4096, 4, 128);
  const auto plan = std::make_unique<GpuPlan>();
  ASSERT_TRUE(plan_hopper_forward(call, device_of("sm_90a"), nullptr, *plan).ok());
  const auto json = nlohmann::json::parse(describe(*plan, call, device_of("sm_90a")));
  EXPECT_EQ(json["config"]["consumers"], 2);
  EXPECT_EQ(json["config"]["key_columns"], 128);
  EXPECT_EQ(json["schedule"]["query_tiles"], 32);
  EXPECT_NE(json["launches"][0]["kernel"].get<std::string>().find("hopper"), std::string::npos);
}

}  // namespace
}  // namespace warploom::gpu
