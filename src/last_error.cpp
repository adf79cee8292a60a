#include "last_error.h"

namespace warploom {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace warploom
