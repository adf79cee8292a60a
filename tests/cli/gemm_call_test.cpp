// The C++ call of a matrix product and the C ABI under it, on the CPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/numbers.h"
#include "warploom/gemm.h"

namespace warploom {
namespace {

/// 2 x 3 by 4 x 3, rows padded to 8 values.
struct Operands {
  std::vector<std::uint16_t> a = std::vector<std::uint16_t>(2 * 8), b = std::vector<std::uint16_t>(4 * 8);
  std::vector<float> out = std::vector<float>(2 * 4, -1);

  Operands() {
    for (std::int64_t x = 0; x < 2 * 8; ++x) cli::store(a.data(), WARPLOOM_BFLOAT16, x, static_cast<double>(x));
    for (std::int64_t x = 0; x < 4 * 8; ++x) cli::store(b.data(), WARPLOOM_BFLOAT16, x, static_cast<double>(x % 5));
  }
  MatrixView view_of_a() { return {.data = a.data(), .rows = 2, .columns = 3, .row_stride = 8}; }
  MatrixView view_of_b() { return {.data = b.data(), .rows = 4, .columns = 3, .row_stride = 8}; }
  MatrixView view_of_out() {
    return {.data = out.data(), .dtype = DType::float32, .rows = 2, .columns = 4, .row_stride = 4};
  }
};

TEST(GemmOnTheCpu, IsThereWhenTheCallReturns) {
  Operands m;
  const Status status = gemm(m.view_of_a(), m.view_of_b(), m.view_of_out(), {.alpha = 2}, {.num_threads = 2});
  ASSERT_TRUE(status.ok()) << status.message();
  for (int row = 0; row < 2; ++row) {
    for (int column = 0; column < 4; ++column) {
      int sum = 0;
      for (int k = 0; k < 3; ++k) sum += (row * 8 + k) * ((column * 8 + k) % 5);
      EXPECT_EQ(m.out[static_cast<std::size_t>(row * 4 + column)], static_cast<float>(2 * sum));
    }
  }
}

TEST(GemmOnTheCpu, SaysWhatIsWrongAndWritesNothing) {
  Operands m;
  const auto message_of = [&](const MatrixView& a, const MatrixView& out, const GemmOptions& options,
                              const Execution& execution) {
    return gemm(a, m.view_of_b(), out, options, execution).message();
  };
  const auto expect_has = [](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  MatrixView crooked = m.view_of_a();
  crooked.row_stride = 9;
  expect_has(message_of(crooked, m.view_of_out(), {}, {}), "a.row_stride = 9 elements are 18 bytes");
  expect_has(message_of(m.view_of_a(), m.view_of_out(), {}, {.num_threads = -2}), "num_threads = -2 is negative");
  MatrixView over_a = m.view_of_out();
  over_a.data = m.a.data();
  expect_has(message_of(m.view_of_a(), over_a, {}, {}), "out is written and shares memory with a");
  MatrixView wide = m.view_of_a();
  wide.dtype = DType::float32;
  expect_has(message_of(wide, m.view_of_out(), {}, {}), "a and b differ in dtype");
  for (const float value : m.out) EXPECT_EQ(value, -1);
}

TEST(GemmOnTheCpu, IsExplained) {
  Operands m;
  const Result<warploom_gemm> call = gemm_call(m.view_of_a(), m.view_of_b(), m.view_of_out(), {}, {.num_threads = 1});
  ASSERT_TRUE(call.ok()) << call.status().message();
  const Result<std::string> text = explain(*call);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_NE(text->find("\"backend\": \"cpu\""), std::string::npos) << *text;
}

}  // namespace
}  // namespace warploom
