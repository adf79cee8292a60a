// Moves, conversions, comparisons and bits of one thread's registers.
#include <cmath>
#include <limits>
#include <map>

#include "decode.h"
#include "operands.h"

namespace warploom::emulator {
namespace {

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
// The nearest float may lie above the integer; the one below it is then the one towards zero.
template <typename T>
After unsigned_to_float_towards_zero(Thread& thread, const Instruction& instruction) {
  const T a = get<T>(thread, instruction, 1);
  float result = static_cast<float>(a);
  if (result >= std::ldexp(1.0f, std::numeric_limits<T>::digits) || static_cast<T>(result) > a) {
    result = std::nextafter(result, 0.0f);
  }
  put(thread, instruction, result);
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

template <Element E>
void add_half_conversions(Table& table, const std::string& type) {
  table["cvt." + type + "x2.f32"] = pack_pair<E>;
  table["cvt." + type + ".f32"] = to_half<E>;
  table["cvt.f32." + type] = from_half<E>;
}

Table make_table() {
  Table table;
  table["mov.pred"] = move<Predicate>;
  for (const char* kind : {"b", "u", "s"}) {
    add_moves<std::uint16_t>(table, std::string(kind) + "16");
    add_moves<std::uint32_t>(table, std::string(kind) + "32");
    add_moves<std::uint64_t>(table, std::string(kind) + "64");
  }
  add_moves<float>(table, "f32");
  add_moves<double>(table, "f64");
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
  table["cvt.rz.f32.u32"] = unsigned_to_float_towards_zero<std::uint32_t>;
  table["cvt.rz.f32.u64"] = unsigned_to_float_towards_zero<std::uint64_t>;
  table["prmt.b32"] = permute;
  table["bfi.b32"] = insert_bits<std::uint32_t>;
  table["bfe.u32"] = extract_bits<std::uint32_t>;
  table["bfe.s32"] = extract_bits<std::int32_t>;
  table["bfe.u64"] = extract_bits<std::uint64_t>;
  table["bfe.s64"] = extract_bits<std::int64_t>;
  table["bfi.b64"] = insert_bits<std::uint64_t>;
  table["bfind.u32"] = table["bfind.shiftamt.u32"] = find_bit;
  table["clz.b32"] = count_leading_zeros<std::uint32_t>;
  table["clz.b64"] = count_leading_zeros<std::uint64_t>;
  table["popc.b32"] = count_ones<std::uint32_t>;
  table["popc.b64"] = count_ones<std::uint64_t>;
  table["brev.b32"] = reverse_bits;
  add_half_conversions<Element::bf16>(table, "bf16");
  add_half_conversions<Element::f16>(table, "f16");
  return table;
}

bool decode_setp(const std::vector<std::string>& parts, Instruction& instruction) {
  static const std::map<std::string, int> comparisons = {
      {"eq", eq},   {"ne", ne},   {"lt", lt},   {"le", le},   {"gt", gt},   {"ge", ge},
      {"lo", lt},   {"ls", le},   {"hi", gt},   {"hs", ge},   {"equ", equ}, {"neu", neu},
      {"ltu", ltu}, {"leu", leu}, {"gtu", gtu}, {"geu", geu}, {"num", num}, {"nan", nan}};
  static const std::map<std::string, Instruction::Alone> types = {
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
  // ne of floats is ordered, neu is not.
  instruction.alone = type->second;
  return true;
}

}  // namespace

bool decode_moves(const std::string& opcode, Instruction& instruction) {
  static const Table table = make_table();
  const std::vector<std::string> parts = parts_of(opcode);
  if (parts.front() == "setp") return decode_setp(parts, instruction);
  if (parts.front() == "bfind") instruction.numbers[0] = parts[1] == "shiftamt" ? 1 : 0;
  std::string key;
  for (const std::string& part : parts) {
    if (among(part, {"rn", "ftz"})) continue;
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
  return take(table, key, instruction);
}

}  // namespace warploom::emulator
