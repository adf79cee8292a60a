#include "problem/gemm.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace warploom {
namespace {

void* const memory = reinterpret_cast<void*>(0x10000);

warploom_gemm valid() {
  warploom_gemm call;
  init_gemm(call);
  call.dtype = call.out_dtype = WARPLOOM_FLOAT16;
  call.batch = 2;
  call.rows = 10;
  call.columns = 24;
  call.depth = 40;
  call.a = {memory, 10 * 48, 48};
  call.b = {memory, 0, 40};
  call.c = {memory, 240, 24};
  call.out = {memory, 240, 24};
  call.bias = memory;
  call.beta = 1;
  return call;
}

struct Broken {
  const char* message;
  std::function<void(warploom_gemm&)> change;
};

TEST(ValidateGemm, NamesTheRuleThatIsBroken) {
  ASSERT_TRUE(validate_gemm(valid()).ok()) << validate_gemm(valid()).message();
  const Broken cases[] = {
      {"struct_bytes = 3", [](warploom_gemm& g) { g.struct_bytes = 3; }},
      {"abi_version = 0", [](warploom_gemm& g) { g.abi_version = 0; }},
      {"device = 2 is unknown", [](warploom_gemm& g) { g.device = 2; }},
      {"num_threads = -1", [](warploom_gemm& g) { g.num_threads = -1; }},
      {"num_threads = 5000", [](warploom_gemm& g) { g.num_threads = 5000; }},
      {"dtype = 0", [](warploom_gemm& g) { g.dtype = WARPLOOM_FLOAT32; }},
      {"out_dtype = 3", [](warploom_gemm& g) { g.out_dtype = WARPLOOM_FLOAT8_E4M3; }},
      {"without dtype FLOAT8_E4M3", [](warploom_gemm& g) { g.scale_b = reinterpret_cast<const float*>(16); }},
      {"scale_a is not aligned",
       [](warploom_gemm& g) {
         g.dtype = WARPLOOM_FLOAT8_E4M3;
         g.scale_a = reinterpret_cast<const float*>(18);
       }},
      {"a.row_stride = 72 elements are 72 bytes",
       [](warploom_gemm& g) {
         g.dtype = WARPLOOM_FLOAT8_E4M3;
         g.a.row_stride = 72;
       }},
      {"out_dtype = 7", [](warploom_gemm& g) { g.out_dtype = 7; }},
      {"activation = 2", [](warploom_gemm& g) { g.activation = 2; }},
      {"rows = -1", [](warploom_gemm& g) { g.rows = -1; }},
      {"depth = 4294967296", [](warploom_gemm& g) { g.depth = 1ll << 32; }},
      {"a.data is null", [](warploom_gemm& g) { g.a.data = nullptr; }},
      {"b.data is not aligned", [](warploom_gemm& g) { g.b.data = reinterpret_cast<void*>(0x10008); }},
      {"a.row_stride = 41 elements", [](warploom_gemm& g) { g.a.row_stride = 41; }},
      {"a.row_stride = 32 is less", [](warploom_gemm& g) { g.a.row_stride = 32; }},
      {"a.batch_stride = 4 elements", [](warploom_gemm& g) { g.a.batch_stride = 4; }},
      {"b.batch_stride = -8", [](warploom_gemm& g) { g.b.batch_stride = -8; }},
      {"out.row_stride = 25 elements", [](warploom_gemm& g) { g.out.row_stride = 25; }},
      {"out.data is not aligned", [](warploom_gemm& g) { g.out.data = reinterpret_cast<void*>(0x10002); }},
      {"out.batch_stride = 0", [](warploom_gemm& g) { g.out.batch_stride = 0; }},
      {"c.row_stride = 8 is less", [](warploom_gemm& g) { g.c.row_stride = 8; }},
      {"beta = 1 without c", [](warploom_gemm& g) { g.c.data = nullptr; }},
      {"bias is not aligned", [](warploom_gemm& g) { g.bias = reinterpret_cast<void*>(0x10004); }},
  };
  for (const Broken& broken : cases) {
    for (const uint32_t device : {WARPLOOM_CUDA, WARPLOOM_CPU}) {
      warploom_gemm call = valid();
      call.device = device;
      broken.change(call);
      const Status status = validate_gemm(call);
      EXPECT_FALSE(status.ok()) << broken.message;
      EXPECT_NE(status.message().find(broken.message), std::string::npos) << status.message();
    }
  }
}

TEST(ValidateGemm, TakesWhatHasNothingToRead) {
  warploom_gemm call = valid();
  call.depth = 0;
  call.a = call.b = {};
  EXPECT_TRUE(validate_gemm(call).ok()) << validate_gemm(call).message();
  call = valid();
  call.rows = 0;
  call.a = call.c = call.out = {};
  EXPECT_TRUE(validate_gemm(call).ok()) << validate_gemm(call).message();
}

TEST(ValidateGemm, StridesOfASingleRowAreFree) {
  warploom_gemm call = valid();
  call.batch = call.rows = 1;
  call.a.row_stride = call.out.row_stride = call.c.row_stride = 3;
  EXPECT_TRUE(validate_gemm(call).ok()) << validate_gemm(call).message();
}

}  // namespace
}  // namespace warploom
