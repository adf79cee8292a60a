#include "gpu/resources.h"

#include <gtest/gtest.h>

namespace warploom::gpu {
namespace {

constexpr const char* log =
    R"(ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline crossing function boundary at a function call in 'second'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
ptxas         .     16 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, used 3 barriers, 16 bytes cumulative stack size, 49152 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 2.678 ms
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
)";

TEST(Resources, AreThoseOfTheNamedKernel) {
  const KernelResources first = parse_resources(log, "first");
  EXPECT_TRUE(first.known);
  EXPECT_EQ(first.registers, 255);
  EXPECT_EQ(first.barriers, 3);
  EXPECT_EQ(first.stack_bytes, 16);
  EXPECT_EQ(first.spill_store_bytes, 20);
  EXPECT_EQ(first.spill_load_bytes, 24);
  EXPECT_EQ(first.static_shared_bytes, 49152);

  const KernelResources second = parse_resources(log, "second");
  EXPECT_TRUE(second.known);
  EXPECT_EQ(second.registers, 8);
  EXPECT_EQ(second.barriers, 0);
  EXPECT_EQ(second.spill_store_bytes, 0);
  EXPECT_EQ(second.static_shared_bytes, 0);
}

TEST(Resources, KeepWarningsOfSlowForms) {
  const KernelResources resources = parse_resources(log, "second");
  ASSERT_EQ(resources.performance_warnings.size(), 1u);
  EXPECT_NE(resources.performance_warnings[0].find("C7511"), std::string::npos);
}

TEST(Resources, AreUnknownWithoutAReport) {
  EXPECT_FALSE(parse_resources("", "first").known);
  EXPECT_FALSE(parse_resources(log, "third").known);
  EXPECT_FALSE(parse_resources(log, "fir").known);
}

}  // namespace
}  // namespace warploom::gpu
