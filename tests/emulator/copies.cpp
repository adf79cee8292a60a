// Asynchronous copies: cp.async, bulk copies, and TMA (PTX ISA, "Data Movement and Conversion Instructions:
// Asynchronous copy").
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include "decode.h"
#include "grid.h"
#include "mbarrier.h"
#include "numbers.h"
#include "tensor_map.h"

namespace warploom::emulator {
namespace {

using Alone = Instruction::Alone;

std::uint64_t value(const Thread& thread, const Instruction& instruction, std::size_t operand,
                    std::size_t element = 0) {
  return read(thread, instruction.operands[operand][element]);
}

bool late(const Thread& thread) {
  return thread.warp->cta->grid->launch->order.seed != 0;
}

void wait_for(std::deque<std::vector<Copy>>& groups, std::size_t newest) {
  for (; groups.size() > newest; groups.pop_front()) make_all(groups.front());
}

// cp.async [shared], [global], size(, bytes): what is not read becomes zeros. numbers: operands before the last count.
After copy_async(Thread& thread, const Instruction& instruction) {
  const auto to = static_cast<std::uint32_t>(value(thread, instruction, 0));
  const std::uint64_t from = value(thread, instruction, 1);
  const std::uint64_t size = value(thread, instruction, 2);
  const std::uint64_t bytes = instruction.operands.size() > 3 ? std::min(size, value(thread, instruction, 3)) : size;
  if (to % size != 0 || (bytes > 0 && from % size != 0))
    throw EmulationError("cp.async of addresses that are not aligned");
  Copy copy{[&thread, to, from, size, bytes] {
    std::uint8_t* into = shared_memory(*thread.warp->cta, to, size, true, &thread);
    if (bytes > 0) std::memcpy(into, global_range(from, bytes), bytes);
    std::memset(into + bytes, 0, size - bytes);
  }};
  if (late(thread)) {
    thread.open_copies.push_back(std::move(copy));
  } else {
    copy.make();
  }
  return After::next;
}
After commit_copies(Thread& thread, const Instruction&) {
  thread.copies.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
  return After::next;
}
After wait_copies(Thread& thread, const Instruction& instruction) {
  wait_for(thread.copies, value(thread, instruction, 0));
  return After::next;
}
After wait_all_copies(Thread& thread, const Instruction&) {
  wait_for(thread.copies, 0);
  make_all(thread.open_copies);
  return After::next;
}
After arrive_after_copies(Thread& thread, const Instruction& instruction) {
  std::vector<Copy> before;
  for (std::vector<Copy>& group : thread.copies) std::move(group.begin(), group.end(), std::back_inserter(before));
  std::move(thread.open_copies.begin(), thread.open_copies.end(), std::back_inserter(before));
  thread.copies.clear();
  thread.open_copies.clear();
  Cta* cta = thread.warp->cta;
  const auto barrier = static_cast<std::uint32_t>(value(thread, instruction, 0));
  cta->grid->start({[cta, barrier, copies = std::move(before)]() mutable {
    make_all(copies);
    arrive(*cta, barrier);
  }});
  return After::next;
}

int bytes_of(std::uint8_t type) {
  static constexpr std::array<int, 13> bytes = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};  // CUtensorMapDataType
  return bytes.at(type);
}

template <typename T>
void add_to(std::uint8_t* to, const std::uint8_t* from) {
  T sum;
  T one;
  std::memcpy(&sum, to, sizeof sum);
  std::memcpy(&one, from, sizeof one);
  sum = static_cast<T>(sum + one);
  std::memcpy(to, &sum, sizeof sum);
}

// One element of a box, by its CUtensorMapDataType.
void add_element(std::uint8_t type, std::uint8_t* to, const std::uint8_t* from) {
  constexpr int kUint32 = 2;
  constexpr int kInt32 = 3;
  constexpr int kFloat16 = 6;
  constexpr int kFloat32 = 7;
  constexpr int kBfloat16 = 9;
  std::uint16_t sum = 0;
  std::uint16_t one = 0;
  switch (type) {
    case kUint32:
    case kInt32:
      return add_to<std::uint32_t>(to, from);
    case kFloat32:
      return add_to<float>(to, from);
    case kFloat16:
    case kBfloat16:
      std::memcpy(&sum, to, sizeof sum);
      std::memcpy(&one, from, sizeof one);
      sum = type == kFloat16 ? to_f16(from_f16(sum) + from_f16(one)) : to_bf16(from_bf16(sum) + from_bf16(one));
      std::memcpy(to, &sum, sizeof sum);
      return;
    default:
      throw EmulationError("a box of element type " + std::to_string(type) + " is added to a tensor");
  }
}

// Where the 16 bytes at `offset` of a box really stand (PTX ISA, "Swizzling modes"): the pattern follows the address.
std::uint32_t swizzled(std::uint32_t address, int swizzle) {
  const std::uint32_t mask = swizzle == 3 ? 7 : swizzle == 2 ? 3 : swizzle == 1 ? 1 : 0;
  return address ^ (address >> 7 & mask) << 4;
}

struct Box {
  TensorMap map;
  std::array<std::int64_t, 5> corner{};
  std::uint32_t shared = 0;

  std::uint32_t bytes() const {
    auto bytes = static_cast<std::uint32_t>(bytes_of(map.element_type));
    for (std::size_t i = 0; i < map.rank; ++i) bytes *= map.box[i];
    return bytes;
  }

  /// For each element: its shared address, and its global one (0: outside of the tensor).
  template <typename Function>
  void each(Function function) const {
    const auto element = static_cast<std::uint32_t>(bytes_of(map.element_type));
    std::array<std::uint32_t, 5> place{};
    const std::uint32_t count = bytes() / element;
    for (std::uint32_t number = 0; number < count; ++number) {
      bool inside = true;
      std::uint64_t address = map.address;
      for (std::size_t i = 0; i < map.rank; ++i) {
        const std::int64_t at = corner[i] + place[i];
        const std::int64_t extent = map.dims[i] == 0 ? std::int64_t{1} << 32 : map.dims[i];
        inside = inside && at >= 0 && at < extent;
        address += static_cast<std::uint64_t>(at) * (i == 0 ? element : map.strides[i - 1]);
      }
      const std::uint32_t linear = shared + number * element;
      function(swizzled(linear & ~15u, map.swizzle) | (linear & 15), inside ? address : 0, element);
      for (std::size_t i = 0; i < map.rank && ++place[i] == map.box[i]; ++i) place[i] = 0;
    }
  }
};

Box box_of(const Thread& thread, const Instruction& instruction, std::size_t map_operand, std::size_t shared_operand) {
  Box box;
  std::memcpy(&box.map, global_range(value(thread, instruction, map_operand), sizeof box.map), sizeof box.map);
  if (box.map.mark != kTensorMapMark) throw EmulationError("there is no tensor map at this address");
  if (instruction.operands[map_operand].size() != box.map.rank + 1u)
    throw EmulationError("coordinates do not fit the tensor map's rank");
  for (std::size_t i = 0; i < box.map.rank; ++i) {
    box.corner[i] = static_cast<std::int32_t>(value(thread, instruction, map_operand, i + 1));
  }
  box.shared = static_cast<std::uint32_t>(value(thread, instruction, shared_operand));
  if (box.shared % 128 != 0) throw EmulationError("the shared address of a TMA copy is not aligned to 128 bytes");
  return box;
}

void load_box(Cta& cta, const Box& box, std::uint32_t barrier) {
  box.each([&](std::uint32_t shared, std::uint64_t global, std::uint32_t element) {
    std::uint8_t* to = shared_memory(cta, shared, element, true, nullptr);
    if (global == 0) {
      std::memset(to, 0, element);
    } else {
      std::memcpy(to, global_range(global, element), element);
    }
  });
  expect_bytes(cta, barrier, -static_cast<std::int64_t>(box.bytes()));
}

// [shared], [map, {coordinates}], [mbarrier](, ctas), policy. numbers: multicast.
After load_tensor(Thread& thread, const Instruction& instruction) {
  const Box box = box_of(thread, instruction, 1, 0);
  const auto barrier = static_cast<std::uint32_t>(value(thread, instruction, 2));
  Cta& own = *thread.warp->cta;
  std::uint64_t ctas = 1ull << own.rank;
  if (instruction.numbers[0] != 0) ctas = value(thread, instruction, 3) & 0xFFFF;
  for (Cta* cta : own.cluster) {
    if ((ctas >> cta->rank & 1) != 0) own.grid->start({[cta, box, barrier] { load_box(*cta, box, barrier); }});
  }
  return After::next;
}

void keep_store(Thread& thread, Copy copy) {
  if (late(thread)) {
    thread.open_stores.push_back(std::move(copy));
  } else {
    copy.make();
  }
}

// [map, {coordinates}], [shared], policy. numbers: added to what is there.
After store_tensor(Thread& thread, const Instruction& instruction) {
  const Box box = box_of(thread, instruction, 0, 1);
  Cta& cta = *thread.warp->cta;
  check_async_read(cta, box.shared, box.bytes(), thread);
  const bool adds = instruction.numbers[0] != 0;
  keep_store(thread, {[&cta, box, adds] {
               box.each([&](std::uint32_t shared, std::uint64_t global, std::uint32_t element) {
                 if (global == 0) return;
                 const std::uint8_t* from = shared_memory(cta, shared, element, false, nullptr);
                 std::uint8_t* to = global_range(global, element);
                 if (adds) {
                   add_element(box.map.element_type, to, from);
                 } else {
                   std::memcpy(to, from, element);
                 }
               });
             }});
  return After::next;
}

// [shared], [global], bytes, [mbarrier], policy. numbers: from the CTA's own shared memory, to any of the cluster.
After load_bulk(Thread& thread, const Instruction& instruction) {
  const auto to = static_cast<std::uint32_t>(value(thread, instruction, 0));
  const std::uint64_t from = value(thread, instruction, 1);
  const std::uint64_t bytes = value(thread, instruction, 2) & 0xFFFFFFFF;
  const auto barrier = static_cast<std::uint32_t>(value(thread, instruction, 3));
  if (to % 16 != 0 || from % 16 != 0 || bytes % 16 != 0)
    throw EmulationError("a bulk copy that is not aligned to 16 bytes");
  Cta* cta = thread.warp->cta;
  const bool from_shared = instruction.numbers[0] != 0;
  const auto own = static_cast<std::uint32_t>(from);
  if (from_shared && bytes > 0) check_async_read(*cta, own, bytes, thread);
  cta->grid->start({[=] {
    if (bytes > 0) {
      const std::uint8_t* source =
          from_shared ? shared_memory(*cta, own, bytes, false, nullptr) : global_range(from, bytes);
      std::memcpy(shared_memory(*cta, to, bytes, true, nullptr), source, bytes);
    }
    expect_bytes(*cta, barrier, -static_cast<std::int64_t>(bytes));
  }});
  return After::next;
}

// [global], [shared], bytes, policy. numbers: added to what is there.
After store_bulk(Thread& thread, const Instruction& instruction) {
  const std::uint64_t to = value(thread, instruction, 0);
  const auto from = static_cast<std::uint32_t>(value(thread, instruction, 1));
  const std::uint64_t bytes = value(thread, instruction, 2) & 0xFFFFFFFF;
  if (to % 16 != 0 || from % 16 != 0 || bytes % 16 != 0)
    throw EmulationError("a bulk copy that is not aligned to 16 bytes");
  if (bytes == 0) return After::next;
  Cta& cta = *thread.warp->cta;
  check_async_read(cta, from, bytes, thread);
  const bool adds = instruction.numbers[0] != 0;
  keep_store(thread, {[&cta, to, from, bytes, adds] {
               const std::uint8_t* source = shared_memory(cta, from, bytes, false, nullptr);
               std::uint8_t* target = global_range(to, bytes);
               if (!adds) {
                 std::memcpy(target, source, bytes);
                 return;
               }
               for (std::size_t i = 0; i < bytes; i += sizeof(float)) add_to<float>(target + i, source + i);
             }});
  return After::next;
}

After commit_stores(Thread& thread, const Instruction&) {
  thread.stores.push_back(std::move(thread.open_stores));
  thread.open_stores.clear();
  return After::next;
}
After wait_stores(Thread& thread, const Instruction& instruction) {
  wait_for(thread.stores, value(thread, instruction, 0));
  return After::next;
}

}  // namespace

bool decode_copies(const std::string& opcode, Instruction& instruction) {
  static const std::map<std::string, Alone> exact = {
      {"cp.async.commit_group", commit_copies},      {"cp.async.wait_group", wait_copies},
      {"cp.async.wait_all", wait_all_copies},        {"cp.async.mbarrier.arrive.noinc.shared.b64", arrive_after_copies},
      {"cp.async.bulk.commit_group", commit_stores}, {"cp.async.bulk.wait_group", wait_stores},
      {"cp.async.bulk.wait_group.read", wait_stores}};
  const auto has = [&opcode](const char* part) { return opcode.find(part) != std::string::npos; };
  if (const auto found = exact.find(opcode); found != exact.end()) {
    instruction.alone = found->second;
  } else if (opcode.starts_with("cp.async.bulk.tensor") && has("mbarrier::complete_tx")) {
    instruction.alone = load_tensor;
    instruction.numbers[0] = has("multicast") ? 1 : 0;
  } else if (opcode.starts_with("cp.async.bulk.tensor") || opcode.starts_with("cp.reduce.async.bulk.tensor")) {
    instruction.alone = store_tensor;
    instruction.numbers[0] = has("reduce") ? 1 : 0;
  } else if (opcode.starts_with("cp.async.bulk.shared::cluster.global")) {
    instruction.alone = load_bulk;
  } else if (opcode.starts_with("cp.async.bulk.shared::cluster.shared::cta")) {
    instruction.alone = load_bulk;
    instruction.numbers[0] = 1;
  } else if (opcode.starts_with("cp.async.bulk.global") || opcode.starts_with("cp.reduce.async.bulk.global")) {
    instruction.alone = store_bulk;
    instruction.numbers[0] = has("reduce") ? 1 : 0;
  } else if (opcode.starts_with("cp.async.ca.shared.global") || opcode.starts_with("cp.async.cg.shared.global")) {
    instruction.alone = copy_async;
  } else {
    return false;
  }
  return true;
}

}  // namespace warploom::emulator
