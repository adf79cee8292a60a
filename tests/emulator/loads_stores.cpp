// Loads, stores and atomic operations of one thread, and conversions of addresses.
#include "decode.h"
#include "functions.h"

namespace warploom::emulator {
namespace {

// numbers: bytes of an element, elements, whether a signed one is extended, the space.
enum Space { generic, global, shared };

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
  constexpr std::size_t kMostBytes = 16;
  std::uint8_t made[kMostBytes];
  const auto bytes = static_cast<std::size_t>(instruction.numbers[0]);
  std::size_t size = 0;
  for (const Operand& element : instruction.operands[1]) {
    const std::uint64_t bits = read(thread, element);
    std::memcpy(made + size, &bits, bytes);
    size += bytes;
  }
  // What is stored where it stands already changes nothing for whoever reads it meanwhile: warpgroups may zero the same
  // rows, each before its own product.
  if (std::memcmp(place(thread, instruction, 0, false), made, size) != 0) {
    std::memcpy(place(thread, instruction, 0, true), made, size);
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

After keep(Thread& thread, const Instruction& instruction) {
  put(thread, instruction, get<std::uint64_t>(thread, instruction, 1));
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
    table[std::string("cvta.") + state + ".u64"] = table[std::string("cvta.to.") + state + ".u64"] = keep;
  }
  table["cvta.shared.u64"] = to_generic_shared;
  table["cvta.to.shared.u64"] = from_generic_shared;
  return table;
}

int space_of(const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (part == "global" || part == "const" || part == "local") return global;
    if (part.starts_with("shared")) return shared;
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

}  // namespace

bool decode_loads_stores(const std::string& opcode, Instruction& instruction) {
  static const Table table = make_table();
  const std::vector<std::string> parts = parts_of(opcode);
  const std::string& name = parts.front();
  if (name == "cvta") return take(table, opcode, instruction);
  if (!among(name, {"ld", "st", "red", "atom"})) return false;
  take_width(parts, instruction);
  if (name == "ld" || name == "st") {
    instruction.alone = name == "ld" ? load : store;
    return true;
  }
  // The order and scope of an atomic operation do not matter here: every one is complete before the next begins.
  std::string key = name;
  for (const std::string& part : parts) {
    if (among(part, {"add", "min", "max", "exch", "cas", "or"})) key += "." + part;
  }
  return take(table, key + "." + parts.back(), instruction);
}

}  // namespace warploom::emulator
