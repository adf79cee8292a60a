// Users' functions in plans and in compiled kernels, without a GPU.
#include "attention/user_functions.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "expression/functions.h"
#include "gpu/backward_tiles.h"
#include "gpu/choose_plan.h"
#include "gpu/hopper_forward_plan.h"
#include "gpu/mask_intervals.h"
#include "gpu/mma_forward_plan.h"
#include "gpu/user_score.h"
#include "plan_calls.h"
#include "support.h"

namespace warploom::gpu {
namespace {

warploom_attention call_with(const char* score) {
  warploom_attention call = jagged_call(4, 500, 2, 64);
  give_rows(call, {&call.q, &call.k, &call.v, &call.out, &call.dout, &call.dq, &call.dk, &call.dv});
  call.score.text = score;
  return call;
}

TEST(UserFunctions, AScoreFunctionRunsOnTheKernelsThatTakeOne) {
  warploom_attention call = call_with("z * tanh(z)");
  for (const uint32_t pass : {WARPLOOM_FORWARD, WARPLOOM_BACKWARD}) {
    call.pass = pass;
    for (const bool deterministic : {false, true}) {
      call.flags = deterministic ? WARPLOOM_DETERMINISTIC : 0;
      const auto plan = plan_of(call);
      int with_text = 0;
      for (int n = 0; n < plan->launch_count; ++n) {
        const PlannedLaunch& launch = plan->launches[static_cast<size_t>(n)];
        const std::string text = launch.family->request(launch.config, plan->architecture).config_text;
        EXPECT_EQ(std::string(launch.family->name).find("Hopper"), std::string::npos);
        with_text += text.find("struct ScoreExpression") != std::string::npos;
      }
      EXPECT_EQ(with_text, pass == WARPLOOM_BACKWARD && deterministic ? 2 : 1);
      const auto json = nlohmann::json::parse(describe(*plan, call, device_of("sm_90a")));
      EXPECT_EQ(json["config"]["score"], kUserScoreName);
      EXPECT_NE(json["why"].get<std::string>().find("mma.sync"), std::string::npos);
    }
  }
}

TEST(UserFunctions, ParametersFollowTheCallAndAreNoPartOfTheKey) {
  warploom_attention call = call_with("a * z + b");
  double values[] = {2, -3};
  call.score.parameters = "a, b";
  call.score.values = values;
  call.score.num_values = 2;
  const auto first = plan_of(call);
  EXPECT_EQ(first->launches[0].params_as<UserScoreCall>().score_parameters[1], -3.0f);
  values[1] = 7;
  const auto second = plan_of(call);
  EXPECT_EQ(second->launches[0].params_as<UserScoreCall>().score_parameters[1], 7.0f);
  EXPECT_EQ(first->launches[0].config, second->launches[0].config);
}

TEST(UserFunctions, ARequestHoldsTheTextAndNoNumberOfTheProcess) {
  const auto text_of = [](const char* score) {
    const auto plan = plan_of(call_with(score));
    return plan->launches[0].family->request(plan->launches[0].config, plan->architecture).config_text;
  };
  const std::string first = text_of("z * exp(-z * z)");
  EXPECT_EQ(first, text_of("z * exp(-z * z)"));
  EXPECT_NE(first, text_of("z * exp(-z * z) + 0"));
  EXPECT_NE(first.find(".user_score = 1}"), std::string::npos) << first;
  const auto plan = plan_of(call_with(nullptr), "sm_80");
  const std::string plain = plan->launches[0].family->request(plan->launches[0].config, plan->architecture).config_text;
  EXPECT_NE(plain.find(".user_score = 0}"), std::string::npos) << plain;
  EXPECT_EQ(plain.find("ScoreExpression"), std::string::npos) << plain;
}

TEST(UserFunctions, ShortQueriesAreNotSplit) {
  warploom_attention call = call_with("z * tanh(z)");
  call.cu_seqlens_k = nowhere + 8;
  const auto plan = plan_of(call);
  ASSERT_EQ(plan->launch_count, 1);
  EXPECT_EQ(plan->launches[0].family, &kMmaForward);
  EXPECT_EQ(plan->launches[0].params_as<AttentionCall>().queries_elsewhere, 0);
}

TEST(UserFunctions, EveryHeadDimensionFitsEveryArchitecture) {
  for (const char* architecture : {"sm_80", "sm_86", "sm_90a", "sm_120"}) {
    const DeviceInfo device = device_of(architecture);
    for (int dim = 8; dim <= 256; dim += 8) {
      for (const BiasKind bias : {BiasKind::none, BiasKind::rows16, BiasKind::rows32, BiasKind::bucketed}) {
        for (const bool bfloat16 : {false, true}) {
          BackwardConfig backward;
          AttentionForwardConfig forward;
          backward.head_dim = backward.value_dim = forward.head_dim = forward.value_dim = dim;
          backward.bias = forward.bias = bias;
          backward.bias_gradient = bias == BiasKind::bucketed;
          backward.bfloat16 = forward.bfloat16 = bfloat16;
          backward.interval_mask = true;
          backward.user_score = forward.user_score = 1;
          const auto tile = choose_backward_tile(backward, device);
          ASSERT_TRUE(tile.ok()) << architecture << " " << dim << ": " << tile.status().message();
          EXPECT_LE(tile->min_blocks * (shared_map(*tile).bytes + 1024), device.shared_bytes_per_sm);
          EXPECT_EQ(key_groups(*tile) * warps_of_group(*tile), tile->warps);
          EXPECT_TRUE(choose_config(forward, device).ok()) << architecture << " " << dim;
        }
      }
    }
  }
}

/// Neither spills nor arrays that are no registers, as those of a loop that the compiler leaves one.
void expect_no_memory(const Cubin& cubin) {
  EXPECT_EQ(cubin.resources.spill_store_bytes, 0);
  EXPECT_NE(cubin.log.find(" 0 bytes stack frame"), std::string::npos) << cubin.log;
}

TEST(UserFunctions, KernelsCompileAndSpillNothing) {
  const TemporaryDirectory cache;
  CompilerOptions options = test_options(cache.text());
  options.sources = embedded_source;
  Compiler compiler(options);
  // The second is much code, beside float16's exponents.
  for (const bool heavy : {false, true}) {
    warploom_attention call = call_with(heavy ? "gelu(z) + softplus(z) * pow(2 + tanh(z), 0.7) + log1p(exp(-abs(z)))"
                                              : "t = 5 * tanh(z / 5);\nt * sigmoid(t)");
    call.dtype = heavy ? WARPLOOM_FLOAT16 : WARPLOOM_BFLOAT16;
    for (const uint32_t pass : {WARPLOOM_FORWARD, WARPLOOM_BACKWARD}) {
      call.pass = pass;
      const auto plan = plan_of(call, "sm_80");
      const PlannedLaunch& launch = plan->launches[0];
      const Result<CubinPointer> cubin = compiler.get(launch.family->request(launch.config, plan->architecture));
      ASSERT_TRUE(cubin.ok()) << cubin.status().message();
      expect_no_memory(**cubin);
    }
  }
  warploom_function mask{};
  mask.text = "[0, nc), [r / 7 * 7 + b % 3, h < r ? head : Lk)";
  const int number = (*expression::find_mask(mask))->number;
  const Result<CubinPointer> cubin = compiler.get(kMaskIntervals.request({number}, Architecture{8, 0, false}));
  ASSERT_TRUE(cubin.ok()) << cubin.status().message();
  expect_no_memory(**cubin);
}

TEST(UserFunctions, ACompilersMessageShowsTheUsersLine) {
  const TemporaryDirectory cache;
  CompilerOptions options = test_options(cache.text());
  // A library without one of the functions, as an older compiler may be.
  options.sources = [](std::string_view path) -> std::optional<std::string_view> {
    if (path == "attention/score_math.h") return "namespace warploom::score_math {}";
    return embedded_source(path);
  };
  Compiler compiler(options);
  const auto plan = plan_of(call_with("t = z * z;\nerfc(t)"), "sm_80");
  const PlannedLaunch& launch = plan->launches[0];
  const Result<CubinPointer> cubin = compiler.get(launch.family->request(launch.config, plan->architecture));
  ASSERT_FALSE(cubin.ok());
  const std::string message = launch.family->failure(launch.config, cubin.status().message());
  EXPECT_NE(message.find("score(2): error"), std::string::npos) << message;
  EXPECT_NE(message.find("line 2 of score:  erfc(t)"), std::string::npos) << message;
}

}  // namespace
}  // namespace warploom::gpu
