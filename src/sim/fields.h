// The fields of a JSON request.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "sim/json.h"
#include "sim/parameters.h"

namespace warploom::sim {

/// Reads fields of a request by name; the first that is wrong is kept, and so are those that nobody asked for.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  std::string text(const char* name, const std::string& fallback = {}) {
    const Json* value = find(name);
    if (value != nullptr && !value->is_string()) refuse_type(name, *value, "text");
    return value != nullptr && value->is_string() ? value->get<std::string>() : fallback;
  }
  std::int64_t whole(const char* name, std::int64_t fallback) {
    const Json* value = find(name);
    if (value != nullptr && !value->is_number_integer()) refuse_type(name, *value, "a whole number");
    return value != nullptr && value->is_number_integer() ? value->get<std::int64_t>() : fallback;
  }
  double number(const char* name, double fallback) {
    const Json* value = find(name);
    if (value != nullptr && !value->is_number()) refuse_type(name, *value, "a number");
    return value != nullptr && value->is_number() ? value->get<double>() : fallback;
  }
  bool flag(const char* name, bool fallback = false) {
    const Json* value = find(name);
    if (value != nullptr && !value->is_boolean()) refuse_type(name, *value, "true or false");
    return value != nullptr && value->is_boolean() ? value->get<bool>() : fallback;
  }
  std::vector<std::int64_t> list(const char* name, std::vector<std::int64_t> fallback) {
    const Json* value = find(name);
    if (value == nullptr) return fallback;
    const bool numbers = value->is_array() &&
                         std::all_of(value->begin(), value->end(), [](const Json& v) { return v.is_number_integer(); });
    if (!numbers) refuse_type(name, *value, "an array of whole numbers");
    return numbers ? value->get<std::vector<std::int64_t>>() : fallback;
  }
  // {"latency": 700, "scheme": "sync"} as settings.
  Settings settings(const char* name) {
    Settings list;
    const Json* value = find(name);
    if (value == nullptr) return list;
    if (!value->is_object()) {
      refuse_type(name, *value, "an object of names and values");
      return list;
    }
    for (const auto& item : value->items()) {
      const Json& entry = item.value();
      if (entry.is_structured() || entry.is_null()) refuse_type(item.key(), entry, "a number or a word");
      list.emplace_back(item.key(), entry.is_string() ? entry.get<std::string>() : entry.dump());
    }
    return list;
  }
  const Json* find(const char* name) {
    known_.emplace_back(name);
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  // What is wrong with the fields that were read, or a field that was not.
  Status status() const {
    if (!status_.ok()) return status_;
    for (const auto& item : json_.items())
      if (std::find(known_.begin(), known_.end(), item.key()) == known_.end())
        return Status::invalid_value("'" + item.key() + "' is not a field of this request");
    return {};
  }

 private:
  void refuse_type(const std::string& name, const Json& value, const char* wanted) {
    if (status_.ok()) status_ = Status::invalid_type(name + " = " + value.dump() + " must be " + wanted);
  }

  const Json& json_;
  std::vector<std::string> known_ = {"what"};
  Status status_;
};

}  // namespace warploom::sim
