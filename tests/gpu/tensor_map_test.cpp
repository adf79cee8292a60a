#include "gpu/tensor_map.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "fake_driver_fixture.h"

namespace warploom::gpu {
namespace {

// (T, H, D) bfloat16 with D = 128 in panels of 64 columns: columns of a panel, rows, panels, heads.
TensorMapShape heads_in_panels() {
  TensorMapShape shape;
  shape.rank = 4;
  shape.dims = {64, 1000, 2, 4};
  shape.strides = {0, 4 * 128 * 2, 128, 256};
  shape.box = {64, 128, 2, 1};
  shape.swizzle = TensorMapSwizzle::bytes_128;
  return shape;
}

using TensorMapWithFake = FakeDriverFixture;

TEST_F(TensorMapWithFake, PassesEveryNumberToTheDriver) {
  const Result<ptx::TensorMap> map = encode_tensor_map(**driver(), "q", heads_in_panels(), 0x7000);
  ASSERT_TRUE(map.ok()) << map.status().message();
  for (const unsigned long long word : map->opaque) EXPECT_EQ(word, 0x5a5a5a5a5a5a5a5aull);
  const FakeDriverState& seen = state();
  EXPECT_EQ(seen.map_element, 9);
  EXPECT_EQ(seen.map_rank, 4u);
  EXPECT_EQ(seen.map_address, 0x7000u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(seen.map_dims[i], heads_in_panels().dims[i]);
    EXPECT_EQ(seen.map_box[i], heads_in_panels().box[i]);
    EXPECT_EQ(seen.map_element_strides[i], 1u);
    if (i > 0) {
      EXPECT_EQ(seen.map_strides[i - 1], heads_in_panels().strides[i]);
    }
  }
  EXPECT_EQ(seen.map_interleave, 0);
  EXPECT_EQ(seen.map_swizzle, 3);
  EXPECT_EQ(seen.map_promotion, 3);
  EXPECT_EQ(seen.map_fill, 0);
}

TEST_F(TensorMapWithFake, IsAnErrorOnlyWhenUsedWithoutTheFunction) {
  Driver old = **driver();
  old.cuTensorMapEncodeTiled = nullptr;
  const Result<ptx::TensorMap> map = encode_tensor_map(old, "q", heads_in_panels(), 0x7000);
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.status().code(), StatusCode::runtime_error);
  EXPECT_NE(map.status().message().find("cuTensorMapEncodeTiled"), std::string::npos);
}

TEST_F(TensorMapWithFake, ErrorsNameTheTensor) {
  const int encoded = state().maps_encoded;
  const Result<ptx::TensorMap> map = encode_tensor_map(**driver(), "q", heads_in_panels(), 0x7008);
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.status().message(), "q: tensor map: address = 28680 is not a multiple of 16 bytes; align the tensor");
  EXPECT_EQ(state().maps_encoded, encoded) << "the driver was not asked";
}

struct Broken {
  const char* rule;
  std::function<void(TensorMapShape&)> change;
};

TEST(TensorMap, NamesTheRuleThatIsBroken) {
  EXPECT_TRUE(validate_tensor_map(heads_in_panels(), 0).ok());
  const Broken cases[] = {
      {"rank = 0 ", [](TensorMapShape& s) { s.rank = 0; }},
      {"rank = 6 ", [](TensorMapShape& s) { s.rank = 6; }},
      {"dims[1] = 0 ", [](TensorMapShape& s) { s.dims[1] = 0; }},
      {"dims[1] = 4294967297 ", [](TensorMapShape& s) { s.dims[1] = (1ull << 32) + 1; }},
      {"box[0] = 0 ", [](TensorMapShape& s) { s.box[0] = 0; }},
      {"box[1] = 257 ", [](TensorMapShape& s) { s.box[1] = 257; }},
      {"strides[2] = 136 ", [](TensorMapShape& s) { s.strides[2] = 136; }},
      {"strides[3] = 1099511627776 ", [](TensorMapShape& s) { s.strides[3] = 1ull << 40; }},
      {"not a multiple of 16", [](TensorMapShape& s) { s.box[0] = 60; }},
      {"more than the 128 of the swizzle", [](TensorMapShape& s) { s.box[0] = 72; }},
      {"more than the 64 of the swizzle", [](TensorMapShape& s) { s.swizzle = TensorMapSwizzle::bytes_64; }},
      {"more than the 32 of the swizzle", [](TensorMapShape& s) { s.swizzle = TensorMapSwizzle::bytes_32; }},
  };
  for (const Broken& broken : cases) {
    TensorMapShape shape = heads_in_panels();
    broken.change(shape);
    const Status status = validate_tensor_map(shape, 0);
    EXPECT_EQ(status.code(), StatusCode::invalid_value) << broken.rule;
    EXPECT_NE(status.message().find(broken.rule), std::string::npos) << status.message();
  }
}

TEST(TensorMap, TakesTheLargestBoxAndDimensions) {
  TensorMapShape shape = heads_in_panels();
  shape.dims[1] = 1ull << 32;
  shape.box[1] = 256;
  shape.strides[3] = (1ull << 40) - 16;
  EXPECT_TRUE(validate_tensor_map(shape, 16).ok());
}

}  // namespace
}  // namespace warploom::gpu
