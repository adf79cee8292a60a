// kernels/attention/bias_bucketed_gradient.h, a warp at a time: dS summed by bucket and along diagonals, with
// timestamps that lie in one bucket, in two or three, and in many, against sums element by element.
#include <gtest/gtest.h>

#include <map>
#include <new>
#include <vector>

#include "attention/bias_bucketed_gradient.h"
#include "bias_arrays.h"

namespace warploom {
namespace {

constexpr int kColumns = 64, kRows = 16;

/// Small integers, so that every sum is exact whatever its order.
float ds_of(int i, int j) {
  return static_cast<float>((i * 5 + j * 11) % 17 - 8);
}

void check(int num_times, long long span, bool own_thresholds, int first_time, int count) {
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  constexpr int kLength = 3 * kColumns;
  Work work = one_sequence(kLength, kLength);
  const Array<float> time(size(2 * num_times));
  const Array<long long> timestamps(size(kLength)), thresholds(size(num_times - 1));
  for (int n = 0; n < 2 * num_times; ++n) time[size(n)] = draw_value(0);
  long long now = 1'600'000'000;
  for (int n = 0; n < kLength; ++n) {
    now += std::uniform_int_distribution<long long>(-span / 8, span)(random_numbers);
    timestamps[size(n)] = now;
  }
  for (int n = 0; n + 1 < num_times; ++n) thresholds[size(n)] = (n + 1) * span * 2;
  AttentionCall call;
  call.bias.time = time.data();
  call.bias.num_times = num_times;
  call.bias.time_head_stride = num_times;
  call.bias.timestamps = timestamps.data();
  if (own_thresholds) call.bias.thresholds = thresholds.data();
  const TimeBuckets buckets = TimeBuckets::of(call.bias);

  using Provider = BucketedGradient<kColumns, kRows>;
  auto* staged = new (warp::shared) StagedTimes;
  for (unsigned warp = 0; warp < 4; ++warp) warp::run(warp, [&] { staged->fill(call, work.head); });
  // Two pieces apart, as in the kernel.
  auto* const pieces = reinterpret_cast<float*>(warp::shared + 32 * 1024);
  const LaneSums lanes{pieces, 1000};
  std::vector<float> sums(size(count), 0.0f), expected(size(count), 0.0f);
  DiagonalSums<kColumns> diagonals[32];
  for (auto& lane : diagonals) lane.clear();
  std::map<int, float> expected_diagonals;
  for (const int first_row : {0, 32, 128}) {
    work.first_row = first_row;
    for (const int first_column : {0, 64, 128}) {
      warp::run(0, [&] {
        Provider bias(call, work, BiasRows{}, warp::shared);
        bias.start(first_column);
        bias.wait<1>();
        const int lane = static_cast<int>(threadIdx.x % 32);
        float ds[1][kColumns / 8][4];
        bias.for_each<1>([&](int, int n, int e, float) {
          ds[0][n][e] = ds_of(first_row + e / 2 * 8 + lane / 4, first_column + n * 8 + lane % 4 * 2 + e % 2);
        });
        diagonals[lane].add(ds);
        bias.add_times(ds, sums.data(), lanes, first_time, count);
      });
      for (int i = first_row; i < first_row + kRows; ++i) {
        for (int j = first_column; j < first_column + kColumns; ++j) {
          const int at = buckets.bucket(TimeBuckets::distance(timestamps[size(i)], timestamps[size(j)])) - first_time;
          if (at >= 0 && at < count) expected[size(at)] += ds_of(i, j);
          expected_diagonals[15 - (i - first_row) + (j - first_column)] += ds_of(i, j);
        }
      }
    }
  }
  EXPECT_EQ(sums, expected);
  warp::run(0, [&] { diagonals[threadIdx.x % 32].put(pieces); });
  for (int x = -3; x < DiagonalSums<kColumns>::kDiagonals + 3; ++x) {
    EXPECT_EQ(DiagonalSums<kColumns>::diagonal(pieces, x), expected_diagonals.contains(x) ? expected_diagonals[x] : 0)
        << x;
  }
}

TEST(BucketedGradient, SumsByBucketAndAlongDiagonals) {
  for (const long long span : {0ll, 3ll, 3600ll, 1'000'000'000'000ll}) {
    SCOPED_TRACE(span);
    check(100, span, false, 0, 100);
    check(129, span, true, 0, 129);
    check(60, span, false, 20, 25);  // a pass over a part of the table
  }
  check(400, 100, true, 256, 144);  // too large to be staged
  check(1, 100, false, 0, 1);
}

}  // namespace
}  // namespace warploom
