// The plan of a backward call on Hopper in two kernels: which calls it takes, tiles, order of items and scratch memory,
// without a GPU.
#include "gpu/hopper_two_kernel_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "gpu/backward_around.h"
#include "gpu/choose_plan.h"
#include "gpu/hopper_backward_plan.h"
#include "plan_calls.h"
#include "warploom/warploom.h"

namespace warploom::gpu {
namespace {

/// A jagged HSTU backward call on a GPU; planning reads none of its pointers.
warploom_attention call_of(int64_t batch, int64_t max_seqlen, int64_t heads, int64_t head_dim) {
  warploom_attention call = jagged_call(batch, max_seqlen, heads, head_dim);
  call.pass = WARPLOOM_BACKWARD;
  give_rows(call, {&call.q, &call.k, &call.v, &call.out, &call.dout, &call.dq, &call.dk, &call.dv});
  return call;
}

std::unique_ptr<GpuPlan> plan_of(const warploom_attention& call, const char* architecture = "sm_90a") {
  auto plan = std::make_unique<GpuPlan>();
  const Status status = choose_plan(call, device_of(architecture), nullptr, *plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

Families families_of(const warploom_attention& call, const char* architecture = "sm_90a") {
  return families_of(*plan_of(call, architecture));
}

bool has(const Families& families, const KernelFamily& family) {
  return std::find(families.begin(), families.end(), &family) != families.end();
}

/// The same of a call whose wide heads no kernel of one pass takes.
warploom_attention deterministic_call_of(int64_t batch, int64_t max_seqlen, int64_t heads, int64_t head_dim) {
  warploom_attention call = call_of(batch, max_seqlen, heads, head_dim);
  call.flags |= WARPLOOM_DETERMINISTIC;
  return call;
}

TEST(HopperTwoKernelPlan, TakesWideHeadsAndDeterministicCalls) {
  warploom_attention call = deterministic_call_of(4, 100, 2, 256);
  EXPECT_EQ(families_of(call), (Families{&kHopperBackwardKeys, &kHopperBackwardDq}));
  call = call_of(4, 100, 2, 256);
  call.dtype = WARPLOOM_FLOAT16;  // of wide heads the one-pass kernel is for bfloat16
  EXPECT_EQ(families_of(call), (Families{&kHopperBackwardKeys, &kHopperBackwardDq}));
  call.op = WARPLOOM_SOFTMAX;
  EXPECT_EQ(families_of(call), (Families{&kBackwardRowTerms, &kHopperBackwardKeys, &kHopperBackwardDq}));
  call.softcap = 30;
  EXPECT_TRUE(has(families_of(call), kHopperBackwardKeys));
  EXPECT_FALSE(has(families_of(call, "sm_80"), kHopperBackwardDq));
  EXPECT_FALSE(has(families_of(call, "sm_100"), kHopperBackwardDq));
  call.k.row_stride += 4;  // 8 bytes: not a multiple of 16
  EXPECT_FALSE(has(families_of(call), kHopperBackwardDq));

  call = call_of(4, 100, 2, 64);
  EXPECT_FALSE(has(families_of(call), kHopperBackwardDq));
  call.flags |= WARPLOOM_DETERMINISTIC;
  EXPECT_FALSE(has(families_of(call), kHopperBackwardDq)) << "one pass, in order";
  call.dtype = WARPLOOM_FLOAT16;
  // Of narrow heads the one-pass kernel computes dK and dV, without its dQ.
  EXPECT_EQ(families_of(call), (Families{&kHopperBackward, &kHopperBackwardDq}));
  EXPECT_FALSE(hopper_backward_config(plan_of(call)->launches[0].config).accumulate_dq);
  call = call_of(4, 100, 2, 64);
  call.value_dim = 136;
  EXPECT_TRUE(has(families_of(call), kHopperBackwardDq));
}

TEST(HopperTwoKernelPlan, EveryPairOfHeadDimensionsFits) {
  const int shared_bytes = device_of("sm_90a").shared_bytes_per_block;
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (int value_dim = 8; value_dim <= 256; value_dim += 8) {
      for (const bool interval_mask : {false, true}) {
        const auto keys =
            choose_hopper_keys_config({.head_dim = head_dim, .value_dim = value_dim, .interval_mask = interval_mask});
        EXPECT_LE(shared_map(keys).bytes, shared_bytes);
        const HopperBackwardKeysSharedMap keys_map = shared_map(keys);
        for (const int tile : {keys_map.value, keys_map.query, keys_map.dout}) {
          EXPECT_EQ(tile % 1024, 0) << "tiles under the 128-byte swizzle";
        }
        EXPECT_EQ(keys_map.query_bytes % 1024, 0) << "so is a stage's";
        EXPECT_EQ(keys_map.dout_bytes % 1024, 0);
        EXPECT_EQ(keys_map.barriers % 8, 0);
        EXPECT_EQ(keys.query_rows % 16, 0);
        EXPECT_LE(keys.query_rows, 64) << "a thread's hidden scores are the bits of one word";
        EXPECT_GE(keys.stages, 2) << "a pending product holds a slot";
        const auto dq =
            choose_hopper_dq_config({.head_dim = head_dim, .value_dim = value_dim, .interval_mask = interval_mask});
        EXPECT_LE(shared_map(dq).bytes, shared_bytes);
        const HopperBackwardDqSharedMap dq_map = shared_map(dq);
        for (const int tile : {dq_map.dout, dq_map.key, dq_map.value}) {
          EXPECT_EQ(tile % 1024, 0) << "tiles under the 128-byte swizzle";
        }
        EXPECT_EQ(dq_map.barriers % 8, 0);
        EXPECT_EQ(dq.key_columns % 16, 0);
        EXPECT_GE(dq.stages, 2) << "a pending product holds a slot";
      }
    }
  }
}

TEST(HopperTwoKernelPlan, ItemsAreTilesOfKeyHeadsAndOfQueryHeads) {
  warploom_attention call = deterministic_call_of(3, 130, 4, 256);
  call.key_heads = 2;
  const auto plan = plan_of(call);
  const auto schedule = [&](std::size_t n) {
    return plan->launches[n].params_as<HopperBackwardParams>().backward.call.schedule;
  };
  // Three sequences, and the rows after the last one.
  EXPECT_EQ(schedule(0).items(), (3 + 1) * 2 * 3);
  EXPECT_TRUE(schedule(0).first_to_last);
  EXPECT_EQ(schedule(1).items(), (3 + 1) * 4 * 2);
  EXPECT_FALSE(schedule(1).first_to_last);
}

TEST(HopperTwoKernelPlan, EachKernelHasCountersOfItsOwn) {
  for (const auto op : {WARPLOOM_HSTU, WARPLOOM_SOFTMAX}) {
    warploom_attention call = deterministic_call_of(3, 130, 4, 256);
    call.op = op;
    const auto plan = plan_of(call);
    EXPECT_EQ(plan->scratch_left_cleared, op == WARPLOOM_HSTU) << "row terms are left behind";
    constexpr DevicePointer kScratch = 4096;
    plan->bind_scratch(*plan, kScratch);
    const std::size_t first = op == WARPLOOM_SOFTMAX ? 1 : 0;
    const auto& keys = plan->launches[first].params_as<HopperBackwardParams>();
    const auto& dq = plan->launches[first + 1].params_as<HopperBackwardParams>();
    const auto offset = [](const void* at) { return reinterpret_cast<DevicePointer>(at) - kScratch; };
    EXPECT_LE(offset(keys.counters) + 2 * sizeof(unsigned), offset(dq.counters));
    EXPECT_LE(offset(dq.counters) + 2 * sizeof(unsigned), plan->cleared_bytes);
    if (op != WARPLOOM_SOFTMAX) continue;
    EXPECT_EQ(offset(keys.backward.row_terms), plan->cleared_bytes);
    EXPECT_EQ(keys.backward.row_terms, dq.backward.row_terms);
    EXPECT_EQ(plan->launches[0].params_as<BackwardParams>().row_terms, dq.backward.row_terms);
  }
}

TEST(HopperTwoKernelPlan, DescriptionIsJsonWithBothKernels) {
  const warploom_attention call = deterministic_call_of(8, 4096, 4, 256);
  const auto json = nlohmann::json::parse(describe(*plan_of(call), call, device_of("sm_90a")));
  EXPECT_EQ(json["keys"]["schedule"]["tiles"], 64);
  EXPECT_EQ(json["keys"]["query_rows"], 48);
  EXPECT_EQ(json["keys"]["stages"], 3);
  EXPECT_EQ(json["dq"]["key_columns"], 64);
  EXPECT_EQ(json["dq"]["schedule"]["tiles"], 32);
}

}  // namespace
}  // namespace warploom::gpu
