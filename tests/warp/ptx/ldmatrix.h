// kernels/ptx/ldmatrix.h on the host (warp.h; PTX ISA, "ldmatrix").
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

inline void ldmatrix_x4(uint32 (&r)[4], uint32 address) {
  warp::require(address % 16 == 0);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned block = 0; block < 4; ++block) {
    r[block] = warp::exchange(address, [&](auto get) {
      uint32 pair;
      std::memcpy(&pair, warp::shared + get(8 * block + lane / 4) + lane % 4 * 4, sizeof pair);
      return pair;
    });
  }
}

inline void ldmatrix_x4_trans(uint32 (&r)[4], uint32 address) {
  warp::require(address % 16 == 0);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned block = 0; block < 4; ++block) {
    r[block] = warp::exchange(address, [&](auto get) {
      uint32 pair = 0;
      for (unsigned row = 0; row < 2; ++row) {
        unsigned short value;
        std::memcpy(&value, warp::shared + get(8 * block + lane % 4 * 2 + row) + lane / 4 * 2, sizeof value);
        pair |= static_cast<uint32>(value) << (16 * row);
      }
      return pair;
    });
  }
}

}  // namespace warploom::ptx
