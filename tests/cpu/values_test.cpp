// Special values: the tail of silu, NaN and infinity in places that are seen and in places that are not, extreme shapes
// and strides.
#include <limits>

#include "problem.h"

namespace test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Problem make(uint32_t op, uint32_t dtype, std::vector<int64_t> lengths, int64_t heads, int64_t dim) {
  Problem p;
  p.call.op = op;
  p.call.dtype = dtype;
  p.lengths_q = std::move(lengths);
  p.call.heads = p.call.key_heads = heads;
  p.call.head_dim = p.call.value_dim = dim;
  return p;
}

void fill_row(Storage& storage, const Problem& p, const warploom_tensor& tensor, int64_t i, int64_t n, int64_t dim,
              double value) {
  for (int64_t x = 0; x < dim; ++x) storage.set(p.index(tensor, i, n, x), value);
}

/// Every score of a row is z: O, and the gradients that come from P and from its slope, keep their relative accuracy.
void silu_tail(uint32_t dtype, double z, double limit) {
  std::mt19937 random(1);
  Problem p = make(WARPLOOM_HSTU, dtype, {5}, 1, 1);
  p.call.flags = WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR;
  p.call.alpha = 1;
  p.call.divisor = 1;
  p.allocate(random);
  for (int64_t i = 0; i < 5; ++i) {
    p.q.set(p.index(p.call.q, i, 0, 0), 1);
    p.k.set(p.index(p.call.k, i, 0, 0), z);
    p.v.set(p.index(p.call.v, i, 0, 0), 1);
    p.dout.set(p.index(p.call.dout, i, 0, 0), 1);
  }
  p.run(true);
  const double e = std::exp(z);  // silu and slope for z far below 0, and in general
  const double silu = z * e / (1 + e), slope = e / (1 + e) * (1 + z / (1 + e));
  EXPECT_NEAR(p.out.get(0) / (5 * silu), 1, limit) << z;
  EXPECT_NEAR(p.dv.get(0) / (5 * silu), 1, limit) << z;
  EXPECT_NEAR(p.dq.get(0) / (5 * slope * z), 1, limit) << z;
  EXPECT_NEAR(p.dk.get(0) / (5 * slope), 1, limit) << z;
}

TEST(ValuesTest, SiluAndItsSlopeKeepTheirAccuracyInTheTail) {
  for (const double z : {30.0, 8.0, 1.0, -1.0, -5.0, -8.0, -12.0, -15.0, -20.0, -25.0, -50.0, -80.0, -84.0}) {
    silu_tail(WARPLOOM_FLOAT32, z, 2e-6);
    if (z >= -25) silu_tail(WARPLOOM_BFLOAT16, z, 5e-3);
    if (z >= -12) silu_tail(WARPLOOM_FLOAT16, z, 5e-3);
  }
  // Subnormal sigmoids: as accurate as their spacing allows.
  silu_tail(WARPLOOM_FLOAT32, -87, 1e-5);
  silu_tail(WARPLOOM_FLOAT32, -92, 1e-3);
  silu_tail(WARPLOOM_FLOAT32, -97, 1e-1);
}

TEST(ValuesTest, SiluOfHugeScoresIsTheScoreOrZero) {
  std::mt19937 random(1);
  Problem p = make(WARPLOOM_HSTU, WARPLOOM_FLOAT32, {1}, 1, 1);
  p.call.flags = WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR;
  p.call.alpha = p.call.divisor = 1;
  p.allocate(random);
  for (Storage* s : {&p.q, &p.v, &p.dout}) s->set(0, 1);
  for (const double z : {1e30, 3e38}) {
    p.k.set(0, z);
    p.run(true);
    EXPECT_EQ(static_cast<float>(p.out.get(0)), static_cast<float>(z));
    EXPECT_EQ(p.dk.get(0), 1);
    p.k.set(0, -z);
    p.run(true);
    EXPECT_EQ(p.out.get(0), 0);
    EXPECT_EQ(p.dk.get(0), 0);
  }
}

TEST(ValuesTest, Float16ScoresBeyondItsRangeDoNotSaturate) {
  std::mt19937 random(1);
  Problem p = make(WARPLOOM_HSTU, WARPLOOM_FLOAT16, {3}, 1, 8);
  p.call.flags = WARPLOOM_HAS_ALPHA | WARPLOOM_HAS_DIVISOR;
  p.call.alpha = 1;
  p.call.divisor = 1000;
  p.allocate(random);
  for (int64_t x = 0; x < p.q.size(); ++x) p.q.set(x, 300), p.k.set(x, 300), p.v.set(x, 1);
  p.run(false);
  EXPECT_NEAR(p.out.get(0), 3 * 8 * 300.0 * 300.0 / 1000, 2);
}

/// Where nobody looks, NaN changes no bit of any result.
class UnseenTest : public testing::TestWithParam<uint32_t> {};

TEST_P(UnseenTest, NanWhereNothingIsSeenReachesNothing) {
  std::mt19937 random(3);
  Problem p = make(GetParam(), WARPLOOM_FLOAT32, {150, 0, 90}, 2, 24);
  p.spare_rows = 3;
  p.used_k = {120, 0, 90};
  p.used_q = {100, 0, 40};
  p.padding = 3;
  p.call.interval_heads = 1;
  p.call.num_intervals = 2;
  p.allocate(random);
  // Rows 7 mod 10 see nothing; columns 3 mod 5 are seen by nobody; the others come in runs around the row.
  std::vector<bool> seen_key(static_cast<size_t>(p.call.total_k)), seeing_row(static_cast<size_t>(p.call.total_q));
  p.call.num_intervals = 130;
  p.intervals.assign(static_cast<size_t>(p.call.total_q * 130 * 2), 0);
  for (int64_t b = 0; b < 3; ++b) {
    const reference::Lengths l = reference::lengths(p.call, b);
    for (int64_t i = 0; i < l.q; ++i) {
      if (i % 10 == 7) continue;
      int n = 0;
      for (int64_t j = std::max<int64_t>(0, i - 60); j < std::min(l.k, i + 70); ++j) {
        if (j % 5 == 3) continue;
        int32_t* interval = &p.intervals[static_cast<size_t>(((l.first_q + i) * 130 + n++) * 2)];
        interval[0] = static_cast<int32_t>(j);
        interval[1] = static_cast<int32_t>(j + 1);
        seen_key[static_cast<size_t>(l.first_k + j)] = true;
        seeing_row[static_cast<size_t>(l.first_q + i)] = true;
      }
    }
  }
  p.call.intervals = p.intervals.data();
  p.add_dense_bias(random, true, true, WARPLOOM_ROWS_QUERY, WARPLOOM_FLOAT32);
  p.run(true, 2);
  check(p, true);
  std::vector<std::vector<char>> before = {p.out.bytes, p.dq.bytes, p.dk.bytes, p.dv.bytes, p.bias_grad.bytes};
  const std::vector<float> lse = p.lse;

  for (int64_t j = 0; j < p.call.total_k; ++j) {
    if (seen_key[static_cast<size_t>(j)]) continue;
    for (int64_t n = 0; n < 2; ++n) {
      fill_row(p.k, p, p.call.k, j, n, 24, kNan);
      fill_row(p.v, p, p.call.v, j, n, 24, n == 0 ? kNan : reference::kInfinity);
    }
  }
  for (int64_t i = 0; i < p.call.total_q; ++i) {
    if (seeing_row[static_cast<size_t>(i)]) continue;
    for (int64_t n = 0; n < 2; ++n) {
      fill_row(p.q, p, p.call.q, i, n, 24, kNan);
      fill_row(p.dout, p, p.call.dout, i, n, 24, kNan);
    }
  }
  for (int64_t b = 0; b < 3; ++b) {
    const reference::Lengths l = reference::lengths(p.call, b);
    for (int64_t n = 0; n < 2; ++n) {
      for (int64_t i = 0; i < p.call.bias.num_rows; ++i) {
        for (int64_t j = 0; j < p.call.bias.num_columns; ++j) {
          if (i < l.q && reference::visible(p.call, l, b, n, i, j)) continue;
          p.bias.set(b * p.call.bias.batch_stride + n * p.call.bias.head_stride + i * p.call.bias.row_stride + j, kNan);
        }
      }
    }
  }
  p.run(true, 2);
  EXPECT_EQ(p.out.bytes, before[0]);
  EXPECT_EQ(p.dq.bytes, before[1]);
  EXPECT_EQ(p.dk.bytes, before[2]);
  EXPECT_EQ(p.dv.bytes, before[3]);
  EXPECT_EQ(p.bias_grad.bytes, before[4]);
  EXPECT_TRUE(lse.empty() || std::memcmp(p.lse.data(), lse.data(), lse.size() * sizeof(float)) == 0);
}

TEST_P(UnseenTest, MinusInfinityInTheBiasHidesNan) {
  std::mt19937 random(4);
  Problem p = make(GetParam(), WARPLOOM_FLOAT32, {100}, 1, 16);
  p.allocate(random);
  p.add_dense_bias(random, true, true, WARPLOOM_ROWS_KEY, WARPLOOM_FLOAT32);
  for (int64_t i = 0; i < 100; ++i) {
    for (int64_t j = 0; j < 100; ++j) {
      if (j % 7 == 2 || i % 9 == 4) p.bias.set(i * p.call.bias.row_stride + j, -reference::kInfinity);
    }
  }
  for (int64_t j = 0; j < 100; ++j) {
    if (j % 7 == 2) fill_row(p.k, p, p.call.k, j, 0, 16, kNan), fill_row(p.v, p, p.call.v, j, 0, 16, kNan);
    if (j % 9 == 4) fill_row(p.q, p, p.call.q, j, 0, 16, kNan), fill_row(p.dout, p, p.call.dout, j, 0, 16, kNan);
  }
  p.run(true);
  check(p, true);
}

TEST_P(UnseenTest, NanInAQueryStaysInItsRow) {
  std::mt19937 random(5);
  Problem p = make(GetParam(), WARPLOOM_FLOAT32, {70, 30}, 2, 16);
  p.call.right = 0;
  p.allocate(random);
  p.run(false);
  const Storage before = p.out;
  fill_row(p.q, p, p.call.q, 20, 1, 16, kNan);
  p.run(false);
  for (int64_t i = 0; i < 100; ++i) {
    for (int64_t n = 0; n < 2; ++n) {
      for (int64_t x = 0; x < 16; ++x) {
        const int64_t at = p.index(p.call.out, i, n, x);
        if (i == 20 && n == 1) {
          EXPECT_TRUE(std::isnan(p.out.get(at)));
        } else {
          EXPECT_EQ(p.out.get(at), before.get(at));
        }
      }
    }
  }
}

TEST_P(UnseenTest, NanInAKeyReachesExactlyTheRowsThatSeeIt) {
  std::mt19937 random(6);
  Problem p = make(GetParam(), WARPLOOM_FLOAT32, {70, 30}, 2, 16);
  p.call.right = 0;
  p.call.left = 15;
  p.allocate(random);
  p.run(false);
  const Storage before = p.out;
  fill_row(p.k, p, p.call.k, 20, 1, 16, kNan);
  p.run(false);
  for (int64_t i = 0; i < 100; ++i) {
    for (int64_t n = 0; n < 2; ++n) {
      const int64_t at = p.index(p.call.out, i, n, 3);
      if (n == 1 && 20 <= i && i <= 35) {
        EXPECT_TRUE(std::isnan(p.out.get(at))) << i;
        const bool nan_lse = !p.softmax() || std::isnan(p.lse[static_cast<size_t>(n * p.call.lse_head_stride + i)]);
        EXPECT_TRUE(nan_lse);
      } else {
        EXPECT_EQ(p.out.get(at), before.get(at)) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, UnseenTest, testing::Values(WARPLOOM_HSTU, WARPLOOM_SOFTMAX),
                         [](const auto& op) { return op.param == WARPLOOM_HSTU ? "Hstu" : "Softmax"; });

TEST(ShapesTest, HeadDimensionsFromOneTo512) {
  const std::pair<int64_t, int64_t> dims[] = {{1, 1}, {1, 512}, {512, 1}, {512, 512}, {7, 130}, {257, 33}};
  for (const auto& [d, dv] : dims) {
    for (const uint32_t op : {WARPLOOM_HSTU, WARPLOOM_SOFTMAX}) {
      std::mt19937 random(7);
      Problem p = make(op, WARPLOOM_FLOAT32, {70, 3}, 1, d);
      p.call.value_dim = dv;
      p.allocate(random);
      p.run(true, 2);
      SCOPED_TRACE(std::to_string(d) + " " + std::to_string(dv));
      check(p, true);
    }
  }
}

TEST(ShapesTest, InputStridesOfZeroAndBelow) {
  for (const uint32_t op : {WARPLOOM_HSTU, WARPLOOM_SOFTMAX}) {
    std::mt19937 random(8);
    Problem p = make(op, WARPLOOM_FLOAT32, {50, 21}, 3, 16);
    p.allocate(random);
    p.call.k.head_stride = 0;    // all heads read the first
    p.call.dout.row_stride = 0;  // the gradient of a sum
    p.call.q.data = static_cast<float*>(p.call.q.data) + (p.call.total_q - 1) * p.call.q.row_stride;
    p.call.q.row_stride = -p.call.q.row_stride;
    p.run(true, 2);
    check(p, true);
  }
}

TEST(ShapesTest, LongSequencesOfManyChunksAgreeWithTheReference) {
  struct Form {
    uint32_t op, dtype, bias;
  };
  for (const Form form : {Form{WARPLOOM_HSTU, WARPLOOM_FLOAT32, WARPLOOM_BUCKETED_BIAS},
                          Form{WARPLOOM_SOFTMAX, WARPLOOM_BFLOAT16, WARPLOOM_NO_BIAS},
                          Form{WARPLOOM_SOFTMAX, WARPLOOM_FLOAT32, WARPLOOM_DENSE_BIAS},
                          Form{WARPLOOM_HSTU, WARPLOOM_FLOAT16, WARPLOOM_PACKED_BIAS}}) {
    std::mt19937 random(9);
    Problem p = make(form.op, form.dtype, {450, 20, 333}, 2, 16);
    p.call.key_heads = 1;
    p.call.right = 0;
    if (form.bias == WARPLOOM_BUCKETED_BIAS) p.contexts = {3, 4, 0}, p.targets = {40, 0, 100};
    p.allocate(random);
    if (form.bias == WARPLOOM_BUCKETED_BIAS) {
      p.add_bucketed_bias(random, 256, true, 100, false,
                          [](std::mt19937& r, int64_t now) { return now + static_cast<int64_t>(r() % 100000); });
    }
    if (form.bias == WARPLOOM_DENSE_BIAS) p.add_dense_bias(random, false, false, WARPLOOM_ROWS_KEY, WARPLOOM_FLOAT32);
    if (form.bias == WARPLOOM_PACKED_BIAS) p.add_packed_bias(random, false, WARPLOOM_ROWS_QUERY, WARPLOOM_FLOAT16);
    p.run(true, 3);
    SCOPED_TRACE("bias " + std::to_string(form.bias));
    check(p, true);
  }
}

TEST(ShapesTest, DenseBiasOfAnEmptyBatchHasAZeroGradient) {
  std::mt19937 random(10);
  Problem p = make(WARPLOOM_HSTU, WARPLOOM_FLOAT32, {}, 2, 8);
  p.call.batch = 0;
  p.dense_q = p.dense_k = 12;
  p.allocate(random);
  p.add_dense_bias(random, false, true, WARPLOOM_ROWS_KEY, WARPLOOM_FLOAT32);
  p.run(true);
  for (int64_t x = 0; x < 2 * 12 * 12; ++x) EXPECT_EQ(p.bias_grad.get(x), 0);
}

}  // namespace
}  // namespace test
