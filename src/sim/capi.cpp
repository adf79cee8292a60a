#include <cstdlib>
#include <cstring>

#include "last_error.h"
#include "sim/answer.h"
#include "warploom/simulate.h"

extern "C" int warploom_simulate(const char* request_json, char** response) {
  return warploom::guarded([&]() -> warploom::Status {
    if (response == nullptr) return warploom::Status::invalid_value("response = null must point to a char*");
    *response = nullptr;
    if (request_json == nullptr) return warploom::Status::invalid_value("request_json = null must be JSON text");
    const warploom::Result<std::string> text = warploom::sim::answer(request_json);
    if (!text.ok()) return text.status();
    *response = static_cast<char*>(std::malloc(text->size() + 1));  // warploom_free is free()
    if (*response == nullptr) throw std::bad_alloc();
    std::memcpy(*response, text->c_str(), text->size() + 1);
    return {};
  });
}
