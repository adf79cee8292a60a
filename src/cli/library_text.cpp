#include "cli/library_text.h"

#include <nlohmann/json.hpp>

#include "warploom/attention.h"

namespace warploom::cli {

Result<Json> library_json(int (*function)(char** text)) {
  char* text = nullptr;
  if (const Status status = detail::status_of(function(&text)); !status.ok()) return status;
  const std::string copy(text);
  warploom_free(text);
  return parse_library_json(copy);
}

Result<Json> parse_library_json(const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return Status::runtime_error("the library answered with text that is not JSON: " + text);
  return value;
}

}  // namespace warploom::cli
