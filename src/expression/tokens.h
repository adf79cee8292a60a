// The words of an expression, and messages that mark one of them in the user's text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "warploom/status.h"

namespace warploom::expression {

/// Bytes [begin, begin + length) of the text.
struct Place {
  std::size_t begin = 0, length = 0;
};

struct Token {
  enum class Kind { number, name, sign, end };
  Kind kind = Kind::end;
  std::string_view text;  ///< of the user's text
  double value = 0;       ///< of a number
  Place place;
};

/// The last token is `end`. Errors: invalid_value for a character or number that is none of the language's.
/// `what`: the argument's name for messages.
Result<std::vector<Token>> tokens_of(std::string_view what, std::string_view text);

/// An error at a place:
///
///     score: unknown function sigmod; did you mean sigmoid?
///       line 1, column 5:  z * sigmod(z)
///                              ^~~~~~
Status error_at(std::string_view what, std::string_view text, Place place, const std::string& problem);

/// A compiler's log with the lines of the user's text that it names (as `file(LINE)` or `file:LINE`) shown beside it.
std::string with_user_lines(const std::string& log, std::string_view file, std::string_view text);

}  // namespace warploom::expression
