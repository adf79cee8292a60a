// kernels/ptx/shared_memory.h on the host (warp.h): copies happen at once.
#pragma once

#include "ptx/types.h"

namespace warploom::ptx {

inline uint32 shared_address(const void* pointer) {
  return static_cast<uint32>(static_cast<const unsigned char*>(pointer) - warp::shared);
}

inline void cp_async_16_part(uint32 shared, const void* global, int bytes) {
  warp::require(shared % 16 == 0 && reinterpret_cast<std::uintptr_t>(global) % 16 == 0 && 0 <= bytes && bytes <= 16);
  std::memset(warp::shared + shared, 0, 16);
  if (bytes > 0) std::memcpy(warp::shared + shared, global, static_cast<std::size_t>(bytes));
}
inline void cp_async_16(uint32 shared, const void* global, bool valid) {
  cp_async_16_part(shared, global, valid ? 16 : 0);
}
template <int Bytes>
void cp_async_small(uint32 shared, const void* global) {
  warp::require(shared % Bytes == 0 && reinterpret_cast<std::uintptr_t>(global) % Bytes == 0);
  std::memcpy(warp::shared + shared, global, Bytes);
}
inline void cp_async_commit_group() {}
template <int Newest>
void cp_async_wait_group() {}

template <typename T>
void store_shared(uint32 address, T value) {
  warp::require(address % sizeof value == 0);
  std::memcpy(warp::shared + address, &value, sizeof value);
}
inline void store_shared_2(uint32 address, unsigned short value) {
  store_shared(address, value);
}
inline void store_shared_4(uint32 address, uint32 value) {
  store_shared(address, value);
}
inline void store_shared_16(uint32 address, uint4 value) {
  store_shared(address, value);
}
template <typename T>
T load_shared(uint32 address) {
  T value;
  warp::require(address % sizeof value == 0);
  std::memcpy(&value, warp::shared + address, sizeof value);
  return value;
}
inline uint32 load_shared_2(uint32 address) {
  return load_shared<unsigned short>(address);
}
inline uint32 load_shared_4(uint32 address) {
  return load_shared<uint32>(address);
}
inline uint4 load_shared_16(uint32 address) {
  return load_shared<uint4>(address);
}

}  // namespace warploom::ptx
