// How instructions take their operands, and how opcodes are told apart.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grid.h"
#include "numbers.h"

namespace warploom::emulator {

/// Opcodes, without what does not matter here, and the functions that execute them.
using Table = std::unordered_map<std::string, Instruction::Alone>;

/// Predicates are kept as 0 or 1.
using Predicate = std::uint8_t;

template <typename T>
T get(const Thread& thread, const Instruction& instruction, std::size_t operand) {
  const Operand& one = instruction.operands[operand][0];
  const std::uint64_t bits = read(thread, one);
  return as<T>(one.negated ? static_cast<std::uint64_t>(bits == 0) : bits);
}

/// Into the first operand.
template <typename T>
void put(Thread& thread, const Instruction& instruction, T value) {
  write(thread, instruction.operands[0][0], bits_of(value));
}

/// The parts of an opcode: "ld.global.v4.f32" is ld, global, v4, f32.
inline std::vector<std::string> parts_of(const std::string& opcode) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t dot = 0; dot != std::string::npos; begin = dot + 1) {
    dot = opcode.find('.', begin);
    parts.push_back(opcode.substr(begin, dot == std::string::npos ? dot : dot - begin));
  }
  return parts;
}

inline bool among(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Sets `instruction.alone` from the table. Whether the key is there.
inline bool take(const Table& table, const std::string& key, Instruction& instruction) {
  const auto found = table.find(key);
  if (found == table.end()) return false;
  instruction.alone = found->second;
  return true;
}

}  // namespace warploom::emulator
