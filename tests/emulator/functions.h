// What arithmetic instructions compute of values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "operands.h"

namespace warploom::emulator {

// Integers wrap around: computed without a sign.
#define WARPLOOM_WRAPPING(name, symbol)                                                                 \
  struct name {                                                                                         \
    template <typename T>                                                                               \
    T operator()(T a, T b) const {                                                                      \
      if constexpr (std::is_integral_v<T>) {                                                            \
        using Unsigned = std::make_unsigned_t<T>;                                                       \
        return static_cast<T>(                                                                          \
            static_cast<Unsigned>(static_cast<std::uint64_t>(a) symbol static_cast<std::uint64_t>(b))); \
      } else {                                                                                          \
        return a symbol b;                                                                              \
      }                                                                                                 \
    }                                                                                                   \
  };
WARPLOOM_WRAPPING(Add, +)
WARPLOOM_WRAPPING(Subtract, -)
WARPLOOM_WRAPPING(Multiply, *)
#undef WARPLOOM_WRAPPING

struct Divide {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return static_cast<T>(-1);
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Subtract{}(T{0}, a);
    }
    return static_cast<T>(a / b);
  }
};
struct Remainder {
  template <typename T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Smaller {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
    return std::min(a, b);
  }
};
struct Larger {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
    return std::max(a, b);
  }
};
struct LargerOrNan {
  float operator()(float a, float b) const {
    return std::isnan(a) || std::isnan(b) ? std::numeric_limits<float>::quiet_NaN() : std::fmax(a, b);
  }
};
struct SmallerOrNan {
  float operator()(float a, float b) const {
    return std::isnan(a) || std::isnan(b) ? std::numeric_limits<float>::quiet_NaN() : std::fmin(a, b);
  }
};
/// PTX ISA, "copysign": b with the sign of a.
struct SignOf {
  template <typename T>
  T operator()(T a, T b) const {
    return std::copysign(b, a);
  }
};
struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <typename T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct NotPredicate {
  Predicate operator()(Predicate a) const { return a == 0; }
};
struct Negate {
  template <typename T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>) return -a;
    return Subtract{}(T{0}, a);
  }
};
struct Magnitude {
  template <typename T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(a);
    return a < 0 ? Subtract{}(T{0}, a) : a;
  }
};
struct Fused {
  template <typename T>
  T operator()(T a, T b, T c) const {
    if constexpr (std::is_floating_point_v<T>) return std::fma(a, b, c);
    return Add{}(Multiply{}(a, b), c);
  }
};
__extension__ typedef __int128 Signed128;
__extension__ typedef unsigned __int128 Unsigned128;
struct High {
  template <typename T>
  T operator()(T a, T b) const {
    using Wide = std::conditional_t<std::is_signed_v<T>, Signed128, Unsigned128>;
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b) >> (8 * sizeof(T)));
  }
};
#define WARPLOOM_FUNCTION(name, expression)  \
  struct name {                              \
    float operator()(float x) const {        \
      return static_cast<float>(expression); \
    }                                        \
  };
WARPLOOM_FUNCTION(Reciprocal, 1.0f / x)
WARPLOOM_FUNCTION(SquareRoot, std::sqrt(x))
WARPLOOM_FUNCTION(ReciprocalRoot, 1.0 / std::sqrt(static_cast<double>(x)))
WARPLOOM_FUNCTION(PowerOfTwo, std::exp2(static_cast<double>(x)))
WARPLOOM_FUNCTION(LogarithmOfTwo, std::log2(static_cast<double>(x)))
WARPLOOM_FUNCTION(Tanh, std::tanh(static_cast<double>(x)))
WARPLOOM_FUNCTION(Sine, std::sin(static_cast<double>(x)))
WARPLOOM_FUNCTION(Cosine, std::cos(static_cast<double>(x)))
#undef WARPLOOM_FUNCTION

}  // namespace warploom::emulator
