#include "gpu/architecture.h"

#include <charconv>

namespace warploom::gpu {

std::string to_string(const Architecture& architecture) {
  return "sm_" + std::to_string(architecture.major * 10 + architecture.minor) + (architecture.specific ? "a" : "");
}

Result<Architecture> parse_architecture(std::string_view text) {
  std::string_view digits = text;
  Architecture architecture;
  const bool prefixed = digits.starts_with("sm_");
  if (prefixed) digits.remove_prefix(3);
  if (digits.ends_with('a')) {
    architecture.specific = true;
    digits.remove_suffix(1);
  }
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (!prefixed || error != std::errc() || end != digits.data() + digits.size() || number < 10 || number > 999) {
    return Status::invalid_value("architecture = \"" + std::string(text) +
                                 "\" is not the name of a GPU architecture; pass one like sm_80 or sm_90a");
  }
  architecture.major = number / 10;
  architecture.minor = number % 10;
  return architecture;
}

}  // namespace warploom::gpu
