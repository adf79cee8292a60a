// wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
//
// The product is made when it is issued, so accumulators are never seen half done; that what it reads is not
// overwritten before the group has been waited for is checked (Chunk::readers), and that ordinary stores were fenced.
#include <array>
#include <vector>

#include "decode.h"
#include "grid.h"
#include "numbers.h"

namespace warploom::emulator {
namespace {

// An operand in shared memory by its descriptor ("Matrix Descriptor Format"), 128-byte swizzle.
struct Tile {
  std::uint32_t start = 0;
  std::uint32_t leading = 0;  // bytes between panels of a transposed operand
  std::uint32_t stride = 0;   // bytes between groups of eight rows
  bool transposed = false;
  std::uint32_t value_bytes = 2;

  /// The shared address of value k of row m (of M or N).
  std::uint32_t address(std::uint32_t m, std::uint32_t k) const {
    std::uint32_t at = start;
    if (transposed) {
      const std::uint32_t panel = 128 / value_bytes;
      at += m / panel * leading + k / 8 * stride + k % 8 * 128 + m % panel * value_bytes;
    } else {
      at += m / 8 * stride + m % 8 * 128 + k * value_bytes;
    }
    return at ^ (at >> 7 & 7) << 4;
  }
};

Tile tile_of(std::uint64_t descriptor, bool transposed, std::uint32_t value_bytes) {
  if (descriptor >> 62 != 1) throw EmulationError("a wgmma descriptor without the 128-byte swizzle");
  Tile tile;
  tile.start = static_cast<std::uint32_t>(descriptor & 0x3FFF) << 4;
  tile.leading = static_cast<std::uint32_t>(descriptor >> 16 & 0x3FFF) << 4;
  tile.stride = static_cast<std::uint32_t>(descriptor >> 32 & 0x3FFF) << 4;
  tile.transposed = transposed;
  tile.value_bytes = value_bytes;
  return tile;
}

float number(Element type, const std::uint8_t* from) {
  std::uint16_t half;
  switch (type) {
    case Element::e4m3:
      return from_e4m3(*from);
    case Element::e5m2:
      return from_e5m2(*from);
    default:
      std::memcpy(&half, from, sizeof half);
      return type == Element::bf16 ? from_bf16(half) : from_f16(half);
  }
}

Warpgroup& group_of(Warp& warp) {
  return warp.cta->warpgroups[static_cast<std::size_t>(warp.index / 4)];
}

/// `rows` rows of the operand as floats, [rows][k]; the chunks are noted as being read.
std::vector<float> read_tile(Warp& first_warp, const Tile& tile, Element type, std::uint32_t rows,
                             std::uint32_t depth) {
  Cta& cta = *first_warp.cta;
  std::vector<float> values(static_cast<std::size_t>(rows) * depth);
  std::uint32_t last_chunk = ~0u;
  for (std::uint32_t m = 0; m < rows; ++m) {
    for (std::uint32_t k = 0; k < depth; ++k) {
      const std::uint32_t address = tile.address(m, k);
      const std::uint8_t* from = shared_memory(cta, address, tile.value_bytes, false, nullptr);
      values[m * depth + k] = number(type, from);
      const std::uint32_t chunk = (address - kSharedBase) / 16;
      if (chunk == last_chunk) continue;
      last_chunk = chunk;
      check_async_read(cta, address & ~15u, 16, *first_warp.lanes[0]);
      ++cta.chunks[chunk].readers;
      group_of(first_warp).open_reads.push_back(chunk);
    }
  }
  return values;
}

// A fragment in registers: four registers a lane, 16 rows a warp.
std::vector<float> read_registers(Warp* warps, const std::vector<Operand>& registers, Element type,
                                  std::uint32_t depth) {
  std::vector<float> values(64 * depth);
  const std::uint32_t value_bytes = 32 / depth;
  const std::uint32_t per_register = 4 / value_bytes;
  for (std::uint32_t thread = 0; thread < 128; ++thread) {
    const std::uint32_t lane = thread % 32;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const auto bits = static_cast<std::uint32_t>(read(*warps[thread / 32].lanes[lane], registers[i]));
      const std::uint32_t row = thread / 32 * 16 + lane / 4 + 8 * (i % 2);
      const std::uint32_t column = per_register * (lane % 4) + i / 2 * (depth / 2);
      std::array<std::uint8_t, 4> bytes{};
      std::memcpy(bytes.data(), &bits, 4);
      for (std::uint32_t j = 0; j < per_register; ++j) {
        values[row * depth + column + j] = number(type, bytes.data() + j * value_bytes);
      }
    }
  }
  return values;
}

// numbers: N, K, type.
void multiply(Warp& first, const Instruction& instruction, std::uint32_t) {
  Warp* warps = &first;
  const auto n = static_cast<std::uint32_t>(instruction.numbers[0]);
  const auto depth = static_cast<std::uint32_t>(instruction.numbers[1]);
  const auto type = static_cast<Element>(instruction.numbers[2]);
  const std::uint32_t value_bytes = 32 / depth;
  const Thread& lane0 = *first.lanes[0];
  const auto transposed = [&](std::size_t operand) {
    return instruction.operands.size() > operand && read(lane0, instruction.operands[operand][0]) != 0;
  };
  const bool from_registers = instruction.operands[1].size() == 4;
  const std::vector<float> a =
      from_registers ? read_registers(warps, instruction.operands[1], type, depth)
                     : read_tile(first, tile_of(read(lane0, instruction.operands[1][0]), transposed(6), value_bytes),
                                 type, 64, depth);
  const Tile tile = tile_of(read(lane0, instruction.operands[2][0]), transposed(from_registers ? 6 : 7), value_bytes);
  const std::vector<float> b = read_tile(first, tile, type, n, depth);
  const bool accumulates = read(lane0, instruction.operands[3][0]) != 0;
  for (std::uint32_t number = 0; number < 128; ++number) {
    const std::uint32_t lane = number % 32;
    Thread& thread = *warps[number / 32].lanes[lane];
    for (std::uint32_t i = 0; i < n / 2; ++i) {
      const std::uint32_t row = number / 32 * 16 + lane / 4 + 8 * (i / 2 % 2);
      const std::uint32_t column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
      float sum = 0;
      for (std::uint32_t k = 0; k < depth; ++k) sum += a[row * depth + k] * b[column * depth + k];
      const Operand& d = instruction.operands[0][i];
      write(thread, d, bits_of(accumulates ? as<float>(read(thread, d)) + sum : sum));
    }
  }
}

// The warps close and wait for groups one by one; a group is closed by the first warp that comes, and complete for all
// of them as soon as one of them has waited for it.
void commit(Warp& warp, const Instruction&, std::uint32_t) {
  Warpgroup& group = group_of(warp);
  if (++warp.commits <= group.finished + group.reads.size()) return;
  group.reads.push_back(std::move(group.open_reads));
  group.open_reads.clear();
}

void wait(Warp& warp, const Instruction& instruction, std::uint32_t) {
  const std::uint64_t newest = read(*warp.lanes[0], instruction.operands[0][0]);
  Warpgroup& group = group_of(warp);
  for (; group.finished + newest < warp.commits && !group.reads.empty(); ++group.finished) {
    for (const std::uint32_t chunk : group.reads.front()) --warp.cta->chunks[chunk].readers;
    group.reads.pop_front();
  }
}

void fence(Warp&, const Instruction&, std::uint32_t) {}

}  // namespace

bool decode_wgmma(const std::string& opcode, Instruction& instruction) {
  constexpr const char* product = "wgmma.mma_async.sync.aligned.m64n";
  if (opcode == "wgmma.fence.sync.aligned") {
    instruction.together = fence;
  } else if (opcode == "wgmma.commit_group.sync.aligned") {
    instruction.together = commit;
  } else if (opcode == "wgmma.wait_group.sync.aligned") {
    instruction.together = wait;
  } else if (opcode.starts_with(product)) {
    const std::size_t k = opcode.find('k', std::string(product).size());
    instruction.numbers[0] = std::stoi(opcode.substr(std::string(product).size()));
    instruction.numbers[1] = std::stoi(opcode.substr(k + 1));
    const std::string type = opcode.substr(opcode.rfind('.') + 1);
    instruction.numbers[2] = static_cast<int>(type == "bf16"   ? Element::bf16
                                              : type == "f16"  ? Element::f16
                                              : type == "e4m3" ? Element::e4m3
                                                               : Element::e5m2);
    instruction.together = multiply;
    instruction.warpgroup = true;
  } else {
    return false;
  }
  return true;
}

}  // namespace warploom::emulator
