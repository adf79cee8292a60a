// A tensor map as the emulated driver encodes it and TMA instructions read it; it takes the place of CUtensorMap.
#pragma once

#include <array>
#include <cstdint>

namespace warploom::emulator {

struct TensorMap {
  std::uint64_t address = 0;
  std::array<std::uint64_t, 4> strides = {};  ///< bytes, of the dimensions after the first
  std::array<std::uint32_t, 5> dims = {};     ///< elements; 0 stands for 2^32
  std::array<std::uint16_t, 5> box = {};      ///< elements
  std::uint8_t rank = 0;
  std::uint8_t element_type = 0;  ///< CUtensorMapDataType
  std::uint8_t swizzle = 0;       ///< CUtensorMapSwizzle: 0 none, 1, 2, 3 for 32, 64, 128 bytes
  std::uint32_t mark = 0;         ///< kTensorMapMark
};
static_assert(sizeof(TensorMap) <= 128);
inline constexpr std::uint32_t kTensorMapMark = 0x7E450A9u;

}  // namespace warploom::emulator
