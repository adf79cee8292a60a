// Reading histories from interaction files: one event a line, columns named in a header.
//
// Two forms are taken, told apart by the header line:
//   .inter  tab separated, no quoting; a column may carry its type after a colon, as RecBole writes it
//           (`user_id:token  item_id:token  rating:float  timestamp:float`)
//   CSV     comma separated; a field may be quoted as in RFC 4180 ("" is a quote), but must end on its line
// Lines end in LF or CRLF, the last one in either or nothing; a UTF-8 byte order mark is skipped; empty lines are
// skipped. User and item ids are any text. Timestamps are numbers, negative ones (before 1970) included; fractions of a
// second are cut off. Other columns are not looked at.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "history/history.h"
#include "warploom/status.h"

namespace warploom::history {

struct ReadOptions {
  /// Names in the header, without the `:type` behind them.
  std::string user_column = "user_id";
  std::string item_column = "item_id";
  std::string time_column = "timestamp";
  /// Leave broken lines out and count them instead of stopping at the first.
  bool skip_broken = false;
};

struct ReadResult {
  Histories histories;
  std::int64_t lines = 0;         ///< events read
  std::int64_t broken_lines = 0;  ///< left out with skip_broken
  std::string first_broken;       ///< "file:line: reason" of the first of them
};

/// Longest line taken, in bytes; anything longer is no interaction file.
inline constexpr std::int64_t max_line_bytes = 1 << 20;

/// Reads the text of a file; `name` stands for it in messages. Errors (runtime_error): "name:line: what is wrong; what
/// would work". A file with only a header has no users.
Result<ReadResult> read_histories(std::string_view text, const std::string& name, const ReadOptions& options = {});

/// The same from a file on disk.
Result<ReadResult> read_history_file(const std::string& path, const ReadOptions& options = {});

}  // namespace warploom::history
