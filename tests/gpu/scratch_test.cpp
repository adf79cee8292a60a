#include "gpu/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
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

TEST_F(ScratchWithFake, MemoryOfAStreamIsClearedOnceAndStays) {
  const Driver& cuda = **driver();
  const auto stream = [](std::uintptr_t id) { return reinterpret_cast<StreamHandle>(id); };
  const int live = state().scratch_live, sets = state().memory_sets;
  const Result<DevicePointer> first = memory_of_stream(cuda, 0, 8, stream(0x501));
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_NE(*first, 0u);
  EXPECT_EQ(*memory_of_stream(cuda, 0, 8, stream(0x501)), *first);
  EXPECT_EQ(state().memory_sets - sets, 1);
  EXPECT_EQ(state().scratch_live - live, 1) << "it is not given back";
  EXPECT_NE(*memory_of_stream(cuda, 0, 8, stream(0x502)), *first);
  EXPECT_NE(*memory_of_stream(cuda, 1, 8, stream(0x501)), *first) << "the same id on another device";
}

TEST_F(ScratchWithFake, ACapturedStreamAndALargeWishGetNoMemoryOfTheStream) {
  const auto stream = reinterpret_cast<StreamHandle>(std::uintptr_t{0x601});
  const int live = state().scratch_live;
  state().capturing = 1;
  EXPECT_EQ(*memory_of_stream(**driver(), 0, 8, stream), 0u);
  state().capturing = 0;
  EXPECT_EQ(*memory_of_stream(**driver(), 0, kStreamMemoryBytes + 1, stream), 0u);
  EXPECT_EQ(state().scratch_live, live);
}

}  // namespace
}  // namespace warploom::gpu
