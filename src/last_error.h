// The calling thread's last error, and the wrapper that every function of the C ABI runs in.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "warploom/status.h"

namespace warploom {

/// The message that warploom_last_error() returns; "" after a success.
std::string& last_error();

/// Runs `body` (returning Status), keeps its message, and lets no exception out. Returns the status code.
template <typename Body>
int guarded(Body body) noexcept {
  Status status;
  try {
    status = body();
    last_error() = status.message();
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::runtime_error, std::string());
    last_error() = "out of memory";  // short enough to need no allocation
  } catch (const std::exception& error) {
    status = Status(StatusCode::runtime_error, std::string());
    last_error() = error.what();
  }
  return static_cast<int>(status.code());
}

}  // namespace warploom
