// One element of a tensor as a double: reading, writing and rounding to the 16-bit types and FP8.
#pragma once

#include <cstdint>

namespace warploom::cli {

/// Element `index` of an array of a WARPLOOM_* dtype.
double load(const void* data, std::uint32_t dtype, std::int64_t index);
/// Writes it, rounded to nearest even.
void store(void* data, std::uint32_t dtype, std::int64_t index, double value);
/// The value after a trip through the type.
double round_to(std::uint32_t dtype, double value);
/// Half a unit in the last place of 1: the largest relative error of one rounding.
double unit_roundoff(std::uint32_t dtype);

int bytes_per_element(std::uint32_t dtype);
const char* type_name(std::uint32_t dtype);

}  // namespace warploom::cli
