// The back end's small parts: conversions, time buckets, row intervals, the plan.
#include <limits>

#include "cpu/kernels.h"
#include "cpu/row_intervals.h"
#include "cpu/time_buckets.h"
#include "problem.h"

namespace test {
namespace {

using warploom::cpu::Kernels;
using warploom::cpu::RowIntervals;
using warploom::cpu::TimeBuckets;
using warploom::geometry::Interval;
using warploom::geometry::TileKind;

class ConversionTest : public testing::TestWithParam<const Kernels*> {};

TEST_P(ConversionTest, Every16BitValueIsReadAndWrittenExactly) {
  for (const uint32_t dtype : {WARPLOOM_FLOAT16, WARPLOOM_BFLOAT16}) {
    std::vector<uint16_t> bits(65536), back(65536);
    for (size_t x = 0; x < bits.size(); ++x) bits[x] = static_cast<uint16_t>(x);
    std::vector<float> values(65536 + 16);
    GetParam()->load_values(bits.data(), dtype, 65536, values.data());
    GetParam()->store_values(values.data(), 65536, dtype, back.data());
    for (size_t x = 0; x < bits.size(); ++x) {
      const double expected = reference::element_16(bits[x], dtype);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(values[x])) << x;
        ASSERT_TRUE(std::isnan(reference::element_16(back[x], dtype))) << x;
      } else {
        ASSERT_EQ(values[x], expected) << x;
        ASSERT_EQ(back[x], bits[x]) << x;
      }
    }
  }
}

TEST_P(ConversionTest, Every8BitValueIsReadExactly) {
  for (const int64_t count : {256, 255, 241, 17, 3}) {  // whole vectors and tails
    std::vector<uint8_t> bits(static_cast<size_t>(count));
    for (size_t x = 0; x < bits.size(); ++x) bits[x] = static_cast<uint8_t>(255 - x);
    std::vector<float> values(bits.size() + 16);
    GetParam()->load_values(bits.data(), WARPLOOM_FLOAT8_E4M3, count, values.data());
    for (size_t x = 0; x < bits.size(); ++x) {
      const double expected = reference::element_8(bits[x]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(values[x])) << x;
      } else {
        ASSERT_EQ(values[x], expected) << x;
        ASSERT_EQ(std::signbit(values[x]), std::signbit(expected)) << x;
      }
    }
  }
}

TEST_P(ConversionTest, RoundsToNearestEven) {
  std::mt19937 random(1);
  for (const uint32_t dtype : {WARPLOOM_FLOAT16, WARPLOOM_BFLOAT16}) {
    std::vector<float> values;
    for (int n = 0; n < 3000; ++n) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    for (int n = 0; n < 3000; ++n) {  // in float16's range, ties and their neighbours among them
      const uint32_t low[] = {0, 0x1000, 0x0fff, 0x1001, 0x8000, 0x7fff, 0x8001, 0x3000};
      values.push_back(std::bit_cast<float>(
          static_cast<uint32_t>((random() & 0x87ff0000u) + 0x38000000u - (random() % 14 << 23)) | low[random() % 8]));
    }
    std::vector<uint16_t> got(values.size());
    GetParam()->store_values(values.data(), static_cast<int64_t>(values.size()), dtype, got.data());
    for (size_t x = 0; x < values.size(); ++x) {
      if (std::isnan(values[x])) {
        ASSERT_TRUE(std::isnan(reference::element_16(got[x], dtype)));
      } else {
        ASSERT_EQ(got[x], to_16_bits(values[x], dtype)) << values[x];
      }
    }
  }
}

std::vector<const Kernels*> targets() {
  const Kernels* found[8];
  const int count = warploom::cpu::supported_targets(found, 8);
  return {found, found + count};
}
INSTANTIATE_TEST_SUITE_P(Targets, ConversionTest, testing::ValuesIn(targets()),
                         [](const auto& target) { return std::string(target.param->name); });

TEST(TimeBucketsTest, CountsTheThresholdsThatTheDistanceReaches) {
  std::mt19937_64 random(2);
  for (int n = 0; n < 60; ++n) {
    std::vector<int64_t> thresholds;
    const int64_t entries = 1 + static_cast<int64_t>(random() % 200);
    for (int64_t x = 1; x < entries; ++x) {
      thresholds.push_back(static_cast<int64_t>(random() >> (1 + random() % 63)) - (random() % 20 == 0 ? 100 : 0));
    }
    std::sort(thresholds.begin(), thresholds.end());
    TimeBuckets buckets;
    buckets.build(n == 0 ? nullptr : thresholds.data(), n == 0 ? 200 : entries);
    if (n == 0) {
      thresholds.clear();
      for (int x = 1; x < 146; ++x) thresholds.push_back(static_cast<int64_t>(std::ceil(std::exp(0.301 * x))));
    }
    const auto expected = [&](uint64_t d) {
      int count = 0;
      for (const int64_t t : thresholds) count += t <= 0 || static_cast<uint64_t>(t) <= d ? 1 : 0;
      return count;
    };
    for (int tries = 0; tries < 300; ++tries) {
      uint64_t d = random() >> (2 + random() % 62);
      if (tries % 3 == 0 && !thresholds.empty())
        d = static_cast<uint64_t>(std::max<int64_t>(0, thresholds[random() % thresholds.size()])) - tries % 2;
      if (n == 0 && d >= uint64_t{1} << 62) continue;
      ASSERT_EQ(buckets.bucket(d), expected(d)) << d;
    }
  }
  EXPECT_EQ(TimeBuckets::distance(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()),
            ~uint64_t{0});
}

TEST(TimeBucketsTest, TimestampsAtTheEndsOfTheirType) {
  std::mt19937 random(3);
  Problem p;
  p.lengths_q = {130};
  p.call.head_dim = p.call.value_dim = 8;
  p.allocate(random);
  p.add_bucketed_bias(random, 0, false, 160, true, [](std::mt19937& r, int64_t now) {
    const int64_t ends[] = {std::numeric_limits<int64_t>::min(),
                            std::numeric_limits<int64_t>::max(),
                            0,
                            now,
                            now / 2,
                            int64_t{1} << 31,
                            (int64_t{1} << 30) - 1};
    return ends[r() % 7];
  });
  p.run(true);
  check(p, true);
}

TEST(RowIntervalsTest, ClassifyAndHullAgreeWithThePredicate) {
  std::mt19937 random(4);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  for (int n = 0; n < 300; ++n) {
    Problem p;
    p.lengths_q = {1 + pick(60)};
    const auto length = static_cast<int>(p.lengths_q[0]);
    p.call.right = pick(2) == 0 ? 0 : WARPLOOM_UNBOUNDED;
    if (pick(2) == 0) p.call.left = pick(20);
    if (p.call.right == 0 && pick(2) == 0) {
      p.targets = {pick(length + 1)};
      p.call.target_group_size = 1 + pick(3);
    }
    p.allocate(random);
    if (pick(3) == 0) {
      p.call.left = p.call.right = WARPLOOM_UNBOUNDED;
      p.call.num_targets = nullptr;
      p.call.interval_heads = 1;
      p.call.num_intervals = pick(5);
      p.intervals.resize(static_cast<size_t>(length * p.call.num_intervals * 2) + 1);
      for (size_t x = 0; x + 1 < p.intervals.size(); x += 2)
        p.intervals[x] = pick(length), p.intervals[x + 1] = p.intervals[x] + pick(20);
      p.call.intervals = p.intervals.data();
    }
    const reference::Lengths l = reference::lengths(p.call, 0);
    RowIntervals seen;
    seen.build(p.call, warploom::sequence_at(p.call, 0), 0, 0, length);
    const auto sees = [&](int i, int j) { return reference::visible(p.call, l, 0, 0, i, j); };
    for (int tries = 0; tries < 10; ++tries) {
      const int row = pick(length), column = pick(length);
      const Interval rows = {row, row + 1 + pick(length - row)}, columns = {column, column + 1 + pick(length - column)};
      int count = 0, first = length, last = -1;
      for (int i = rows.begin; i < rows.end; ++i) {
        for (int j = columns.begin; j < columns.end; ++j) {
          if (sees(i, j)) ++count, first = std::min(first, j), last = std::max(last, j);
        }
      }
      const int all = (rows.end - rows.begin) * (columns.end - columns.begin);
      ASSERT_EQ(seen.classify(rows, columns), count == 0     ? TileKind::empty
                                              : count == all ? TileKind::full
                                                             : TileKind::partial);
      if (count == 0) continue;
      ASSERT_EQ(seen.hull(rows, columns).begin, first);
      ASSERT_EQ(seen.hull(rows, columns).end, last + 1);
    }
    int next = warploom::geometry::kUnbounded, before = -1;
    const int limit = pick(length + 1);
    for (int i = 0; i < length; ++i) {
      for (int j = 0; j < length; ++j) {
        if (sees(i, j) && j >= limit) next = std::min(next, j);
        if (sees(i, j) && j < limit) before = std::max(before, j);
      }
    }
    ASSERT_EQ(seen.next_column(limit), next);
    ASSERT_EQ(seen.last_column_before(limit), before);
  }
}

TEST(PlanTest, ScratchDoesNotGrowWithTheSquareOfTheLength) {
  const auto scratch = [](int64_t length, uint32_t pass) {
    Problem p;
    p.call.pass = pass;
    p.lengths_q = {length, length};
    p.cu_q = {0, length, 2 * length};
    p.call.batch = 2;
    p.call.total_q = p.call.total_k = 2 * length;
    p.call.cu_seqlens_q = p.cu_q.data();
    p.call.cu_seqlens_q_dtype = WARPLOOM_INT64;
    p.call.heads = p.call.key_heads = 4;
    p.call.head_dim = p.call.value_dim = 64;
    p.call.num_threads = 2;
    const warploom::cpu::Plan plan = warploom::cpu::make_plan(p.call);
    return 2 * plan.thread_scratch * sizeof(float) + plan.shared_scratch;
  };
  for (const uint32_t pass : {WARPLOOM_FORWARD, WARPLOOM_BACKWARD}) {
    EXPECT_LT(scratch(100000, pass), size_t{8} << 20);
    EXPECT_LT(scratch(200000, pass), 2.1 * static_cast<double>(scratch(100000, pass)));
  }
}

TEST(PlanTest, ExplainIsJson) {
  std::mt19937 random(5);
  Problem p;
  p.lengths_q = {100};
  p.allocate(random);
  const std::string text = warploom::cpu::explain(p.call);
  EXPECT_EQ(text.front(), '{');
  EXPECT_EQ(text.back(), '}');
  EXPECT_NE(text.find("\"scratch_bytes\""), std::string::npos);
  EXPECT_NE(text.find("\"instruction_set\": \"" + warploom::cpu::instruction_set()), std::string::npos);
}

}  // namespace
}  // namespace test
