// Arithmetic on one thread's numbers.
#include "decode.h"
#include "functions.h"

namespace warploom::emulator {
namespace {

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

// Pairs of 16-bit floats.
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
  table["copysign." + type] = binary<T, SignOf>;
}

template <Element E>
void add_halves(Table& table, const std::string& type) {
  table["mul." + type + "x2"] = pairs<E, Multiply>;
  table["add." + type + "x2"] = pairs<E, Add>;
  table["sub." + type + "x2"] = pairs<E, Subtract>;
  table["min." + type + "x2"] = pairs<E, Smaller>;
  table["max." + type + "x2"] = pairs<E, Larger>;
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
  table["shf.l.wrap.b32"] = funnel<true, true>;
  table["shf.r.wrap.b32"] = funnel<false, true>;
  table["shf.l.clamp.b32"] = funnel<true, false>;
  table["shf.r.clamp.b32"] = funnel<false, false>;
  table["dp2a.lo.u32.u32"] = dot_of_two_low;
  return table;
}

}  // namespace

bool decode_arithmetic(const std::string& opcode, Instruction& instruction) {
  static const Table table = make_table();
  // Rounding to nearest is the only rounding here, approximations are exact, and subnormal numbers stay.
  std::string key;
  for (const std::string& part : parts_of(opcode)) {
    if (among(part, {"rn", "ftz", "approx", "full", "rz", "rm", "rp"})) continue;
    key += (key.empty() ? "" : ".") + part;
  }
  return take(table, key, instruction);
}

}  // namespace warploom::emulator
