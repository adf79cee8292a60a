#include "expression/tokens.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <charconv>
#include <cstdlib>
#include <set>

#include "problem/message.h"

namespace warploom::expression {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/// Length of the number at the text's start, in C++'s form without hexadecimal digits; a suffix f is part of it.
std::size_t number_length(std::string_view text) {
  std::size_t n = 0;
  const auto digits = [&] {
    const std::size_t first = n;
    while (n < text.size() && is_digit(text[n])) ++n;
    return n > first;
  };
  bool some = digits();
  if (n < text.size() && text[n] == '.') {
    ++n;
    some |= digits();
  }
  if (!some) return 0;
  if (n < text.size() && (text[n] == 'e' || text[n] == 'E')) {
    const std::size_t mantissa = n++;
    if (n < text.size() && (text[n] == '+' || text[n] == '-')) ++n;
    if (!digits()) n = mantissa;
  }
  if (n < text.size() && (text[n] == 'f' || text[n] == 'F')) ++n;
  return n;
}

constexpr std::array<std::string_view, 11> kLongSigns = {"<=", ">=", "==", "!=", "&&", "||",
                                                         "**", "//", "::", "<<", ">>"};
constexpr std::string_view kSigns = "+-*/%()[],;?:<>=!^&|~.";

/// Bytes of a character that starts with this one.
std::size_t character_length(std::string_view text, std::size_t at) {
  std::size_t length = 1;
  while (at + length < text.size() && (static_cast<unsigned char>(text[at + length]) & 0xc0u) == 0x80u) ++length;
  return length;
}

struct Line {
  std::string_view text;
  std::size_t number;  ///< from 1
  std::size_t begin;   ///< in the whole text
};

Line line_at(std::string_view text, std::size_t place) {
  place = std::min(place, text.size());
  const std::size_t before = text.substr(0, place).rfind('\n');
  const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  const auto number =
      1 + static_cast<std::size_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
  return {text.substr(begin, text.find('\n', begin) - begin), number, begin};
}

/// The line as a terminal shows it: each character one column wide.
std::string shown(std::string_view line) {
  std::string result;
  for (const char c : line) result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  return result;
}

std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }));
}

}  // namespace

Result<std::vector<Token>> tokens_of(std::string_view what, std::string_view text) {
  std::vector<Token> tokens;
  std::size_t at = 0;
  while (true) {
    while (at < text.size() && is_space(text[at])) ++at;
    Token token;
    token.place = {at, 0};
    if (at == text.size()) {
      tokens.push_back(token);
      return tokens;
    }
    const std::string_view rest = text.substr(at);
    std::size_t length = 0;
    if (starts_name(text[at])) {
      token.kind = Token::Kind::name;
      while (length < rest.size() && (starts_name(rest[length]) || is_digit(rest[length]))) ++length;
    } else if (length = number_length(rest); length > 0) {
      token.kind = Token::Kind::number;
      // Not strtod: a program's locale may write numbers with a comma.
      const bool fits = std::from_chars(rest.data(), rest.data() + length, token.value).ec == std::errc();
      if (!fits || token.value > FLT_MAX) {
        return error_at(what, text, {at, length}, "a number that float32 does not hold");
      }
      if (length < rest.size() && starts_name(rest[length])) {
        return error_at(what, text, {at, length + 1}, "a number that runs into a name; write * between them");
      }
    } else {
      token.kind = Token::Kind::sign;
      for (const std::string_view sign : kLongSigns) {
        if (rest.starts_with(sign)) length = sign.size();
      }
      if (length == 0 && kSigns.find(text[at]) != std::string_view::npos) length = 1;
      if (length == 0) {
        return error_at(what, text, {at, character_length(text, at)}, "a character that no expression has");
      }
    }
    token.text = rest.substr(0, length);
    token.place.length = length;
    tokens.push_back(token);
    at += length;
  }
}

Status error_at(std::string_view what, std::string_view text, Place place, const std::string& problem) {
  const Line line = line_at(text, place.begin);
  const std::size_t first = std::min(place.begin - line.begin, line.text.size());
  const std::size_t length = std::min(place.length, line.text.size() - first);
  const std::string where =
      message("\n  line ", line.number, ", column ", columns(line.text.substr(0, first)) + 1, ":  ");
  std::string mark(where.size() - 1 + columns(line.text.substr(0, first)), ' ');
  const std::size_t marked = columns(line.text.substr(first, length));
  mark += '^' + std::string(marked > 1 ? marked - 1 : 0, '~');
  return Status::invalid_value(message(what, ": ", problem, where, shown(line.text), "\n", mark));
}

std::string with_user_lines(const std::string& log, std::string_view file, std::string_view text) {
  std::set<std::size_t> lines;
  for (std::size_t at = log.find(file); at != std::string::npos; at = log.find(file, at + 1)) {
    const std::size_t number = at + file.size() + 1;
    if (number < log.size() && (log[number - 1] == '(' || log[number - 1] == ':') && is_digit(log[number])) {
      lines.insert(static_cast<std::size_t>(std::strtoul(log.c_str() + number, nullptr, 10)));
    }
  }
  std::string result = log;
  std::size_t begin = 0;
  for (std::size_t number = 1; begin <= text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (lines.contains(number))
      result += message("\n  line ", number, " of ", file, ":  ", shown(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return result;
}

}  // namespace warploom::expression
