#include "cli/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdlib>

namespace warploom::cli {
namespace {

std::string three_digits(double value, const char* unit) {
  return format(value >= 100 ? "%.0f %s" : value >= 10 ? "%.1f %s" : "%.2f %s", value, unit);
}

}  // namespace

bool is_terminal(std::FILE* stream) {
  return isatty(fileno(stream)) == 1;
}

std::string paint(Colour colour, std::string_view text, std::FILE* stream) {
  static constexpr const char* codes[] = {"1", "2", "31", "32", "33", "34", "36"};
  const char* no_colour = std::getenv("NO_COLOR");
  if (!is_terminal(stream) || (no_colour != nullptr && *no_colour != '\0')) return std::string(text);
  return std::string("\x1b[") + codes[static_cast<int>(colour)] + "m" + std::string(text) + "\x1b[0m";
}

std::string bar(double share, int width, std::string_view pad) {
  static constexpr const char* eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * width * 8 + 0.5);
  std::string result;
  for (int i = 0; i < filled / 8; ++i) result += "█";
  result += eighths[filled % 8];
  for (int i = (filled + 7) / 8; i < width; ++i) result += pad;
  return result;
}

int display_width(std::string_view text) {
  int width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {  // not a continuation byte
      ++width;
    }
  }
  return width;
}

std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                  int left_columns) {
  std::vector<int> widths;
  for (const std::string& cell : header) widths.push_back(display_width(cell));
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], display_width(row[c]));

  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string pad(static_cast<std::size_t>(widths[c] - display_width(cells[c])), ' ');
      const bool left = static_cast<int>(c) < left_columns;
      text += (c == 0 ? "" : "  ") + (left ? cells[c] + pad : pad + cells[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string head = line(header);
  head.pop_back();
  std::string text = paint(Colour::bold, head) + "\n";
  for (const auto& row : rows) text += line(row);
  return text;
}

std::string with_commas(long long value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) digits.insert(i -= 3, ",");
  return digits;
}

std::string bytes(double count) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; count >= 1024 && unit < 4; ++unit) count /= 1024;
  return unit == 0 ? format("%.0f B", count) : three_digits(count, units[unit]);
}

std::string duration(double milliseconds) {
  if (milliseconds >= 1000) return three_digits(milliseconds / 1000, "s");
  if (milliseconds >= 1) return three_digits(milliseconds, "ms");
  return three_digits(milliseconds * 1000, "us");
}

std::string flop_rate(double flops_per_second) {
  if (flops_per_second >= 1e12) return three_digits(flops_per_second * 1e-12, "TFLOP/s");
  return three_digits(flops_per_second * 1e-9, "GFLOP/s");
}

std::string format(const char* pattern, ...) {
  std::va_list arguments, copy;
  va_start(arguments, pattern);
  va_copy(copy, arguments);
  const int length = std::vsnprintf(nullptr, 0, pattern, copy);
  va_end(copy);
  std::string text(static_cast<std::size_t>(std::max(length, 0)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace warploom::cli
