// Buffers read back: several SMs, clocks and numbers that wrap around, full strips, broken memory.
#include "trace/recording.h"

#include <gtest/gtest.h>

#include <string>

#include "buffer.h"

namespace warploom::trace {
namespace {

TEST(Recording, TimesCountFromTheFirstWarpOfTheCta) {
  Buffer buffer({.ctas = 1, .strips = 2, .capacity = 4});
  buffer.put(0, 0, strip(1000, 70, 400, 5, 0), {{1010, Mark::wait_empty, 0, 3}, {1050, Mark::load, 0, 3}});
  buffer.put(0, 1, strip(1020, 80, 500, 5, 4), {{1100, Mark::product, 1, 2}});
  const Result<Recording> recording = buffer.decoded();
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  ASSERT_EQ(recording->ctas.size(), 1u);
  const CtaTrace& cta = recording->ctas[0];
  EXPECT_EQ(cta.sm, 5);
  EXPECT_EQ(cta.start_ns, 0);
  EXPECT_EQ(cta.end_ns, 80 + 250 - 70);
  ASSERT_EQ(cta.tracks.size(), 2u);
  EXPECT_EQ(cta.tracks[0].start, 0);
  EXPECT_EQ(cta.tracks[0].end, 400);
  EXPECT_EQ(cta.tracks[1].start, 20);
  EXPECT_EQ(cta.tracks[1].end, 520);
  EXPECT_EQ(cta.tracks[1].warp, 4);
  ASSERT_EQ(cta.tracks[0].samples.size(), 2u);
  EXPECT_EQ(cta.tracks[0].samples[0].time, 10);
  EXPECT_EQ(cta.tracks[0].samples[1].time, 50);
  EXPECT_EQ(cta.tracks[0].samples[1].mark, Mark::load);
  EXPECT_EQ(cta.tracks[1].samples[0].ring, 1);
  EXPECT_EQ(cta.tracks[1].samples[0].number, 2);
  EXPECT_EQ(recording->marks, 3);
  EXPECT_EQ(recording->lost, 0);
  EXPECT_DOUBLE_EQ(recording->clock_ghz, 2.0);
}

TEST(Recording, SmsHaveClocksOfTheirOwnAndOneTimer) {
  Buffer buffer({.ctas = 3, .strips = 1, .capacity = 2});
  buffer.put(0, 0, strip(9'000'000'000, 500, 100, 17), {{9'000'000'010, Mark::turn}});
  buffer.put(2, 0, strip(40, 300, 100, 3), {{45, Mark::turn}});  // CTA 1 never came
  const Result<Recording> recording = buffer.decoded();
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  ASSERT_EQ(recording->ctas.size(), 2u);
  EXPECT_EQ(recording->ctas[0].cta, 0);
  EXPECT_EQ(recording->ctas[0].sm, 17);
  EXPECT_EQ(recording->ctas[0].start_ns, 200);
  EXPECT_EQ(recording->ctas[0].tracks[0].samples[0].time, 10);
  EXPECT_EQ(recording->ctas[1].cta, 2);
  EXPECT_EQ(recording->ctas[1].start_ns, 0);
  EXPECT_EQ(recording->ctas[1].tracks[0].samples[0].time, 5);
}

TEST(Recording, SomeCtasOfALaunchMayRecord) {
  const Layout layout{.ctas = 2, .strips = 1, .capacity = 2, .first_cta = 130};
  Buffer buffer(layout);
  Strip late = strip(40, 300, 100, 3);
  buffer.put(0, 0, late, {{45, Mark::turn}});
  buffer.put(1, 0, late, {{46, Mark::turn}});
  for (const std::int64_t cta : {0, 1}) {  // a warp writes the number that it has in the launch
    late.cta = static_cast<unsigned>(130 + cta);
    late.marks = 1;
    std::memcpy(buffer.bytes().data() + cta * sizeof late, &late, sizeof late);
  }
  const Result<Recording> recording = buffer.decoded();
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  ASSERT_EQ(recording->ctas.size(), 2u);
  EXPECT_EQ(recording->ctas[0].cta, 130);
  EXPECT_EQ(recording->ctas[1].cta, 131);
  EXPECT_EQ(recording->ctas[1].tracks[0].samples[0].time, 6);
}

TEST(Recording, TheClocksLowHalfMayWrapAroundBetweenMarks) {
  const std::uint64_t before = (7ull << 32) - 100;
  Buffer buffer({.ctas = 1, .strips = 1, .capacity = 4});
  buffer.put(0, 0, strip(before, 1, 5'000'000'000),
             {{before + 60, Mark::turn}, {before + 160, Mark::epilogue}, {before + 4'294'967'000, Mark::idle}});
  const Result<Recording> recording = buffer.decoded();
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  const std::vector<Sample>& samples = recording->ctas[0].tracks[0].samples;
  EXPECT_EQ(samples[0].time, 60);
  EXPECT_EQ(samples[1].time, 160);
  EXPECT_EQ(samples[2].time, 4'294'967'000);
}

TEST(Recording, NumbersCountOnWhereTheirBitsWrapAround) {
  Buffer buffer({.ctas = 1, .strips = 1, .capacity = 8});
  std::vector<Made> marks;
  std::uint64_t clock = 10;
  // A consumer waits for filling n, and then for the product that read n - 1; two rings side by side.
  for (unsigned n = kNumberMask - 1; n != kNumberMask + 2; ++n) {
    marks.push_back({clock += 10, Mark::wait_full, 0, n});
    marks.push_back({clock += 10, Mark::wait_product, 0, n - 1});
  }
  marks.push_back({clock += 10, Mark::product, 1, 7});
  buffer.put(0, 0, strip(0, 1, 1000), marks);
  const Result<Recording> recording = buffer.decoded();
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  const std::vector<Sample>& samples = recording->ctas[0].tracks[0].samples;
  ASSERT_EQ(samples.size(), 7u);
  // The first one's upper bits are unknown: from there on differences are right.
  const std::int64_t first = samples[0].number;
  const std::int64_t expected[] = {0, -1, 1, 0, 2, 1};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(samples[i].number - first, expected[i]) << i;
  EXPECT_EQ(samples[6].number, 7);
}

TEST(Recording, AFullStripKeepsTheFirstMarksAndCountsTheOthers) {
  Buffer buffer({.ctas = 1, .strips = 2, .capacity = 3});
  std::vector<Made> marks;
  for (unsigned i = 0; i < 10; ++i) marks.push_back({100 + i, Mark::product, 0, i});
  buffer.put(0, 0, strip(0, 1, 1000), marks);
  buffer.put(0, 1, strip(0, 1, 1000), {{50, Mark::turn}});
  const Result<Recording> recording = buffer.decoded();
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  EXPECT_EQ(recording->lost, 7);
  EXPECT_EQ(recording->marks, 4);
  EXPECT_EQ(recording->ctas[0].tracks[0].lost, 7);
  EXPECT_EQ(recording->ctas[0].tracks[0].samples.size(), 3u);
  EXPECT_EQ(recording->ctas[0].tracks[0].samples.back().number, 2);
  EXPECT_EQ(recording->ctas[0].tracks[1].samples.size(), 1u);  // its neighbour's room is its own
}

TEST(Recording, NothingRecordedIsAnEmptyRecording) {
  const Result<Recording> recording = Buffer({.ctas = 2, .strips = 3, .capacity = 1}).decoded();
  ASSERT_TRUE(recording.ok());
  EXPECT_TRUE(recording->ctas.empty());
  EXPECT_EQ(recording->clock_ghz, 0);
}

std::string refusal(const Buffer& buffer) {
  const Result<Recording> recording = buffer.decoded();
  EXPECT_FALSE(recording.ok());
  return recording.status().message();
}

TEST(Recording, BrokenMemoryIsNamedNotDrawn) {
  const Layout layout{.ctas = 2, .strips = 1, .capacity = 2};
  {
    Buffer buffer(layout);
    buffer.put(1, 0, strip(0, 1, 100), {{10, static_cast<Mark>(kMarks)}});
    EXPECT_NE(refusal(buffer).find("strip 0 of CTA 1 has mark 12 in record 0"), std::string::npos);
  }
  {
    Buffer buffer(layout);
    buffer.put(0, 0, strip(0, 1, 100), {{10, Mark::turn}, {101, Mark::turn}});
    EXPECT_NE(refusal(buffer).find("time after its end in record 1"), std::string::npos);
  }
  {
    Buffer buffer(layout);
    Strip never_ended = strip(5, 1, 100);
    never_ended.end_ns = 0;
    buffer.put(0, 0, never_ended, {});
    EXPECT_NE(refusal(buffer).find("has no end"), std::string::npos);
  }
  {
    Buffer buffer(layout);
    Strip backwards = strip(50, 1, 100);
    backwards.end_clock = 49;
    buffer.put(0, 0, backwards, {});
    EXPECT_NE(refusal(buffer).find("ends before it begins"), std::string::npos);
  }
  {
    Buffer buffer(layout);
    buffer.put(0, 0, strip(0, 1, 100), {});
    Strip moved = strip(0, 1, 100);
    moved.cta = 0;
    std::memcpy(buffer.bytes().data() + sizeof(Strip), &moved, sizeof moved);
    EXPECT_NE(refusal(buffer).find("says CTA 0"), std::string::npos);
  }
  {
    Buffer buffer(layout);
    buffer.bytes().pop_back();
    EXPECT_NE(refusal(buffer).find("takes 128 bytes, not 127"), std::string::npos);
  }
}

}  // namespace
}  // namespace warploom::trace
