#include "sim/rows.h"

namespace warploom::sim {
namespace {

__extension__ using Wide = __int128;  // 2 * width * cycles may exceed 64 bits

}  // namespace

std::string sample_row(const std::vector<Interval>& intervals, Cycles until, int width) {
  std::string row(static_cast<std::size_t>(width), '.');
  std::size_t next = 0;
  for (int c = 0; c < width; ++c) {
    const Wide middle = Wide{2 * c + 1} * until;
    while (next < intervals.size() && Wide{2 * width} * intervals[next].end <= middle) ++next;
    if (next < intervals.size() && Wide{2 * width} * intervals[next].start <= middle)
      row[static_cast<std::size_t>(c)] = intervals[next].tag;
  }
  return row;
}

std::string run_lengths(const std::string& row) {
  std::string text;
  for (std::size_t i = 0; i < row.size();) {
    std::size_t end = row.find_first_not_of(row[i], i);
    if (end == std::string::npos) end = row.size();
    if (!text.empty()) text += ' ';
    text += std::to_string(end - i);
    text += row[i];
    i = end;
  }
  return text;
}

std::string drawn(const std::string& row) {
  std::string text;
  for (const char c : row) {
    if (c == '.')
      text += "·";
    else
      text += c;
  }
  return text;
}

Status validate_window(Cycles until, std::int64_t width) {
  if (until < 1 || until > (Cycles{1} << 48))
    return Status::invalid_value("until = " + std::to_string(until) + " must lie in [1, 2^48] cycles");
  if (width < 1 || width > 10000)
    return Status::invalid_value("width = " + std::to_string(width) + " must lie in [1, 10000] characters");
  return {};
}

}  // namespace warploom::sim
