// The name of a GPU architecture as compilers spell it: sm_80, sm_90a.
#pragma once

#include <string>
#include <string_view>

#include "warploom/status.h"

namespace warploom::gpu {

/// A real (SASS) architecture. `specific` is the `a` of sm_90a: code for exactly this chip, with wgmma and setmaxnreg.
struct Architecture {
  int major = 8;
  int minor = 0;
  bool specific = false;

  friend bool operator==(const Architecture&, const Architecture&) = default;
};

/// "sm_80", "sm_90a".
std::string to_string(const Architecture& architecture);

/// Reads "sm_80", "sm_90a", "sm_120". Error: invalid_value, naming the text and the form.
Result<Architecture> parse_architecture(std::string_view text);

}  // namespace warploom::gpu
