#include "cli/numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "warploom/warploom.h"

namespace warploom::cli {
namespace {

std::uint16_t to_bfloat16(double value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

double from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

std::uint16_t to_float16(double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7E00;
  if (magnitude >= 65520) return sign | 0x7C00;  // halfway to the first number past 65504 rounds to infinity
  // The spacing of float16 around the value: 2^-24 for subnormals, else 2^(exponent - 10).
  const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
  const double steps = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  // Steps of 1024 and more carry the implicit one; a rounding up to 2048 carries over into the exponent by itself.
  const int code = (exponent + 14) * 1024 + static_cast<int>(steps);
  return static_cast<std::uint16_t>(sign | code);
}

double from_float16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  double magnitude = std::ldexp(exponent == 0 ? fraction : 1024 + fraction, (exponent == 0 ? 1 : exponent) - 25);
  if (exponent == 31) magnitude = fraction == 0 ? INFINITY : NAN;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// OCP FP8 E4M3: no infinities; what is larger than 448 becomes NaN.
std::uint8_t to_float8(double value) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
  const double magnitude = std::fabs(value);
  if (!(magnitude < 1024)) return sign | 0x7F;
  // As in float16: steps of 2^-9 for subnormals, else of 2^(exponent - 3).
  const int exponent = magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
  const int code = (exponent + 6) * 8 + static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  return static_cast<std::uint8_t>(sign | std::min(code, 0x7F));
}

double from_float8(std::uint8_t bits) {
  const int exponent = (bits >> 3) & 15, fraction = bits & 7;
  if ((bits & 0x7F) == 0x7F) return NAN;
  const double magnitude = std::ldexp(exponent == 0 ? fraction : 8 + fraction, (exponent == 0 ? 1 : exponent) - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

}  // namespace

double load(const void* data, std::uint32_t dtype, std::int64_t index) {
  if (dtype == WARPLOOM_FLOAT32) return static_cast<const float*>(data)[index];
  if (dtype == WARPLOOM_FLOAT8_E4M3) return from_float8(static_cast<const std::uint8_t*>(data)[index]);
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[index];
  return dtype == WARPLOOM_FLOAT16 ? from_float16(bits) : from_bfloat16(bits);
}

void store(void* data, std::uint32_t dtype, std::int64_t index, double value) {
  if (dtype == WARPLOOM_FLOAT32) {
    static_cast<float*>(data)[index] = static_cast<float>(value);
  } else if (dtype == WARPLOOM_FLOAT8_E4M3) {
    static_cast<std::uint8_t*>(data)[index] = to_float8(value);
  } else {
    static_cast<std::uint16_t*>(data)[index] = dtype == WARPLOOM_FLOAT16 ? to_float16(value) : to_bfloat16(value);
  }
}

double round_to(std::uint32_t dtype, double value) {
  alignas(4) unsigned char space[4];
  store(space, dtype, 0, value);
  return load(space, dtype, 0);
}

double unit_roundoff(std::uint32_t dtype) {
  switch (dtype) {
    case WARPLOOM_FLOAT32:
      return 0x1p-24;
    case WARPLOOM_FLOAT16:
      return 0x1p-11;
    case WARPLOOM_FLOAT8_E4M3:
      return 0x1p-4;
    default:
      return 0x1p-8;
  }
}

int bytes_per_element(std::uint32_t dtype) {
  return dtype == WARPLOOM_FLOAT32 ? 4 : dtype == WARPLOOM_FLOAT8_E4M3 ? 1 : 2;
}

const char* type_name(std::uint32_t dtype) {
  switch (dtype) {
    case WARPLOOM_FLOAT32:
      return "fp32";
    case WARPLOOM_FLOAT16:
      return "fp16";
    case WARPLOOM_FLOAT8_E4M3:
      return "fp8";
    default:
      return "bf16";
  }
}

}  // namespace warploom::cli
