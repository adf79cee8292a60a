// Scratch memory of one thread: one aligned block that is kept between calls and grows when a call needs more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace warploom::cpu {

class Scratch {
 public:
  static constexpr size_t kAlignment = 64;

  /// Floats that `count` of them take from the block, alignment included.
  static constexpr size_t padded(size_t count) {
    return (count + kAlignment / sizeof(float) - 1) / (kAlignment / sizeof(float)) * (kAlignment / sizeof(float));
  }

  /// Makes room for `floats` in all and forgets what was taken. False when there is no memory.
  bool reserve(size_t floats) {
    used_ = 0;
    if (floats <= capacity_) return true;
    block_.reset(static_cast<float*>(std::aligned_alloc(kAlignment, padded(floats) * sizeof(float))));
    capacity_ = block_ != nullptr ? padded(floats) : 0;
    return block_ != nullptr;
  }

  void restart() { used_ = 0; }

  /// Uninitialised, aligned. Within what was reserved.
  template <typename T = float>
  T* take(size_t count) {
    static_assert(sizeof(T) % sizeof(float) == 0);
    float* result = block_.get() + used_;
    used_ += padded(count * (sizeof(T) / sizeof(float)));
    return reinterpret_cast<T*>(result);
  }

  /// The calling thread's block.
  static Scratch& of_this_thread() {
    thread_local Scratch scratch;
    return scratch;
  }

  /// Gives blocks above `floats` back to the system.
  void trim(size_t floats) {
    if (capacity_ > floats) {
      block_.reset();
      capacity_ = 0;
    }
  }

 private:
  struct Free {
    void operator()(float* block) const { std::free(block); }
  };
  std::unique_ptr<float, Free> block_;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace warploom::cpu
