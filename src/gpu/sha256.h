// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace warploom::gpu {

using Digest = std::array<std::uint8_t, 32>;

/// A running hash: add pieces, then finish once.
class Sha256 {
 public:
  void add(std::string_view bytes);
  Digest finish();

 private:
  void take_block(const std::uint8_t* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> pending_{};
  std::size_t pending_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

Digest sha256(std::string_view bytes);

/// Lower-case hexadecimal, 64 characters.
std::string to_hex(const Digest& digest);

}  // namespace warploom::gpu
