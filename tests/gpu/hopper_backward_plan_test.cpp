// The plan of a backward call on Hopper: which calls it takes, launches, tile, order of items, scratch memory and
// arguments, without a GPU.
#include "gpu/hopper_backward_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
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
  warploom_attention call = backward_call(batch, max_seqlen, heads, head_dim);
  call.op = op;
  return call;
}

/// With a dense bias and its gradient.
warploom_attention biased_call_of(uint32_t op, int64_t head_dim) {
  warploom_attention call = call_of(op, 8, 1024, 4, head_dim);
  give_dense_bias(call, 1024);
  return call;
}

bool is_one_pass(const GpuPlan& plan) {
  for (int n = 0; n < plan.launch_count; ++n) {
    const PlannedLaunch& launch = plan.launches[static_cast<size_t>(n)];
    if (launch.family == &kHopperBackward && hopper_backward_config(launch.config).accumulate_dq) return true;
  }
  return false;
}

TEST(HopperBackwardPlan, LaunchesOfEachOperator) {
  EXPECT_EQ(families_of(*plan_of(call_of(WARPLOOM_HSTU, 8, 1024, 4, 128))), (Families{&kHopperBackward}));
  EXPECT_EQ(families_of(*plan_of(call_of(WARPLOOM_SOFTMAX, 8, 1024, 4, 128))),
            (Families{&kBackwardRowTerms, &kHopperBackward}));
  EXPECT_EQ(families_of(*plan_of(biased_call_of(WARPLOOM_HSTU, 128))), (Families{&kHopperBackward, &kBackwardDqSums}));
}

TEST(HopperBackwardPlan, StartsOverTheEndOfWhatAKernelWaitsForItself) {
  const auto overlaps = [](const warploom_attention& call) {
    const auto plan = plan_of(call);
    std::vector<bool> result;
    for (int n = 0; n < plan->launch_count; ++n) {
      result.push_back(plan->launches[static_cast<size_t>(n)].overlaps_previous);
    }
    return result;
  };
  // HSTU's main kernel follows a clear, which is no kernel.
  EXPECT_EQ(overlaps(biased_call_of(WARPLOOM_HSTU, 128)), (std::vector<bool>{false, true}));
  EXPECT_EQ(overlaps(call_of(WARPLOOM_SOFTMAX, 8, 1024, 4, 128)), (std::vector<bool>{false, true}));
  warploom_attention no_queries = call_of(WARPLOOM_SOFTMAX, 8, 1024, 4, 128);
  no_queries.total_q = 0;
  EXPECT_FALSE(overlaps(no_queries)[1]) << "there are no row terms to follow";
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

TEST(HopperBackwardPlan, TakesStoredBiases) {
  const auto takes = [](auto change) {
    warploom_attention call = biased_call_of(WARPLOOM_HSTU, 128);
    change(call);
    return is_one_pass(*plan_of(call));
  };
  EXPECT_TRUE(takes([](auto&) {}));
  EXPECT_TRUE(takes([](auto& c) { c.bias.grad = nullptr; }));
  EXPECT_TRUE(takes([](auto& c) { c.bias.heads = c.bias.batch = 1; })) << "broadcast: summed by another kernel";
  EXPECT_TRUE(takes([](auto& c) { c.bias.kind = WARPLOOM_PACKED_BIAS; }));
  EXPECT_FALSE(takes([](auto& c) { c.bias.dtype = WARPLOOM_FLOAT32; })) << "no room beside wide heads";
  EXPECT_TRUE(takes([](auto& c) {
    c.bias.dtype = WARPLOOM_FLOAT32;
    c.head_dim = c.value_dim = 64;
  }));
  EXPECT_TRUE(takes([](auto& c) { c.dtype = c.bias.dtype = WARPLOOM_FLOAT16; }));
  EXPECT_TRUE(takes([](auto& c) { c.bias.row_stride = 1025; })) << "copied row by row";
  EXPECT_TRUE(takes([](auto& c) { c.bias.grad_row_stride = 1028; })) << "stored from registers";
  EXPECT_TRUE(takes([](auto& c) { c.bias.num_columns = 1020; })) << "a tile's store would pass the end of a row";
  EXPECT_TRUE(takes([](auto& c) {
    c.bias.num_columns = 1020;
    c.bias.grad = nullptr;
  })) << "a load does not";
  EXPECT_TRUE(takes([](auto& c) {
    c.bias.num_columns = 1020;
    c.flags |= WARPLOOM_BIAS_GRAD_PADDED;
  }));
  EXPECT_FALSE(takes([](auto& c) {
    c.op = WARPLOOM_SOFTMAX;
    c.softcap = 2;
  }));
}

/// With tables for each head, and their gradients.
warploom_attention bucketed_call_of(uint32_t op, int64_t head_dim) {
  static std::array<float, 4> memory;
  static int64_t timestamp = 0;
  warploom_attention call = call_of(op, 8, 1024, 4, head_dim);
  warploom_bias& bias = call.bias;
  bias.kind = WARPLOOM_BUCKETED_BIAS;
  bias.position = bias.position_grad = &memory[0];
  bias.time = bias.time_grad = &memory[1];
  bias.timestamps = &timestamp;
  bias.position_heads = bias.time_heads = 4;
  bias.num_positions = bias.position_head_stride = 1000;
  bias.num_times = bias.time_head_stride = 129;
  return call;
}

TEST(HopperBackwardPlan, TakesTables) {
  const auto takes = [](auto change, uint32_t op = WARPLOOM_HSTU, int64_t head_dim = 128) {
    warploom_attention call = bucketed_call_of(op, head_dim);
    change(call);
    return is_one_pass(*plan_of(call));
  };
  EXPECT_TRUE(takes([](auto&) {}));
  EXPECT_TRUE(takes([](auto& c) { c.bias.position_grad = c.bias.time_grad = nullptr; }));
  EXPECT_TRUE(takes([](auto&) {}, WARPLOOM_SOFTMAX, 64));
  EXPECT_FALSE(takes([](auto&) {}, WARPLOOM_SOFTMAX, 128)) << "no registers";
  EXPECT_FALSE(takes([](auto&) {}, WARPLOOM_HSTU, 136));
  EXPECT_FALSE(takes([](auto& c) { c.dtype = WARPLOOM_FLOAT16; })) << "exponents take registers";
  EXPECT_FALSE(takes([](auto& c) { c.flags |= WARPLOOM_DETERMINISTIC; })) << "sums in any order";
  EXPECT_FALSE(takes([](auto& c) { c.heads = 8; })) << "tables of several heads an item";
  EXPECT_FALSE(takes([](auto& c) { c.bias.num_times = 130; }));
  EXPECT_FALSE(takes([](auto& c) { c.bias.time_bucket = c.bias.timestamps; })) << "several buckets in a cell";
}

TEST(HopperBackwardPlan, SumsOfTablesAreScratchMemoryThatIsCleared) {
  warploom_attention call = bucketed_call_of(WARPLOOM_HSTU, 128);
  const auto plan = plan_of(call);
  EXPECT_EQ(families_of(*plan), (Families{&kHopperBackward, &kBackwardDqSums, &kBackwardTableTotals}));
  const BackwardParams& main = plan->launches[0].params_as<HopperBackwardParams>().backward;
  const auto place = reinterpret_cast<size_t>(main.bias_sums.totals), bytes = size_t{4 * (1000 + 129)} * sizeof(float);
  EXPECT_LE(place + bytes, plan->cleared_bytes);
  EXPECT_LE(place + bytes, reinterpret_cast<size_t>(main.dq_sums));
  EXPECT_EQ(plan->launches[2].params_as<BackwardParams>().bias_sums.totals, main.bias_sums.totals);
  EXPECT_LE(plan->launches[0].shared_bytes, device_of("sm_90a").shared_bytes_per_block);
  EXPECT_LE(plan_of(bucketed_call_of(WARPLOOM_SOFTMAX, 64))->launches[1].shared_bytes,
            device_of("sm_90a").shared_bytes_per_block);
  call.bias.position_grad = call.bias.time_grad = nullptr;
  EXPECT_EQ(families_of(*plan_of(call)), (Families{&kHopperBackward, &kBackwardDqSums}));
}

TEST(HopperBackwardPlan, ValuesCarryAGradientsFactorThatIsAPowerOfTwo) {
  const auto carries = [](auto change) {
    warploom_attention call = biased_call_of(WARPLOOM_HSTU, 64);
    change(call);
    return hopper_backward_config(plan_of(call)->launches[0].config).scaled_value;
  };
  EXPECT_TRUE(carries([](auto&) {})) << "alpha 1/8, N 1024";
  EXPECT_FALSE(carries([](auto& c) { c.bias.grad = nullptr; }));
  EXPECT_FALSE(carries([](auto& c) { c.bias.grad_row_stride = 1025; })) << "stored from registers";
  EXPECT_FALSE(carries([](auto& c) {
    c.flags |= WARPLOOM_HAS_DIVISOR;
    c.divisor = 10;
  }));
}

TEST(HopperBackwardPlan, GradientsAreTilesOrStoredFromRegisters) {
  const auto by_rows = [](auto change) {
    warploom_attention call = biased_call_of(WARPLOOM_HSTU, 64);
    change(call);
    const HopperBackwardConfig config = hopper_backward_config(plan_of(call)->launches[0].config);
    EXPECT_TRUE(config.stored_bias && config.bias_gradient);
    return config.gradient_rows;
  };
  EXPECT_FALSE(by_rows([](auto&) {}));
  EXPECT_FALSE(by_rows([](auto& c) { c.bias.row_stride = 1025; }));
  EXPECT_TRUE(by_rows([](auto& c) { c.bias.grad_row_stride = 1025; }));
  EXPECT_TRUE(by_rows([](auto& c) { c.bias.kind = WARPLOOM_PACKED_BIAS; }));
  EXPECT_TRUE(by_rows([](auto& c) { c.bias.dtype = WARPLOOM_FLOAT32; }));
  EXPECT_TRUE(by_rows([](auto& c) { c.dtype = c.bias.dtype = WARPLOOM_FLOAT16; })) << "dS has exponents";
}

TEST(HopperBackwardPlan, RowsThatBeginAnywhereAreCopied) {
  const auto copies = [](const warploom_attention& call) {
    return hopper_backward_config(plan_of(call)->launches[0].config).bias_rows;
  };
  warploom_attention call = biased_call_of(WARPLOOM_HSTU, 128);
  EXPECT_FALSE(copies(call));
  call.bias.row_stride = 1025;
  EXPECT_TRUE(copies(call));
  call.bias.row_stride = 1024;
  call.bias.values = static_cast<const char*>(call.bias.values) + 2;
  EXPECT_TRUE(copies(call));
  EXPECT_FALSE(copies(call_of(WARPLOOM_HSTU, 8, 1024, 4, 128)));
}

TEST(HopperBackwardPlan, AGradientsColumnsAreThoseThatMayBeWritten) {
  warploom_attention call = biased_call_of(WARPLOOM_HSTU, 128);
  const auto columns = [&] {
    return plan_of(call)->launches[0].params_as<HopperBackwardParams>().backward.bias_gradient.num_columns;
  };
  EXPECT_EQ(columns(), 1024);
  call.flags |= WARPLOOM_BIAS_GRAD_PADDED;
  EXPECT_EQ(columns(), 1024);
  call.bias.num_columns = 1017;
  EXPECT_EQ(columns(), 1024);
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
  warploom_attention from_registers = biased_call_of(WARPLOOM_HSTU, 128);
  from_registers.flags |= WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR;
  from_registers.alpha = 0.3;
  from_registers.divisor = 10;
  from_registers.bias.grad_row_stride = 1025;
  expect(*plan_of(from_registers), 0.5f * 0.3f / 10, 0.5f * 0.3f / 10, 0.5f * 0.3f / 10);
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
      for (const int bits : {0, 1, 2, 3, 7, 8, 10, 24, 56, 57, 120}) {
        wanted.bfloat16 = (bits & 1) == 0;
        wanted.softmax = (bits & 2) != 0;
        wanted.softcap = (bits & 4) != 0;
        wanted.stored_bias = wanted.bias_gradient = (bits & 8) != 0;
        wanted.bias_rows = (bits & 16) != 0;
        wanted.gradient_rows = (bits & 32) != 0;
        wanted.bias_float32 = (bits & 64) != 0;
        if (wanted.bias_float32 && std::max(wanted.head_dim, wanted.value_dim) > 64) continue;
        const HopperBackwardConfig config = choose_hopper_backward_config(wanted);
        const HopperBackwardSharedMap map = shared_map(config);
        EXPECT_LE(map.bytes, device.shared_bytes_per_block);
        for (const int tile : {map.value, map.query, map.dout, map.scores, map.bias}) EXPECT_EQ(tile % 1024, 0);
        EXPECT_EQ(map.row_terms % 16, 0);
        EXPECT_EQ(map.visible % 16, 0);
        EXPECT_EQ(map.barriers % 8, 0);
        EXPECT_EQ(map.bias_notes % 8, 0);
        EXPECT_EQ(map.bias_shifts % 4, 0);
        EXPECT_EQ(hopper_backward_key(hopper_backward_config(hopper_backward_key(config))),
                  hopper_backward_key(config));
      }
    }
  }
}

/// Checks that parts of scratch memory, (place, bytes), do not overlap and end where it does.
void expect_apart(std::vector<std::pair<size_t, size_t>> parts, size_t end) {
  std::sort(parts.begin(), parts.end());
  for (size_t n = 0; n < parts.size(); ++n) {
    EXPECT_LE(parts[n].first + parts[n].second, n + 1 < parts.size() ? parts[n + 1].first : end) << "part " << n;
  }
}

TEST(HopperBackwardPlan, OnlyCountersAreClearedWhereTheKernelKeepsTheSums) {
  warploom_attention call = call_of(WARPLOOM_SOFTMAX, 3, 1000, 4, 64);
  call.key_heads = 2;
  const auto plan = plan_of(call);
  const HopperBackwardConfig config = hopper_backward_config(plan->launches[1].config);
  ASSERT_TRUE(config.clears_sums && config.converts_sums);
  const auto tiles = static_cast<size_t>(dq_tiles(call.total_q, 3, config.query_rows) * 4);
  plan->bind_scratch(*plan, 0x10000);
  const auto& main = plan->launches[1].params_as<HopperBackwardParams>();
  const auto at = [](const void* pointer) { return reinterpret_cast<size_t>(pointer) - 0x10000; };
  constexpr size_t kInteger = sizeof(unsigned);
  EXPECT_EQ(main.sums.tiles, tiles);
  expect_apart({{at(main.counters), 4 * kInteger},
                {at(main.sums.cleared), tiles * kInteger},
                {at(main.sums.done), 3 * 2 * kInteger}},
               plan->cleared_bytes);
  EXPECT_EQ(at(main.backward.dq_sums), plan->cleared_bytes);
  expect_apart({{at(main.backward.dq_sums), tiles * static_cast<size_t>(config.query_rows) * 64 * sizeof(float)},
                {at(main.backward.row_terms), static_cast<size_t>(4 * call.total_q) * sizeof(SoftmaxRowTerms)}},
               plan->scratch_bytes);
  EXPECT_EQ(at(main.backward.dq_sums) % 16, 0u);
  EXPECT_EQ(plan->launches[0].params_as<BackwardParams>().row_terms, main.backward.row_terms);
}

TEST(HopperBackwardPlan, SumsAreClearedBeforeAKernelThatDoesNotKeepThem) {
  const warploom_attention call = biased_call_of(WARPLOOM_SOFTMAX, 64);
  const auto plan = plan_of(call);
  ASSERT_EQ(families_of(*plan), (Families{&kBackwardRowTerms, &kHopperBackward, &kBackwardDqSums}));
  const HopperBackwardConfig config = hopper_backward_config(plan->launches[1].config);
  EXPECT_FALSE(config.clears_sums || config.converts_sums);
  const long long tiles = dq_tiles(call.total_q, static_cast<int>(call.batch), config.query_rows) * call.heads;
  plan->bind_scratch(*plan, 0x10000);
  const auto& main = plan->launches[1].params_as<HopperBackwardParams>();
  const auto at = [](const void* pointer) { return reinterpret_cast<size_t>(pointer) - 0x10000; };
  expect_apart({{at(main.counters), 2 * sizeof(unsigned)},
                {at(main.backward.dq_sums), static_cast<size_t>(tiles * config.query_rows * 64) * sizeof(float)}},
               plan->cleared_bytes);
  EXPECT_EQ(at(main.backward.row_terms), plan->cleared_bytes);
  for (const size_t n : {0u, 2u}) {
    const auto& params = plan->launches[n].params_as<BackwardParams>();
    EXPECT_EQ(params.row_terms, main.backward.row_terms);
    EXPECT_EQ(params.dq_sums, main.backward.dq_sums);
  }
}

TEST(HopperBackwardPlan, SumsOfNarrowHeadsAndManyLengthsAreConvertedAfterwards) {
  for (const int dim : {64, 128}) {
    warploom_attention call = call_of(WARPLOOM_HSTU, 8, 1024, 4, dim);
    EXPECT_EQ(families_of(*plan_of(call)), Families{&kHopperBackward});
    call.total_q = call.total_k = 5000;
    const bool apart = dim == 64;
    EXPECT_EQ(families_of(*plan_of(call)),
              apart ? (Families{&kHopperBackward, &kBackwardDqSums}) : Families{&kHopperBackward});
    EXPECT_EQ(plan_of(call)->launches[0].params_as<HopperBackwardParams>().sums.queries.items() == 0, apart);
  }
}

TEST(HopperBackwardPlan, SumsBecomeDqInTheOrderOfTheKeys) {
  warploom_attention call = call_of(WARPLOOM_HSTU, 32, 1024, 4, 128);
  call.key_heads = 2;
  const auto plan = plan_of(call);
  const auto& params = plan->launches[0].params_as<HopperBackwardParams>();
  const geometry::Schedule &keys = params.backward.call.schedule, &queries = params.sums.queries;
  EXPECT_EQ(queries.heads, 4);
  EXPECT_EQ(queries.sequences, keys.sequences);
  EXPECT_EQ(queries.query_tiles, 1024 / hopper_backward_config(plan->launches[0].config).query_rows);
  EXPECT_EQ(queries.pairs_in_group, 2 * keys.pairs_in_group) << "two query heads a key head";
  // A group's tiles, and no more than there are.
  EXPECT_GE(params.sums.ahead * 1.0 / params.sums.tiles, keys.pairs_in_group / 64.0);
  EXPECT_LE(params.sums.ahead, params.sums.tiles);
}

TEST(HopperBackwardPlan, KeysCarryAlphaOnlyWhereThatIsExact) {
  const auto plan_with = [](double alpha) {
    warploom_attention call = call_of(WARPLOOM_HSTU, 3, 1000, 4, 64);
    call.flags |= WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR;
    call.alpha = alpha;
    call.divisor = 10;
    return plan_of(call);
  };
  const auto factor = [](const GpuPlan& plan) {
    return plan.launches[0].params_as<HopperBackwardParams>().sums.factor;
  };
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
