// The bias providers of kernels/attention, a warp at a time: every element that they hand out, under every alignment,
// with tables and timestamps of every kind. Arrays have their exact size.
#include "attention/bias.h"

#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "bias_arrays.h"

namespace warploom {
namespace {

/// Walks a provider over all tiles of so many rows and columns: expected(i, j) of every element, where the column
/// exists or `beyond`. make(warp): the provider.
template <int TileColumns, int WarpRows, typename Make, typename Expected>
void check_provider(Work& work, int rows, int columns, bool beyond, Make make, Expected expected) {
  constexpr int kBlocks = WarpRows / 16;
  for (int first_row = 0; first_row < rows; first_row += kWarps * WarpRows) {
    work.first_row = first_row;
    for (unsigned warp = 0; warp < kWarps; ++warp) {
      warp::run(warp, [&] {
        auto bias = make();
        const int lane = static_cast<int>(threadIdx.x % 32);
        for (int first_column = 0; first_column < columns; first_column += TileColumns) {
          bias.start(first_column);
          bias.template wait<1>();
          int visited = 0, wrong = 0;
          bool masked = false;
          const bool may_mask = bias.template for_each<kBlocks>([&](int m, int n, int e, float r) {
            ++visited;
            const int i = first_row + static_cast<int>(warp) * WarpRows + m * 16 + e / 2 * 8 + lane / 4;
            const int j = first_column + n * 8 + lane % 4 * 2 + e % 2;
            if (!beyond && (i >= rows || j >= columns)) return;
            const float value = expected(i, j);
            masked |= value == kMasked;
            if (r != value && wrong++ == 0)
              ADD_FAILURE() << "row " << i << " column " << j << ": " << r << ", not " << value;
          });
          EXPECT_EQ(visited, kBlocks * TileColumns / 8 * 4);
          EXPECT_TRUE(may_mask || !__any_sync(~0u, masked));
          __syncwarp();
        }
      });
    }
  }
}

struct RowsCase {
  int seqlen_q, seqlen_k;
  bool packed, query_rows, too_small;
  int offset, padding;  // of the first element, in elements; between rows
  double masked;
};

template <bool Float32, int TileColumns, int WarpRows>
void check_rows(const RowsCase& c) {
  using Element = std::conditional_t<Float32, float, unsigned short>;
  Work work = one_sequence(c.seqlen_q, c.seqlen_k);
  AttentionCall call;
  BiasCall& bias = call.bias;
  long long rows = c.query_rows ? c.seqlen_q : c.seqlen_k, columns = c.seqlen_k, first = 0, stride;
  if (c.packed) {
    constexpr int kChunk = 16 / sizeof(Element);
    stride = (c.seqlen_k + kChunk - 1) / kChunk * kChunk;
    first = 3 * kChunk;  // of the sequences before
    bias.num_columns = bias.head_stride = first + rows * stride;
  } else {
    if (c.too_small) rows = rows * 2 / 3, columns = columns * 2 / 3;
    stride = columns + c.padding;
    bias.row_stride = stride;
    bias.head_stride = rows * stride;
    bias.num_rows = rows;
    bias.num_columns = columns;
  }
  const long long elements = bias.head_stride + first + (rows > 0 ? (rows - 1) * stride + columns : 0);
  const Array<Element> values(static_cast<std::size_t>(elements), c.offset);
  for (long long n = 0; n < elements; ++n) {
    const float value = draw_value(c.masked);
    if constexpr (Float32) {
      values[static_cast<std::size_t>(n)] = value;
    } else {
      values[static_cast<std::size_t>(n)] = static_cast<unsigned short>(std::bit_cast<unsigned>(value) >> 16);
    }
  }
  bias.values = values.data();
  bias.packed = c.packed;
  bias.query_rows = c.query_rows;
  const auto whole_chunks = [](long long n) { return n * static_cast<long long>(sizeof(Element)) % 16 == 0; };
  bias.aligned = whole_chunks(c.offset) && whole_chunks(stride) && whole_chunks(bias.head_stride);

  const BiasRows lie = bias_rows(bias, work, work.head, first, sizeof(Element));
  const auto expected = [&](int i, int j) -> float {
    const long long row = c.query_rows ? i : i + c.seqlen_k - c.seqlen_q;
    if (i >= c.seqlen_q || row < 0 || row >= rows || j >= columns) return 0;
    const Element value = values[static_cast<std::size_t>(bias.head_stride + first + row * stride + j)];
    if constexpr (Float32) return value;
    return __uint_as_float(static_cast<unsigned>(value) << 16);
  };
  using Bias = RowsBias<ptx::Bfloat16, Float32, kWarps * WarpRows, TileColumns, WarpRows>;
  static_assert(Bias::kBytes <= sizeof(warp::shared));
  check_provider<TileColumns, WarpRows>(
      work, c.seqlen_q, c.seqlen_k, true, [&] { return Bias(call, work, lie, warp::shared); }, expected);
}

TEST(RowsBias, HandsOutEveryElementWhereverItsRowsBegin) {
  for (int n = 0; n < 12; ++n) {
    RowsCase c{};
    c.seqlen_k = draw(1, 200);
    c.seqlen_q = draw(1, c.seqlen_k + 20);
    c.packed = n % 3 == 0;
    c.query_rows = n % 2 == 1;
    c.too_small = n % 4 == 2;
    c.offset = n % 4 == 0 ? 0 : draw(0, 7);
    c.padding = n % 5 == 1 ? 0 : draw(0, 9);
    if (n % 4 == 0) c.padding = (8 - c.seqlen_k % 8) % 8;
    c.masked = n % 3 == 1 ? 0.01 : 0;
    SCOPED_TRACE(n);
    check_rows<false, 32, 32>(c);
    check_rows<false, 64, 32>(c);
    check_rows<true, 32, 16>(c);
  }
}

/// The backward pass's, started as a forward one.
template <int TileColumns, int WarpRows>
class ByKeyBias : public BucketedBias<TileColumns, WarpRows, true> {
 public:
  using Base = BucketedBias<TileColumns, WarpRows, true>;
  ByKeyBias(const AttentionCall& call, const Work& work, const BiasRows& rows, unsigned char* shared)
      : Base(call, work, rows, shared), offset_(work.mask.offset()) {}
  void start(int first_query) { Base::start(first_query + offset_, 1); }

 private:
  int offset_;
};

struct BucketedCase {
  int seqlen_q, seqlen_k;
  bool position, time, own_thresholds;
  long long span;  // largest step between neighbouring timestamps
  int num_times;
  double masked;
};

template <int TileColumns, int WarpRows>
void check_bucketed(const BucketedCase& c) {
  Work work = one_sequence(c.seqlen_q, c.seqlen_k);
  work.first_k = 3;
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  const int num_positions = draw(1, 150);
  const Array<float> position(size(2 * num_positions)), time(size(2 * c.num_times));
  for (int n = 0; n < 2 * num_positions; ++n) position[size(n)] = draw_value(c.masked);
  for (int n = 0; n < 2 * c.num_times; ++n) time[size(n)] = draw_value(c.masked);
  const Array<long long> timestamps(size(c.seqlen_k + 3)), thresholds(size(c.num_times - 1));
  long long now = 1'600'000'000;
  for (int n = 0; n < c.seqlen_k + 3; ++n) {  // they mostly increase
    now += std::uniform_int_distribution<long long>(-c.span / 8, c.span)(random_numbers);
    timestamps[size(n)] = now;
  }
  for (int n = 0; n + 1 < c.num_times; ++n) {
    thresholds[size(n)] = std::uniform_int_distribution<long long>(-2 * c.span, 40 * c.span)(random_numbers);
  }
  std::sort(thresholds.data(), thresholds.data() + c.num_times - 1);

  AttentionCall call;
  if (c.position) {
    call.bias.position = position.data();
    call.bias.num_positions = num_positions;
    call.bias.position_head_stride = num_positions;
  }
  if (c.time) {
    call.bias.time = time.data();
    call.bias.num_times = c.num_times;
    call.bias.time_head_stride = c.num_times;
    call.bias.timestamps = timestamps.data();
    if (c.own_thresholds) call.bias.thresholds = thresholds.data();
  }
  const auto expected = [&](int i, int j) {
    const int r = i + c.seqlen_k - c.seqlen_q;
    float value = c.position ? position[size(num_positions + std::clamp(r - j, 0, num_positions - 1))] : 0;
    if (c.time) {
      const long long d = std::abs(timestamps[size(3 + r)] - timestamps[size(3 + j)]);
      int bucket = 0;
      for (int n = 1; n < c.num_times; ++n) {
        bucket +=
            c.own_thresholds ? thresholds[size(n - 1)] <= d : std::ceil(std::exp(0.301 * n)) <= static_cast<double>(d);
      }
      value += time[size(c.num_times + bucket)];
    }
    return value;
  };
  using Bias = BucketedBias<TileColumns, WarpRows>;
  auto* staged = new (warp::shared) StagedTimes;
  for (unsigned warp = 0; warp < kWarps; ++warp) warp::run(warp, [&] { staged->fill(call, work.head); });
  check_provider<TileColumns, WarpRows>(
      work, c.seqlen_q, c.seqlen_k, false, [&] { return Bias(call, work, BiasRows{}, warp::shared); }, expected);
  // Keys along the rows, as in the backward pass.
  using ByKey = ByKeyBias<TileColumns, WarpRows>;
  check_provider<TileColumns, WarpRows>(
      work, c.seqlen_k, c.seqlen_q, false, [&] { return ByKey(call, work, BiasRows{}, warp::shared); },
      [&](int j, int i) { return expected(i, j); });
}

TEST(BucketedBias, FindsEveryElementsPositionAndBucket) {
  constexpr long long kSpans[] = {2, 100, 3600, 100'000, 3'600'000, 1'000'000'000'000};
  for (int n = 0; n < 14; ++n) {
    BucketedCase c{};
    c.seqlen_k = draw(1, 200);
    c.seqlen_q = draw(1, c.seqlen_k);
    c.position = n % 4 != 1;
    c.time = n % 4 != 2;
    c.own_thresholds = n % 3 == 0;
    c.span = kSpans[n % 6];
    c.num_times = n % 7 == 3 ? 400 : draw(1, 129);
    c.masked = n % 5 == 0 ? 0.05 : 0;
    SCOPED_TRACE(n);
    check_bucketed<32, 32>(c);
    check_bucketed<64, 32>(c);
    check_bucketed<32, 16>(c);
  }
}

TEST(PackedElementsBefore, AddUpToWhereASequenceBegins) {
  const std::vector<int> lengths = {0, 5, 5, 21, 40, 41};
  AttentionCall call;
  call.cu_seqlens_q = call.cu_seqlens_k = lengths.data();
  // For each type the sums up to every sequence, rows times pitch.
  const std::vector<long long> wide = {0, 5 * 8, 5 * 8, 5 * 8 + 16 * 16, 5 * 8 + 16 * 16 + 19 * 20};
  const std::vector<long long> narrow = {0, 5 * 8, 5 * 8, 5 * 8 + 16 * 16, 5 * 8 + 16 * 16 + 19 * 24};
  for (int sequence = 0; sequence < static_cast<int>(wide.size()); ++sequence) {
    long long found_wide = 0, found_narrow = 0;
    for (int thread = 0; thread < 3; ++thread) {
      found_wide += packed_elements_before(call, sequence, 4, thread, 3);
      found_narrow += packed_elements_before(call, sequence, 2, thread, 3);
    }
    EXPECT_EQ(found_wide, wide[static_cast<std::size_t>(sequence)]);
    EXPECT_EQ(found_narrow, narrow[static_cast<std::size_t>(sequence)]);
  }
}

}  // namespace
}  // namespace warploom
