// What the commands print with: colour where it is wanted, bars and tables of Unicode text.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace warploom::cli {

bool is_terminal(std::FILE* stream);

enum class Colour { bold, dim, red, green, yellow, blue, cyan };

/// The text in that colour when the stream is a terminal and NO_COLOR (no-color.org) is not set; else as it is.
std::string paint(Colour colour, std::string_view text, std::FILE* stream = stdout);

/// A horizontal bar of `width` columns, filled by `share` (clamped to 0..1) in steps of an eighth of a column and
/// padded with `pad`.
std::string bar(double share, int width, std::string_view pad = "░");

/// Columns that a terminal uses for UTF-8 text without wide or combining characters; colour codes count as nothing.
int display_width(std::string_view text);

/// A table under a bold header: the first `left_columns` columns are aligned to the left, numbers after them to the
/// right. Every row has as many cells as the header.
std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                  int left_columns = 1);

/// "1,234,567"
std::string with_commas(long long value);
/// "12.3 MiB"
std::string bytes(double count);
/// "1.23 s", "45.6 ms", "7.8 us": three digits in the unit that suits.
std::string duration(double milliseconds);
/// "1.23 TFLOP/s", "45.6 GFLOP/s"
std::string flop_rate(double flops_per_second);
/// printf into a string.
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

}  // namespace warploom::cli
