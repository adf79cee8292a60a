// A trace buffer as a kernel would leave it, written by hand.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "trace/recording.h"

namespace warploom::trace {

/// A mark at a time, in cycles of the SM's clock from 0 on (the buffer keeps the low half).
struct Made {
  std::uint64_t clock;
  Mark mark;
  int ring = 0;
  unsigned number = 0;
};

class Buffer {
 public:
  explicit Buffer(Layout layout) : layout_(layout), bytes_(layout.bytes()) {}

  /// What the warp of a strip writes: as many marks as there is room for, and their count.
  void put(std::int64_t cta, int strip, Strip header, const std::vector<Made>& marks) {
    const std::size_t index = static_cast<std::size_t>(cta * layout_.strips + strip);
    header.cta = static_cast<unsigned>(cta);
    header.marks = static_cast<unsigned>(marks.size());
    std::memcpy(bytes_.data() + index * sizeof(Strip), &header, sizeof header);
    for (std::size_t i = 0; i < marks.size() && i < static_cast<std::size_t>(layout_.capacity); ++i) {
      const Record record{static_cast<unsigned>(marks[i].clock), marks[i].number << 12 |
                                                                     static_cast<unsigned>(marks[i].ring) << 8 |
                                                                     static_cast<unsigned>(marks[i].mark)};
      const std::size_t at = index * static_cast<std::size_t>(layout_.capacity) + i;
      std::memcpy(bytes_.data() + layout_.strip_bytes() + at * sizeof record, &record, sizeof record);
    }
  }

  std::vector<std::byte>& bytes() { return bytes_; }
  const Layout& layout() const { return layout_; }
  Result<Recording> decoded() const { return decode(bytes_, layout_); }

 private:
  Layout layout_;
  std::vector<std::byte> bytes_;
};

/// A strip that began at `start_clock` and `start_ns` and took `cycles`, at 2 cycles a nanosecond.
inline Strip strip(std::uint64_t start_clock, std::uint64_t start_ns, std::uint64_t cycles, unsigned sm = 0,
                   unsigned warp = 0) {
  return {start_clock, start_ns, start_clock + cycles, start_ns + cycles / 2, 0, sm, 0, warp};
}

}  // namespace warploom::trace
