#include "memory.h"

namespace warploom::emulator {

void GlobalMemory::add(const void* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uint64_t>(memory);
  ranges_[begin] = begin + bytes;
}

void GlobalMemory::remove(const void* memory) {
  ranges_.erase(reinterpret_cast<std::uint64_t>(memory));
  last_begin_ = last_end_ = 0;
}

bool GlobalMemory::holds(std::uint64_t address, std::size_t bytes) {
  if (all_) return address >= 1 << 20;
  if (address >= last_begin_ && address + bytes <= last_end_) return true;
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return false;
  --after;
  if (address + bytes > after->second) return false;
  last_begin_ = after->first;
  last_end_ = after->second;
  return true;
}

GlobalMemory& global_memory() {
  static GlobalMemory memory;
  return memory;
}

}  // namespace warploom::emulator
