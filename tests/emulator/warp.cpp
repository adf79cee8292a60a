// Instructions that the lanes of a warp execute together: shuffles, votes, reductions, matrix fragments.
#include <algorithm>
#include <array>
#include <map>

#include "decode.h"
#include "functions.h"

namespace warploom::emulator {
namespace {

using Together = Instruction::Together;

template <typename Function>
void for_lanes(Warp& warp, std::uint32_t lanes, Function function) {
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1) != 0) function(*warp.lanes[lane], lane);
  }
}

std::uint32_t value(const Thread& thread, const Instruction& instruction, std::size_t operand,
                    std::size_t element = 0) {
  const Operand& one = instruction.operands[operand][element];
  const auto bits = static_cast<std::uint32_t>(read(thread, one));
  return one.negated ? static_cast<std::uint32_t>(bits == 0) : bits;
}

enum Shuffle { up, down, butterfly, index };

// PTX ISA, "shfl.sync"; numbers: the mode.
void shuffle(Warp& warp, const Instruction& instruction, std::uint32_t lanes) {
  std::array<std::uint32_t, 32> values{};
  for_lanes(warp, lanes, [&](Thread& thread, std::uint32_t lane) { values[lane] = value(thread, instruction, 1); });
  for_lanes(warp, lanes, [&](Thread& thread, std::uint32_t lane) {
    const std::uint32_t b = value(thread, instruction, 2) & 31;
    const std::uint32_t c = value(thread, instruction, 3);
    const std::uint32_t segment = c >> 8 & 31;
    const std::uint32_t most = (lane & segment) | (c & 31 & ~segment);
    const std::uint32_t least = lane & segment;
    std::uint32_t source = lane;
    bool inside = true;
    switch (instruction.numbers[0]) {
      case up:
        source = lane - b;
        inside = static_cast<std::int32_t>(lane) - static_cast<std::int32_t>(b) >= static_cast<std::int32_t>(most);
        break;
      case down:
        source = lane + b;
        inside = source <= most;
        break;
      case butterfly:
        source = lane ^ b;
        inside = source <= most;
        break;
      default:
        source = least | (b & ~segment);
        inside = source <= most;
    }
    if (!inside) source = lane;
    if ((lanes >> source & 1) == 0) throw EmulationError("shfl reads a lane that does not take part");
    write(thread, instruction.operands[0][0], values[source]);
    if (instruction.operands[0].size() > 1) write(thread, instruction.operands[0][1], inside ? 1 : 0);
  });
}

enum Vote { any, all, ballot, uniform };

void vote(Warp& warp, const Instruction& instruction, std::uint32_t lanes) {
  std::uint32_t yes = 0;
  for_lanes(warp, lanes, [&](Thread& thread, std::uint32_t lane) {
    if (value(thread, instruction, 1) != 0) yes |= 1u << lane;
  });
  const std::array<std::uint32_t, 4> results = {yes != 0, yes == lanes, yes, yes == 0 || yes == lanes};
  const std::uint32_t result = results[static_cast<std::size_t>(instruction.numbers[0])];
  for_lanes(warp, lanes, [&](Thread& thread, std::uint32_t) { write(thread, instruction.operands[0][0], result); });
}

template <typename T, typename Function>
void reduce(Warp& warp, const Instruction& instruction, std::uint32_t lanes) {
  bool first = true;
  T result{};
  for_lanes(warp, lanes, [&](Thread& thread, std::uint32_t) {
    const T one = as<T>(value(thread, instruction, 1));
    result = first ? one : Function{}(result, one);
    first = false;
  });
  for_lanes(warp, lanes,
            [&](Thread& thread, std::uint32_t) { write(thread, instruction.operands[0][0], bits_of(result)); });
}
void elect(Warp& warp, const Instruction& instruction, std::uint32_t lanes) {
  const auto leader = static_cast<std::uint32_t>(std::countr_zero(lanes));
  for_lanes(warp, lanes, [&](Thread& thread, std::uint32_t lane) {
    write(thread, instruction.operands[0][0], leader);
    if (instruction.operands[0].size() > 1) write(thread, instruction.operands[0][1], lane == leader ? 1 : 0);
  });
}

void meet(Warp&, const Instruction&, std::uint32_t) {}

// PTX ISA, "ldmatrix": lane 8 i + r addresses row r of block i; lane l gets values 2 (l % 4) and the next of row l / 4.
// numbers: blocks, transposed.
void load_matrix(Warp& warp, const Instruction& instruction, std::uint32_t) {
  for (std::size_t block = 0; block < static_cast<std::size_t>(instruction.numbers[0]); ++block) {
    std::uint16_t values[8][8];
    for (std::size_t row = 0; row < 8; ++row) {
      Thread& thread = *warp.lanes[8 * block + row];
      const std::uint32_t address = value(thread, instruction, 1);
      if (address % 16 != 0) throw EmulationError("a row of ldmatrix is not aligned to 16 bytes");
      std::memcpy(values[row], shared_memory(*warp.cta, address, 16, false, nullptr), 16);
    }
    for (std::size_t lane = 0; lane < 32; ++lane) {
      const std::size_t row = lane / 4;
      const std::size_t column = 2 * (lane % 4);
      const bool transposed = instruction.numbers[1] != 0;
      const std::uint32_t low = transposed ? values[column][row] : values[row][column];
      const std::uint32_t high = transposed ? values[column + 1][row] : values[row][column + 1];
      write(*warp.lanes[lane], instruction.operands[0][block], high << 16 | low);
    }
  }
}

void store_matrix(Warp& warp, const Instruction& instruction, std::uint32_t) {
  for (std::size_t block = 0; block < static_cast<std::size_t>(instruction.numbers[0]); ++block) {
    std::uint16_t values[8][8];
    for (std::size_t lane = 0; lane < 32; ++lane) {
      const std::uint32_t pair = value(*warp.lanes[lane], instruction, 1, block);
      const std::size_t row = lane / 4;
      const std::size_t column = 2 * (lane % 4);
      const bool transposed = instruction.numbers[1] != 0;
      (transposed ? values[column][row] : values[row][column]) = static_cast<std::uint16_t>(pair);
      (transposed ? values[column + 1][row] : values[row][column + 1]) = static_cast<std::uint16_t>(pair >> 16);
    }
    for (std::size_t row = 0; row < 8; ++row) {
      Thread& thread = *warp.lanes[8 * block + row];
      const std::uint32_t address = value(thread, instruction, 0);
      if (address % 16 != 0) throw EmulationError("a row of stmatrix is not aligned to 16 bytes");
      std::memcpy(shared_memory(*warp.cta, address, 16, true, &thread), values[row], 16);
    }
  }
}

// PTX ISA, "mma.m16n8k16": the maps of its fragments.
template <Element E>
void multiply(Warp& warp, const Instruction& instruction, std::uint32_t) {
  const auto half = [](std::uint32_t pair, std::size_t which) {
    const auto bits = static_cast<std::uint16_t>(which == 0 ? pair : pair >> 16);
    return E == Element::bf16 ? from_bf16(bits) : from_f16(bits);
  };
  float a[16][16];
  float b[8][16];
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const Thread& thread = *warp.lanes[lane];
    const std::size_t row = lane / 4;
    const std::size_t column = 2 * (lane % 4);
    for (std::size_t i = 0; i < 2; ++i) {
      a[row][column + i] = half(value(thread, instruction, 1, 0), i);
      a[row + 8][column + i] = half(value(thread, instruction, 1, 1), i);
      a[row][column + 8 + i] = half(value(thread, instruction, 1, 2), i);
      a[row + 8][column + 8 + i] = half(value(thread, instruction, 1, 3), i);
      b[row][column + i] = half(value(thread, instruction, 2, 0), i);
      b[row][column + 8 + i] = half(value(thread, instruction, 2, 1), i);
    }
  }
  for (std::size_t lane = 0; lane < 32; ++lane) {
    Thread& thread = *warp.lanes[lane];
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t row = lane / 4 + 8 * (i / 2);
      const std::size_t column = 2 * (lane % 4) + i % 2;
      float sum = 0;
      for (std::size_t k = 0; k < 16; ++k) sum += a[row][k] * b[column][k];
      write(thread, instruction.operands[0][i], bits_of(as<float>(value(thread, instruction, 3, i)) + sum));
    }
  }
}

struct Row {
  Together together;
  int mask_operand;
  std::array<int, 4> numbers;
};

const std::map<std::string, Row>& table() {
  static const std::map<std::string, Row> rows = {
      {"shfl.sync.up.b32", {shuffle, 4, {up}}},
      {"shfl.sync.down.b32", {shuffle, 4, {down}}},
      {"shfl.sync.bfly.b32", {shuffle, 4, {butterfly}}},
      {"shfl.sync.idx.b32", {shuffle, 4, {index}}},
      {"vote.sync.any.pred", {vote, 2, {any}}},
      {"vote.sync.all.pred", {vote, 2, {all}}},
      {"vote.sync.ballot.b32", {vote, 2, {ballot}}},
      {"vote.sync.uni.pred", {vote, 2, {uniform}}},
      {"redux.sync.min.s32", {reduce<std::int32_t, Smaller>, 2, {}}},
      {"redux.sync.max.s32", {reduce<std::int32_t, Larger>, 2, {}}},
      {"redux.sync.min.u32", {reduce<std::uint32_t, Smaller>, 2, {}}},
      {"redux.sync.max.u32", {reduce<std::uint32_t, Larger>, 2, {}}},
      {"redux.sync.add.s32", {reduce<std::int32_t, Add>, 2, {}}},
      {"redux.sync.add.u32", {reduce<std::uint32_t, Add>, 2, {}}},
      {"redux.sync.or.b32", {reduce<std::uint32_t, Or>, 2, {}}},
      {"redux.sync.and.b32", {reduce<std::uint32_t, And>, 2, {}}},
      {"elect.sync", {elect, 1, {}}},
      {"bar.warp.sync", {meet, 0, {}}},
      {"ldmatrix.sync.aligned.m8n8.x1.shared.b16", {load_matrix, -1, {1, 0}}},
      {"ldmatrix.sync.aligned.m8n8.x2.shared.b16", {load_matrix, -1, {2, 0}}},
      {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", {load_matrix, -1, {4, 0}}},
      {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", {load_matrix, -1, {4, 1}}},
      {"stmatrix.sync.aligned.m8n8.x1.shared.b16", {store_matrix, -1, {1, 0}}},
      {"stmatrix.sync.aligned.m8n8.x2.shared.b16", {store_matrix, -1, {2, 0}}},
      {"stmatrix.sync.aligned.m8n8.x4.shared.b16", {store_matrix, -1, {4, 0}}},
      {"stmatrix.sync.aligned.m8n8.x1.trans.shared.b16", {store_matrix, -1, {1, 1}}},
      {"stmatrix.sync.aligned.m8n8.x2.trans.shared.b16", {store_matrix, -1, {2, 1}}},
      {"stmatrix.sync.aligned.m8n8.x4.trans.shared.b16", {store_matrix, -1, {4, 1}}},
      {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", {multiply<Element::bf16>, -1, {}}},
      {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", {multiply<Element::f16>, -1, {}}},
  };
  return rows;
}

}  // namespace

bool decode_warp(const std::string& opcode, Instruction& instruction) {
  const auto found = table().find(opcode);
  if (found == table().end()) return false;
  instruction.together = found->second.together;
  instruction.mask_operand = found->second.mask_operand;
  instruction.numbers = found->second.numbers;
  return true;
}

}  // namespace warploom::emulator
