// Instructions that a thread executes by itself: arithmetic, moves, loads and stores, branches, barriers.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "decode.h"
#include "grid.h"
#include "mbarrier.h"
#include "memory.h"
#include "numbers.h"

namespace warploom::emulator {
namespace {

using Alone = Instruction::Alone;

template <typename T>
T get(const Thread& thread, const Instruction& instruction, std::size_t operand) {
  const Operand& one = instruction.operands[operand][0];
  const std::uint64_t bits = read(thread, one);
  return as<T>(one.negated ? static_cast<std::uint64_t>(bits == 0) : bits);
}

template <typename T>
void put(Thread& thread, const Instruction& instruction, T value) {
  write(thread, instruction.operands[0][0], bits_of(value));
}

// Predicates are kept as 0 or 1.
using Predicate = std::uint8_t;

template <typename T, typename Function>
After unary(Thread& thread, const Instruction& instruction) {
  put<T>(thread, instruction, Function{}(get<T>(thread, instruction, 1)));
  return After::next;
}

template <typename T, typename Function>
After binary(Thread& thread, const Instruction& instruction) {
  put<T>(thread, instruction, Function{}(get<T>(thread, instruction, 1), get<T>(thread, instruction, 2)));
  return After::next;
}

// PTX ISA, "dp2a": c + a.0 * b.0 + a.1 * b.1, of the halves of a and the two lower bytes of b.
After dot_of_two_low(Thread& thread, const Instruction& instruction) {
  const auto a = get<std::uint32_t>(thread, instruction, 1);
  const auto b = get<std::uint32_t>(thread, instruction, 2);
  const auto c = get<std::uint32_t>(thread, instruction, 3);
  put<std::uint32_t>(thread, instruction, c + (a & 0xFFFF) * (b & 0xFF) + (a >> 16) * (b >> 8 & 0xFF));
  return After::next;
}

template <typename T, typename Function>
After ternary(Thread& thread, const Instruction& instruction) {
  put<T>(thread, instruction,
         Function{}(get<T>(thread, instruction, 1), get<T>(thread, instruction, 2), get<T>(thread, instruction, 3)));
  return After::next;
}

// Integers wrap around: computed without a sign.
#define WARPLOOM_WRAPPING(name, symbol)                                                                 \
  struct name {                                                                                         \
    template <typename T>                                                                               \
    T operator()(T a, T b) const {                                                                      \
      if constexpr (std::is_integral_v<T>) {                                                            \
        using Unsigned = std::make_unsigned_t<T>;                                                       \
        return static_cast<T>(                                                                          \
            static_cast<Unsigned>(static_cast<std::uint64_t>(a) symbol static_cast<std::uint64_t>(b))); \
      } else {                                                                                          \
        return a symbol b;                                                                              \
      }                                                                                                 \
    }                                                                                                   \
  };
WARPLOOM_WRAPPING(Add, +)
WARPLOOM_WRAPPING(Subtract, -)
WARPLOOM_WRAPPING(Multiply, *)
#undef WARPLOOM_WRAPPING

struct Divide {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return static_cast<T>(-1);
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Subtract{}(T{0}, a);
    }
    return static_cast<T>(a / b);
  }
};
struct Remainder {
  template <typename T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Smaller {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
    return std::min(a, b);
  }
};
struct Larger {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
    return std::max(a, b);
  }
};
struct LargerOrNan {
  float operator()(float a, float b) const {
    return std::isnan(a) || std::isnan(b) ? std::numeric_limits<float>::quiet_NaN() : std::fmax(a, b);
  }
};
struct SmallerOrNan {
  float operator()(float a, float b) const {
    return std::isnan(a) || std::isnan(b) ? std::numeric_limits<float>::quiet_NaN() : std::fmin(a, b);
  }
};
struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <typename T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct NotPredicate {
  Predicate operator()(Predicate a) const { return a == 0; }
};
struct Negate {
  template <typename T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>) return -a;
    return Subtract{}(T{0}, a);
  }
};
struct Magnitude {
  template <typename T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(a);
    return a < 0 ? Subtract{}(T{0}, a) : a;
  }
};
struct Fused {
  template <typename T>
  T operator()(T a, T b, T c) const {
    if constexpr (std::is_floating_point_v<T>) return std::fma(a, b, c);
    return Add{}(Multiply{}(a, b), c);
  }
};
__extension__ typedef __int128 Signed128;
__extension__ typedef unsigned __int128 Unsigned128;
struct High {
  template <typename T>
  T operator()(T a, T b) const {
    using Wide = std::conditional_t<std::is_signed_v<T>, Signed128, Unsigned128>;
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b) >> (8 * sizeof(T)));
  }
};
#define WARPLOOM_FUNCTION(name, expression)  \
  struct name {                              \
    float operator()(float x) const {        \
      return static_cast<float>(expression); \
    }                                        \
  };
WARPLOOM_FUNCTION(Reciprocal, 1.0f / x)
WARPLOOM_FUNCTION(SquareRoot, std::sqrt(x))
WARPLOOM_FUNCTION(ReciprocalRoot, 1.0 / std::sqrt(static_cast<double>(x)))
WARPLOOM_FUNCTION(PowerOfTwo, std::exp2(static_cast<double>(x)))
WARPLOOM_FUNCTION(LogarithmOfTwo, std::log2(static_cast<double>(x)))
WARPLOOM_FUNCTION(Tanh, std::tanh(static_cast<double>(x)))
WARPLOOM_FUNCTION(Sine, std::sin(static_cast<double>(x)))
WARPLOOM_FUNCTION(Cosine, std::cos(static_cast<double>(x)))
#undef WARPLOOM_FUNCTION

// Pairs of 16-bit floats.
template <Element E>
float half_value(std::uint16_t bits) {
  return E == Element::bf16 ? from_bf16(bits) : from_f16(bits);
}
template <Element E>
std::uint16_t half_bits(float value) {
  return E == Element::bf16 ? to_bf16(value) : to_f16(value);
}
template <Element E, typename Function>
After pairs(Thread& thread, const Instruction& instruction) {
  const auto a = get<std::uint32_t>(thread, instruction, 1);
  const auto b = get<std::uint32_t>(thread, instruction, 2);
  const auto one = [](std::uint32_t x, std::uint32_t y) {
    return half_bits<E>(
        Function{}(half_value<E>(static_cast<std::uint16_t>(x)), half_value<E>(static_cast<std::uint16_t>(y))));
  };
  put<std::uint32_t>(thread, instruction, one(a, b) | static_cast<std::uint32_t>(one(a >> 16, b >> 16)) << 16);
  return After::next;
}

template <typename T, bool Left>
After shift(Thread& thread, const Instruction& instruction) {
  const T a = get<T>(thread, instruction, 1);
  const auto by = get<std::uint32_t>(thread, instruction, 2);
  constexpr std::uint32_t width = 8 * sizeof(T);
  T result = 0;
  if (by < width) {
    result = Left ? static_cast<T>(static_cast<std::uint64_t>(a) << by) : static_cast<T>(a >> by);
  } else if (!Left && std::is_signed_v<T> && a < 0) {
    result = static_cast<T>(-1);
  }
  put<T>(thread, instruction, result);
  return After::next;
}

template <bool Left, bool Wrap>
After funnel(Thread& thread, const Instruction& instruction) {
  const auto low = get<std::uint32_t>(thread, instruction, 1);
  const auto high = get<std::uint32_t>(thread, instruction, 2);
  auto by = get<std::uint32_t>(thread, instruction, 3);
  by = Wrap ? by & 31 : std::min(by, 32u);
  const std::uint64_t both = static_cast<std::uint64_t>(high) << 32 | low;
  put<std::uint32_t>(thread, instruction, static_cast<std::uint32_t>(Left ? both << by >> 32 : both >> by));
  return After::next;
}

template <typename T, typename Wide>
After wide_multiply(Thread& thread, const Instruction& instruction) {
  put<Wide>(thread, instruction,
            static_cast<Wide>(static_cast<Wide>(get<T>(thread, instruction, 1)) *
                              static_cast<Wide>(get<T>(thread, instruction, 2))));
  return After::next;
}
template <typename T, typename Wide>
After wide_multiply_add(Thread& thread, const Instruction& instruction) {
  const Wide product = static_cast<Wide>(static_cast<Wide>(get<T>(thread, instruction, 1)) *
                                         static_cast<Wide>(get<T>(thread, instruction, 2)));
  put<Wide>(thread, instruction, Add{}(product, get<Wide>(thread, instruction, 3)));
  return After::next;
}

template <typename From, typename To>
After convert(Thread& thread, const Instruction& instruction) {
  const From value = get<From>(thread, instruction, 1);
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    const double rounded = instruction.numbers[0] == 0   ? std::trunc(static_cast<double>(value))
                           : instruction.numbers[0] == 1 ? std::nearbyint(static_cast<double>(value))
                           : instruction.numbers[0] == 2 ? std::floor(static_cast<double>(value))
                                                         : std::ceil(static_cast<double>(value));
    const double least = static_cast<double>(std::numeric_limits<To>::min());
    const double most = static_cast<double>(std::numeric_limits<To>::max());
    const To result = std::isnan(rounded) ? To{0}
                      : rounded <= least  ? std::numeric_limits<To>::min()
                      : rounded >= most   ? std::numeric_limits<To>::max()
                                          : static_cast<To>(rounded);
    put<To>(thread, instruction, result);
  } else {
    put<To>(thread, instruction, static_cast<To>(value));
  }
  return After::next;
}

After round_float(Thread& thread, const Instruction& instruction) {
  const auto value = get<float>(thread, instruction, 1);
  const int mode = instruction.numbers[0];
  put<float>(thread, instruction,
             mode == 0   ? std::trunc(value)
             : mode == 1 ? std::nearbyint(value)
             : mode == 2 ? std::floor(value)
                         : std::ceil(value));
  return After::next;
}

template <Element E>
After pack_pair(Thread& thread, const Instruction& instruction) {
  const std::uint32_t high = half_bits<E>(get<float>(thread, instruction, 1));
  const std::uint32_t low = half_bits<E>(get<float>(thread, instruction, 2));
  put<std::uint32_t>(thread, instruction, high << 16 | low);
  return After::next;
}
template <Element E>
After to_half(Thread& thread, const Instruction& instruction) {
  put<std::uint16_t>(thread, instruction, half_bits<E>(get<float>(thread, instruction, 1)));
  return After::next;
}
template <Element E>
After from_half(Thread& thread, const Instruction& instruction) {
  put<float>(thread, instruction, half_value<E>(get<std::uint16_t>(thread, instruction, 1)));
  return After::next;
}

enum Comparison { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

template <typename T>
bool compare(int comparison, T a, T b) {
  bool unordered = false;
  if constexpr (std::is_floating_point_v<T>) unordered = std::isnan(a) || std::isnan(b);
  switch (comparison) {
    case eq:
      return a == b;
    case ne:
      return !unordered && a != b;
    case lt:
      return a < b;
    case le:
      return a <= b;
    case gt:
      return a > b;
    case ge:
      return a >= b;
    case equ:
      return unordered || a == b;
    case neu:
      return a != b;
    case ltu:
      return unordered || a < b;
    case leu:
      return unordered || a <= b;
    case gtu:
      return unordered || a > b;
    case geu:
      return unordered || a >= b;
    case num:
      return !unordered;
    default:
      return unordered;
  }
}

// numbers: the comparison; 0, or 1, 2, 3 for and, or, xor with a third operand.
template <typename T>
After set_predicate(Thread& thread, const Instruction& instruction) {
  const bool found = compare(instruction.numbers[0], get<T>(thread, instruction, 1), get<T>(thread, instruction, 2));
  const auto combined = [&](bool value) {
    if (instruction.numbers[1] == 0) return value;
    const bool other = get<Predicate>(thread, instruction, 3) != 0;
    return instruction.numbers[1] == 1 ? value && other : instruction.numbers[1] == 2 ? value || other : value != other;
  };
  write(thread, instruction.operands[0][0], combined(found) ? 1 : 0);
  if (instruction.operands[0].size() > 1) write(thread, instruction.operands[0][1], combined(!found) ? 1 : 0);
  return After::next;
}

template <typename T>
After select(Thread& thread, const Instruction& instruction) {
  const std::size_t chosen = get<Predicate>(thread, instruction, 3) != 0 ? 1 : 2;
  put<T>(thread, instruction, get<T>(thread, instruction, chosen));
  return After::next;
}

template <typename T>
After move(Thread& thread, const Instruction& instruction) {
  const std::vector<Operand>& to = instruction.operands[0];
  const std::vector<Operand>& from = instruction.operands[1];
  if (to.size() == 1 && from.size() == 1) {
    put<T>(thread, instruction, get<T>(thread, instruction, 1));
    return After::next;
  }
  std::uint64_t bits = 0;
  const int part = static_cast<int>(8 * sizeof(T) / std::max(to.size(), from.size()));
  const std::uint64_t mask = (1ull << part) - 1;
  if (from.size() > 1) {
    for (std::size_t i = 0; i < from.size(); ++i)
      bits |= (read(thread, from[i]) & mask) << (part * static_cast<int>(i));
    write(thread, to[0], bits);
  } else {
    bits = read(thread, from[0]);
    for (std::size_t i = 0; i < to.size(); ++i) write(thread, to[i], bits >> (part * static_cast<int>(i)) & mask);
  }
  return After::next;
}

After permute(Thread& thread, const Instruction& instruction) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(get<std::uint32_t>(thread, instruction, 2)) << 32 |
                              get<std::uint32_t>(thread, instruction, 1);
  const auto selector = get<std::uint32_t>(thread, instruction, 3);
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t which = selector >> (4 * i) & 15;
    auto byte = static_cast<std::uint8_t>(bytes >> (8 * (which & 7)));
    if ((which & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    result |= static_cast<std::uint32_t>(byte) << (8 * i);
  }
  put(thread, instruction, result);
  return After::next;
}

template <typename T>
After insert_bits(Thread& thread, const Instruction& instruction) {
  const T a = get<T>(thread, instruction, 1);
  const T b = get<T>(thread, instruction, 2);
  const int begin = static_cast<int>(get<std::uint32_t>(thread, instruction, 3) & 0xFF);
  const int length = static_cast<int>(get<std::uint32_t>(thread, instruction, 4) & 0xFF);
  T result = b;
  for (int i = 0; i < length && begin + i < static_cast<int>(8 * sizeof(T)); ++i) {
    const T bit = T{1} << (begin + i);
    result = (a >> i & 1) != 0 ? (result | bit) : (result & ~bit);
  }
  put(thread, instruction, result);
  return After::next;
}

template <typename T>
After extract_bits(Thread& thread, const Instruction& instruction) {
  const T a = get<T>(thread, instruction, 1);
  const int begin = static_cast<int>(get<std::uint32_t>(thread, instruction, 2) & 0xFF);
  const int length = static_cast<int>(get<std::uint32_t>(thread, instruction, 3) & 0xFF);
  constexpr int width = 8 * sizeof(T);
  using Unsigned = std::make_unsigned_t<T>;
  Unsigned result = begin >= width ? Unsigned{0} : static_cast<Unsigned>(static_cast<Unsigned>(a) >> begin);
  if (length < width) result &= (Unsigned{1} << length) - 1;
  if constexpr (std::is_signed_v<T>) {
    const int sign = std::min(begin + length - 1, width - 1);
    if (length > 0 && length < width && (static_cast<Unsigned>(a) >> sign & 1) != 0) result |= ~Unsigned{0} << length;
  }
  put<T>(thread, instruction, static_cast<T>(result));
  return After::next;
}

After find_bit(Thread& thread, const Instruction& instruction) {
  const auto a = get<std::uint32_t>(thread, instruction, 1);
  const int highest = 31 - std::countl_zero(a);
  put<std::uint32_t>(thread, instruction,
                     a == 0 ? ~0u : static_cast<std::uint32_t>(instruction.numbers[0] != 0 ? 31 - highest : highest));
  return After::next;
}
template <typename T>
After count_leading_zeros(Thread& thread, const Instruction& instruction) {
  put<std::uint32_t>(thread, instruction, static_cast<std::uint32_t>(std::countl_zero(get<T>(thread, instruction, 1))));
  return After::next;
}
template <typename T>
After count_ones(Thread& thread, const Instruction& instruction) {
  put<std::uint32_t>(thread, instruction, static_cast<std::uint32_t>(std::popcount(get<T>(thread, instruction, 1))));
  return After::next;
}
After reverse_bits(Thread& thread, const Instruction& instruction) {
  const auto a = get<std::uint32_t>(thread, instruction, 1);
  std::uint32_t result = 0;
  for (int i = 0; i < 32; ++i) result |= (a >> i & 1) << (31 - i);
  put(thread, instruction, result);
  return After::next;
}

After branch(Thread&, const Instruction&) {
  return After::jump;
}
After leave(Thread&, const Instruction&) {
  return After::exit;
}
After nothing(Thread&, const Instruction&) {
  return After::next;
}
After trap(Thread&, const Instruction&) {
  throw EmulationError("trap");
}

// numbers: bytes of an element, elements, whether a signed one is extended, the space.
enum Space { generic, global, shared, parameter };

std::uint8_t* place(Thread& thread, const Instruction& instruction, std::size_t operand, bool writes) {
  const auto bytes =
      static_cast<std::size_t>(instruction.numbers[0]) * static_cast<std::size_t>(instruction.numbers[1]);
  const std::uint64_t address = read(thread, instruction.operands[operand][0]);
  if (address % bytes != 0) throw EmulationError("the address is no multiple of " + std::to_string(bytes) + " bytes");
  if (instruction.numbers[3] == shared) {
    return shared_memory(*thread.warp->cta, static_cast<std::uint32_t>(address), bytes, writes, &thread);
  }
  if (instruction.numbers[3] == global) return global_range(address, bytes);
  return any_memory(thread, address, bytes, writes);
}

After load(Thread& thread, const Instruction& instruction) {
  const std::uint8_t* from = place(thread, instruction, 1, false);
  const auto bytes = static_cast<std::size_t>(instruction.numbers[0]);
  for (const Operand& element : instruction.operands[0]) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, from, bytes);
    if (instruction.numbers[2] != 0 && bytes < 8 && (bits >> (8 * bytes - 1) & 1) != 0) bits |= ~0ull << (8 * bytes);
    write(thread, element, bytes < 8 && instruction.numbers[2] != 0 ? bits & 0xFFFFFFFF : bits);
    from += bytes;
  }
  return After::next;
}

After store(Thread& thread, const Instruction& instruction) {
  std::uint8_t* to = place(thread, instruction, 0, true);
  const auto bytes = static_cast<std::size_t>(instruction.numbers[0]);
  for (const Operand& element : instruction.operands[1]) {
    const std::uint64_t bits = read(thread, element);
    std::memcpy(to, &bits, bytes);
    to += bytes;
  }
  return After::next;
}

template <typename T, typename Function>
After reduce(Thread& thread, const Instruction& instruction) {
  std::uint8_t* to = place(thread, instruction, 0, true);
  for (const Operand& element : instruction.operands[1]) {
    T old;
    std::memcpy(&old, to, sizeof old);
    const T made = Function{}(old, as<T>(read(thread, element)));
    std::memcpy(to, &made, sizeof made);
    to += sizeof made;
  }
  return After::next;
}

template <typename T, typename Function>
After atomic(Thread& thread, const Instruction& instruction) {
  std::uint8_t* to = place(thread, instruction, 1, true);
  T old;
  std::memcpy(&old, to, sizeof old);
  const T made = Function{}(old, get<T>(thread, instruction, 2));
  std::memcpy(to, &made, sizeof made);
  put(thread, instruction, old);
  return After::next;
}

struct Exchange {
  template <typename T>
  T operator()(T, T b) const {
    return b;
  }
};

template <typename T>
After compare_and_swap(Thread& thread, const Instruction& instruction) {
  std::uint8_t* to = place(thread, instruction, 1, true);
  T old;
  std::memcpy(&old, to, sizeof old);
  if (old == get<T>(thread, instruction, 2)) {
    const T made = get<T>(thread, instruction, 3);
    std::memcpy(to, &made, sizeof made);
  }
  put(thread, instruction, old);
  return After::next;
}

After to_generic_shared(Thread& thread, const Instruction& instruction) {
  put<std::uint64_t>(thread, instruction, (get<std::uint64_t>(thread, instruction, 1) & 0xFFFFFFFF) | kGenericShared);
  return After::next;
}
After from_generic_shared(Thread& thread, const Instruction& instruction) {
  put<std::uint64_t>(thread, instruction, get<std::uint64_t>(thread, instruction, 1) & 0xFFFFFFFF);
  return After::next;
}

// numbers: 0 arrive and wait, 1 arrive only, 2 wait for the disjunction of predicates.
After named_barrier(Thread& thread, const Instruction& instruction) {
  const bool reduces = instruction.numbers[0] == 2;
  const std::size_t first = reduces ? 1 : 0;
  const auto id = get<std::uint32_t>(thread, instruction, first);
  Cta& cta = *thread.warp->cta;
  const std::size_t plain = reduces ? 3 : 1;
  const std::uint32_t expected = instruction.operands.size() > plain
                                     ? get<std::uint32_t>(thread, instruction, first + 1)
                                     : static_cast<std::uint32_t>(cta.threads.size());
  if (id >= cta.barriers.size()) throw EmulationError("there is no named barrier " + std::to_string(id));
  if (expected == 0 || expected % 32 != 0)
    throw EmulationError("a named barrier of " + std::to_string(expected) + " threads");
  NamedBarrier& barrier = cta.barriers[id];
  if (reduces && get<Predicate>(thread, instruction, instruction.operands.size() - 1) != 0) barrier.predicate_or = true;
  const bool waits = instruction.numbers[0] != 1;
  if (waits) {
    barrier.waiting.push_back(&thread);
    thread.waits = Waits::for_named_barrier;
    thread.barrier = id;
  }
  if (static_cast<std::uint32_t>(++barrier.arrived) == expected) {
    for (Thread* one : barrier.waiting) {
      one->waits = Waits::for_nothing;
      if (reduces) write(*one, instruction.operands[0][0], barrier.predicate_or ? 1 : 0);
    }
    barrier = {};
  }
  return waits ? After::block : After::next;
}

After mbarrier_init(Thread& thread, const Instruction& instruction) {
  init_mbarrier(*thread.warp->cta, get<std::uint32_t>(thread, instruction, 0),
                get<std::uint32_t>(thread, instruction, 1));
  return After::next;
}
After mbarrier_end(Thread& thread, const Instruction& instruction) {
  std::memset(shared_memory(*thread.warp->cta, get<std::uint32_t>(thread, instruction, 0), 8, true, nullptr), 0xFF, 8);
  return After::next;
}
After mbarrier_arrive(Thread& thread, const Instruction& instruction) {
  const auto address = get<std::uint32_t>(thread, instruction, 1);
  Cta& cta = *thread.warp->cta;
  Cta& target = owner(cta, address);
  arrive(target, address & ((1u << kSharedRankShift) - 1));
  return After::next;
}
After mbarrier_arrive_expecting(Thread& thread, const Instruction& instruction) {
  const auto address = get<std::uint32_t>(thread, instruction, 1);
  expect_bytes(*thread.warp->cta, address, get<std::uint32_t>(thread, instruction, 2));
  arrive(*thread.warp->cta, address);
  return After::next;
}
After mbarrier_expect(Thread& thread, const Instruction& instruction) {
  expect_bytes(*thread.warp->cta, get<std::uint32_t>(thread, instruction, 0),
               get<std::uint32_t>(thread, instruction, 1));
  return After::next;
}
// try_wait may wait as long as it likes, so here it waits until the phase has ended.
After mbarrier_try_wait(Thread& thread, const Instruction& instruction) {
  write(thread, instruction.operands[0][0], 1);
  thread.barrier = get<std::uint32_t>(thread, instruction, 1);
  thread.parity = get<std::uint32_t>(thread, instruction, 2);
  if (phase_ended(*thread.warp->cta, thread.barrier, thread.parity)) return After::next;
  thread.waits = Waits::for_mbarrier;
  return After::block;
}
After mbarrier_test_wait(Thread& thread, const Instruction& instruction) {
  const bool ended = phase_ended(*thread.warp->cta, get<std::uint32_t>(thread, instruction, 1),
                                 get<std::uint32_t>(thread, instruction, 2));
  write(thread, instruction.operands[0][0], ended ? 1 : 0);
  return After::next;
}

After fence_async(Thread& thread, const Instruction&) {
  thread.last_fence = ++thread.warp->cta->grid->time;
  return After::next;
}

After map_shared(Thread& thread, const Instruction& instruction) {
  const auto address = get<std::uint32_t>(thread, instruction, 1);
  const auto rank = get<std::uint32_t>(thread, instruction, 2);
  put<std::uint32_t>(thread, instruction, (address & ((1u << kSharedRankShift) - 1)) | (rank + 1) << kSharedRankShift);
  return After::next;
}
// barrier.cluster: rank 0 counts the threads that came and the phases that ended.
After cluster_arrive(Thread& thread, const Instruction&) {
  Cta& first = *thread.warp->cta->cluster.front();
  thread.cluster_phase = first.cluster_arrived[1] + 1;
  std::uint64_t everyone = 0;
  for (const Cta* cta : first.cluster) everyone += cta->threads.size();
  if (++first.cluster_arrived[0] == everyone) {
    first.cluster_arrived[0] = 0;
    ++first.cluster_arrived[1];
  }
  return After::next;
}
After cluster_wait(Thread& thread, const Instruction&) {
  if (thread.warp->cta->cluster.front()->cluster_arrived[1] >= thread.cluster_phase) return After::next;
  thread.waits = Waits::for_cluster;
  return After::block;
}

// --- which opcode is which ---

using Table = std::unordered_map<std::string, Alone>;

template <typename T>
void add_integer(Table& table, const std::string& type) {
  table["add." + type] = binary<T, Add>;
  table["sub." + type] = binary<T, Subtract>;
  table["mul.lo." + type] = binary<T, Multiply>;
  table["mul.hi." + type] = binary<T, High>;
  table["mad.lo." + type] = ternary<T, Fused>;
  table["div." + type] = binary<T, Divide>;
  table["rem." + type] = binary<T, Remainder>;
  table["min." + type] = binary<T, Smaller>;
  table["max." + type] = binary<T, Larger>;
  table["shr." + type] = shift<T, false>;
  table["bfe." + type] = extract_bits<T>;
  if constexpr (std::is_signed_v<T>) {
    table["neg." + type] = unary<T, Negate>;
    table["abs." + type] = unary<T, Magnitude>;
  }
}

template <typename T>
void add_bits(Table& table, const std::string& type) {
  table["and." + type] = binary<T, And>;
  table["or." + type] = binary<T, Or>;
  table["xor." + type] = binary<T, Xor>;
  table["not." + type] = unary<T, Not>;
  table["shl." + type] = shift<T, true>;
  table["shr." + type] = shift<T, false>;
}

template <typename T>
void add_moves(Table& table, const std::string& type) {
  table["mov." + type] = move<T>;
  table["selp." + type] = select<T>;
}

template <typename From>
void add_conversions(Table& table, const std::string& from) {
  table["cvt.u8." + from] = convert<From, std::uint8_t>;
  table["cvt.s8." + from] = convert<From, std::int8_t>;
  table["cvt.u16." + from] = convert<From, std::uint16_t>;
  table["cvt.s16." + from] = convert<From, std::int16_t>;
  table["cvt.u32." + from] = convert<From, std::uint32_t>;
  table["cvt.s32." + from] = convert<From, std::int32_t>;
  table["cvt.u64." + from] = convert<From, std::uint64_t>;
  table["cvt.s64." + from] = convert<From, std::int64_t>;
  table["cvt.f32." + from] = convert<From, float>;
  table["cvt.f64." + from] = convert<From, double>;
}

template <typename T>
void add_floats(Table& table, const std::string& type) {
  table["add." + type] = binary<T, Add>;
  table["sub." + type] = binary<T, Subtract>;
  table["mul." + type] = binary<T, Multiply>;
  table["div." + type] = binary<T, Divide>;
  table["fma." + type] = ternary<T, Fused>;
  table["mad." + type] = ternary<T, Fused>;
  table["min." + type] = binary<T, Smaller>;
  table["max." + type] = binary<T, Larger>;
  table["neg." + type] = unary<T, Negate>;
  table["abs." + type] = unary<T, Magnitude>;
}

template <Element E>
void add_halves(Table& table, const std::string& type) {
  table["cvt." + type + "x2.f32"] = pack_pair<E>;
  table["cvt." + type + ".f32"] = to_half<E>;
  table["cvt.f32." + type] = from_half<E>;
  table["mul." + type + "x2"] = pairs<E, Multiply>;
  table["add." + type + "x2"] = pairs<E, Add>;
  table["sub." + type + "x2"] = pairs<E, Subtract>;
  table["min." + type + "x2"] = pairs<E, Smaller>;
  table["max." + type + "x2"] = pairs<E, Larger>;
}

template <typename T>
void add_memory_arithmetic(Table& table, const std::string& type) {
  table["red.add." + type] = reduce<T, Add>;
  table["red.min." + type] = reduce<T, Smaller>;
  table["red.max." + type] = reduce<T, Larger>;
  table["atom.add." + type] = atomic<T, Add>;
  table["atom.min." + type] = atomic<T, Smaller>;
  table["atom.max." + type] = atomic<T, Larger>;
  table["atom.exch." + type] = atomic<T, Exchange>;
  table["atom.cas." + type] = compare_and_swap<T>;
}

Table make_table() {
  Table table;
  add_integer<std::int16_t>(table, "s16");
  add_integer<std::uint16_t>(table, "u16");
  add_integer<std::int32_t>(table, "s32");
  add_integer<std::uint32_t>(table, "u32");
  add_integer<std::int64_t>(table, "s64");
  add_integer<std::uint64_t>(table, "u64");
  add_bits<std::uint16_t>(table, "b16");
  add_bits<std::uint32_t>(table, "b32");
  add_bits<std::uint64_t>(table, "b64");
  table["and.pred"] = binary<Predicate, And>;
  table["or.pred"] = binary<Predicate, Or>;
  table["xor.pred"] = binary<Predicate, Xor>;
  table["not.pred"] = unary<Predicate, NotPredicate>;
  table["mov.pred"] = move<Predicate>;
  for (const char* kind : {"b", "u", "s"}) {
    add_moves<std::uint16_t>(table, std::string(kind) + "16");
    add_moves<std::uint32_t>(table, std::string(kind) + "32");
    add_moves<std::uint64_t>(table, std::string(kind) + "64");
  }
  add_moves<float>(table, "f32");
  add_moves<double>(table, "f64");
  add_floats<float>(table, "f32");
  add_floats<double>(table, "f64");
  table["max.NaN.f32"] = binary<float, LargerOrNan>;
  table["min.NaN.f32"] = binary<float, SmallerOrNan>;
  table["rcp.f32"] = unary<float, Reciprocal>;
  table["sqrt.f32"] = unary<float, SquareRoot>;
  table["rsqrt.f32"] = unary<float, ReciprocalRoot>;
  table["ex2.f32"] = unary<float, PowerOfTwo>;
  table["lg2.f32"] = unary<float, LogarithmOfTwo>;
  table["tanh.f32"] = unary<float, Tanh>;
  table["sin.f32"] = unary<float, Sine>;
  table["cos.f32"] = unary<float, Cosine>;
  add_halves<Element::bf16>(table, "bf16");
  add_halves<Element::f16>(table, "f16");
  table["mul.wide.s16"] = wide_multiply<std::int16_t, std::int32_t>;
  table["mul.wide.u16"] = wide_multiply<std::uint16_t, std::uint32_t>;
  table["mul.wide.s32"] = wide_multiply<std::int32_t, std::int64_t>;
  table["mul.wide.u32"] = wide_multiply<std::uint32_t, std::uint64_t>;
  table["mad.wide.s32"] = wide_multiply_add<std::int32_t, std::int64_t>;
  table["mad.wide.u32"] = wide_multiply_add<std::uint32_t, std::uint64_t>;
  add_conversions<std::uint8_t>(table, "u8");
  add_conversions<std::int8_t>(table, "s8");
  add_conversions<std::uint16_t>(table, "u16");
  add_conversions<std::int16_t>(table, "s16");
  add_conversions<std::uint32_t>(table, "u32");
  add_conversions<std::int32_t>(table, "s32");
  add_conversions<std::uint64_t>(table, "u64");
  add_conversions<std::int64_t>(table, "s64");
  add_conversions<float>(table, "f32");
  add_conversions<double>(table, "f64");
  table["prmt.b32"] = permute;
  table["bfi.b32"] = insert_bits<std::uint32_t>;
  table["bfi.b64"] = insert_bits<std::uint64_t>;
  table["bfind.u32"] = table["bfind.shiftamt.u32"] = find_bit;
  table["clz.b32"] = count_leading_zeros<std::uint32_t>;
  table["clz.b64"] = count_leading_zeros<std::uint64_t>;
  table["popc.b32"] = count_ones<std::uint32_t>;
  table["popc.b64"] = count_ones<std::uint64_t>;
  table["brev.b32"] = reverse_bits;
  table["shf.l.wrap.b32"] = funnel<true, true>;
  table["shf.r.wrap.b32"] = funnel<false, true>;
  table["shf.l.clamp.b32"] = funnel<true, false>;
  table["shf.r.clamp.b32"] = funnel<false, false>;
  table["bra"] = table["bra.uni"] = branch;
  table["ret"] = table["exit"] = leave;
  table["trap"] = trap;
  add_memory_arithmetic<std::uint32_t>(table, "u32");
  add_memory_arithmetic<std::int32_t>(table, "s32");
  add_memory_arithmetic<std::uint64_t>(table, "u64");
  add_memory_arithmetic<std::uint32_t>(table, "b32");
  add_memory_arithmetic<std::uint64_t>(table, "b64");
  table["red.add.f32"] = reduce<float, Add>;
  table["atom.add.f32"] = atomic<float, Add>;
  table["red.add.f64"] = reduce<double, Add>;
  table["atom.or.b32"] = atomic<std::uint32_t, Or>;
  table["red.or.b32"] = reduce<std::uint32_t, Or>;
  for (const char* state : {"global", "param", "local"}) {
    table[std::string("cvta.") + state + ".u64"] = table[std::string("cvta.to.") + state + ".u64"] =
        move<std::uint64_t>;
  }
  table["dp2a.lo.u32.u32"] = dot_of_two_low;
  table["cvta.shared.u64"] = to_generic_shared;
  table["cvta.to.shared.u64"] = from_generic_shared;
  table["bar.sync"] = table["barrier.sync"] = table["bar.arrive"] = table["barrier.arrive"] = table["bar.red.or.pred"] =
      named_barrier;
  table["mbarrier.init.shared::cta.b64"] = mbarrier_init;
  table["mbarrier.inval.shared::cta.b64"] = mbarrier_end;
  table["mbarrier.arrive.shared::cta.b64"] = table["mbarrier.arrive.shared::cluster.b64"] = mbarrier_arrive;
  table["mbarrier.arrive.expect_tx.shared::cta.b64"] = mbarrier_arrive_expecting;
  table["mbarrier.expect_tx.relaxed.cta.shared::cta.b64"] = mbarrier_expect;
  table["mbarrier.try_wait.parity.shared::cta.b64"] = mbarrier_try_wait;
  table["mbarrier.test_wait.parity.shared::cta.b64"] = mbarrier_test_wait;
  table["fence.proxy.async.shared::cta"] = table["fence.proxy.async"] = table["fence.proxy.async.global"] = fence_async;
  table["mapa.shared::cluster.u32"] = map_shared;
  for (const char* order : {".release", ".relaxed", ""}) {
    table[std::string("barrier.cluster.arrive") + order + ".aligned"] = cluster_arrive;
  }
  table["barrier.cluster.wait.acquire.aligned"] = table["barrier.cluster.wait.aligned"] = cluster_wait;
  for (const char* name :
       {"fence.mbarrier_init.release.cluster", "griddepcontrol.wait", "griddepcontrol.launch_dependents",
        "prefetch.tensormap", "membar.gl", "membar.cta", "fence.acq_rel.gpu", "fence.acq_rel.cta", "fence.sc.gpu",
        "nanosleep.u32", "setmaxnreg.dec.sync.aligned.u32", "setmaxnreg.inc.sync.aligned.u32"}) {
    table[name] = nothing;
  }
  return table;
}

std::vector<std::string> cut(const std::string& opcode) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t dot = 0; dot != std::string::npos; begin = dot + 1) {
    dot = opcode.find('.', begin);
    parts.push_back(opcode.substr(begin, dot == std::string::npos ? dot : dot - begin));
  }
  return parts;
}

bool among(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

int space_of(const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (part == "global" || part == "const" || part == "local") return global;
    if (part.starts_with("shared")) return shared;
    if (part == "param") return parameter;
  }
  return generic;
}

void take_width(const std::vector<std::string>& parts, Instruction& instruction) {
  instruction.numbers[0] = std::stoi(parts.back().substr(1)) / 8;
  instruction.numbers[1] = 1;
  for (const std::string& part : parts) {
    if (part == "v2" || part == "v4" || part == "v8") instruction.numbers[1] = part[1] - '0';
  }
  instruction.numbers[2] = parts.back()[0] == 's' ? 1 : 0;
  instruction.numbers[3] = space_of(parts);
}

bool decode_setp(const std::vector<std::string>& parts, Instruction& instruction) {
  static const std::map<std::string, int> comparisons = {
      {"eq", eq},   {"ne", ne},   {"lt", lt},   {"le", le},   {"gt", gt},   {"ge", ge},
      {"lo", lt},   {"ls", le},   {"hi", gt},   {"hs", ge},   {"equ", equ}, {"neu", neu},
      {"ltu", ltu}, {"leu", leu}, {"gtu", gtu}, {"geu", geu}, {"num", num}, {"nan", nan}};
  static const std::map<std::string, Alone> types = {
      {"u16", set_predicate<std::uint16_t>}, {"s16", set_predicate<std::int16_t>},
      {"b16", set_predicate<std::uint16_t>}, {"u32", set_predicate<std::uint32_t>},
      {"s32", set_predicate<std::int32_t>},  {"b32", set_predicate<std::uint32_t>},
      {"u64", set_predicate<std::uint64_t>}, {"s64", set_predicate<std::int64_t>},
      {"b64", set_predicate<std::uint64_t>}, {"f32", set_predicate<float>},
      {"f64", set_predicate<double>}};
  const auto comparison = comparisons.find(parts[1]);
  const auto type = types.find(parts.back());
  if (comparison == comparisons.end() || type == types.end()) return false;
  instruction.numbers[0] = comparison->second;
  for (const std::string& part : parts) {
    if (part == "and") instruction.numbers[1] = 1;
    if (part == "or") instruction.numbers[1] = 2;
    if (part == "xor") instruction.numbers[1] = 3;
  }
  // NaN compares as not equal; neu above says so, and ne is ordered.
  instruction.alone = type->second;
  return true;
}

}  // namespace

bool decode_alone(const std::string& opcode, Instruction& instruction) {
  static const Table table = make_table();
  const std::vector<std::string> parts = cut(opcode);
  const std::string& name = parts.front();
  if (name == "ld" || name == "st") {
    take_width(parts, instruction);
    instruction.alone = name == "ld" ? load : store;
    return true;
  }
  if (name == "setp") return decode_setp(parts, instruction);
  std::string key = opcode;
  if (name == "red" || name == "atom") {
    // The order and scope of an atomic operation do not matter here: every one is complete before the next begins.
    take_width(parts, instruction);
    key = name;
    for (const std::string& part : parts) {
      if (among(part, {"add", "min", "max", "exch", "cas", "or"})) key += "." + part;
    }
    key += "." + parts.back();
  } else if (name == "bar" || name == "barrier") {
    instruction.numbers[0] = parts[1] == "arrive" ? 1 : parts[1] == "red" ? 2 : 0;
  } else if (name == "bfind") {
    instruction.numbers[0] = parts[1] == "shiftamt" ? 1 : 0;
  } else if (!among(name, {"mbarrier", "fence", "prefetch", "mapa", "griddepcontrol", "setmaxnreg", "shf", "cvta"})) {
    // Rounding to nearest is the only rounding here, approximations are exact, and subnormal numbers stay.
    key.clear();
    for (const std::string& part : parts) {
      if (among(part, {"rn", "ftz", "approx", "full", "rz", "rm", "rp"})) continue;
      if (among(part, {"rzi", "rni", "rmi", "rpi"})) {
        instruction.numbers[0] = part == "rzi" ? 0 : part == "rni" ? 1 : part == "rmi" ? 2 : 3;
        continue;
      }
      key += (key.empty() ? "" : ".") + part;
    }
    if (key == "cvt.f32.f32") {
      instruction.alone = round_float;
      return true;
    }
  }
  const auto found = table.find(key);
  if (found == table.end()) return false;
  instruction.alone = found->second;
  return true;
}

}  // namespace warploom::emulator
