// What a traced launch left in its buffer, read back: marks in order of time, one track a warp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/trace_records.h"
#include "sim/model.h"
#include "warploom/status.h"

namespace warploom::trace {

using sim::Cycles;

/// How a launch's buffer is laid out: `strips` strips of each CTA one after the other, then `capacity` records of each.
struct Layout {
  std::int64_t ctas = 0;  ///< that record, from first_cta on
  int strips = 0;         ///< of a CTA
  std::int64_t capacity = 0;
  std::int64_t first_cta = 0;

  std::size_t strip_bytes() const { return static_cast<std::size_t>(ctas * strips) * sizeof(Strip); }
  std::size_t bytes() const {
    return strip_bytes() + static_cast<std::size_t>(ctas * strips * capacity) * sizeof(Record);
  }
};

/// From `time` on the warp did `mark`, until its next sample or its end.
struct Sample {
  Cycles time = 0;
  Mark mark = Mark::idle;
  int ring = 0;
  std::int64_t number = 0;  ///< counted on where the record's bits wrapped around
};

/// One warp. Times are cycles of its SM's clock from the first mark of its CTA on.
struct Track {
  int strip = 0;  ///< which role (Subject::roles)
  std::int64_t warp = 0;
  Cycles start = 0, end = 0;
  std::int64_t lost = 0;  ///< marks that found the strip full: the last ones
  std::vector<Sample> samples;
};

/// One CTA's warps that came, in the order of their strips.
struct CtaTrace {
  std::int64_t cta = 0, sm = 0;
  std::int64_t start_ns = 0, end_ns = 0;  ///< by the GPU's timer, from the launch's first CTA on
  std::vector<Track> tracks;
};

struct Recording {
  std::vector<CtaTrace> ctas;  ///< those that recorded, by number
  double clock_ghz = 0;        ///< SM cycles a nanosecond, over the longest track; 0 when nothing was recorded
  std::int64_t marks = 0;      ///< stored
  std::int64_t lost = 0;
};

/// Reads a buffer. Errors: runtime_error for one that is no such buffer (a mark or a strip that does not exist, an end
/// before its beginning), naming strip and record; that means a kernel wrote past its memory, or another version's.
Result<Recording> decode(std::span<const std::byte> bytes, const Layout& layout);

}  // namespace warploom::trace
