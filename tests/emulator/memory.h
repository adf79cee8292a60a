// Global memory as the emulated GPU sees it: the ranges that may be touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace warploom::emulator {

class GlobalMemory {
 public:
  /// [memory, memory + bytes) may be read and written.
  void add(const void* memory, std::size_t bytes);
  void remove(const void* memory);
  /// Whether all of [address, address + bytes) lies in one of the ranges.
  bool holds(std::uint64_t address, std::size_t bytes);
  /// From now on all of the process's memory may be touched (but for the first megabyte: null pointers).
  void open_all() { all_ = true; }

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // begin -> end
  std::uint64_t last_begin_ = 0;                   // the range that was asked for last
  std::uint64_t last_end_ = 0;
  bool all_ = false;
};

/// The process's; used by one thread at a time (the emulated driver holds one lock).
GlobalMemory& global_memory();

}  // namespace warploom::emulator
