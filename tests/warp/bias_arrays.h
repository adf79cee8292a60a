// Biases for the tests of their providers: random values, arrays of exact size, one sequence.
#pragma once

#include <limits>
#include <memory>
#include <random>

#include "attention/work.h"

namespace warploom {

inline constexpr float kMasked = -std::numeric_limits<float>::infinity();
inline constexpr int kWarps = 4;

inline std::mt19937_64 random_numbers(1);

inline int draw(int from, int to) {
  return from + static_cast<int>(random_numbers() % static_cast<unsigned>(to - from + 1));
}
/// Exact in bfloat16; with this share of -inf.
inline float draw_value(double masked) {
  if (std::uniform_real_distribution<>()(random_numbers) < masked) return kMasked;
  return static_cast<float>(draw(-100, 100)) / 4;
}

/// `count` elements and nothing after them, the first one `offset` elements after a multiple of 16 bytes.
template <typename T>
class Array {
 public:
  explicit Array(std::size_t count, int offset = 0)
      : offset_(offset),
        memory_(static_cast<char*>(std::malloc(std::max<std::size_t>(1, (count + unsigned_offset()) * sizeof(T)))),
                std::free) {}
  T* data() const { return reinterpret_cast<T*>(memory_.get()) + offset_; }
  T& operator[](std::size_t n) const { return data()[n]; }

 private:
  std::size_t unsigned_offset() const { return static_cast<std::size_t>(offset_); }
  int offset_;
  std::unique_ptr<char, void (*)(void*)> memory_;
};

inline Work one_sequence(int seqlen_q, int seqlen_k) {
  Work work{};
  work.mask.seqlen_q = seqlen_q;
  work.mask.seqlen_k = seqlen_k;
  work.slot_q = seqlen_q;
  work.slot_k = seqlen_k;
  work.head = 1;
  return work;
}

}  // namespace warploom
