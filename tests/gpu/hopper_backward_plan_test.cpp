// The plan of a backward call on Hopper: which calls it takes, launches, tile, order of items, scratch memory and
// arguments, without a GPU.
#include "gpu/hopper_backward_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu/backward_around.h"
#include "gpu/backward_bias_plan.h"
#include "gpu/backward_plan.h"
#include "gpu/choose_plan.h"
#include "plan_calls.h"
#include "warploom/warploom.h"

namespace warploom::gpu {
namespace {

/// A jagged backward call on a GPU; planning reads none of its pointers.
warploom_attention call_of(uint32_t op, int64_t batch, int64_t max_seqlen, int64_t heads, int64_t head_dim) {
  warploom_attention call = jagged_call(batch, max_seqlen, heads, head_dim);
  call.op = op;
  call.pass = WARPLOOM_BACKWARD;
  give_rows(call, {&call.q, &call.k, &call.v, &call.dout, &call.dq, &call.dk, &call.dv});
  return call;
}

std::unique_ptr<GpuPlan> plan_of(const warploom_attention& call, const char* architecture = "sm_90a") {
  auto plan = std::make_unique<GpuPlan>();
  const Status status = choose_plan(call, device_of(architecture), nullptr, *plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

bool is_one_pass(const GpuPlan& plan) {
  for (int n = 0; n < plan.launch_count; ++n) {
    const PlannedLaunch& launch = plan.launches[static_cast<size_t>(n)];
    if (launch.family == &kHopperBackward && hopper_backward_config(launch.config).accumulate_dq) return true;
  }
  return false;
}

TEST(HopperBackwardPlan, LaunchesOfEachOperator) {
  EXPECT_EQ(families_of(*plan_of(call_of(WARPLOOM_HSTU, 8, 1024, 4, 128))),
            (Families{&kHopperBackward, &kBackwardDqSums}));
  EXPECT_EQ(families_of(*plan_of(call_of(WARPLOOM_SOFTMAX, 8, 1024, 4, 128))),
            (Families{&kBackwardRowTerms, &kHopperBackward, &kBackwardDqSums}));
}

TEST(HopperBackwardPlan, TakesCallsWithoutABiasThatTensorMapsDescribe) {
  const auto takes = [](auto change, const char* architecture = "sm_90a") {
    warploom_attention call = call_of(WARPLOOM_HSTU, 4, 100, 2, 64);
    change(call);
    return is_one_pass(*plan_of(call, architecture));
  };
  EXPECT_TRUE(takes([](auto&) {}));
  EXPECT_TRUE(takes([](auto& c) { c.value_dim = 128; }));
  EXPECT_FALSE(takes([](auto&) {}, "sm_80"));
  EXPECT_FALSE(takes([](auto&) {}, "sm_100"));
  EXPECT_FALSE(takes([](auto& c) { c.value_dim = 136; })) << "too wide for one pass";
  EXPECT_FALSE(takes([](auto& c) { c.flags |= WARPLOOM_DETERMINISTIC; })) << "dQ's sums come in any order";
  EXPECT_FALSE(takes([](auto& c) { c.total_k = 0; })) << "a tensor without rows has no map";
  EXPECT_FALSE(takes([](auto& c) { c.dout.row_stride = 2 * 64 + 4; })) << "8 bytes: not a multiple of 16";
  const auto huge_alpha = [](auto& c) {
    c.flags |= WARPLOOM_HAS_ALPHA;
    c.alpha = -400;
  };
  EXPECT_TRUE(takes(huge_alpha));
  EXPECT_FALSE(takes([&](auto& c) {
    huge_alpha(c);
    c.op = WARPLOOM_SOFTMAX;
  })) << "exponents of tens of thousands";
  ::setenv("WARPLOOM_KERNELS", "mma.sync", 1);
  EXPECT_FALSE(takes([](auto&) {}));
  ::unsetenv("WARPLOOM_KERNELS");
}

/// With a dense bias and its gradient.
warploom_attention biased_call_of(uint32_t op, int64_t head_dim) {
  warploom_attention call = call_of(op, 8, 1024, 4, head_dim);
  give_dense_bias(call, 1024);
  return call;
}

TEST(HopperBackwardPlan, TakesADenseBiasThatTensorMapsDescribe) {
  const auto takes = [](auto change) {
    warploom_attention call = biased_call_of(WARPLOOM_HSTU, 128);
    change(call);
    return is_one_pass(*plan_of(call));
  };
  EXPECT_TRUE(takes([](auto&) {}));
  EXPECT_TRUE(takes([](auto& c) { c.bias.grad = nullptr; }));
  EXPECT_TRUE(takes([](auto& c) { c.bias.heads = c.bias.batch = 1; })) << "broadcast: summed by another kernel";
  EXPECT_FALSE(takes([](auto& c) { c.bias.kind = WARPLOOM_PACKED_BIAS; }));
  EXPECT_FALSE(takes([](auto& c) { c.bias.dtype = WARPLOOM_FLOAT32; }));
  EXPECT_FALSE(takes([](auto& c) { c.dtype = c.bias.dtype = WARPLOOM_FLOAT16; })) << "dS has exponents";
  EXPECT_FALSE(takes([](auto& c) { c.bias.row_stride = 1028; })) << "8 bytes: not a multiple of 16";
  EXPECT_FALSE(takes([](auto& c) { c.bias.grad_row_stride = 1028; }));
  EXPECT_FALSE(takes([](auto& c) { c.bias.num_columns = 1020; })) << "a store would pass the end of a row";
  EXPECT_TRUE(takes([](auto& c) {
    c.bias.num_columns = 1020;
    c.bias.grad = nullptr;
  })) << "a load does not";
  EXPECT_FALSE(takes([](auto& c) {
    c.op = WARPLOOM_SOFTMAX;
    c.softcap = 2;
  }));
}

TEST(HopperBackwardPlan, TheGradientsFactorIsInDsAlready) {
  const auto plan_with = [](double alpha, bool wants_gradient, uint32_t more_flags = 0) {
    warploom_attention call = biased_call_of(WARPLOOM_HSTU, 128);
    call.flags |= WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR | more_flags;
    call.alpha = alpha;
    call.divisor = 10;
    if (!wants_gradient) call.bias.grad = nullptr;
    return plan_of(call);
  };
  const auto factors = [](const GpuPlan& plan) {
    const auto& of_keys = plan.launches[0].params_as<HopperBackwardParams>().backward;
    return std::array{of_keys.bias_factor, of_keys.score_factor,
                      plan.launches[1].params_as<BackwardParams>().score_factor};
  };
  const auto expect = [&](const GpuPlan& plan, float of_bias, float of_keys, float of_queries) {
    const auto found = factors(plan);
    EXPECT_FLOAT_EQ(found[0], of_bias);
    EXPECT_FLOAT_EQ(found[1], of_keys);
    EXPECT_FLOAT_EQ(found[2], of_queries);
  };
  expect(*plan_with(0.3, true), 0.5f * 0.3f / 10, 1, 1);
  expect(*plan_with(0.25, true), 0.5f * 0.25f / 10, 1, 1 / 0.125f);
  expect(*plan_with(0.25, true, WARPLOOM_BIAS_NOT_SCALED), 0.5f / 10, 0.25f, 2);
  expect(*plan_with(0, true), 0, 0, 0);
  expect(*plan_with(0.3, false), 1, 0.5f * 0.3f / 10, 0.5f * 0.3f / 10);
}

TEST(HopperBackwardPlan, LaunchesBesideABroadcastBiasSumItsGradient) {
  warploom_attention call = biased_call_of(WARPLOOM_SOFTMAX, 64);
  call.bias.heads = 1;
  const auto plan = plan_of(call);
  EXPECT_EQ(families_of(*plan), (Families{&kBackwardRowTerms, &kMmaBackwardBias, &kHopperBackward, &kBackwardDqSums}));
  plan->bind_scratch(*plan, 0x10000);
  EXPECT_EQ(plan->launches[1].params_as<BackwardParams>().row_terms,
            plan->launches[0].params_as<BackwardParams>().row_terms);
}

TEST(HopperBackwardPlan, EveryPairOfHeadDimensionsFits) {
  const DeviceInfo device = device_of("sm_90a");
  HopperBackwardConfig wanted;
  for (wanted.head_dim = 8; wanted.head_dim <= kMaxOnePassDim; wanted.head_dim += 8) {
    for (wanted.value_dim = 8; wanted.value_dim <= kMaxOnePassDim; wanted.value_dim += 8) {
      for (const int bits : {0, 1, 2, 3, 7, 8, 10}) {
        wanted.bfloat16 = (bits & 1) == 0;
        wanted.softmax = (bits & 2) != 0;
        wanted.softcap = (bits & 4) != 0;
        wanted.dense_bias = wanted.bias_gradient = (bits & 8) != 0;
        const HopperBackwardConfig config = choose_hopper_backward_config(wanted);
        const HopperBackwardSharedMap map = shared_map(config);
        EXPECT_LE(map.bytes, device.shared_bytes_per_block);
        for (const int tile : {map.value, map.query, map.dout, map.scores, map.bias, map.zeros})
          EXPECT_EQ(tile % 1024, 0);
        EXPECT_EQ(map.row_terms % 16, 0);
        EXPECT_EQ(map.visible % 16, 0);
        EXPECT_EQ(map.barriers % 8, 0);
        EXPECT_EQ(map.bias_notes % 8, 0);
        EXPECT_EQ(hopper_backward_key(hopper_backward_config(hopper_backward_key(config))),
                  hopper_backward_key(config));
      }
    }
  }
}

TEST(HopperBackwardPlan, ScratchHoldsSumsThenCountersThenRowTerms) {
  const warploom_attention call = call_of(WARPLOOM_SOFTMAX, 3, 1000, 4, 64);
  const auto plan = plan_of(call);
  const HopperBackwardConfig config = hopper_backward_config(plan->launches[1].config);
  const long long tiles = dq_tiles(call.total_q, 3, config.query_rows);
  const auto sums = static_cast<size_t>(tiles * 4 * config.query_rows * 64) * sizeof(float);
  plan->bind_scratch(*plan, 0x10000);
  const auto& main = plan->launches[1].params_as<HopperBackwardParams>();
  const auto at = [](const void* pointer) { return reinterpret_cast<size_t>(pointer) - 0x10000; };
  EXPECT_EQ(at(main.backward.dq_sums), 0u);
  EXPECT_GE(at(main.counters), sums);
  EXPECT_GE(plan->cleared_bytes, at(main.counters) + 2 * sizeof(unsigned));
  EXPECT_EQ(at(main.backward.row_terms), plan->cleared_bytes);
  EXPECT_GE(plan->scratch_bytes, plan->cleared_bytes + static_cast<size_t>(4 * call.total_q) * sizeof(SoftmaxRowTerms));
  for (const size_t n : {0u, 2u}) {
    const auto& params = plan->launches[n].params_as<BackwardParams>();
    EXPECT_EQ(params.row_terms, main.backward.row_terms);
    EXPECT_EQ(params.dq_sums, main.backward.dq_sums);
  }
}

TEST(HopperBackwardPlan, KeysCarryAlphaOnlyWhereThatIsExact) {
  const auto plan_with = [](double alpha) {
    warploom_attention call = call_of(WARPLOOM_HSTU, 3, 1000, 4, 64);
    call.flags |= WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR;
    call.alpha = alpha;
    call.divisor = 10;
    return plan_of(call);
  };
  const auto factor = [](const GpuPlan& plan) { return plan.launches[1].params_as<BackwardParams>().score_factor; };
  const auto exact = plan_with(0.25), rounded = plan_with(0.3);
  EXPECT_TRUE(hopper_backward_config(exact->launches[0].config).scaled_key);
  EXPECT_FALSE(hopper_backward_config(rounded->launches[0].config).scaled_key);
  EXPECT_FLOAT_EQ(factor(*exact), 0.1f) << "dQ's sums have alpha / 2 from K";
  EXPECT_FLOAT_EQ(factor(*rounded), 0.5f * 0.3f * 0.1f);
  EXPECT_FLOAT_EQ(exact->launches[0].params_as<HopperBackwardParams>().backward.score_factor, 0.5f * 0.25f * 0.1f)
      << "dK's have not";
}

TEST(HopperBackwardPlan, ScoresAreSplitWhereRegistersBearIt) {
  const auto splits = [](warploom_attention call) {
    return hopper_backward_config(plan_of(call)->launches[0].config).splits_scores;
  };
  const warploom_attention wide = call_of(WARPLOOM_HSTU, 3, 1000, 4, 128);
  EXPECT_TRUE(splits(wide));
  EXPECT_FALSE(splits(call_of(WARPLOOM_HSTU, 3, 1000, 4, 64))) << "in halves instead";
  warploom_attention other = wide;
  other.dtype = WARPLOOM_FLOAT16;
  EXPECT_FALSE(splits(other));
  other = wide;
  float divisors = 1;
  other.divisor_rows = &divisors;
  EXPECT_FALSE(splits(other));
  EXPECT_TRUE(splits(biased_call_of(WARPLOOM_HSTU, 64)));
  EXPECT_FALSE(splits(biased_call_of(WARPLOOM_HSTU, 128)));
}

TEST(HopperBackwardPlan, GroupsKeepQueriesAndSumsInL2) {
  const auto schedule = [](int64_t batch, int64_t length, int64_t dim) {
    const auto plan = plan_of(call_of(WARPLOOM_HSTU, batch, length, 4, dim));
    return plan->launches[0].params_as<HopperBackwardParams>().backward.call.schedule;
  };
  // Of 50 MiB, 16: pairs of 16384 rows of 64 values in 2 + 2 + 4 bytes are 8 MiB each. Two items a CTA: 8 pairs of 32
  // tiles, 33 of 8.
  EXPECT_EQ(schedule(8, 4096, 128).pairs_in_group, 8);
  EXPECT_EQ(schedule(8, 4096, 64).pairs_in_group, 8);
  EXPECT_EQ(schedule(7, 4096, 64).pairs_in_group, 10) << "three groups of 28";
  EXPECT_EQ(schedule(32, 1024, 128).pairs_in_group, 32);
  EXPECT_EQ(schedule(8, 16384, 64).pairs_in_group, 2);
  EXPECT_EQ(schedule(1, 8, 8).pairs_in_group, 4) << "no more than there are";
  EXPECT_TRUE(schedule(8, 4096, 128).first_to_last);
  EXPECT_EQ(schedule(8, 4096, 128).query_tiles, 32);
}

TEST(HopperBackwardPlan, LaunchesNoMoreCtasThanSmsAndItems) {
  EXPECT_EQ(plan_of(call_of(WARPLOOM_HSTU, 8, 4096, 4, 64))->launches[0].ctas, device_of("sm_90a").sm_count);
  EXPECT_EQ(plan_of(call_of(WARPLOOM_HSTU, 1, 8, 1, 64))->launches[0].ctas, 2);
}

TEST(HopperBackwardPlan, DescriptionIsJsonWithTheConfig) {
  const warploom_attention call = call_of(WARPLOOM_SOFTMAX, 8, 4096, 4, 128);
  const auto plan = plan_of(call);
  const auto json = nlohmann::json::parse(describe(*plan, call, device_of("sm_90a")));
  EXPECT_EQ(json["config"]["key_rows"], 128);
  EXPECT_EQ(json["config"]["query_rows"], 64);
  EXPECT_EQ(json["schedule"]["key_tiles"], 32);
  EXPECT_EQ(json["scratch_bytes"], plan->scratch_bytes);
  EXPECT_NE(json["launches"][1]["kernel"].get<std::string>().find("hopper"), std::string::npos);
}

}  // namespace
}  // namespace warploom::gpu
