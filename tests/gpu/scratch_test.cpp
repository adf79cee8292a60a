#include "gpu/scratch.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "fake_driver_fixture.h"

namespace warploom::gpu {
namespace {

using ScratchWithFake = FakeDriverFixture;

TEST_F(ScratchWithFake, ComesFromOnePoolADeviceThatKeepsItsMemoryAndIsFreedOnce) {
  const Driver& cuda = **driver();
  {
    Result<Scratch> first = Scratch::allocate(cuda, 0, 1000, nullptr);
    ASSERT_TRUE(first.ok()) << first.status().message();
    EXPECT_EQ(state().pools_made, 1);
    EXPECT_EQ(state().pool_keeps, ~0ull);
    const Result<Scratch> second = Scratch::allocate(cuda, 0, 1000, nullptr);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(state().pools_made, 1) << "one pool serves all calls on a device";
    EXPECT_EQ(state().scratch_live, 2);
    const Scratch moved = std::move(first).value();
    EXPECT_NE(moved.address(), 0u);
  }
  EXPECT_EQ(state().scratch_live, 0);
  EXPECT_TRUE(Scratch::allocate(cuda, 1, 1, nullptr).ok());
  EXPECT_EQ(state().pools_made, 2);
}

TEST_F(ScratchWithFake, RefusalNamesTheBytes) {
  const Result<Scratch> refused = Scratch::allocate(**driver(), 0, std::size_t{1} << 50, nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("1125899906842624 bytes"), std::string::npos);
  EXPECT_EQ(state().scratch_live, 0);
}

}  // namespace
}  // namespace warploom::gpu
