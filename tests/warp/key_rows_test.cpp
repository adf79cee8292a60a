// kernels/attention/bias_key_rows.h, a warp at a time: R handed out transposed, and dR written where it belongs and
// nowhere else, under every alignment of either.
#include <gtest/gtest.h>

#include <vector>

#include "attention/bias_key_rows.h"
#include "bias_arrays.h"

namespace warploom {
namespace {

constexpr float kUntouched = 12345;
constexpr float kFactor = 0.5f;

/// What the gradient holds of a pair: exact in bfloat16 after the factor.
float ds_of(int i, int j) {
  return static_cast<float>((i * 7 + j * 3) % 127 - 60);
}

template <typename T>
float as_float(T value) {
  if constexpr (std::is_same_v<T, float>) return value;
  return __uint_as_float(static_cast<unsigned>(value) << 16);
}
template <typename T>
T as_element(float value) {
  if constexpr (std::is_same_v<T, float>) return value;
  return static_cast<T>(std::bit_cast<unsigned>(value) >> 16);
}

/// One stored array of `rows` rows in key coordinates.
template <typename Element>
struct Stored {
  Stored(int rows, int columns, int offset, int padding, double masked)
      : stride(columns + padding), values(static_cast<std::size_t>(rows * stride), offset) {
    for (int n = 0; n < rows * stride; ++n)
      values[static_cast<std::size_t>(n)] = as_element<Element>(draw_value(masked));
    call.values = values.data();
    call.row_stride = stride;
    call.num_rows = rows;
    call.num_columns = columns;
    const auto whole = [](int n) { return n * static_cast<int>(sizeof(Element)) % 16 == 0; };
    call.aligned = whole(offset) && whole(stride);
  }
  Element& at(int row, int column) { return values[static_cast<std::size_t>(row * stride + column)]; }

  int stride;
  Array<Element> values;
  BiasCall call;
};

template <bool Float32, int Queries, int Keys>
void check(int seqlen_q, int seqlen_k, int offset, int padding, int grad_offset, int grad_padding, double masked) {
  using Element = std::conditional_t<Float32, float, unsigned short>;
  using Rows = KeyRowsBias<ptx::Bfloat16, Float32, Queries, Keys>;
  const Work work = one_sequence(seqlen_q, seqlen_k);
  Stored<Element> bias(seqlen_k, seqlen_k, offset, padding, masked);
  Stored<Element> gradient(seqlen_k, seqlen_k, grad_offset, grad_padding, 0);
  for (int row = 0; row < seqlen_k; ++row) {
    for (int x = 0; x < gradient.stride; ++x) gradient.at(row, x) = as_element<Element>(kUntouched);
  }
  const int eb = static_cast<int>(sizeof(Element)), shift = seqlen_k - seqlen_q;
  const BiasRows from = bias_rows(bias.call, work, 0, 0, eb), to = bias_rows(gradient.call, work, 0, 0, eb);
  warp::run(0, [&] {
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int query = 0; query < seqlen_q; query += Queries) {
      for (int key = 0; key < seqlen_k; key += Keys) {
        const RowsPart part = RowsPart::of(from, 0, query, key, eb);
        Rows::start(0, part);
        __syncwarp();
        float ds[Keys / 16][Queries / 8][4];
        bool seen = false;
        int wrong = 0;
        const bool may_mask = Rows::for_each(0, part, [&](int m, int n, int e, float r) {
          const int i = query + n * 8 + lane % 4 * 2 + e % 2, j = key + m * 16 + e / 2 * 8 + lane / 4;
          ds[m][n][e] = ds_of(i, j);
          const int row = i + shift;
          const bool exists = i < seqlen_q && row >= 0 && j < seqlen_k;
          const float expected = exists ? as_float(bias.at(row, j)) : 0;
          seen |= expected == kMasked;
          if (r != expected && wrong++ == 0) {
            ADD_FAILURE() << "query " << i << " key " << j << ": " << r << ", not " << expected;
          }
        });
        EXPECT_TRUE(may_mask || !__any_sync(~0u, seen));
        const RowsPart out = RowsPart::of(to, 0, query, key, eb);
        Rows::write(0, out, ds, kFactor);
      }
    }
  });
  for (int row = 0; row < seqlen_k; ++row) {
    for (int x = 0; x < gradient.stride; ++x) {
      const bool written = row >= shift && x < seqlen_k;
      const float expected = written ? kFactor * ds_of(row - shift, x) : as_float(as_element<Element>(kUntouched));
      ASSERT_EQ(as_float(gradient.at(row, x)), expected) << "row " << row << " column " << x;
    }
  }
}

TEST(KeyRowsBias, HandsOutEveryElementAndWritesEveryGradient) {
  for (int n = 0; n < 8; ++n) {
    const int seqlen_k = draw(1, 100), seqlen_q = draw(1, seqlen_k);
    const int aligned = (8 - seqlen_k % 8) % 8;
    const int offset = n % 4 == 0 ? 0 : draw(0, 7), padding = n % 4 == 0 ? aligned : draw(0, 9);
    const int grad_offset = n % 4 <= 1 ? 0 : draw(0, 7), grad_padding = n % 4 <= 1 ? aligned : draw(0, 9);
    SCOPED_TRACE(n);
    const double masked = n % 3 == 1 ? 0.01 : 0;
    check<false, 32, 32>(seqlen_q, seqlen_k, offset, padding, grad_offset, grad_padding, masked);
    check<false, 64, 16>(seqlen_q, seqlen_k, offset, padding, grad_offset, grad_padding, masked);
    check<true, 32, 16>(seqlen_q, seqlen_k, offset, padding, grad_offset, grad_padding, masked);
    check<true, 16, 32>(seqlen_q, seqlen_k, offset, padding, grad_offset, grad_padding, masked);
  }
}

}  // namespace
}  // namespace warploom
