// Errors as values: a code, and a message that names the argument, its value, the rule and the remedy.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace warploom {

/// The numbers are those of warploom.h (WARPLOOM_OK ...); Python maps them to exceptions.
enum class StatusCode : int {
  ok = 0,
  invalid_value = 1,  ///< ValueError: a value or a shape breaks a rule
  invalid_type = 2,   ///< TypeError: a dtype or a kind of argument is not taken
  runtime_error = 3,  ///< RuntimeError: device, driver, compiler, memory
};

/// Success, or a code with a message.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status invalid_value(std::string message) { return {StatusCode::invalid_value, std::move(message)}; }
  static Status invalid_type(std::string message) { return {StatusCode::invalid_type, std::move(message)}; }
  static Status runtime_error(std::string message) { return {StatusCode::runtime_error, std::move(message)}; }

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

/// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : held_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(held_); }
  /// The error; an ok Status when there is a value.
  Status status() const { return ok() ? Status() : std::get<Status>(held_); }
  T& value() & { return std::get<T>(held_); }
  const T& value() const& { return std::get<T>(held_); }
  T&& value() && { return std::get<T>(std::move(held_)); }
  T* operator->() { return &std::get<T>(held_); }
  const T* operator->() const { return &std::get<T>(held_); }
  T& operator*() { return std::get<T>(held_); }
  const T& operator*() const { return std::get<T>(held_); }

 private:
  std::variant<T, Status> held_;
};

}  // namespace warploom
