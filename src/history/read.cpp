#include "history/read.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace warploom::history {
namespace {

/// Text from the file for a message: control characters escaped, long text cut.
std::string shown(std::string_view text) {
  constexpr std::size_t longest = 40;
  std::string result = "\"";
  for (const char c : text.substr(0, longest)) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) {
      result += c;
    } else {
      char code[5];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(c));
      result += code;
    }
  }
  return result + (text.size() > longest ? "...\"" : "\"");
}

/// Splits a line into fields; returns what is wrong with it, or nothing.
std::string split(std::string_view line, char separator, std::vector<std::string>& fields) {
  fields.clear();
  if (line.find('\0') != std::string_view::npos)
    return "the line holds a NUL byte; the file is damaged or not a text file";
  const bool quoting = separator == ',';
  std::size_t at = 0;
  while (true) {
    std::string field;
    if (quoting && at < line.size() && line[at] == '"') {
      for (++at;; ++at) {
        if (at >= line.size()) return "a quoted field does not end on its line; close it with a quote";
        if (line[at] != '"') {
          field += line[at];
        } else if (at + 1 < line.size() && line[at + 1] == '"') {
          field += line[++at];
        } else {
          ++at;
          break;
        }
      }
      if (at < line.size() && line[at] != separator)
        return "text follows a closing quote; write a quote inside a field as \"\"";
    } else {
      const std::size_t end = std::min(line.find(separator, at), line.size());
      field = line.substr(at, end - at);
      at = end;
    }
    fields.push_back(std::move(field));
    if (at >= line.size()) return {};
    ++at;  // the separator
  }
}

/// Takes the next line off the text, without its end of line.
std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

struct Columns {
  char separator = ',';
  std::size_t count = 0;
  std::size_t user = 0, item = 0, time = 0;
};

/// Finds one column; returns what is wrong, or nothing.
std::string find_column(const std::vector<std::string>& names, const std::string& wanted, const char* option,
                        std::size_t& index) {
  const auto found = std::find(names.begin(), names.end(), wanted);
  if (found == names.end()) {
    std::string known;
    for (const std::string& name : names) known += (known.empty() ? "" : ", ") + shown(name);
    return "no column is named " + shown(wanted) + "; the header has " + known + "; name the column with " + option;
  }
  if (std::find(found + 1, names.end(), wanted) != names.end())
    return "two columns are named " + shown(wanted) + "; rename one";
  index = static_cast<std::size_t>(found - names.begin());
  return {};
}

std::string read_header(std::string_view line, const ReadOptions& options, Columns& columns) {
  if (line.empty()) return "the header line is empty; name the columns, e.g. user_id,item_id,timestamp";
  columns.separator = line.find('\t') != std::string_view::npos ? '\t' : ',';
  std::vector<std::string> names;
  if (std::string wrong = split(line, columns.separator, names); !wrong.empty()) return wrong;
  for (std::string& name : names) name = name.substr(0, name.find(':'));
  columns.count = names.size();
  if (std::string wrong = find_column(names, options.user_column, "--user-column", columns.user); !wrong.empty())
    return wrong;
  if (std::string wrong = find_column(names, options.item_column, "--item-column", columns.item); !wrong.empty())
    return wrong;
  return find_column(names, options.time_column, "--time-column", columns.time);
}

std::string read_timestamp(const std::string& text, std::int64_t& timestamp) {
  const std::string what = "timestamp " + shown(text);
  // Half of int64's range, so that the difference of two timestamps always fits.
  constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max() / 2;
  const std::string too_large = what + " is out of range; use seconds since 1970";
  const char* const end = text.data() + text.size();
  const auto whole = std::from_chars(text.data(), end, timestamp);
  if (whole.ptr == end && whole.ec == std::errc::result_out_of_range) return too_large;
  if (whole.ptr != end || whole.ec != std::errc()) {
    double value = 0;
    const auto fraction = std::from_chars(text.data(), end, value);
    if (fraction.ptr != end || fraction.ec == std::errc::invalid_argument || std::isnan(value)) {
      return what + " is not a number; use seconds since 1970";
    }
    if (fraction.ec == std::errc::result_out_of_range || std::fabs(value) > static_cast<double>(limit) / 2)
      return too_large;
    timestamp = static_cast<std::int64_t>(std::floor(value));
  }
  if (timestamp > limit || timestamp < -limit) return too_large;
  return {};
}

/// Numbers texts from 0 by first appearance.
class Numbering {
 public:
  std::int32_t number(const std::string& id) {
    const auto [at, added] = numbers_.try_emplace(id, static_cast<std::int32_t>(ids_.size()));
    if (added) ids_.push_back(id);
    return at->second;
  }
  std::vector<std::string> take_ids() { return std::move(ids_); }
  std::size_t size() const { return ids_.size(); }

 private:
  std::unordered_map<std::string, std::int32_t> numbers_;
  std::vector<std::string> ids_;
};

class Reader {
 public:
  explicit Reader(Columns columns) : columns_(columns) {}

  /// Takes one line; returns what is wrong with it, or nothing.
  std::string take(std::string_view line) {
    if (static_cast<std::int64_t>(line.size()) > max_line_bytes) {
      return "the line has " + std::to_string(line.size()) + " bytes; the limit is " + std::to_string(max_line_bytes);
    }
    if (std::string wrong = split(line, columns_.separator, fields_); !wrong.empty()) return wrong;
    if (fields_.size() != columns_.count) {
      return "the line has " + std::to_string(fields_.size()) + " fields where the header has " +
             std::to_string(columns_.count);
    }
    const std::string& user = fields_[columns_.user];
    const std::string& item = fields_[columns_.item];
    if (user.empty()) return "the user id is empty";
    if (item.empty()) return "the item id is empty";
    std::int64_t timestamp = 0;
    if (std::string wrong = read_timestamp(fields_[columns_.time], timestamp); !wrong.empty()) return wrong;
    events_.push_back({users_.number(user), items_.number(item), timestamp});
    return {};
  }

  std::int64_t count() const { return static_cast<std::int64_t>(events_.size()); }
  Histories histories() { return group_by_user(events_, users_.take_ids(), static_cast<std::int64_t>(items_.size())); }

 private:
  Columns columns_;
  std::vector<std::string> fields_;
  std::vector<Event> events_;
  Numbering users_, items_;
};

}  // namespace

Result<ReadResult> read_histories(std::string_view text, const std::string& name, const ReadOptions& options) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (text.substr(0, byte_order_mark.size()) == byte_order_mark) text.remove_prefix(byte_order_mark.size());
  if (text.empty()) {
    return Status::runtime_error(name + ": the file is empty; it needs a header line and one event a line");
  }
  const auto at_line = [&](std::int64_t line, const std::string& wrong) {
    return name + ":" + std::to_string(line) + ": " + wrong;
  };

  Columns columns;
  if (std::string wrong = read_header(next_line(text), options, columns); !wrong.empty()) {
    return Status::runtime_error(at_line(1, wrong));
  }
  Reader reader(columns);
  ReadResult result;
  for (std::int64_t number = 2; !text.empty(); ++number) {
    const std::string_view line = next_line(text);
    if (line.empty()) continue;
    const std::string wrong = reader.take(line);
    if (wrong.empty()) continue;
    if (!options.skip_broken)
      return Status::runtime_error(at_line(number, wrong) + " (--skip-broken leaves such lines out)");
    if (result.broken_lines++ == 0) result.first_broken = at_line(number, wrong);
  }
  result.lines = reader.count();
  result.histories = reader.histories();
  return result;
}

Result<ReadResult> read_history_file(const std::string& path, const ReadOptions& options) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return Status::runtime_error(path + ": this is a folder; name a file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) return Status::runtime_error(path + ": cannot be opened: " + std::strerror(errno));
  std::string text;
  std::vector<char> block(std::size_t{1} << 20);
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), file.get()))
    text.append(block.data(), count);
  if (std::ferror(file.get()) != 0) return Status::runtime_error(path + ": cannot be read: " + std::strerror(errno));
  return read_histories(text, path, options);
}

}  // namespace warploom::history
