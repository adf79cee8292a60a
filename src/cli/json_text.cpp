#include "cli/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/terminal.h"

namespace warploom::cli {
namespace {

/// cache_directory -> "cache directory"
std::string words(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string scalar(const Json& value) {
  if (value.is_null() || value == "") return paint(Colour::dim, "none");
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_float()) return format("%.4g", value.get<double>());
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

bool is_scalar(const Json& value) {
  return !value.is_structured();
}

bool is_list(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_scalar);
}

std::string list(const Json& value) {
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : ", ") + scalar(item);
  return text.empty() ? paint(Colour::dim, "none") : text;
}

/// Flat objects with the same names can stand in a table; long text (a reason, a path) can't.
bool is_table(const Json& value) {
  if (!value.is_array() || value.empty() || !value.front().is_object()) return false;
  int width = 0;
  for (const auto& [name, cell] : value.front().items()) {
    if (!is_scalar(cell)) return false;
    int column = display_width(name);
    for (const Json& row : value) {
      if (!row.is_object() || row.size() != value.front().size() || !row.contains(name) || !is_scalar(row[name]))
        return false;
      column = std::max(column, display_width(scalar(row[name])));
    }
    width += column + 2;
  }
  return width <= 100;
}

std::string indented(const std::string& text, const std::string& indent) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    result += indent + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return result;
}

std::string as_table(const Json& value) {
  std::vector<std::string> header;
  for (const auto& [name, cell] : value.front().items()) header.push_back(words(name));
  std::vector<std::vector<std::string>> rows;
  for (const Json& item : value) {
    rows.emplace_back();
    for (const auto& [name, cell] : value.front().items()) rows.back().push_back(scalar(item[name]));
  }
  return table(header, rows, static_cast<int>(header.size()));
}

std::string object(const Json& value) {
  int width = 0;
  for (const auto& [name, item] : value.items())
    if (is_scalar(item) || is_list(item)) width = std::max(width, display_width(words(name)));
  std::string text;
  for (const auto& [name, item] : value.items()) {
    if (is_scalar(item) || is_list(item)) {
      const std::string label = words(name);
      const std::string pad(static_cast<std::size_t>(width - display_width(label) + 2), ' ');
      text += paint(Colour::dim, label) + pad + (is_scalar(item) ? scalar(item) : list(item)) + "\n";
    } else {
      text += paint(Colour::bold, words(name)) + "\n" + indented(json_text(item), "  ");
    }
  }
  return text;
}

}  // namespace

std::string json_text(const Json& value) {
  if (value.is_object()) return object(value);
  if (is_scalar(value)) return scalar(value) + "\n";
  if (is_list(value)) return list(value) + "\n";
  if (is_table(value)) return as_table(value);
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : "\n") + json_text(item);
  return text;
}

}  // namespace warploom::cli
