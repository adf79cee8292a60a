// Builds error messages from pieces.
#pragma once

#include <sstream>
#include <string>

namespace warploom {

/// message("left = ", -1, " is negative") and the like.
template <typename... Pieces>
std::string message(const Pieces&... pieces) {
  std::ostringstream text;
  (text << ... << pieces);
  return text.str();
}

}  // namespace warploom
