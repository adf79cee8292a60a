#include "cli/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "history/random.h"
#include "warploom/warploom.h"

namespace warploom::cli {
namespace {

TEST(Numbers, EveryFiniteSixteenBitValueSurvivesATripThroughDouble) {
  for (const std::uint32_t dtype : {WARPLOOM_FLOAT16, WARPLOOM_BFLOAT16}) {
    for (int bits = 0; bits < 65536; ++bits) {
      const auto before = static_cast<std::uint16_t>(bits);
      const double value = load(&before, dtype, 0);
      if (std::isnan(value)) continue;
      std::uint16_t after = 0;
      store(&after, dtype, 0, value);
      EXPECT_EQ(after, before) << type_name(dtype);
    }
  }
}

TEST(Numbers, EveryFiniteEightBitValueSurvivesATripThroughDouble) {
  int finite = 0;
  for (int bits = 0; bits < 256; ++bits) {
    const auto before = static_cast<std::uint8_t>(bits);
    const double value = load(&before, WARPLOOM_FLOAT8_E4M3, 0);
    if (std::isnan(value)) continue;
    ++finite;
    std::uint8_t after = 0;
    store(&after, WARPLOOM_FLOAT8_E4M3, 0, value);
    EXPECT_EQ(after, before);
  }
  EXPECT_EQ(finite, 254);
}

TEST(Numbers, NanStaysNan) {
  for (const std::uint32_t dtype : std::initializer_list<std::uint32_t>{WARPLOOM_FLOAT32, WARPLOOM_FLOAT16,
                                                                        WARPLOOM_BFLOAT16, WARPLOOM_FLOAT8_E4M3})
    EXPECT_TRUE(std::isnan(round_to(dtype, NAN)));
}

TEST(Numbers, KnownRoundings) {
  EXPECT_EQ(round_to(WARPLOOM_FLOAT16, 65519.9), 65504);
  EXPECT_EQ(round_to(WARPLOOM_FLOAT16, 65520), INFINITY);
  EXPECT_EQ(round_to(WARPLOOM_FLOAT16, 1 + 0x1p-11), 1);  // a tie goes to even
  EXPECT_EQ(round_to(WARPLOOM_FLOAT16, 1 + 3 * 0x1p-11), 1 + 0x1p-9);
  EXPECT_EQ(round_to(WARPLOOM_FLOAT16, 0x1p-25), 0);  // half of the smallest subnormal
  EXPECT_EQ(round_to(WARPLOOM_FLOAT16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(round_to(WARPLOOM_BFLOAT16, 1 + 0x1p-8), 1);
  EXPECT_EQ(round_to(WARPLOOM_BFLOAT16, -1.0078125), -1.0078125);
  EXPECT_EQ(round_to(WARPLOOM_FLOAT8_E4M3, -17), -16);
  EXPECT_EQ(round_to(WARPLOOM_FLOAT8_E4M3, 463.9), 448);
  EXPECT_TRUE(std::isnan(round_to(WARPLOOM_FLOAT8_E4M3, 465)));
  EXPECT_EQ(round_to(WARPLOOM_FLOAT8_E4M3, 0x1.8p-10), 0x1p-9);
}

TEST(Numbers, ErrorsStayBelowTheUnitRoundoff) {
  history::Random random(3);
  for (const std::uint32_t dtype : {WARPLOOM_FLOAT32, WARPLOOM_FLOAT16, WARPLOOM_BFLOAT16}) {
    double worst = 0;
    for (int n = 0; n < 20000; ++n) {
      const double value = std::exp(4 * random.normal());
      if (value < 0x1p-14 || value > 60000) continue;
      worst = std::max(worst, std::fabs(round_to(dtype, value) - value) / value);
    }
    EXPECT_LE(worst, unit_roundoff(dtype));
    EXPECT_GE(worst, 0.9 * unit_roundoff(dtype));
  }
}

}  // namespace
}  // namespace warploom::cli
