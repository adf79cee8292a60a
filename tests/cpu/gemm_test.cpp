// Matrix products against float64: every type, layout and thing that may follow the product, on every instruction set
// of this processor, by the rule of docs/attention.md, section 8.
#include "cpu/gemm.h"

#include "cpu/kernels.h"
#include "problem.h"
#include "problem/aliases.h"
#include "problem/gemm.h"

namespace test {
namespace {

using warploom::cpu::Kernels;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The matrices of a batch in memory of NaN, rows on multiples of 16 bytes.
struct Matrices {
  Storage storage;
  int64_t row_stride = 0, batch_stride = 0;

  void allocate(uint32_t dtype, int64_t batch, int64_t rows, int64_t columns, int64_t gap) {
    const int64_t step = 16 / bytes_of(dtype);
    row_stride = (columns + step - 1) / step * step + gap * step;
    batch_stride = batch > 1 ? (rows + gap) * row_stride : 0;
    storage.resize((batch > 1 ? batch : 1) * (rows + gap) * row_stride, dtype);
  }
  int64_t at(int64_t b, int64_t row, int64_t column) const { return b * batch_stride + row * row_stride + column; }
  double get(int64_t b, int64_t row, int64_t column) const { return storage.get(at(b, row, column)); }
  void fill(int64_t batch, int64_t rows, int64_t columns, const std::function<double()>& value) {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column) storage.set(at(b, row, column), value());
  }
  warploom_matrix view() { return {storage.bytes.data(), batch_stride, row_stride}; }
};

struct Product {
  warploom_gemm call = {};
  int64_t gap = 0;
  bool one_a = false, one_b = false, one_c = false;  ///< for the whole batch
  bool with_c = false, out_is_c = false, with_bias = false;
  Matrices a, b, c, out, bias;
  float scale_a = 0.5f, scale_b = 3.25f;

  Product(uint32_t dtype, uint32_t out_dtype, int64_t rows, int64_t columns, int64_t depth, int64_t batch = 1) {
    warploom::init_gemm(call);
    call.device = WARPLOOM_CPU;
    call.dtype = dtype;
    call.out_dtype = out_dtype;
    call.rows = rows;
    call.columns = columns;
    call.depth = depth;
    call.batch = batch;
  }

  int64_t batch_of(bool one) const { return one ? std::min<int64_t>(1, call.batch) : call.batch; }

  void allocate(const std::function<double()>& value) {
    a.allocate(call.dtype, batch_of(one_a), call.rows, call.depth, gap);
    b.allocate(call.dtype, batch_of(one_b), call.columns, call.depth, gap);
    out.allocate(call.out_dtype, call.batch, call.rows, call.columns, gap);
    a.fill(batch_of(one_a), call.rows, call.depth, value);
    b.fill(batch_of(one_b), call.columns, call.depth, value);
    if (with_c) {
      c.allocate(call.out_dtype, batch_of(one_c), call.rows, call.columns, gap);
      c.fill(batch_of(one_c), call.rows, call.columns, value);
      if (out_is_c) out = c;
    }
    if (with_bias) {
      bias.allocate(warploom::gemm_bias_dtype(call), 1, 1, call.columns, 0);
      bias.fill(1, 1, call.columns, value);
    }
  }

  warploom_gemm described() {
    warploom_gemm result = call;
    result.a = a.view();
    result.b = b.view();
    result.out = out.view();
    if (with_c) result.c = out_is_c ? result.out : c.view();
    if (with_bias) result.bias = bias.storage.bytes.data();
    return result;
  }

  void run(int threads = 0) {
    call.num_threads = threads;
    const warploom_gemm described_call = described();
    ASSERT_EQ(warploom::validate_gemm(described_call).message(), "");
    ASSERT_EQ(warploom::check_aliases(described_call).message(), "");
    ASSERT_EQ(warploom::cpu::run(described_call).message(), "");
  }

  /// The value and the size that it would have if nothing cancelled.
  reference::Sum expected(int64_t n, int64_t row, int64_t column) const {
    reference::Sum sum;
    for (int64_t k = 0; k < call.depth; ++k) {
      const double term = a.get(one_a ? 0 : n, row, k) * b.get(one_b ? 0 : n, column, k);
      sum.add(term, std::abs(term));
    }
    double scale = call.alpha;
    if (call.scale_a != nullptr) scale *= double{*call.scale_a};
    if (call.scale_b != nullptr) scale *= double{*call.scale_b};
    sum = {sum.value * scale, sum.magnitude * std::abs(scale)};
    if (with_bias) sum.add(bias.get(0, 0, column), std::abs(bias.get(0, 0, column)));
    if (call.activation == WARPLOOM_SILU) sum.value *= reference::sigmoid(sum.value);
    if (call.beta != 0) {
      const double term = call.beta * c.get(one_c ? 0 : n, row, column);
      sum.add(term, std::abs(term));
    }
    return sum;
  }
};

/// The nearest value of a type, as a double.
double rounded(uint32_t dtype, double value) {
  return dtype == WARPLOOM_FLOAT32 ? double{static_cast<float>(value)}
                                   : reference::element_16(to_16_bits(value, dtype), dtype);
}

/// Sums of squares over a row or over everything.
struct Norms {
  double error = 0, value = 0, magnitude = 0, drawn = 0;  // drawn: of one rounding of the result
  int64_t rows = 0;

  void add(double found, const reference::Sum& expected, uint32_t dtype) {
    const auto square = [](double x) { return x * x; };
    error += square(found - expected.value);
    value += square(expected.value);
    magnitude += square(expected.magnitude);
    drawn += square(rounded(dtype, expected.value) - expected.value);
  }
  void add(const Norms& row) {
    error += row.error, value += row.value, magnitude += row.magnitude, drawn += row.drawn, ++rows;
  }
  /// Section 8. The only place where a fused product has to round is its result.
  double limit(uint32_t dtype) const {
    const double floor = 8 * 0x1p-24 * std::sqrt(magnitude);
    if (dtype == WARPLOOM_FLOAT32) return std::max(2e-5 * std::sqrt(value), floor);
    const double bound = (dtype == WARPLOOM_FLOAT16 ? 0x1p-11 : 0x1p-8) * std::sqrt(value);
    const double draws = 1.1 * std::sqrt(drawn);
    const double all = rows > 0 ? draws * (1 + 1 / std::sqrt(static_cast<double>(rows))) : std::max(draws, 2 * bound);
    return std::max(all, floor);
  }
};

/// `out` of a run beside what `made` says it should be.
void check_values(const Product& made, const Product& product) {
  const uint32_t dtype = made.call.out_dtype;
  Norms all;
  for (int64_t n = 0; n < made.call.batch; ++n) {
    for (int64_t row = 0; row < made.call.rows; ++row) {
      Norms of_row;
      for (int64_t column = 0; column < made.call.columns; ++column)
        of_row.add(product.out.get(n, row, column), made.expected(n, row, column), dtype);
      ASSERT_LE(std::sqrt(of_row.error), of_row.limit(dtype)) << "product " << n << ", row " << row;
      all.add(of_row);
    }
  }
  ASSERT_LE(std::sqrt(all.error), all.limit(dtype));
}

/// Nothing but the result was written.
void check_surroundings(const Product& made, const Product& product) {
  EXPECT_EQ(product.a.storage.bytes, made.a.storage.bytes);
  EXPECT_EQ(product.b.storage.bytes, made.b.storage.bytes);
  EXPECT_EQ(product.c.storage.bytes, made.c.storage.bytes);
  EXPECT_EQ(product.bias.storage.bytes, made.bias.storage.bytes);
  Product cleared = product;
  cleared.out.fill(made.call.batch, made.call.rows, made.call.columns, [] { return kNan; });
  Product blank = made;
  blank.out.fill(made.call.batch, made.call.rows, made.call.columns, [] { return kNan; });
  EXPECT_EQ(cleared.out.storage.bytes, blank.out.storage.bytes);
}

Product random_product(uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
  const uint32_t dtypes[] = {WARPLOOM_BFLOAT16, WARPLOOM_FLOAT16, WARPLOOM_FLOAT8_E4M3};
  const uint32_t results[] = {WARPLOOM_BFLOAT16, WARPLOOM_FLOAT16, WARPLOOM_FLOAT32};
  // One size may pass a tile's edge, or several of them.
  int64_t sizes[] = {1 + pick(20), 1 + pick(20), pick(60)};
  sizes[seed % 3] = 120 + pick(300);
  Product p(dtypes[pick(3)], results[pick(3)], sizes[0], sizes[1], sizes[2], pick(4) == 0 ? 3 : 1);
  p.gap = pick(3);
  p.one_a = pick(4) == 0;
  p.one_b = pick(3) == 0;
  p.with_bias = pick(2) == 0;
  p.with_c = pick(2) == 0;
  p.out_is_c = pick(2) == 0;
  p.one_c = !p.out_is_c && pick(3) == 0;
  p.call.activation = pick(2) == 0 ? WARPLOOM_SILU : WARPLOOM_NO_ACTIVATION;
  const double factors[] = {1, -0.75, 0.1, 0};
  p.call.alpha = factors[pick(4)];
  p.call.beta = p.with_c ? factors[pick(4)] : 0;
  std::normal_distribution<double> normal;
  p.allocate([&] { return normal(random); });
  return p;
}

class GemmTest : public testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override { warploom::cpu::use_target(GetParam()); }
  void TearDown() override { warploom::cpu::use_target(nullptr); }
};

TEST_P(GemmTest, AgreesWithFloat64) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Product made = random_product(seed);
    Product product = made;
    if (made.call.dtype == WARPLOOM_FLOAT8_E4M3 && seed % 2 == 0) {
      product.call.scale_a = &product.scale_a;
      product.call.scale_b = seed % 4 == 0 ? &product.scale_b : nullptr;
    }
    Product judged = made;
    judged.call = product.call;
    product.run(1 + static_cast<int>(seed % 3));
    check_values(judged, product);
    check_surroundings(judged, product);
    if (HasFailure()) return;
  }
}

/// Products of whole numbers: every sum is exact, so the result is the exact one, rounded once.
TEST_P(GemmTest, RoundsExactSumsOnce) {
  std::mt19937 random(5);
  const std::pair<uint32_t, uint32_t> types[] = {{WARPLOOM_BFLOAT16, WARPLOOM_FLOAT16},
                                                 {WARPLOOM_FLOAT16, WARPLOOM_FLOAT32},
                                                 {WARPLOOM_FLOAT8_E4M3, WARPLOOM_BFLOAT16}};
  for (const auto& [dtype, out_dtype] : types) {
    Product p(dtype, out_dtype, 131, 197, 259);
    p.with_bias = p.with_c = true;
    p.call.alpha = 0.25;
    p.call.beta = -2;
    p.allocate([&] { return static_cast<double>(random() % 6) - 2; });
    p.run();
    for (int64_t row = 0; row < p.call.rows; ++row)
      for (int64_t column = 0; column < p.call.columns; ++column)
        ASSERT_EQ(p.out.get(0, row, column), rounded(out_dtype, p.expected(0, row, column).value));
  }
}

TEST_P(GemmTest, LongSumsKeepFloat32sAccuracy) {
  std::mt19937 random(6);
  std::uniform_real_distribution<double> positive(0, 1);
  Product p(WARPLOOM_FLOAT16, WARPLOOM_FLOAT32, 3, 5, 20000);
  p.allocate([&] { return positive(random); });
  p.run();
  check_values(p, p);
}

TEST_P(GemmTest, WithoutDepthIsWhatFollowsTheProduct) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  Product p(WARPLOOM_BFLOAT16, WARPLOOM_FLOAT32, 9, 21, 0);
  p.with_bias = p.with_c = true;
  p.call.activation = WARPLOOM_SILU;
  p.call.beta = 0.5;
  p.allocate([&] { return normal(random); });
  warploom_gemm call = p.described();
  call.a.data = call.b.data = nullptr;
  ASSERT_TRUE(warploom::cpu::run(call).ok());
  check_values(p, p);
}

TEST_P(GemmTest, WithoutRowsColumnsOrProductsTouchesNothing) {
  for (const int empty : {0, 1, 2}) {
    warploom_gemm call =
        Product(WARPLOOM_FLOAT16, WARPLOOM_FLOAT16, empty == 0 ? 0 : 5, empty == 1 ? 0 : 5, 8, empty == 2 ? 0 : 2).call;
    EXPECT_EQ(warploom::cpu::run(call).message(), "");
  }
}

/// What one row of A, B or C holds reaches the row or the column of the result that it belongs to, no other.
TEST_P(GemmTest, NanReachesWhatDependsOnIt) {
  std::mt19937 random(8);
  std::normal_distribution<double> normal;
  Product p(WARPLOOM_BFLOAT16, WARPLOOM_FLOAT32, 20, 30, 50);
  p.with_c = true;
  p.call.beta = 2;
  p.call.activation = WARPLOOM_SILU;
  p.allocate([&] { return normal(random); });
  p.a.storage.set(p.a.at(0, 4, 49), kNan);
  p.b.storage.set(p.b.at(0, 29, 0), kNan);
  p.c.storage.set(p.c.at(0, 17, 3), kNan);
  p.run();
  for (int64_t row = 0; row < 20; ++row)
    for (int64_t column = 0; column < 30; ++column)
      EXPECT_EQ(std::isnan(p.out.get(0, row, column)), row == 4 || column == 29 || (row == 17 && column == 3));
}

TEST_P(GemmTest, CIsNotReadWithoutBeta) {
  Product p(WARPLOOM_FLOAT16, WARPLOOM_FLOAT16, 20, 30, 50);
  p.with_c = true;
  p.allocate([] { return 1.0; });
  p.c.fill(1, 20, 30, [] { return kNan; });
  p.run();
  for (int64_t row = 0; row < 20; ++row)
    for (int64_t column = 0; column < 30; ++column) EXPECT_EQ(p.out.get(0, row, column), 50);
}

TEST_P(GemmTest, StridesOfASingleRowAreFree) {
  Product p(WARPLOOM_FLOAT16, WARPLOOM_FLOAT16, 1, 1, 50);
  p.with_c = true;
  p.call.beta = 1;
  p.allocate([] { return 1.0; });
  warploom_gemm call = p.described();
  for (warploom_matrix* matrix : {&call.a, &call.b, &call.c, &call.out})
    matrix->row_stride = matrix->batch_stride = std::numeric_limits<int64_t>::max();
  ASSERT_EQ(warploom::validate_gemm(call).message(), "");
  ASSERT_TRUE(warploom::cpu::run(call).ok());
  EXPECT_EQ(p.out.get(0, 0, 0), 51);
}

TEST_P(GemmTest, SiluKeepsItsTail) {
  Product p(WARPLOOM_BFLOAT16, WARPLOOM_FLOAT32, 9, 1, 1);
  p.call.activation = WARPLOOM_SILU;
  p.allocate([] { return 1.0; });
  const double z[] = {-25, -20, -15, -8, -1, 0, 3, 40, 3e38};
  for (int64_t row = 0; row < 9; ++row) p.a.storage.set(p.a.at(0, row, 0), z[row]);
  p.run();
  for (int64_t row = 0; row < 9; ++row) {
    const double exact = p.a.get(0, row, 0), silu = exact * reference::sigmoid(exact);
    EXPECT_NEAR(p.out.get(0, row, 0), silu, 2e-6 * std::abs(silu)) << exact;
  }
}

std::vector<const Kernels*> targets() {
  const Kernels* found[8];
  const int count = warploom::cpu::supported_targets(found, 8);
  return {found, found + count};
}
INSTANTIATE_TEST_SUITE_P(Targets, GemmTest, testing::ValuesIn(targets()),
                         [](const auto& target) { return std::string(target.param->name); });

/// Bits depend on a row of A and one of B alone: not on threads, nor on where in the result they meet.
TEST(GemmDeterminismTest, BitsDependOnTheOperandsAlone) {
  std::mt19937 random(9);
  std::normal_distribution<double> normal;
  Product p(WARPLOOM_FLOAT16, WARPLOOM_FLOAT32, 150, 400, 300, 2);
  p.with_bias = true;
  p.call.activation = WARPLOOM_SILU;
  p.allocate([&] { return normal(random); });
  p.run(1);
  for (const int threads : {2, 5}) {
    Product again = p;
    again.run(threads);
    EXPECT_EQ(again.out.storage.bytes, p.out.storage.bytes) << threads;
  }
  Product alone(WARPLOOM_FLOAT16, WARPLOOM_FLOAT32, 1, 399, 300);
  alone.with_bias = true;
  alone.call.activation = WARPLOOM_SILU;
  alone.allocate([] { return 0.0; });
  for (int64_t k = 0; k < 300; ++k) {
    alone.a.storage.set(alone.a.at(0, 0, k), p.a.get(1, 137, k));
    for (int64_t column = 0; column < 399; ++column)
      alone.b.storage.set(alone.b.at(0, column, k), p.b.get(1, column + 1, k));
  }
  for (int64_t column = 0; column < 399; ++column)
    alone.bias.storage.set(alone.bias.at(0, 0, column), p.bias.get(0, 0, column + 1));
  alone.run();
  for (int64_t column = 0; column < 399; ++column)
    ASSERT_EQ(alone.out.get(0, 0, column), p.out.get(1, 137, column + 1)) << column;
}

TEST(GemmExplainTest, TellsHowTheResultIsCut) {
  Product p(WARPLOOM_FLOAT8_E4M3, WARPLOOM_BFLOAT16, 200, 400, 1000, 3);
  p.call.num_threads = 5;
  const std::string text = warploom::cpu::explain(p.call);
  for (const char* part : {"\"backend\": \"cpu\"", "\"threads\": 5", "\"work_items\": 18", "\"flops\": 480000000"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST(GemmExplainTest, CountsWhatNobodyHasMemoryFor) {
  constexpr int64_t most = (int64_t{1} << 31) - 4097;
  EXPECT_NE(warploom::cpu::explain(Product(WARPLOOM_BFLOAT16, WARPLOOM_BFLOAT16, most, most, most, most).call)
                .find("\"work_items\": 9223372036854775807"),
            std::string::npos);
}

}  // namespace
}  // namespace test
