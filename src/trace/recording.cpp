#include "trace/recording.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "problem/message.h"

namespace warploom::trace {
namespace {

constexpr unsigned kRings = kRingMask + 1;

template <typename T>
T read_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Numbers of a ring's fillings grow by small steps (or fall, by as little); the record keeps their low bits.
class Unwrapped {
 public:
  std::int64_t operator()(unsigned ring, unsigned low_bits) {
    constexpr std::int64_t kPeriod = std::int64_t{kNumberMask} + 1;
    std::int64_t& last = last_[ring];
    std::int64_t step = (static_cast<std::int64_t>(low_bits) - last) % kPeriod;
    if (step < -kPeriod / 2) step += kPeriod;
    if (step >= kPeriod / 2) step -= kPeriod;
    return last += step;
  }

 private:
  std::int64_t last_[kRings] = {};
};

struct StripReader {
  std::span<const std::byte> bytes;
  const Layout& layout;
  std::int64_t index;  ///< of the strip, over all CTAs
  Strip header;

  std::int64_t cta() const { return layout.first_cta + index / layout.strips; }

  Status wrong(const std::string& what) const {
    return Status::runtime_error(
        message("the trace's strip ", index % layout.strips, " of CTA ", cta(), " ", what,
                "; the kernel and this library are not of one version, or the kernel wrote past its memory"));
  }

  Status check_header() const {
    if (header.cta != cta()) return wrong(message("says CTA ", header.cta));
    if (header.end_ns == 0) return wrong("has no end");
    if (header.end_clock < header.start_clock || header.end_ns < header.start_ns) return wrong("ends before it begins");
    return {};
  }

  /// The samples, times from `origin` (a clock64 reading of the SM) on.
  Result<Track> read(std::uint64_t origin) const {
    Track track;
    track.strip = static_cast<int>(index % layout.strips);
    track.warp = header.warp;
    track.start = static_cast<Cycles>(header.start_clock - origin);
    track.end = static_cast<Cycles>(header.end_clock - origin);
    const std::int64_t stored = std::min<std::int64_t>(header.marks, layout.capacity);
    track.lost = static_cast<std::int64_t>(header.marks) - stored;
    track.samples.reserve(static_cast<std::size_t>(stored));
    Unwrapped number;
    std::uint64_t clock = header.start_clock;
    for (std::int64_t i = 0; i < stored; ++i) {
      const std::size_t at =
          layout.strip_bytes() + static_cast<std::size_t>(index * layout.capacity + i) * sizeof(Record);
      const Record record = read_at<Record>(bytes, at);
      const unsigned mark = record.what & kMarkMask, ring = record.what >> kRingShift & kRingMask;
      if (mark >= static_cast<unsigned>(kMarks)) return wrong(message("has mark ", mark, " in record ", i));
      clock += record.clock - static_cast<std::uint32_t>(clock);  // in 32 bits: the time since the last one
      if (clock > header.end_clock) return wrong(message("has a time after its end in record ", i));
      track.samples.push_back({static_cast<Cycles>(clock - origin), static_cast<Mark>(mark), static_cast<int>(ring),
                               number(ring, record.what >> kNumberShift)});
    }
    return track;
  }
};

}  // namespace

Result<Recording> decode(std::span<const std::byte> bytes, const Layout& layout) {
  if (layout.ctas < 0 || layout.strips < 1 || layout.capacity < 0 || bytes.size() != layout.bytes()) {
    return Status::invalid_value(message("a trace of ", layout.ctas, " CTAs with ", layout.strips, " strips of ",
                                         layout.capacity, " records takes ", layout.bytes(), " bytes, not ",
                                         bytes.size()));
  }
  Recording recording;
  std::uint64_t first_ns = std::numeric_limits<std::uint64_t>::max(), longest_ns = 0;
  for (std::int64_t cta = 0; cta < layout.ctas; ++cta) {
    std::vector<StripReader> strips;
    std::uint64_t origin = std::numeric_limits<std::uint64_t>::max();
    for (int strip = 0; strip < layout.strips; ++strip) {
      const std::int64_t index = cta * layout.strips + strip;
      const StripReader reader{bytes, layout, index,
                               read_at<Strip>(bytes, static_cast<std::size_t>(index) * sizeof(Strip))};
      if (reader.header.start_ns == 0) continue;
      if (Status status = reader.check_header(); !status.ok()) return status;
      origin = std::min<std::uint64_t>(origin, reader.header.start_clock);
      strips.push_back(reader);
    }
    if (strips.empty()) continue;
    CtaTrace& trace = recording.ctas.emplace_back();
    trace.cta = layout.first_cta + cta;
    trace.sm = strips.front().header.sm;
    std::uint64_t start_ns = std::numeric_limits<std::uint64_t>::max(), end_ns = 0;
    for (const StripReader& reader : strips) {
      Result<Track> track = reader.read(origin);
      if (!track.ok()) return track.status();
      recording.marks += static_cast<std::int64_t>(track->samples.size());
      recording.lost += track->lost;
      trace.tracks.push_back(std::move(*track));
      const Strip& header = reader.header;
      start_ns = std::min<std::uint64_t>(start_ns, header.start_ns);
      end_ns = std::max<std::uint64_t>(end_ns, header.end_ns);
      if (header.end_ns - header.start_ns > longest_ns) {
        longest_ns = header.end_ns - header.start_ns;
        recording.clock_ghz =
            static_cast<double>(header.end_clock - header.start_clock) / static_cast<double>(longest_ns);
      }
    }
    trace.start_ns = static_cast<std::int64_t>(start_ns);
    trace.end_ns = static_cast<std::int64_t>(end_ns);
    first_ns = std::min(first_ns, start_ns);
  }
  for (CtaTrace& trace : recording.ctas) {
    trace.start_ns -= static_cast<std::int64_t>(first_ns);
    trace.end_ns -= static_cast<std::int64_t>(first_ns);
  }
  return recording;
}

}  // namespace warploom::trace
