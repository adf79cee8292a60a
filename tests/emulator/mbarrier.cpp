#include "mbarrier.h"

#include <cstring>

namespace warploom::emulator {
namespace {

struct State {
  std::uint64_t phase : 1;
  std::uint64_t pending : 16;
  std::uint64_t arrivals : 16;
  std::int64_t bytes : 24;
  std::uint64_t mark : 7;  // tells an mbarrier from other memory
};
static_assert(sizeof(State) == 8);
constexpr std::uint64_t kMark = 0x55;

State load(Cta& cta, std::uint32_t address) {
  if (address % 8 != 0) throw EmulationError("an mbarrier's address is no multiple of 8");
  State state;
  std::memcpy(&state, shared_memory(cta, address, sizeof state, false, nullptr), sizeof state);
  if (state.mark != kMark) {
    throw EmulationError("there is no initialised mbarrier at shared address " + std::to_string(address - kSharedBase));
  }
  return state;
}

void store(Cta& cta, std::uint32_t address, State state) {
  if (state.pending == 0 && state.bytes == 0) {
    state.phase ^= 1;
    state.pending = state.arrivals;
  }
  std::memcpy(shared_memory(cta, address, sizeof state, true, nullptr), &state, sizeof state);
}

}  // namespace

void init_mbarrier(Cta& cta, std::uint32_t address, std::uint32_t arrivals) {
  State state{};
  state.pending = state.arrivals = arrivals & 0xFFFF;
  state.mark = kMark;
  if (arrivals == 0) throw EmulationError("an mbarrier of no arrivals");
  store(cta, address, state);
}

void expect_bytes(Cta& cta, std::uint32_t address, std::int64_t bytes) {
  State state = load(cta, address);
  const std::int64_t sum = state.bytes + bytes;
  if (sum >= 1 << 20 || sum <= -(1 << 20)) throw EmulationError("an mbarrier's byte count leaves its range");
  state.bytes = sum & 0xFFFFFF;
  store(cta, address, state);
}

void arrive(Cta& cta, std::uint32_t address) {
  State state = load(cta, address);
  if (state.pending == 0) throw EmulationError("more arrivals at an mbarrier than its phase has");
  --state.pending;
  store(cta, address, state);
}

bool phase_ended(Cta& cta, std::uint32_t address, std::uint32_t parity) {
  return load(cta, address).phase != (parity & 1);
}

std::string describe_mbarrier(Cta& cta, std::uint32_t address) {
  const State state = load(cta, address);
  return "it is in its phase of parity " + std::to_string(state.phase) + ", " + std::to_string(state.pending) + " of " +
         std::to_string(state.arrivals) + " arrivals and " + std::to_string(state.bytes) + " bytes to come";
}

}  // namespace warploom::emulator
